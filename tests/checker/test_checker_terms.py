"""What attention may have on top: biases, learned scales, mixed heads, narrow windows."""

import pytest
import torch
from checker_cases import HEAD, edited
from checker_here import Here, check, ids

from clearhead.checker.diagnosis.recovering import readings, recover
from clearhead.checker.diagnosis.terms import (
    Terms,
    grows,
    in_two_directions,
    is_relative,
    is_step,
    turned,
)
from clearhead.checker.harness.building import settle
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import Sizes
from clearhead.checker.harness.forward_arguments import feeds
from clearhead.checker.harness.subject import Subject, inputs_for
from clearhead.checker.sandbox.submission import Built, Failure
from clearhead.checker.source.text_patterns import text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # strangers' code may warn


BIASED = (
    HEAD
    + """\
class BiasedAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_len=80):
        super().__init__()
        self.h, self.hd = n_heads, d_model // n_heads
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v, self.o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.slopes = nn.Parameter(torch.ones(n_heads))
        self.table = nn.Parameter(torch.zeros(n_heads, 2 * max_len - 1))
        self.max_len = max_len

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        i = torch.arange(n, device=x.device)
        s = q @ k.mT / self.hd**0.5 + self.table[:, i[None] - i[:, None] + self.max_len - 1]
        y = s.softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, n, d)) + 0 * self.slopes.sum()
"""
)
_BIAS = " + self.table[:, i[None] - i[:, None] + self.max_len - 1]"


def test_a_bias_of_distances_is_right_and_is_said():
    report = check(BIASED)
    assert (report.verdict, ids(report)) == ("correct", set())
    assert "A bias of relative positions is added to the scores." in report.notes


@pytest.mark.parametrize(
    ("old", "new", "verdict", "id"),
    [
        (" / self.hd**0.5", "", "unsure", "missing-scale"),  # T5 has none, on purpose
        (" / self.hd**0.5", " / d**0.5", "wrong", "scale-by-d-out"),
        ("i[None] - i[:, None]", "i[None] + i[:, None] - n", "unsure", "unsure"),
        ("softmax(-1)", "softmax(-2)", "wrong", "softmax-over-queries"),
        (_BIAS, " - 3.0 * (i[None] > i[:, None])", "wrong", "mask-fill-not-inf"),
        (_BIAS, " - i.diff(prepend=i[:1] + 1).abs() * self.slopes[:, None, None]", "correct", ""),
    ],
)
def test_what_else_is_wrong_beside_a_bias_is_not_called_correct(old, new, verdict, id):
    report = check(edited(BIASED, [(old, new)]))
    assert (report.verdict, id in ids(report) or not id) == (verdict, True)


def test_a_slope_that_rewards_distance_is_a_question():
    """ALiBi with the wrong sign: far tokens get more."""
    falls = " - self.slope * (i[:, None] - i).abs()"
    slope = ("self.max_len = max_len", "self.max_len, self.slope = max_len, 0.3")
    assert check(edited(BIASED, [slope, (_BIAS, falls)])).verdict == "correct"
    report = check(edited(BIASED, [slope, (_BIAS, falls.replace("- ", "+ ", 1))]))
    assert report.verdict == "unsure"


COSINE = edited(
    BIASED,
    [
        (f"q @ k.mT / self.hd**0.5{_BIAS}", "F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT"),
        ("        y = s", "        s = s * self.slopes.exp()[:, None, None]\n        y = s"),
    ],
)


def test_cosine_attention_with_a_learned_temperature_is_right():
    report = check(COSINE)
    assert (report.verdict, ids(report)) == ("correct", set())
    assert len(report.notes) == 2


@pytest.mark.parametrize("axis", ["", ", dim=1", ", dim=2"])
def test_a_norm_over_another_axis_is_named(axis):
    wrong = COSINE.replace(", dim=-1)", f"{axis})")
    report = check(wrong)
    assert (report.verdict, ids(report)) == ("wrong", {"norm-over-wrong-axis"})
    line = report.findings[0].line
    assert line is not None
    assert "normalize" in wrong.splitlines()[line - 1]


