"""Mistakes that are not in the catalogue, and correct classes of unusual form."""

# ruff: noqa: E501 - submissions have long lines, and the edits must match them

from planted_mistakes import BOOK, HEAD, MINIMAL, WRAPPER, edited

FUSED = (
    HEAD
    + """\
class SelfAttn(nn.Module):
    def __init__(self, dim, num_heads=4, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, D = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, D // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        match = (q @ k.mT) * self.scale
        match = match.softmax(dim=-1)
        x = (match @ v).transpose(1, 2).reshape(B, N, D)
        return self.proj(x)
"""
)
_MASKED = 's = s.masked_fill(m == 0, float("-inf"))'
_REQUIRED = edited(
    FUSED,
    [
        ("def forward(self, x):", "def forward(self, x, mask):"),
        ("        match = match.softmax", "        match = match.masked_fill(mask.bool(), float('-inf'))\n        match = match.softmax"),
    ],
)  # fmt: skip

_ROPE = """\
def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


class RopeAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_len=64):
        super().__init__()
        self.h, self.hd = n_heads, d_model // n_heads
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v, self.o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        inv = 1.0 / (10000 ** (torch.arange(0, self.hd, 2).double() / self.hd))
        angles = torch.outer(torch.arange(max_len).double(), inv)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.h, self.hd).transpose(1, 2) for f in (self.q, self.k, self.v))
        q = q * self.cos[:n] + rotate_half(q) * self.sin[:n]
        k = k * self.cos[:n] + rotate_half(k) * self.sin[:n]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, n, d))
"""

_GIVEN_ANGLES = """\
def turn(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class TurnedAttention(nn.Module):
    def __init__(self, width, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.hd = n_heads, width // n_heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, n_kv_heads * self.hd, bias=False) for _ in range(2))

    def forward(self, x, cos, sin):
        q, k, v = (w(x).unflatten(-1, (-1, self.hd)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2))
"""
_COMPLEX = """\
class ComplexTurns(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def turned(self, t, freqs_cis):
        pairs = torch.view_as_complex(t.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2)

    def forward(self, x, freqs_cis):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, self.head_dim)).unbind(2)
        q, k = self.turned(q, freqs_cis), self.turned(k, freqs_cis)
        match = torch.einsum("bihd,bjhd->bhij", q, k) * self.head_dim**-0.5
        hidden = torch.full_like(match[0, 0], float("-inf")).triu(1)
        share = (match + hidden).softmax(dim=-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", share, v).flatten(2))
"""

_ATTEND = edited(
    MINIMAL,
    [
        ("import torch.nn.functional as F\n", "import torch.nn.functional as F\nfrom torch.nn.functional import scaled_dot_product_attention as attend\n"),
        ("        a = F.softmax(s, dim=-1)\n        a = self.drop(a)\n        y = a @ v\n", "        y = self.drop(attend(q, k, v, attn_mask=m == 0))\n"),
        (" / math.sqrt(self.dk)", ""),
    ],
)  # fmt: skip
_ASKED = edited(
    MINIMAL,
    [
        ("p=0.1, bias=True", "causal: bool, p=0.1, bias=True"),
        ("self.h = h", "self.h = h\n        self.causal = causal"),
        ("        s = s.masked", "        if self.causal:\n            s = s.masked"),
    ],
)  # fmt: skip
_SHARED = """\
class SharedProjection(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads, self.each = heads, embed_size // heads
        self.values, self.keys, self.queries = (nn.Linear(self.each, self.each) for _ in range(3))
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        parts = x.unflatten(-1, (self.heads, self.each)).transpose(1, 2)
        match = self.queries(parts) @ self.keys(parts).mT / self.each**0.5
        return self.fc_out((match.softmax(-1) @ self.values(parts)).transpose(1, 2).flatten(2))
"""
_BLOCK_SIZE = edited(
    FUSED,
    [
        ("num_heads=4,", "num_heads, block_size,"),
        ("        self.proj", "        self.block_size = block_size\n        self.proj"),
    ],
)  # fmt: skip

