"""Attention classes in three common styles, with each mistake of the catalogue planted in them."""

# ruff: noqa: E501 - submissions have long lines, and the edits must match them

HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"

BOOK = (
    HEAD
    + """\
class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.d_out = d_out
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, tokens, d_in = x.shape
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)
        keys = keys.view(b, tokens, self.num_heads, self.head_dim)
        values = values.view(b, tokens, self.num_heads, self.head_dim)
        queries = queries.view(b, tokens, self.num_heads, self.head_dim)
        keys = keys.transpose(1, 2)
        queries = queries.transpose(1, 2)
        values = values.transpose(1, 2)
        scores = queries @ keys.transpose(2, 3)
        future = self.mask.bool()[:tokens, :tokens]
        scores.masked_fill_(future, -torch.inf)
        weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)
        weights = self.dropout(weights)
        mixed = (weights @ values).transpose(1, 2)
        mixed = mixed.contiguous().view(b, tokens, self.d_out)
        mixed = self.out_proj(mixed)
        return mixed
"""
)

MINIMAL = (
    HEAD
    + """\
class Attn(nn.Module):
    def __init__(self, d, h, p=0.1, bias=True):
        super().__init__()
        self.h = h
        self.dk = d // h
        self.W_q = nn.Linear(d, d, bias=bias)
        self.W_k = nn.Linear(d, d, bias=bias)
        self.W_v = nn.Linear(d, d, bias=bias)
        self.proj = nn.Linear(d, d)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        B, T, D = x.shape
        q = self.W_q(x).view(B, T, self.h, self.dk).transpose(1, 2)
        k = self.W_k(x).view(B, T, self.h, self.dk).transpose(1, 2)
        v = self.W_v(x).view(B, T, self.h, self.dk).transpose(1, 2)
        s = q @ k.transpose(-2, -1) / math.sqrt(self.dk)
        m = torch.tril(torch.ones(T, T, device=x.device))
        s = s.masked_fill(m == 0, float("-inf"))
        a = F.softmax(s, dim=-1)
        a = self.drop(a)
        y = a @ v
        y = y.transpose(1, 2).reshape(B, T, D)
        return self.proj(y)
"""
)

NANO = (
    HEAD
    + """\
class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_drop = nn.Dropout(config.dropout)
        self.proj_drop = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.dropout = config.dropout
        self.register_buffer("bias", torch.ones(1, 1, config.block_size, config.block_size).tril())

    def forward(self, x):
        B, T, wide = x.shape
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        v = v.view(B, T, self.n_head, wide // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, wide // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, wide // self.n_head).transpose(1, 2)
        share = (q @ k.mT) * (1.0 / math.sqrt(k.shape[-1]))
        share = share.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        share = F.softmax(share, dim=-1)
        share = self.attn_drop(share)
        y = share @ v
        y = y.transpose(1, 2).contiguous().view(B, T, wide)
        y = self.proj_drop(self.c_proj(y))
        return y
"""
)

STYLES = {"book": BOOK, "minimal": MINIMAL, "nano": NANO}
Edits = list[tuple[str, str]]

_BOOK_TR = "        keys = keys.transpose(1, 2)\n        queries = queries.transpose(1, 2)\n        values = values.transpose(1, 2)\n"
_SDPA_BOOK: Edits = [
    ("        scores = queries @ keys.transpose(2, 3)\n", ""),
    ("        scores.masked_fill_(future, -torch.inf)\n", ""),
    ("        weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)\n", ""),
    ("        weights = self.dropout(weights)\n", ""),
]

