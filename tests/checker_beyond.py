"""Mistakes that are in no list, and right classes of unusual form."""

# ruff: noqa: E501 - strangers write long lines, and the edits must match them

from checker_cases import BOOK, HEAD, MINIMAL, edited

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
    "residual, no scale": ({"missing-scale"}, edited(MINIMAL, [("return self.proj(y)", "return x + self.proj(y)"), (" / math.sqrt(self.dk)", "")])),
}  # fmt: skip

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

UNUSUAL: dict[str, str] = {
    "fused, for images": FUSED,
    "rotary": HEAD + _ROPE,
    "a mask that must be given, 1 = hide": _REQUIRED,
    "a mask that must be given, 1 = keep": edited(_REQUIRED, [("mask.bool()", "mask == 0")]),
    "queries and keys normed": edited(FUSED, [("        self.proj", "        self.qn, self.kn = nn.LayerNorm(dim // num_heads), nn.LayerNorm(dim // num_heads)\n        self.proj"), ("        match = (q", "        q, k = self.qn(q), self.kn(k)\n        match = (q")]),
    "padding, True = filling": edited(FUSED, [("def forward(self, x):", "def forward(self, x, key_padding_mask=None):"), ("        match = match.softmax", "        if key_padding_mask is not None:\n            match = match.masked_fill(key_padding_mask[:, None, None], float('-inf'))\n        match = match.softmax")]),
    "padding, 1 = real as it says": edited(FUSED, [("def forward(self, x):", "def forward(self, x, pad_mask=None):  # 1 = real token"), ("        match = match.softmax", "        if pad_mask is not None:\n            match = match.masked_fill(pad_mask[:, None, None] == 0, float('-inf'))\n        match = match.softmax")]),
    "lazy": edited(MINIMAL, [(f"self.W_{c} = nn.Linear(d, d, bias=bias)", f"self.W_{c} = nn.LazyLinear(d, bias=bias)") for c in "qkv"]),
    "learned scale": edited(MINIMAL, [("self.drop = nn.Dropout(p)", "self.drop = nn.Dropout(p)\n        self.temp = nn.Parameter(torch.ones(1))"), ("math.sqrt(self.dk)", "(math.sqrt(self.dk) * self.temp.exp())")]),
    "window": edited(MINIMAL, [("p=0.1", "window=3, p=0.1"), ("self.h = h", "self.h = h\n        self.w = window"), ("m == 0", "m.triu(1 - self.w) == 0")]),
    "residual inside": edited(MINIMAL, [("return self.proj(y)", "return x + self.proj(y)")]),
    "dropped at the output too": edited(MINIMAL, [("return self.proj(y)", "return self.drop(self.proj(y))")]),
}  # fmt: skip
