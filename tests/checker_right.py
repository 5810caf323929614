"""Right attention in unusual styles, with the traps that look like mistakes."""

# ruff: noqa: E501 - strangers write long lines, and the edits must match them

from checker_cases import BOOK, HEAD, MINIMAL, NANO, WRAPPER, edited

RIGHT: dict[str, str] = {"book": BOOK, "minimal": MINIMAL, "nano": NANO, "wrapper": WRAPPER}


def _add(name: str, body: str) -> None:
    RIGHT[name] = HEAD + body


RIGHT["renormalised after softmax"] = edited(
    MINIMAL,
    [
        ('        s = s.masked_fill(m == 0, float("-inf"))\n', ""),
        ("        a = self.drop(a)", "        a = a * m\n        a = a / a.sum(-1, keepdim=True)\n        a = self.drop(a)"),
    ],
)  # fmt: skip
RIGHT["fourth root on both"] = edited(
    MINIMAL,
    [("q @ k.transpose(-2, -1) / math.sqrt(self.dk)", "(q * self.dk**-0.25) @ (k * self.dk**-0.25).transpose(-2, -1)")],
)  # fmt: skip
RIGHT["scores transposed, softmax over dim 2"] = edited(
    MINIMAL,
    [
        ("q @ k.transpose(-2, -1) / math.sqrt(self.dk)", "k @ q.transpose(-2, -1) / math.sqrt(self.dk)"),
        ("m == 0", "m.T == 0"),
        ("F.softmax(s, dim=-1)", "F.softmax(s, dim=2).transpose(-2, -1)"),
    ],
)  # fmt: skip
RIGHT["strided heads"] = edited(
    MINIMAL,
    [
        *[(f"self.W_{c}(x).view(B, T, self.h, self.dk).transpose(1, 2)", f"self.W_{c}(x).view(B, T, self.dk, self.h).permute(0, 3, 1, 2)") for c in "qkv"],
        ("y.transpose(1, 2).reshape(B, T, D)", "y.permute(0, 2, 3, 1).reshape(B, T, D)"),
    ],
)  # fmt: skip
RIGHT["softmax in float32"] = edited(
    NANO, [("F.softmax(att, dim=-1)", "F.softmax(att.float(), dim=-1).type_as(v)")]
)
RIGHT["sdpa, is_causal"] = edited(
    NANO,
    [
        ("        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))\n", ""),
        ('        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n', ""),
        ("        att = F.softmax(att, dim=-1)\n        att = self.attn_dropout(att)\n        y = att @ v\n", "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0)\n"),
        ("        self.attn_dropout = nn.Dropout(config.dropout)\n", ""),
    ],
)  # fmt: skip
RIGHT["k, q, v in the fused matrix"] = edited(NANO, [("q, k, v = self", "k, q, v = self")])
RIGHT["finfo min"] = edited(NANO, [('float("-inf")', "torch.finfo(att.dtype).min")])

