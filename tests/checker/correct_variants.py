"""Correct attention in unusual styles, including code that looks like a mistake."""

# ruff: noqa: E501 - submissions have long lines, and the edits must match them

from planted_mistakes import BOOK, HEAD, MINIMAL, NANO, WRAPPER, edited

RIGHT: dict[str, str] = {"book": BOOK, "minimal": MINIMAL, "nano": NANO, "wrapper": WRAPPER}


def _add(name: str, body: str) -> None:
    RIGHT[name] = HEAD + body


RIGHT["renormalised after softmax"] = edited(
    MINIMAL,
    [
        ('        s = s.masked_fill(m == 0, float("-inf"))\n', ""),
        ("        a = self.drop(a)", "        a = a * m.to(a)\n        a = a / a.sum(-1, keepdim=True)\n        a = self.drop(a)"),
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
    NANO, [("F.softmax(share, dim=-1)", "F.softmax(share.float(), dim=-1).type_as(v)")]
)
RIGHT["sdpa, is_causal"] = edited(
    NANO,
    [
        ("        share = (q @ k.mT) * (1.0 / math.sqrt(k.shape[-1]))\n", ""),
        ('        share = share.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n', ""),
        ("        share = F.softmax(share, dim=-1)\n        share = self.attn_drop(share)\n        y = share @ v\n", "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0)\n"),
        ("        self.attn_drop = nn.Dropout(config.dropout)\n", ""),
    ],
)  # fmt: skip
RIGHT["k, q, v in the fused matrix"] = edited(NANO, [("q, k, v = self", "k, q, v = self")])
RIGHT["finfo min"] = edited(NANO, [('float("-inf")', "torch.finfo(share.dtype).min")])

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
class OneSentence(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Parameter(torch.rand(d_in, d_out)) for _ in range(3))

    def forward(self, sentence):
        looks, shows, says = (sentence @ w for w in (self.W_query, self.W_key, self.W_value))
        match = looks @ shows.T * shows.shape[1] ** -0.5
        return torch.softmax(match, dim=1) @ says
""",
)
_add(
    "four linears in one list, a helper function",
    """\
def weigh(q, k, v, visible=None, drop=None):
    match = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[3])
    if visible is not None:
        match = torch.where(visible.bool(), match, torch.full_like(match, -1e4))
    share = torch.softmax(match, -1)
    return torch.einsum("bhij,bhjd->bhid", share if drop is None else drop(share), v), share


class ListOfLinears(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.per_head, self.h = divmod(d_model, h)[0], h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout, self.seen = nn.Dropout(dropout), None

    def heads_of(self, number, x):
        return self.linears[number](x).unflatten(-1, (self.h, self.per_head)).movedim(2, 1)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.heads_of(0, query), self.heads_of(1, key), self.heads_of(2, value)
        mixed, self.seen = weigh(q, k, v, None if mask is None else mask[:, None], self.dropout)
        return self.linears[3](mixed.movedim(1, 2).flatten(2))
""",
)
_add(
    "einsum, values keys query",
    """\
class ValuesFirst(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        for name in ("values", "keys", "queries", "fc_out"):
            setattr(self, name, nn.Linear(embed_size, embed_size))

    def forward(self, values, keys, query, mask):
        v, k, q = (
            layer(x).unflatten(2, (self.heads, -1))
            for layer, x in ((self.values, values), (self.keys, keys), (self.queries, query))
        )
        energy = torch.einsum("bihe,bjhe->bhij", q, k)
        if mask is not None:
            energy[(mask == 0).expand_as(energy)] = -1e20
        share = (energy / q.size(3) ** 0.5).softmax(3)
        return self.fc_out(torch.einsum("bhij,bjhe->bihe", share, v).flatten(2))
""",
)
_add(
    "head by head inside the fused matrix",
    """\
class FusedByHead(nn.Module):
    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(input_dim, embed_dim * 3)
        self.o_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None, with_weights=False):
        every = self.qkv_proj(x).unflatten(2, (self.num_heads, 3, -1))  # a head's q, k, v lie together
        q, k, v = (every[:, :, :, i].transpose(1, 2) for i in range(3))
        match = q.matmul(k.mT).div(q.shape[3] ** 0.5)
        if mask is not None:
            match = match.masked_fill(mask == 0, -9e15)
        share = match.softmax(-1)
        out = self.o_proj(share.matmul(v).transpose(1, 2).flatten(2))
        return (out, share) if with_weights else out
""",
)
_add(
    "einops, a norm before, heads of any width",
    """\
from einops import rearrange


class NormedEinops(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        self.heads, self.factor = heads, 1 / math.sqrt(dim_head)
        self.norm, self.drop = nn.LayerNorm(dim), nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim), nn.Dropout(dropout))

    def forward(self, x):
        q, k, v = rearrange(self.to_qkv(self.norm(x)), "b n (c h d) -> c b h n d", c=3, h=self.heads)
        share = self.drop(torch.softmax(q @ k.mT * self.factor, -1))
        return self.to_out(rearrange(share @ v, "b h n d -> b n (h d)"))
""",
)
_add(
    "residual and norm after",
    """\
class AddAndNorm(nn.Module):
    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        self.w_qs, self.w_ks = (nn.Linear(d_model, n_head * d_k, bias=False) for _ in range(2))
        self.w_vs, self.fc = nn.Linear(d_model, n_head * d_v, bias=False), nn.Linear(n_head * d_v, d_model, bias=False)
        self.drop, self.layer_norm = nn.Dropout(dropout), nn.LayerNorm(d_model)

    def forward(self, q, k, v, mask=None):
        heads = [f(t).unflatten(2, (self.n_head, -1)).transpose(1, 2) for f, t in ((self.w_qs, q), (self.w_ks, k), (self.w_vs, v))]
        match = heads[0] @ heads[1].mT / math.sqrt(heads[0].shape[-1])
        if mask is not None:
            match = match.masked_fill(mask[:, None] == 0, -1e9)
        share = self.drop(match.softmax(-1))
        mixed = self.drop(self.fc((share @ heads[2]).transpose(1, 2).flatten(2)))
        return self.layer_norm(q + mixed), share
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
    "one class a head, sizes in globals",
    """\
WIDTH, LONGEST, P = 30, 8, 0.2


class OneHead(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, head_size, bias=False) for _ in range(3))
        self.register_buffer("past", torch.ones(LONGEST, LONGEST).tril().bool())
        self.drop = nn.Dropout(P)

    def forward(self, x):
        n = x.size(1)
        match = torch.bmm(self.query(x), self.key(x).mT) / self.key.out_features**0.5
        share = torch.where(self.past[:n, :n], match, -math.inf).softmax(2)
        return torch.bmm(self.drop(share), self.value(x))


class ManyHeads(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList(OneHead(head_size) for _ in range(num_heads))
        self.mix, self.drop = nn.Linear(num_heads * head_size, WIDTH), nn.Dropout(P)

    def forward(self, x):
        return self.drop(self.mix(torch.cat([head(x) for head in self.heads], 2)))
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
        cos = x.new_ones(b, n, self.attn.head_dim)
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
