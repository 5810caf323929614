"""Mistakes planted in correct classes of other kinds than those of `planted_mistakes`."""

# ruff: noqa: E501 - the edits must match the code

import pytest
from in_process_check import check, ids
from planted_mistakes import HEAD, MINIMAL, edited

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn

CROSS = (
    HEAD
    + """\
class CrossAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q_proj, self.k_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.v_proj, self.o_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x, memory):
        q, k, v = self.q_proj(x), self.k_proj(memory), self.v_proj(memory)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        a = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.o_proj((a @ v).transpose(1, 2).flatten(2))
"""
)
_CAUSAL = """\
        m = torch.tril(torch.ones(T, T, device=x.device))
        s = s.masked_fill(m == 0, float("-inf"))
"""
ENCODER = edited(MINIMAL, [(_CAUSAL, "")])
MASKED = edited(ENCODER, [("forward(self, x)", "forward(self, x, mask=None)"), ("        a = F", """\
        if mask is not None:
            s = s.masked_fill(mask, float("-inf"))
        a = F""")])  # fmt: skip
FLAGGED = edited(MINIMAL, [("p=0.1", "p=0.1, causal=False"), ("self.h = h", "self.h, self.c = h, causal"), (_CAUSAL, """\
        if self.c:
            hidden = torch.ones(T, T, device=x.device, dtype=torch.bool).triu(1)
            s = s.masked_fill(hidden, float("-inf"))
""")])  # fmt: skip
WINDOW = edited(MINIMAL, [("p=0.1", "p=0.1, reach=3"), ("self.h = h", "self.h, self.w = h, reach"),
                          ("torch.tril(torch.ones(T, T, device=x.device))",
                           "torch.ones(T, T, device=x.device).tril().triu(1 - self.w)")])  # fmt: skip
TABLE = edited(ENCODER, [
    ("        self.drop", "        self.bias = nn.Embedding(200, h)\n        self.drop"),
    ("        a = F", "        i = torch.arange(T, device=x.device)\n        s = s + self.bias(i[None] - i[:, None] + 99)"
     ".permute(2, 0, 1)\n        a = F"),
])  # fmt: skip
CAPPED = edited(
    ENCODER, [("        a = F", "        s = 30.0 * torch.tanh(s / 30.0)\n        a = F")]
)
NORMED = edited(
    ENCODER,
    [
        (
            "        v = self",
            "        q, k = F.normalize(q, dim=-1) * 4, F.normalize(k, dim=-1) * 4\n        v = self",
        )
    ],
)
LAYERS = edited(ENCODER, [("        self.drop", "        self.q_norm, self.k_norm = nn.LayerNorm(d // h), nn.LayerNorm(d // h)\n        self.drop"),
                          ("        v = self", "        q, k = self.q_norm(q), self.k_norm(k)\n        v = self")])  # fmt: skip
BY_HAND = edited(MINIMAL, [("F.softmax(s, dim=-1)", "s.exp() / s.exp().sum(-1, keepdim=True)")])
LONE = edited(
    HEAD + ENCODER.removeprefix(HEAD).replace("B, T, D", "T, D").replace("view(B, T", "view(T")
    .replace("transpose(1, 2)", "transpose(0, 1)"),
    [("        a = F", "        s = s + torch.zeros(T, T).to(s)\n        a = F")],
)  # fmt: skip
STACKED = edited(CROSS, [
    ("memory):", "memory, keep=None):"),
    ("t.unflatten(-1, (self.h, -1)).transpose(1, 2)", "torch.cat(t.chunk(self.h, -1))"),
    ("        a = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)", """\
        s = q @ k.mT * q.shape[-1] ** -0.5
        if keep is not None:
            s = s.masked_fill(~keep.repeat(self.h, 1)[:, None], -1e9)
        a = s.softmax(-1)"""),
    ("(a @ v).transpose(1, 2).flatten(2)", "torch.cat((a @ v).chunk(self.h), -1)"),
])  # fmt: skip
NULLS = edited(CROSS, [
    ("memory):", "memory, keep=None):"),
    ("        self.v_proj", "        self.none = nn.Parameter(torch.randn(2, num_heads, 2, embed_dim // num_heads))\n        self.v_proj"),
    ("        a = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)", """\
        k, v = (torch.cat((n.expand(len(x), -1, -1, -1), t), 2) for n, t in zip(self.none, (k, v)))
        s = q @ k.mT * q.shape[-1] ** -0.5
        if keep is not None:
            s = s.masked_fill(~F.pad(keep, (2, 0), value=True)[:, None, None], -1e9)
        a = s.softmax(-1)"""),
])  # fmt: skip
MARKED = edited(MINIMAL, [
    ("self, x):", "self, x, real=None):"),
    ("        s = s.masked_fill(m == 0", "        m = m.bool() if real is None else m.bool() & real[:, None, None]\n        s = s.masked_fill(m == 0"),
])  # fmt: skip
STARTS = {
    "cross": CROSS, "causal": MINIMAL, "encoder": ENCODER, "masked": MASKED, "flagged": FLAGGED,
    "window": WINDOW, "table": TABLE, "capped": CAPPED, "normed": NORMED, "layers": LAYERS,
    "by hand": BY_HAND, "one text": LONE, "stacked": STACKED, "nulls": NULLS, "marked": MARKED,
}  # fmt: skip


QUICK = ("cross", "masked", "window", "stacked", "nulls", "one text")