_add(
    "keys first, softmax over dim 1",
    '''\
class SelfAttention(nn.Module):
    """The scores are kept as (batch, keys, queries), so dim 1 is the keys."""

    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.query = nn.Linear(in_dim, out_dim)
        self.key = nn.Linear(in_dim, out_dim)
        self.value = nn.Linear(in_dim, out_dim)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = torch.bmm(k, q.transpose(1, 2)) / q.size(-1) ** 0.5
        weights = scores.softmax(dim=1)
        return torch.bmm(weights.transpose(1, 2), v)
''',
)
_add(
    "parameters, one sentence",
    """\
class SelfAttention_v1(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        keys = x @ self.W_key
        queries = x @ self.W_query
        values = x @ self.W_value
        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values
""",
)
_add(
    "annotated transformer",
    """\
import copy


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e4)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)
""",
)
_add(
    "einsum, values keys query",
    """\
class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask):
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]
        values = self.values(values).reshape(N, value_len, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(N, key_len, self.heads, self.head_dim)
        queries = self.queries(query).reshape(N, query_len, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.head_dim ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(
            N, query_len, self.heads * self.head_dim
        )
        return self.fc_out(out)
""",
)
_add(
    "head by head inside the fused matrix",
    """\
class MultiheadAttention(nn.Module):
    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None, return_attention=False):
        batch_size, seq_length, _ = x.size()
        qkv = self.qkv_proj(x)
        qkv = qkv.reshape(batch_size, seq_length, self.num_heads, 3 * self.head_dim)
        qkv = qkv.permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        logits = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits.masked_fill(mask == 0, -9e15)
        attention = F.softmax(logits, dim=-1)
        values = torch.matmul(attention, v).permute(0, 2, 1, 3)
        values = values.reshape(batch_size, seq_length, self.embed_dim)
        o = self.o_proj(values)
        return (o, attention) if return_attention else o
""",
)
_add(
    "lucidrains with einops",
    """\
from einops import rearrange


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        x = self.norm(x)
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: rearrange(t, "b n (h d) -> b h n d", h=self.heads), qkv)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = self.dropout(self.attend(dots))
        out = rearrange(torch.matmul(attn, v), "b h n d -> b n (h d)")
        return self.to_out(out)
""",
)
_add(
    "residual and norm after",
    """\
class MultiHeadAttention(nn.Module):
    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q, k, v, mask=None):
        d_k, d_v, n_head = self.d_k, self.d_v, self.n_head
        sz_b, len_q, len_k, len_v = q.size(0), q.size(1), k.size(1), v.size(1)
        residual = q
        q = self.w_qs(q).view(sz_b, len_q, n_head, d_k).transpose(1, 2)
        k = self.w_ks(k).view(sz_b, len_k, n_head, d_k).transpose(1, 2)
        v = self.w_vs(v).view(sz_b, len_v, n_head, d_v).transpose(1, 2)
        attn = torch.matmul(q / d_k**0.5, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        q = torch.matmul(attn, v).transpose(1, 2).contiguous().view(sz_b, len_q, -1)
        q = self.dropout(self.fc(q))
        q += residual
        return self.layer_norm(q), attn
""",
)
_add(
    "tokens before batch, folded rightly",
    """\
class SeqFirstAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        n, b, d = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.contiguous().view(n, b * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(n, b * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(n, b * self.num_heads, self.head_dim).transpose(0, 1)
        w = torch.softmax(torch.bmm(q * self.head_dim**-0.5, k.transpose(1, 2)), dim=-1)
        y = torch.bmm(w, v).transpose(0, 1).contiguous().view(n, b, d)
        return self.out_proj(y)
""",
)
_add(
    "grouped queries",
    """\
class GroupedQueryAttention(nn.Module):
    def __init__(self, d_in, d_out, num_heads, num_kv_groups):
        super().__init__()
        self.num_heads, self.num_kv_groups = num_heads, num_kv_groups
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, num_kv_groups * self.head_dim, bias=False)
        self.W_value = nn.Linear(d_in, num_kv_groups * self.head_dim, bias=False)
        self.out_proj = nn.Linear(d_out, d_out, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.W_query(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.W_key(x).view(b, n, self.num_kv_groups, self.head_dim).transpose(1, 2)
        v = self.W_value(x).view(b, n, self.num_kv_groups, self.head_dim).transpose(1, 2)
        size = self.num_heads // self.num_kv_groups
        k, v = k.repeat_interleave(size, dim=1), v.repeat_interleave(size, dim=1)
        scores = q @ k.transpose(2, 3)
        mask = torch.triu(torch.ones(n, n, device=x.device, dtype=torch.bool), diagonal=1)
        w = torch.softmax(scores.masked_fill(mask, -torch.inf) / self.head_dim**0.5, dim=-1)
        return self.out_proj((w @ v).transpose(1, 2).reshape(b, n, -1))
""",
)
_add(
    "a parameter a head, loops",
    """\
class LoopAttention(nn.Module):
    def __init__(self, d_model, n_heads, d_head):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, d_head))
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, d_head))
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model))
        self.b_Q = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_O = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        q = torch.einsum("bnd,hde->bhne", x, self.W_Q) + self.b_Q[:, None]
        k = torch.einsum("bnd,hde->bhne", x, self.W_K)
        v = torch.einsum("bnd,hde->bhne", x, self.W_V)
        out = torch.zeros_like(x)
        n = x.shape[1]
        for i in range(n):
            score = torch.einsum("bhe,bhme->bhm", q[:, :, i], k[:, :, : i + 1]) / q.shape[-1] ** 0.5
            w = (score - score.amax(-1, keepdim=True)).exp()
            w = w / w.sum(-1, keepdim=True)
            z = torch.einsum("bhm,bhme->bhe", w, v[:, :, : i + 1])
            out[:, i] = torch.einsum("bhe,hed->bd", z, self.W_O) + self.b_O
        return out
""",
)
_add(
    "no weights at all",
    """\
class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        b, h, n, d = q.shape
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        weights = self.dropout(scores.softmax(-1))
        return weights @ v, weights
""",
)
_add(
    "karpathy's head with globals",
    """\
n_embd, block_size, dropout = 30, 8, 0.2


class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))
""",
)
_add(
    "a mask that is added, weights returned, keyword only",
    """\
class EncoderSelfAttention(nn.Module):
    def __init__(self, *, hidden_size, num_attention_heads, attention_probs_dropout_prob=0.1):
        super().__init__()
        self.heads = num_attention_heads
        self.size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def split(self, x):
        return x.view(*x.shape[:-1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (self.split(f(hidden_states)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size)
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = nn.Softmax(dim=-1)(scores)
        context = torch.matmul(self.dropout(probs), v).permute(0, 2, 1, 3).contiguous()
        return {"context": context.view(*context.shape[:-2], -1), "probs": probs}
""",
)
_add(
    "cross attention",
    """\
class CrossAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q = nn.Linear(dim, dim)
        self.to_kv = nn.Linear(dim, 2 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context):
        b, n, d = x.shape
        q = self.to_q(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.to_kv(context).chunk(2, -1))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
""",
)
_add(
    "names that say nothing",
    """\
class Mixer(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.alpha = nn.Linear(width, width)
        self.beta = nn.Linear(width, width)
        self.gamma = nn.Linear(width, width)
        self.delta = nn.Linear(width, width)

    def forward(self, inp):
        def cut(t):
            return t.reshape(t.shape[0], t.shape[1], self.n, -1).swapaxes(1, 2)

        one, two, three = cut(self.beta(inp)), cut(self.gamma(inp)), cut(self.alpha(inp))
        w = (two @ one.mT / one.shape[-1] ** 0.5).softmax(-1)
        return self.delta((w @ three).swapaxes(1, 2).flatten(-2))
""",
)
_add(
    "nn.MultiheadAttention wrapped",
    """\
class TorchAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)

    def forward(self, x):
        n = x.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), 1)
        return self.mha(x, x, x, attn_mask=mask, need_weights=False)[0]
""",
)
_add(
    "hugging face GPT-2",
    """\
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention


class WrappedAttention(nn.Module):
    def __init__(self, n_embd, n_head, n_positions):
        super().__init__()
        config = GPT2Config(n_embd=n_embd, n_head=n_head, n_positions=n_positions)
        config._attn_implementation = "sdpa"
        self.attn = GPT2Attention(config)

    def forward(self, x):
        return self.attn(x)[0]
""",
)
_add(
    "hugging face Llama without positions",
    """\
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention


class LlamaWrapped(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads):
        super().__init__()
        config = LlamaConfig(hidden_size=hidden_size, num_attention_heads=num_heads,
                             num_key_value_heads=num_kv_heads)
        config._attn_implementation = "sdpa"
        self.attn = LlamaAttention(config, layer_idx=0)

    def forward(self, x):
        b, n, _ = x.shape
        cos = torch.ones(b, n, self.attn.head_dim, dtype=x.dtype)
        return self.attn(x, (cos, torch.zeros_like(cos)), None)[0]
""",
)
_add(
    "hugging face BERT",
    """\
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertSelfAttention


class BertWrapped(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        config = BertConfig(hidden_size=hidden_size, num_attention_heads=num_heads)
        config._attn_implementation = "sdpa"
        self.attn = BertSelfAttention(config)

    def forward(self, x):
        return self.attn(x)[0]
""",
)
_add(
    "x-transformers",
    """\
from x_transformers.x_transformers import Attention


class XAttention(nn.Module):
    def __init__(self, dim, heads, dim_head, causal=True):
        super().__init__()
        self.attn = Attention(dim=dim, heads=heads, dim_head=dim_head, causal=causal)

    def forward(self, x):
        return self.attn(x)
""",
)
