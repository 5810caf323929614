"""Attention that makes one vector of a text: whether its weights are a softmax over the tokens."""

import pytest
from in_process_check import check, ids

IMPORTS = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
ADDITIVE = """
class AttentionPooling(nn.Module):
    def __init__(self, hidden_size, attention_size):
        super().__init__()
        self.project = nn.Linear(hidden_size, attention_size)
        self.context = nn.Parameter(torch.randn(attention_size))

    def forward(self, h, mask=None):
        scores = torch.tanh(self.project(h)) @ self.context
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        weights = torch.softmax(scores, dim=1)
        return torch.bmm(weights.unsqueeze(1), h).squeeze(1), weights
"""
WEIGHTS_LAST = """
class Attention(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.score = nn.Linear(hidden_dim, 1)

    def forward(self, x):
        weights = F.softmax(self.score(x), dim=1)
        return torch.sum(weights * x, dim=1), weights
"""
HEADS = """
class AttentionPool(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.query = nn.Parameter(torch.randn(heads, dim // heads))
        self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        k, v = (part(x).unflatten(-1, (len(self.query), -1)) for part in (self.k, self.v))
        weights = ((k * self.query).sum(-1) / k.shape[-1] ** 0.5).softmax(1)
        return (weights.unsqueeze(-1) * v).sum(1).flatten(1)
"""
GATED = """
class GatedAttention(nn.Module):
    def __init__(self, L, D):
        super().__init__()
        self.V = nn.Sequential(nn.Linear(L, D), nn.Tanh())
        self.U = nn.Sequential(nn.Linear(L, D), nn.Sigmoid())
        self.w = nn.Linear(D, 1)

    def forward(self, x):
        weights = self.w(self.V(x) * self.U(x)).transpose(1, 2).softmax(-1)
        return (weights @ x).squeeze(1)
"""


@pytest.mark.parametrize("source", [ADDITIVE, WEIGHTS_LAST, HEADS, GATED])
def test_a_softmax_over_the_tokens_is_right(source):
    report = check(IMPORTS + source)
    assert (report.verdict, ids(report)) == ("correct", set())
    assert "tested as pooling" in report.tested


@pytest.mark.parametrize(
    ("source", "old", "new", "id"),
    [
        (ADDITIVE, "(scores, dim=1)", "(scores, dim=0)", "softmax-over-batch"),
        (WEIGHTS_LAST, "(x), dim=1)", "(x), dim=-1)", "softmax-over-queries"),
        (WEIGHTS_LAST, "torch.sum(weights * x, dim=1)", "x.mean(1)", "unexplained"),
        (ADDITIVE, "scores = scores.masked", "scores.masked", "mask-result-dropped"),
        (ADDITIVE, "mask == 0", "mask == 2", "mask-ignored"),
        (ADDITIVE, "weights.un", "(weights if mask is None else weights * mask).un",
         "mask-after-softmax"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(source, old, new, id):
    source = source.replace(old, new)
    if id == "mask-after-softmax":
        source = source.replace("scores.masked_fill(mask == 0, -torch.inf)", "scores")
    report = check(IMPORTS + source)
    assert (report.verdict, ids(report)) == ("wrong", {id})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        weights =", "        x = self.lstm(x)[0]\n        weights ="),  # neighbours
        ("weights * x, dim=1)", "weights * x, dim=1).tanh()"),  # no mean any more
        ("self.score(x), dim=1)", "self.score(x - x.mean(1, True)).square(), dim=1)"),
    ],
)
def test_what_is_no_weighted_mean_of_single_tokens_is_not_judged(old, new):
    lstm = "self.lstm = nn.LSTM(hidden_dim, hidden_dim, batch_first=True)\n        self.score"
    source = WEIGHTS_LAST.replace(old, new).replace("self.score =", f"{lstm} =")
    report = check(IMPORTS + source)
    assert report.verdict == "unsure"
    assert "It pools the tokens" in report.findings[-1].evidence