# id -> style -> what to change.
PLANTED: dict[str, dict[str, Edits]] = {
    "split-without-transpose": {
        "book": [
            ("keys.view(b, tokens, self.num_heads, self.head_dim)", "keys.view(b, self.num_heads, tokens, self.head_dim)"),
            ("values.view(b, tokens, self.num_heads, self.head_dim)", "values.view(b, self.num_heads, tokens, self.head_dim)"),
            ("queries.view(b, tokens, self.num_heads, self.head_dim)", "queries.view(b, self.num_heads, tokens, self.head_dim)"),
            (_BOOK_TR, ""),
        ],
        "minimal": [(f"self.W_{c}(x).view(B, T, self.h, self.dk).transpose(1, 2)", f"self.W_{c}(x).view(B, self.h, T, self.dk)") for c in "qkv"],
        "nano": [(f"{c} = {c}.view(B, T, self.n_head, wide // self.n_head).transpose(1, 2)", f"{c} = {c}.reshape(B, self.n_head, T, wide // self.n_head)") for c in "qkv"],
    },
    "merge-without-transpose": {
        "book": [("(weights @ values).transpose(1, 2)", "(weights @ values)")],
        "minimal": [("y.transpose(1, 2).reshape(B, T, D)", "y.reshape(B, T, D)")],
        "nano": [("y.transpose(1, 2).contiguous().view(B, T, wide)", "y.contiguous().view(B, T, wide)")],
    },
    "heads-interleaved": {
        "book": [("(weights @ values).transpose(1, 2)", "(weights @ values).permute(0, 2, 3, 1)")],
        "minimal": [("y.transpose(1, 2).reshape", "y.permute(0, 2, 3, 1).reshape")],
        "nano": [("y.transpose(1, 2).contiguous()", "y.permute(0, 2, 3, 1).contiguous()")],
    },
    "heads-folded-into-batch": {
        "book": [
            ("keys.view(b, tokens, self.num_heads, self.head_dim)", "keys.view(b * self.num_heads, -1, self.head_dim)"),
            ("values.view(b, tokens, self.num_heads, self.head_dim)", "values.view(b * self.num_heads, -1, self.head_dim)"),
            ("queries.view(b, tokens, self.num_heads, self.head_dim)", "queries.view(b * self.num_heads, -1, self.head_dim)"),
            (_BOOK_TR, ""), ("keys.transpose(2, 3)", "keys.transpose(1, 2)"),
            ("(weights @ values).transpose(1, 2)", "(weights @ values)"),
        ],
        "minimal": [
            *[(f"self.W_{c}(x).view(B, T, self.h, self.dk).transpose(1, 2)", f"self.W_{c}(x).view(B * self.h, T, self.dk)") for c in "qkv"],
            ("y.transpose(1, 2).reshape(B, T, D)", "y.reshape(B, T, D)"),
        ],
        "nano": [
            *[(f"{c} = {c}.view(B, T, self.n_head, wide // self.n_head).transpose(1, 2)", f"{c} = {c}.reshape(B * self.n_head, T, wide // self.n_head)") for c in "qkv"],
            ("self.bias[:, :, :T, :T]", "self.bias[0, :, :T, :T]"),
            ("y.transpose(1, 2).contiguous().view(B, T, wide)", "y.contiguous().view(B, T, wide)"),
        ],
    },
    "heads-summed": {
        "book": [
            ("self.out_proj = nn.Linear(d_out, d_out)", "self.out_proj = nn.Linear(self.head_dim, d_out)"),
            ("(weights @ values).transpose(1, 2)", "(weights @ values).sum(dim=1)"),
            ("        mixed = mixed.contiguous().view(b, tokens, self.d_out)\n", ""),
        ],
        "minimal": [("nn.Linear(d, d)\n        self.drop", "nn.Linear(d // h, d)\n        self.drop"), ("y.transpose(1, 2).reshape(B, T, D)", "y.mean(1)")],
        "nano": [("self.c_proj = nn.Linear(config.n_embd,", "self.c_proj = nn.Linear(config.n_embd // config.n_head,"), ("y.transpose(1, 2).contiguous().view(B, T, wide)", "y.sum(1)")],
    },
    "missing-scale": {
        "book": [(" / keys.shape[-1] ** 0.5", "")],
        "minimal": [(" / math.sqrt(self.dk)", "")],
        "nano": [(" * (1.0 / math.sqrt(k.shape[-1]))", "")],
    },
    "scale-by-d-out": {
        "book": [("keys.shape[-1] ** 0.5", "self.d_out ** 0.5")],
        "minimal": [("math.sqrt(self.dk)", "math.sqrt(D)")],
        "nano": [("math.sqrt(k.shape[-1])", "math.sqrt(self.n_embd)")],
    },
    "scale-multiplied": {
        "book": [(" / keys.shape[-1] ** 0.5", " * keys.shape[-1] ** 0.5")],
        "minimal": [(" / math.sqrt(self.dk)", " * math.sqrt(self.dk)")],
        "nano": [("(1.0 / math.sqrt(k.shape[-1]))", "math.sqrt(k.shape[-1])")],
    },
    "scale-after-softmax": {
        "book": [("torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)", "torch.softmax(scores, dim=-1) / keys.shape[-1] ** 0.5")],
        "minimal": [(" / math.sqrt(self.dk)", ""), ("F.softmax(s, dim=-1)", "F.softmax(s, dim=-1) / math.sqrt(self.dk)")],
        "nano": [(" * (1.0 / math.sqrt(k.shape[-1]))", ""), ("share = F.softmax(share, dim=-1)", "share = F.softmax(share, dim=-1) / math.sqrt(k.shape[-1])")],
    },
    "scale-twice": {
        "book": [*_SDPA_BOOK, ("(weights @ values)", "F.scaled_dot_product_attention(queries / self.head_dim ** 0.5, keys, values, attn_mask=~future, dropout_p=self.dropout.p if self.training else 0.0)")],
        "minimal": [("q @ k", "(q / math.sqrt(self.dk)) @ k")],
        "nano": [("q @ k", "(q * k.size(-1) ** -0.5) @ k")],
    },
    "softmax-over-queries": {
        "book": [("dim=-1)", "dim=-2)")],
        "minimal": [("F.softmax(s, dim=-1)", "F.softmax(s, dim=2)")],
        "nano": [("F.softmax(share, dim=-1)", "F.softmax(share, dim=-2)")],
    },
    "softmax-over-heads": {
        "book": [("dim=-1)", "dim=1)")],
        "minimal": [("F.softmax(s, dim=-1)", "F.softmax(s, dim=1)")],
        "nano": [("F.softmax(share, dim=-1)", "F.softmax(share, dim=1)")],
    },
    "mask-result-dropped": {
        "book": [("masked_fill_(", "masked_fill(")],
        "minimal": [("s = s.masked_fill", "s.masked_fill")],
        "nano": [("share = share.masked_fill", "share.masked_fill")],
    },
    "mask-hides-self": {
        "book": [("diagonal=1", "diagonal=0")],
        "minimal": [("torch.ones(T, T, device=x.device))", "torch.ones(T, T, device=x.device), diagonal=-1)"), ('float("-inf")', "-1e4")],
        "nano": [("config.block_size).tril()", "config.block_size).tril(-1)")],
    },
    "mask-off-by-one": {
        "book": [("diagonal=1", "diagonal=2")],
        "minimal": [("torch.ones(T, T, device=x.device))", "torch.ones(T, T, device=x.device), diagonal=1)")],
        "nano": [("config.block_size).tril()", "config.block_size).tril(1)")],
    },
    "mask-inverted": {
        "book": [("torch.triu(torch.ones(context_length, context_length), diagonal=1)", "torch.tril(torch.ones(context_length, context_length), diagonal=-1)")],
        "minimal": [("m == 0", "m == 1")],
        "nano": [("== 0, float", "== 1, float")],
    },
    "mask-fill-not-inf": {
        "book": [("-torch.inf", "0")],
        "minimal": [('float("-inf")', "1e-9")],
        "nano": [('float("-inf")', "-1.0")],
    },
    "mask-after-softmax": {
        "book": [("        scores.masked_fill_(future, -torch.inf)\n", ""), ("        weights = self.dropout", "        weights = weights.masked_fill(future, 0)\n        weights = self.dropout")],
        "minimal": [('        s = s.masked_fill(m == 0, float("-inf"))\n', ""), ("dim=-1)\n", "dim=-1) * m\n")],
        "nano": [('        share = share.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n', ""), ("F.softmax(share, dim=-1)", "F.softmax(share, dim=-1) * self.bias[:, :, :T, :T]")],
    },
    "mask-fill-too-small": {
        "book": [("-torch.inf", "-100.0")],
        "minimal": [('float("-inf")', "-1e4")],
        "nano": [('float("-inf")', "-1e4")],
    },
    "mask-fill-overflows-half": {
        "book": [("-torch.inf", "-1e9")],
        "minimal": [('float("-inf")', "-1e9")],
        "nano": [('float("-inf")', "-1e20")],
    },
    "mask-not-sliced": {
        "book": [("self.mask.bool()[:tokens, :tokens]", "self.mask.bool()")],
        "nano": [("self.bias[:, :, :T, :T]", "self.bias")],
    },
    "mask-not-a-buffer": {
        "book": [('self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))', "self.mask = torch.triu(torch.ones(context_length, context_length), diagonal=1)")],
        "nano": [('self.register_buffer("bias", torch.ones(1, 1, config.block_size, config.block_size).tril())', "self.bias = torch.tril(torch.ones(config.block_size, config.block_size))[None, None]")],
    },
    "no-causal-mask": {
        "book": [("        scores.masked_fill_(future, -torch.inf)\n", "")],
        "minimal": [('        s = s.masked_fill(m == 0, float("-inf"))\n', "")],
        "nano": [('        share = share.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n', "")],
    },
    "sdpa-mask-polarity": {
        "book": [*_SDPA_BOOK, ("(weights @ values)", "F.scaled_dot_product_attention(queries, keys, values, attn_mask=future, dropout_p=self.dropout.p if self.training else 0.0)")],
        "minimal": [("        a = F.softmax(s, dim=-1)\n        a = self.drop(a)\n        y = a @ v\n", "        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m == 0, dropout_p=self.drop.p if self.training else 0.0)\n")],
        "nano": [("        share = self.attn_drop(share)\n        y = share @ v\n", "        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, :, :T, :T] == 0, dropout_p=self.dropout if self.training else 0)\n")],
    },
    "padding-inverted": {
        "book": [("def forward(self, x):", "def forward(self, x, padding_mask=None):"), ("        weights = torch", "        if padding_mask is not None:\n            scores = scores.masked_fill(padding_mask[:, None, None, :] == 0, -torch.inf)\n        weights = torch")],
        "minimal": [("def forward(self, x):", "def forward(self, x, key_padding_mask=None):"), ("        a = F.softmax", "        if key_padding_mask is not None:\n            s = s.masked_fill(~key_padding_mask[:, None, None], float('-inf'))\n        a = F.softmax")],
        "nano": [("def forward(self, x):", "def forward(self, x, src_padding=None):"), ("        share = F.softmax", "        if src_padding is not None:\n            share = share.masked_fill(src_padding[:, None, None, :].logical_not(), float('-inf'))\n        share = F.softmax")],
    },
    "made-on-cpu": {
        "book": [("future = self.mask.bool()[:tokens, :tokens]", "future = torch.ones(tokens, tokens).triu(1).bool()")],
        "minimal": [("torch.ones(T, T, device=x.device)", "torch.ones(T, T)")],
        "nano": [("share = share.masked_fill(self.bias[:, :, :T, :T] == 0, float(\"-inf\"))", "share = share + torch.zeros(T, T, dtype=x.dtype).masked_fill(torch.arange(T)[:, None] < torch.arange(T), -torch.inf)")],
    },
    "one-dtype-only": {
        "book": [("weights = self.dropout(weights)", "weights = self.dropout(weights * torch.ones(tokens, device=x.device))")],
        "minimal": [("F.softmax(s, dim=-1)", "F.softmax(s + torch.zeros(1, T, device=s.device), dim=-1)")],
        "nano": [("q @ k.mT", "(q * torch.ones(1, device=q.device)) @ (k * torch.ones(1, device=q.device)).mT")],
    },
    "fails-with-one-sentence": {
        "book": [("        b, tokens, d_in = x.shape\n", "        x = x.squeeze(0)\n        b, tokens, d_in = x.shape\n")],
        "minimal": [("B, T, D = x.shape", "(B, T, D), x = x.shape, x.squeeze(0)"), ("q = self.W_q(x).view(B, T, self.h, self.dk)", "q = self.W_q(x)[:B].view(B, T, self.h, self.dk)")],
        "nano": [("y = self.proj_drop(self.c_proj(y))", "y = self.proj_drop(self.c_proj(y)).squeeze(0)")],
    },
    "training-differs": {
        "book": [("scores.masked_fill_(future, -torch.inf)", "scores.masked_fill_(future, -2.0 if self.training else -torch.inf)")],
        "minimal": [("s = q @ k.transpose(-2, -1) / math.sqrt(self.dk)", "s = q @ k.transpose(-2, -1) / (self.dk if self.training else math.sqrt(self.dk))")],
        "nano": [("share = share.masked_fill(", "share = share if self.training else share.masked_fill(")],
    },
    "dropout-before-softmax": {
        "book": [("        weights = self.dropout(weights)\n", ""), ("        weights = torch", "        scores = self.dropout(scores)\n        weights = torch")],
        "minimal": [("        a = self.drop(a)\n", ""), ("F.softmax(s, dim=-1)", "F.softmax(self.drop(s), dim=-1)")],
        "nano": [("        share = self.attn_drop(share)\n", ""), ("F.softmax(share, dim=-1)", "F.softmax(self.attn_drop(share), dim=-1)")],
    },
    "dropout-in-eval": {
        "book": [("self.dropout(weights)", "F.dropout(weights, self.dropout.p)")],
        "minimal": [("self.drop(a)", "F.dropout(a, 0.3, training=True)")],
        "nano": [("        share = F.softmax(share, dim=-1)\n        share = self.attn_drop(share)\n        y = share @ v\n", "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)\n")],
    },
    "dropout-rescaled-twice": {
        "book": [("self.dropout(weights)", "self.dropout(weights) / (1 - self.dropout.p)")],
        "minimal": [("self.drop(a)", "self.drop(a) / (1.0 - self.drop.p)")],
        "nano": [("self.attn_drop(share)", "self.attn_drop(share) * (1 / (1 - self.dropout))")],
    },
    "dropout-unused": {
        "book": [("        weights = self.dropout(weights)\n", "")],
        "minimal": [("        a = self.drop(a)\n", "")],
        "nano": [("        share = self.attn_drop(share)\n", "")],
    },
    "query-key-swapped": {
        "book": [("queries @ keys.transpose(2, 3)", "keys @ queries.transpose(2, 3)")],
        "minimal": [("q @ k.transpose(-2, -1)", "k @ q.transpose(-2, -1)")],
        "nano": [("q @ k.mT", "k @ q.mT")],
    },
    "key-from-query-weights": {
        "book": [("self.W_key(x)", "self.W_query(x)")],
        "minimal": [("self.W_k(x)", "self.W_q(x)")],
        "nano": [("k = k.view", "k = q.view")],
    },
    "value-from-keys": {
        "book": [("self.W_value(x)", "self.W_key(x)")],
        "minimal": [("self.W_v(x)", "self.W_k(x)")],
        "nano": [("        v = v.view", "        v = k.view")],
    },
    "out-proj-unused": {
        "book": [("        mixed = self.out_proj(mixed)\n", "        self.out_proj(mixed)\n")],
        "minimal": [("self.proj(y)", "y")],
        "nano": [("self.proj_drop(self.c_proj(y))", "self.proj_drop(y)")],
    },
    "bias-flag-ignored": {
        "book": [("bias=qkv_bias", "bias=True")],
        "minimal": [("bias=bias", "bias=True")],
    },
    "scores-detached": {
        "book": [("scores / keys", "scores.detach() / keys")],
        "minimal": [("F.softmax(s,", "F.softmax(s.data,")],
        "nano": [("q @ k.mT", "q.detach() @ k.detach().mT")],
    },
    "in-place-breaks-autograd": {
        "book": [("        scores = queries", "        queries *= 1.0\n        scores = queries"), ("queries = self.W_query(x)", "queries, extra = torch.cat([self.W_query(x), x], -1).split([self.d_out, d_in], dim=-1)")],
        "nano": [("        k = k.view", "        q *= 1.0\n        k = k.view")],
        "minimal": [("        a = self.drop(a)\n", "        a = self.drop(a)\n        y = a @ v\n        a *= 1.0\n")],
    },
    "view-after-transpose": {
        "book": [(".contiguous().view", ".view")],
        "minimal": [("y.transpose(1, 2).reshape", "y.transpose(1, 2).view")],
        "nano": [(".contiguous().view", ".view")],
    },
    "view-with-d-in": {
        "book": [("mixed.contiguous().view(b, tokens, self.d_out)", "mixed.contiguous().view(b, tokens, d_in)")],
    },
    "out-proj-takes-d-in": {
        "book": [("self.out_proj = nn.Linear(d_out, d_out)", "self.out_proj = nn.Linear(d_in, d_out)")],
    },
    "no-super-init": {
        "book": [("        super().__init__()\n", "")],
        "minimal": [("        super().__init__()\n", "")],
        "nano": [("        super().__init__()\n", "")],
    },
    "misspelled-init": {
        "book": [("def __init__", "def _init_")],
        "minimal": [("def __init__", "def __int__")],
        "nano": [("def __init__", "def __init")],
    },
    "misspelled-forward": {
        "book": [("def forward", "def foward")],
        "minimal": [("def forward", "def forwrd")],
        "nano": [("def forward", "def Forward")],
    },
    "scale-is-stray-tensor": {
        "book": [("self.d_out = d_out", "self.d_out = d_out\n        self.scale = torch.sqrt(torch.FloatTensor([d_out // num_heads]))"), ("keys.shape[-1] ** 0.5", "self.scale")],
        "minimal": [("self.dk = d // h", "self.dk = d // h\n        self.sq = torch.tensor([math.sqrt(d // h)])"), ("math.sqrt(self.dk)", "self.sq")],
    },
}  # fmt: skip