def test_a_slope_that_is_learned_does_not_excuse_a_missing_scale():
    """A parameter that sets the bias once stood for a learned scale."""
    slopes = " - self.slopes.exp()[:, None, None] * (i[:, None] - i).abs()"
    report = check(edited(BIASED, [(_BIAS, slopes), (" / self.hd**0.5", "")]))
    assert (report.verdict, ids(report)) == ("unsure", {"missing-scale"})


TALKING = edited(
    BIASED,
    [
        (_BIAS, ""),
        ("self.slopes = nn.Parameter(torch.ones(n_heads))",
         "self.mix, self.blend = (nn.Parameter(torch.eye(n_heads)) for _ in range(2))"),
        (" + 0 * self.slopes.sum()", ""),
        ("        y = s.softmax(-1) @ v\n",
         "        s = torch.einsum('bhij,hg->bgij', s, self.mix)\n"
         "        a = torch.einsum('bhij,gh->bgij', s.softmax(-1), self.blend)\n"
         "        y = a @ v\n"),
        ("        self.table = nn.Parameter(torch.zeros(n_heads, 2 * max_len - 1))\n", ""),
    ],
)  # fmt: skip


def test_heads_may_talk():
    report = check(TALKING)
    assert (report.verdict, ids(report)) == ("correct", set())
    assert report.notes == ("Heads are mixed: talking heads.",)
    assert "missing-scale" in ids(check(edited(TALKING, [(" / self.hd**0.5", "")])))


def test_mixed_pairs_of_rotary_positions_are_named():
    rotary = edited(
        BIASED,
        [
            (_BIAS, ""),
            ("        s = q",
             "        f = 10000 ** (-torch.arange(0, self.hd, 2) / self.hd)\n"
             "        f = torch.cat([i[:, None] * f] * 2, -1).to(x.dtype)\n"
             "        q, k = (t * f.cos() + torch.cat([-t.chunk(2, -1)[1], t.chunk(2, -1)[0]], -1)"
             " * f.sin() for t in (q, k))\n"
             "        s = q"),
        ],
    )  # fmt: skip
    assert check(rotary).verdict == "correct"
    old, new = "torch.cat([i[:, None] * f] * 2, -1)", "(i[:, None] * f).repeat_interleave(2, -1)"
    wrong = edited(rotary, [(old, new)])
    assert ids(check(wrong)) == {"rotary-pairs-mixed"}


def test_a_rotation_keeps_lengths_and_a_mixed_one_does_not():
    x = torch.randn(2, 3, 7, 10, dtype=torch.float64)
    for kind in ("half", "pairs"):
        torch.testing.assert_close(turned(x, kind).norm(dim=-1), x.norm(dim=-1))
        assert not torch.allclose(turned(x, kind, mixed=True).norm(dim=-1), x.norm(dim=-1))


def test_the_attention_weights_are_recovered_exactly():
    """The heart of it: from outside, without a look at the code."""
    source = BIASED
    session = Here(source)
    classes = session.classes()
    assert not isinstance(classes, Failure)
    info = classes[0]
    keywords = {"d_model": 15, "n_heads": 3}
    built = session.build(info.name, [], keywords)
    assert isinstance(built, Built)
    case = Case(session, info, text_of(source, info), "file.py")
    subject = settle(case, Subject(info, Sizes(d_in=15), keywords, built, feed=feeds(info)))
    assert isinstance(subject, Subject)
    inputs = inputs_for(subject, 7)
    out = session.forward([inputs[0]], {})
    assert not isinstance(out, Failure)
    found = recover(session, subject, inputs, out.tensors[0], ["none"], ["none"], [])
    assert found is not None
    assert found.ids == ()
    terms = found.program.weights.terms
    assert terms is not None
    assert terms.added is not None
    offsets = torch.arange(7)[None] - torch.arange(7)[:, None] + 79
    wanted = subject.weights["table"][:, offsets]
    torch.testing.assert_close(terms.added, wanted - wanted.mean(-1, keepdim=True))