@pytest.mark.parametrize(
    "start",
    [pytest.param(start, marks=[] if start in QUICK else pytest.mark.slow) for start in STARTS],
)
def test_the_class_is_right_without_a_mistake(start):
    report = check(STARTS[start])
    assert (report.verdict, ids(report)) == ("correct", set()), report


MISTAKES = [
    ("cross", "self.q_proj(x)", "x", "query-not-projected"),
    ("cross", "self.v_proj(memory)", "memory", "value-not-projected"),
    ("cross", "self.q_proj(x)", "self.q_proj(memory)", "input-ignored"),
    ("cross", "self.v_proj(memory)", "self.v_proj(x)", "keys-and-values-apart"),
    ("cross", "self.k_proj(memory)", "self.k_proj(x)", "keys-and-values-apart"),
    (
        "cross",
        "t.unflatten(-1, (self.h, -1))",
        "t.view(*x.shape[:2], self.h, -1)",
        "fails-at-some-lengths",
    ),
    ("causal", "self.W_k(x).view", "self.W_k(self.W_q(x)).view", "key-from-query-weights"),
    ("causal", "self.W_k(x).view", "(self.W_k(x) - x.mean(0)).view", "attends-across-batch"),
    ("causal", "self.W_v(x).view", "self.W_v(x[:1].expand(B, T, D)).view", "attends-across-batch"),
    ("encoder", "F.softmax(s, dim=-1)", "s / s.sum(-1, keepdim=True)", "no-softmax"),
    ("encoder", "a @ v", "a.sum(-1, keepdim=True) * v", "values-not-mixed"),
    ("encoder", "self.proj(y)", "self.proj(y) * (1 - self.drop.p)", "dropout-scaled-down"),
    ("masked", 's = s.masked_fill(mask, float("-inf"))', "pass", "mask-ignored"),
    ("masked", 'float("-inf")', "-10.0", "mask-fill-not-inf"),
    ("masked", 's.masked_fill(mask, float("-inf"))', "s * ~mask", "mask-fill-not-inf"),
    ("flagged", "triu(1)", "triu(2)", "mask-off-by-one"),
    ("flagged", 'float("-inf")', "0.0", "mask-fill-not-inf"),
    ("window", "triu(1 - self.w)", "triu(2 - self.w)", "window-off-by-one"),
    ("table", "i[None] - i[:, None]", "i[None] + i[:, None]", "bias-of-summed-positions"),
    ("capped", "30.0 * torch.tanh(s / 30.0)", "torch.tanh(s / 30.0)", "wrong-scale"),
    (
        "causal",
        "        a = F",
        "        s = 30.0 * torch.tanh(s / 30.0)\n        a = F",
        "mask-fill-not-inf",
    ),
    ("normed", "F.normalize(k, dim=-1) * 4", "k", "norm-on-one-side"),
    ("layers", "self.k_norm(k)", "k", "norm-on-one-side"),
    ("layers", "self.k_norm(k)", "self.q_norm(k)", "norm-on-one-side"),
    ("by hand", 'float("-inf")', 'float("inf")', "mask-fill-not-inf"),
    (
        "stacked",
        "keep.repeat(self.h, 1)",
        "keep.repeat_interleave(self.h, 0)",
        "padding-in-other-texts",
    ),
    ("nulls", "(2, 0)", "(0, 2)", "padding-not-hidden"),
    ("marked", "m.bool() &", "m.bool() |", "padding-not-hidden"),
    ("one text", "torch.zeros(T, T)", "torch.zeros(7, 7)", "fails-at-some-lengths"),
]


@pytest.mark.parametrize(("start", "old", "new", "id"), MISTAKES)
def test_a_mistake_is_named(start, old, new, id):
    report = check(edited(STARTS[start], [(old, new)]))
    assert id in ids(report), report
    assert report.verdict == ("correct" if report.findings[0].severity == "edge" else "wrong")


def test_heads_that_share_keys_are_never_tried_with_keys_of_their_own():
    """With a key head per query head the class is right, but it is not built that way."""
    shared = edited(MINIMAL, [
        ("p=0.1, bias=True", "num_kv_heads, p=0.1, bias=True"),
        ("self.h = h", "self.h, self.g = h, num_kv_heads"),
        ("self.W_k = nn.Linear(d, d", "self.W_k = nn.Linear(d, d // h * num_kv_heads"),
        ("self.W_v = nn.Linear(d, d", "self.W_v = nn.Linear(d, d // h * num_kv_heads"),
        ("self.W_k(x).view(B, T, self.h", "self.W_k(x).view(B, T, self.g"),
        ("self.W_v(x).view(B, T, self.h", "self.W_v(x).view(B, T, self.g"),
        ("        s = q", "        k, v = (t.repeat_interleave(self.h // self.g, 1) for t in (k, v))\n        s = q"),
    ])  # fmt: skip
    wrong = edited(shared, [("// self.g, 1)", "// self.g, 2).view(q.shape)")])
    assert check(shared).verdict == "correct"
    assert check(wrong).verdict == "wrong"
    alone = edited(shared, [("// self.g, 1)", "// self.h, 1)")])
    assert ids(check(alone)) == {"breaks-with-size"}


def test_a_window_may_count_the_tokens_before_a_token():
    report = check(edited(WINDOW, [("triu(1 - self.w)", "triu(-self.w)")]))
    assert report.verdict == "correct"