# name -> (what must be named, the file)
BEYOND: dict[str, tuple[set[str], str]] = {
    "sigmoid": ({"no-softmax"}, edited(FUSED, [("match.softmax(dim=-1)", "match.sigmoid()")])),
    "keys viewed": ({"keys-viewed-not-transposed"}, edited(FUSED, [("k.mT", "k.reshape(B, self.num_heads, -1, N)")])),
    "no transpose at all": ({"split-without-transpose"}, edited(FUSED, [("permute(2, 0, 3, 1, 4)", "permute(2, 0, 1, 3, 4)"), (".transpose(1, 2).reshape", ".reshape")])),
    "over the batch": ({"softmax-over-batch"}, edited(FUSED, [("dim=-1)", "dim=0)")])),
    "over all cells": ({"softmax-over-everything"}, edited(FUSED, [("match.softmax(dim=-1)", "match.flatten(2).softmax(-1).view_as(match)")])),
    "wrong power": ({"wrong-scale"}, edited(FUSED, [("** -0.5", "** -2.0")])),
    "all from queries": ({"key-from-query-weights", "value-from-queries"}, edited(FUSED, [("qkv[0], qkv[1], qkv[2]", "qkv[0], qkv[0], qkv[0]")])),
    "weights transposed": ({"weights-transposed"}, edited(FUSED, [("match @ v", "match.transpose(-2, -1) @ v")])),
    "einsum with a wrong letter": ({"unexplained"}, edited(FUSED, [("(match @ v)", "torch.einsum('bhqk,bhvd->bhqd', match, v)")])),
    "required mask, wrong axis": ({"softmax-over-queries"}, edited(_REQUIRED, [("dim=-1)", "dim=-2)")])),
    "plus infinity": ({"mask-fill-not-inf"}, edited(MINIMAL, [('float("-inf")', 'float("inf")')])),
    "mask of ones added": ({"mask-added-not-filled"}, edited(MINIMAL, [(_MASKED, "s = s + m")])),
    "mask multiplied": ({"mask-fill-not-inf"}, edited(MINIMAL, [(_MASKED, "s = s * m")])),
    "mask added, inverted": ({"mask-inverted"}, edited(MINIMAL, [(_MASKED, "s = s + m * -1e9")])),
    "one head masked": ({"unexplained"}, edited(MINIMAL, [(_MASKED, "s[:, 0] = s[:, 0].masked_fill(m == 0, float('-inf'))")])),
    "only keys viewed wrongly": ({"split-without-transpose"}, edited(MINIMAL, [("k = self.W_k(x).view(B, T, self.h, self.dk).transpose(1, 2)", "k = self.W_k(x).view(B, self.h, T, self.dk)")])),
    "merged over the batch": ({"merge-without-transpose"}, edited(BOOK, [("(weights @ values).transpose(1, 2)", "(weights @ values).transpose(0, 1)")])),
    "values detached": ({"values-detached"}, edited(MINIMAL, [("y = a @ v", "y = a @ v.detach()")])),
    "nothing returned": ({"no-return"}, edited(BOOK, [("        return mixed\n", "")])),
    "heads ignored": ({"heads-ignored"}, edited(MINIMAL, [("self.h = h", "self.h = 1"), ("self.dk = d // h", "self.dk = d")])),
    "widths exchanged": ({"wrong-width"}, edited(BOOK, [("self.W_query = nn.Linear(d_in, d_out", "self.W_query = nn.Linear(d_out, d_in")])),
    "only queries turned": ({"rotary-on-one-side"}, HEAD + edited(_ROPE, [("        k = k * self.cos[:n] + rotate_half(k) * self.sin[:n]\n", "")])),
    "only keys turned, pairs": ({"rotary-on-one-side"}, HEAD + edited(_COMPLEX, [("self.turned(q, freqs_cis), self", "q, self")])),
    "values turned": ({"rotary-on-values"}, HEAD + edited(_ROPE, [("        y = F", "        v = v * self.cos[:n] + rotate_half(v) * self.sin[:n]\n        y = F")])),
    "angles given, values turned": ({"rotary-on-values"}, HEAD + edited(_GIVEN_ANGLES, [("        y = F", "        v = turn(v, cos, sin)\n        y = F")])),
    "angles given and not used": ({"rotary-unused"}, HEAD + edited(_GIVEN_ANGLES, [("        q, k = turn(q, cos, sin), turn(k, cos, sin)\n", "")])),
    "angles given, no scale": ({"wrong-scale"}, HEAD + edited(_GIVEN_ANGLES, [("enable_gqa", "scale=0.9, enable_gqa")])),
    "sdpa imported under another name": ({"sdpa-mask-polarity"}, _ATTEND),
    "sdpa assigned to another name": ({"sdpa-mask-polarity"}, edited(_ATTEND, [("from torch.nn.functional import scaled_dot_product_attention as attend\n", "F.attend = F.scaled_dot_product_attention\n"), ("attend(q", "F.attend(q")])),
    "sdpa in a function of one's own": ({"sdpa-mask-polarity"}, edited(_ATTEND, [("from torch.nn.functional import scaled_dot_product_attention as attend\n", "def attend(q, k, v, attn_mask):\n    return F.scaled_dot_product_attention(q, k, v, attn_mask)\n")])),
    "causal must be said, and the mask is upside down": ({"mask-inverted"}, edited(_ASKED, [("== 0", "== 1")])),
    "projected inside each head, √d": ({"scale-by-d-out", "heads-share-projection"}, HEAD + edited(_SHARED, [("self.each**0.5", "x.shape[-1] ** 0.5")])),
    "super without parentheses": ({"no-super-init"}, edited(MINIMAL, [("super().__init__()", "super.__init__()")])),
    "dropped in a helper function": ({"mask-result-dropped"}, edited(MINIMAL, [("class Attn", "def hide(s, m):\n    s.masked_fill(m == 0, float('-inf'))\n    return s\n\n\nclass Attn"), (_MASKED, "s = hide(s, m)")])),
    "residual, no scale": ({"missing-scale"}, edited(MINIMAL, [("return self.proj(y)", "return x + self.proj(y)"), (" / math.sqrt(self.dk)", "")])),
}  # fmt: skip

