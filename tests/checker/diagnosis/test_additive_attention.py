"""Additive attention, and a decoder state that attends to encoder outputs."""

import pytest
from in_process_check import check, ids
from planted_mistakes import HEAD, edited

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn

PAIRS = (
    HEAD
    + """\
class AdditiveAttention(nn.Module):
    def __init__(self, query_size, key_size, num_hiddens):
        super().__init__()
        self.W_q = nn.Linear(query_size, num_hiddens, bias=False)
        self.W_k = nn.Linear(key_size, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)

    def forward(self, queries, keys, values, mask=None):
        q, k = self.W_q(queries), self.W_k(keys)
        features = torch.tanh(q.unsqueeze(2) + k.unsqueeze(1))
        scores = self.w_v(features).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(weights, values)
"""
)

STATE = (
    HEAD
    + """\
class Attention(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.attn = nn.Linear(hidden_dim * 2, hidden_dim)
        self.v = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, hidden, encoder_outputs):
        steps = encoder_outputs.shape[1]
        hidden = hidden.unsqueeze(1).repeat(1, steps, 1)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        scores = self.v(energy).squeeze(2)
        weights = F.softmax(scores, dim=1)
        context = torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1)
        return context, weights
"""
)

LUONG = (
    HEAD
    + """\
class LuongAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.W = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, decoder_hidden, encoder_outputs):
        # decoder_hidden: (1, B, H), encoder_outputs: (T, B, H)
        scores = torch.sum(self.W(encoder_outputs) * decoder_hidden, dim=2)
        weights = F.softmax(scores.t(), dim=1).unsqueeze(1)
        return torch.bmm(weights, encoder_outputs.transpose(0, 1)), weights
"""
)


@pytest.mark.parametrize("source", [PAIRS, STATE])
def test_additive_attention_is_read(source):
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set()), report
    assert "Additive attention: a small network scores each pair." in report.notes


def test_an_encoder_in_two_directions_is_twice_as_wide():
    assert check(edited(STATE, [("hidden_dim * 2", "hidden_dim * 3")])).verdict == "correct"


def test_luongs_attention_has_no_scale_on_purpose():
    report = check(LUONG)
    assert report.verdict == "correct", report
    assert {f.id: f.severity for f in report.findings} == {"missing-scale": "edge"}
    assert not report.notes


@pytest.mark.parametrize(
    ("source", "old", "new", "id"),
    [
        (PAIRS, "dim=-1)\n", "dim=1)\n", "softmax-over-queries"),
        (PAIRS, "torch.tanh(q.unsqueeze(2) + k.unsqueeze(1))", "q.unsqueeze(2) + k.unsqueeze(1)",
         "unexplained"),
        (PAIRS, "scores = scores.masked_fill(", "scores.masked_fill(", "mask-result-dropped"),
        (STATE, "dim=1)\n        context", "dim=0)\n        context", "softmax-over-queries"),
        (STATE, "torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))",
         "self.attn(torch.cat((hidden, encoder_outputs), dim=2))", "unexplained"),
    ],
)  # fmt: skip
def test_additive_attention_that_is_wrong(source, old, new, id):
    report = check(edited(source, [(old, new)]))
    assert (report.verdict, id in ids(report)) == ("wrong", True), report


def test_a_summand_is_no_key_for_its_place():
    """What is added to the tokens may be the query, whichever of the two stands first."""
    report = check(
        HEAD
        + """\
class ScaledAdditiveAttention(nn.Module):
    def __init__(self, input_dim, meta_dim):
        super().__init__()
        self.fc, self.score = nn.Linear(input_dim, input_dim), nn.Linear(input_dim, 1)
        self.proj = nn.Linear(meta_dim, input_dim)

    def forward(self, inputs, meta_vec):
        # inputs: [B, T, C], meta_vec: [B, D]
        both = inputs + self.proj(meta_vec).unsqueeze(1)
        weights = self.score(torch.tanh(self.fc(both))).softmax(dim=1)
        return (inputs * weights).sum(dim=1), weights
"""
    )
    assert report.verdict != "wrong", report