def test_a_reading_knows_where_its_numbers_stand():
    session = Here(BIASED)
    classes = session.classes()
    assert not isinstance(classes, Failure)
    built = session.build("BiasedAttention", [], {"d_model": 15, "n_heads": 3})
    assert isinstance(built, Built)
    weights = {n: torch.randn(s, dtype=torch.float64) for n, s in built.parameters.items()}
    subject = Subject(classes[0], Sizes(d_in=15), {}, built, d_in=15, weights=weights)
    reading = readings(subject)[0]
    other = reading.changed(weights, "v", seed=3)
    changed = {n for n in weights if not torch.equal(weights[n], other[n])}
    assert changed == {"v.weight", "v.bias"}
    torch.testing.assert_close(reading.read(other).v, other["v.weight"].T)
    torch.testing.assert_close(reading.read(weights).q, reading.candidate.weights.q)


def test_what_a_bias_is():
    near, wide = torch.arange(6.0), torch.arange(12)
    distance = near[None] - near[:, None]
    assert is_relative(distance.abs()[None])
    assert is_relative((distance + 3 * near[:, None])[None])  # a number for each row is nothing
    assert not is_relative((near[None] * near[:, None])[None])
    assert is_step((distance > 0)[None] * -5.0)
    assert not is_step(distance[None])
    assert grows(distance.abs()[None])
    assert not grows(-distance.abs()[None])
    table = torch.rand(2, 35, dtype=torch.float64)
    down, across = wide // 4, wide % 4
    index = (down[:, None] - down + 2) * 7 + across[:, None] - across + 3
    found = in_two_directions(table[:, index], 3, 4)
    assert found is not None
    torch.testing.assert_close(found - found[:, :1], table - table[:, :1])
    assert in_two_directions(torch.rand(2, 12, 12, dtype=torch.float64), 3, 4) is None


def test_terms_at_another_length_are_not_known():
    terms = Terms(added=torch.zeros(3, 7, 7))
    assert terms.scored(torch.zeros(2, 3, 8, 8)) is None


SINK = edited(
    BIASED,
    [(_BIAS, ""), ("s.softmax(-1) @ v", "a @ v"),
     ("        y = a",
      "        s = torch.cat([s, self.slopes[:, None, None].expand(b, -1, n, 1)], -1)\n"
      "        a = s.softmax(-1)[..., :-1]\n        y = a")],
)  # fmt: skip


def test_a_learned_sink_is_right_and_does_not_hide_a_mistake():
    """Its rows sum to less than one, and are meant to."""
    report = check(SINK)
    assert report.verdict == "correct"
    assert any("a sink" in note for note in report.notes)
    unscaled = edited(SINK, [(" / self.hd**0.5", "")])
    assert ids(check(unscaled)) == {"missing-scale"}


CAPPED = edited(
    BIASED,
    [(_BIAS, ""), ("        y = s", "        s = 4.0 * torch.tanh(s / 4.0)\n        y = s")],
)


def test_capped_scores_are_right_and_do_not_hide_a_mistake():
    report = check(CAPPED)
    assert report.verdict == "correct"
    assert report.notes == ("Scores are held below 4 by a tanh.",)
    assert ids(check(edited(CAPPED, [(" / self.hd**0.5", "")]))) == {"missing-scale"}


def test_values_that_are_never_used_are_wrong():
    one = edited(BIASED, [(_BIAS, ""), ("softmax(-1) @ v", "softmax(-1) @ v[:, :1]")])
    report = check(one)
    assert (report.verdict, ids(report)) == ("wrong", {"unexplained"})
    assert "10 of the 15 numbers that v.weight gives are never used" in report.findings[0].evidence


@pytest.mark.parametrize(
    "hidden",
    ["(i[:, None] - i).abs() > self.r", "(i > i[:, None]) | (i[:, None] - i >= self.r)"],
    ids=["band", "causal window"],
)
def test_a_width_that_was_asked_for_is_no_break_at_longer_texts(hidden):
    """The name of its argument may be anything."""
    narrow = edited(
        BIASED,
        [(_BIAS, ""), ("n_heads, max_len=80", "n_heads, reach"), (", 2 * max_len - 1", ""),
         ("self.max_len = max_len", "self.r = reach"),
         ("        y = s", f"        s = s.masked_fill({hidden}, -torch.inf)\n        y = s")],
    )  # fmt: skip
    report = check(narrow)
    assert (report.verdict, ids(report)) == ("correct", set())
    assert "In longer texts it sees a window of 11 tokens." in report.notes