UNUSUAL: dict[str, str] = {
    "fused, for images": FUSED,
    "heads in a list": WRAPPER,
    "rotary": HEAD + _ROPE,
    "rotary, angles given": HEAD + _GIVEN_ANGLES,
    "rotary, angles as complex numbers": HEAD + _COMPLEX,
    "rotary, pairs of cosine and sine": HEAD + edited(_COMPLEX, [("pairs * freqs_cis[:, None]", "pairs * torch.view_as_complex(freqs_cis.view(t.size(1), 1, -1, 2))")]),
    "causal must be said": _ASKED,
    "a mask for decoders only": edited(_ASKED, [("causal: bool,", "in_encoder=True,"), ("self.causal = causal", "self.in_encoder = in_encoder"), ("if self.causal", "if not self.in_encoder")]),
    "an encoder with a context length for its positions": edited(_BLOCK_SIZE, [("        self.block_size = block_size\n", "        self.place = nn.Embedding(block_size, dim)\n        nn.init.zeros_(self.place.weight)\n"), ("        B, N, D = x.shape\n", "        B, N, D = x.shape\n        x = x + 0 * self.place.weight[:N]\n")]),
    "an encoder that says so": edited(_BLOCK_SIZE, [("class SelfAttn(", "class EncoderSelfAttn(")]),
    "a mask that must be given, 1 = hide": _REQUIRED,
    "a mask that must be given, 1 = keep": edited(_REQUIRED, [("mask.bool()", "mask == 0")]),
    "queries and keys normed": edited(FUSED, [("        self.proj", "        self.qn, self.kn = nn.LayerNorm(dim // num_heads), nn.LayerNorm(dim // num_heads)\n        self.proj"), ("        match = (q", "        q, k = self.qn(q), self.kn(k)\n        match = (q")]),
    "padding mask, True = padded": edited(FUSED, [("def forward(self, x):", "def forward(self, x, key_padding_mask=None):"), ("        match = match.softmax", "        if key_padding_mask is not None:\n            match = match.masked_fill(key_padding_mask[:, None, None], float('-inf'))\n        match = match.softmax")]),
    "padding, 1 = real as it says": edited(FUSED, [("def forward(self, x):", "def forward(self, x, pad_mask=None):  # 1 = real token"), ("        match = match.softmax", "        if pad_mask is not None:\n            match = match.masked_fill(pad_mask[:, None, None] == 0, float('-inf'))\n        match = match.softmax")]),
    "lazy": edited(MINIMAL, [(f"self.W_{c} = nn.Linear(d, d, bias=bias)", f"self.W_{c} = nn.LazyLinear(d, bias=bias)") for c in "qkv"]),
    "learned scale": edited(MINIMAL, [("self.drop = nn.Dropout(p)", "self.drop = nn.Dropout(p)\n        self.temp = nn.Parameter(torch.ones(1))"), ("math.sqrt(self.dk)", "(math.sqrt(self.dk) * self.temp.exp())")]),
    "window": edited(MINIMAL, [("p=0.1", "window=3, p=0.1"), ("self.h = h", "self.h = h\n        self.w = window"), ("m == 0", "m.triu(1 - self.w) == 0")]),
    "residual inside": edited(MINIMAL, [("return self.proj(y)", "return x + self.proj(y)")]),
    "dropped at the output too": edited(MINIMAL, [("return self.proj(y)", "return self.drop(self.proj(y))")]),
}  # fmt: skip

# Nothing in it says whether it is causal.
MAYBE_CAUSAL = _BLOCK_SIZE

# Signs of causality that mean nothing: a flag that is off, and one of a class that takes a mask.
_OFF = edited(FUSED, [("        self.proj", "        self.is_causal = False\n        self.proj")])
UNUSUAL["a flag that is off"] = _OFF
UNUSUAL["a flag beside a mask that is an argument"] = edited(
    _OFF,
    [
        ("self.is_causal = False", "self.is_causal = True"),
        ("def forward(self, x):", "def forward(self, x, mask=None):"),
        ("        match = match.softmax", "        match = match if mask is None else match + mask\n        match = match.softmax"),
    ],
)  # fmt: skip

# Attention beside another layer.
CONVOLVED = edited(
    FUSED,
    [
        ("        self.proj", "        self.near = nn.Conv1d(dim, dim, 3, padding=1)\n        self.proj"),
        ("return self.proj(x)", "return self.proj(x + self.near(x.mT).mT)"),
    ],
)  # fmt: skip
