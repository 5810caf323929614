"""Dropout that stays on in evaluation, also together with other mistakes."""

import pytest
from in_process_check import check, ids
from planted_mistakes import HEAD, edited

ALWAYS = (
    HEAD
    + """\
class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        weights = F.dropout(scores.softmax(-1), 0.2)
        return self.out((weights @ v).transpose(1, 2).flatten(2))
"""
)


def test_the_call_that_drops_is_named():
    report = check(ALWAYS)
    assert (report.verdict, ids(report)) == ("wrong", {"dropout-in-eval"})
    line = report.findings[0].line
    assert line is not None
    assert "F.dropout" in ALWAYS.splitlines()[line - 1]


@pytest.mark.parametrize(
    ("old", "new", "id"),
    [
        (" / q.shape[-1] ** 0.5", "", "missing-scale"),
        ("scores.softmax(-1)", "scores.softmax(-2)", "softmax-over-queries"),
        ("F.dropout(scores.softmax(-1), 0.2)", "F.dropout(scores, 0.2).softmax(-1)",
         "dropout-before-softmax"),
    ],
)  # fmt: skip
def test_other_mistakes_are_found_beside_it(old, new, id):
    assert ids(check(edited(ALWAYS, [(old, new)]))) == {"dropout-in-eval", id}


def test_what_is_random_without_dropout_is_not_called_dropout():
    dropout = ("F.dropout(scores.softmax(-1), 0.2)", "scores.softmax(-1)")
    noisy = edited(ALWAYS, [dropout, ("weights @ v", "weights @ (v + torch.randn_like(v))")])
    assert ids(check(noisy)) == {"random-in-eval"}


def test_a_layer_made_in_forward_is_named_and_other_mistakes_are_found_beside_it():
    dropout = ("F.dropout(scores.softmax(-1), 0.2)", "scores.softmax(-1)")
    made = ("return self.out(", "o = nn.Linear(x.shape[-1], x.shape[-1])\n        return o(")
    source = edited(ALWAYS, [dropout, made, (" / q.shape[-1] ** 0.5", "")])
    report = check(source)
    assert ids(report) == {"random-in-eval", "missing-scale", "out-proj-unused"}
    (found,) = [found for found in report.findings if found.id == "random-in-eval"]
    assert "Linear is made anew in each pass" in found.evidence
    assert "o = nn.Linear" in source.splitlines()[found.line - 1]