_HEADS = """\
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, n, d_in = x.shape
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        scores = queries @ keys.transpose(1, 2)
        scores.masked_fill_(self.mask.bool()[:n, :n], -torch.inf)
        weights = self.dropout(torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1))
        return weights @ values


class MultiHeadAttentionWrapper(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.heads = nn.ModuleList(
            [CausalAttention(d_in, d_out, context_length, dropout, qkv_bias) for _ in range(num_heads)]
        )

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)
"""
WRAPPER = HEAD + _HEADS


def edited(source: str, edits: Edits) -> str:
    """The source after the edits; each old text must occur in it."""
    for old, new in edits:
        assert old in source, f"not in the source: {old}"
        source = source.replace(old, new)
    return source


def planted(id: str, style: str) -> str:
    return edited(STYLES[style], PLANTED[id][style])


# Mistakes that need a whole file of their own.
SPECIAL: dict[str, tuple[str, str, str]] = {
    "concat-on-wrong-axis": (
        "concat-on-wrong-axis", "MultiHeadAttentionWrapper",
        edited(WRAPPER, [("dim=-1)\n", "dim=1)\n")]).replace("** 0.5, dim=1)", "** 0.5, dim=-1)"),
    ),
    "heads-in-python-list": (
        "heads-in-python-list", "MultiHeadAttentionWrapper",
        edited(WRAPPER, [("nn.ModuleList(\n", "(\n")]),
    ),
    "single-softmax-over-queries": (
        "softmax-over-queries", "CausalAttention",
        edited(WRAPPER, [("** 0.5, dim=-1)", "** 0.5, dim=1)")]),
    ),
    "single-missing-scale": (
        "missing-scale", "CausalAttention", edited(WRAPPER, [(" / keys.shape[-1] ** 0.5", "")]),
    ),
    "heads-summed-in-wrapper": (
        "heads-summed", "MultiHeadAttentionWrapper",
        edited(WRAPPER, [("torch.cat([head(x) for head in self.heads], dim=-1)", "sum(head(x) for head in self.heads)")]),
    ),
}  # fmt: skip
