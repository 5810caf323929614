"""Additions to attention: biases, learned scales, mixed heads, sinks, rotary positions."""

from pathlib import Path

import pytest
from in_process_check import check, check_file, ids
from planted_mistakes import HEAD, edited

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn


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
    assert "A relative position bias is added to the scores." in report.notes


@pytest.mark.parametrize(
    ("old", "new", "verdict", "id"),
    [
        (" / self.hd**0.5", "", "unsure", "missing-scale"),  # T5 has none, on purpose
        (" / self.hd**0.5", " / d**0.5", "wrong", "scale-by-d-out"),
        ("i[None] - i[:, None]", "i[None] + i[:, None] - n", "wrong", "bias-of-summed-positions"),
        ("softmax(-1)", "softmax(-2)", "wrong", "softmax-over-queries"),
        (
            _BIAS,
            " - i.diff(prepend=i[:1] - 1) * self.slopes[:, None, None]",
            "correct",  # one number per head, which changes no weight
            "",
        ),
        (
            "i[None] - i[:, None] +",
            "(i[None] - i[:, None]).clamp(min=2 * n) +",
            "wrong",
            "bias-ignores-distance",
        ),
    ],
)
def test_what_else_is_wrong_beside_a_bias_is_not_called_correct(old, new, verdict, id):
    report = check(edited(BIASED, [(old, new)]))
    assert (report.verdict, id in ids(report) or not id) == (verdict, True)


def test_a_slope_that_rewards_distance_is_wrong():
    """ALiBi with the wrong sign: far tokens get more."""
    falls = " - self.slope * (i[:, None] - i).abs()"
    slope = ("self.max_len = max_len", "self.max_len, self.slope = max_len, 0.3")
    assert check(edited(BIASED, [slope, (_BIAS, falls)])).verdict == "correct"
    report = check(edited(BIASED, [slope, (_BIAS, falls.replace("- ", "+ ", 1))]))
    assert (report.verdict, ids(report)) == ("wrong", {"bias-favours-distant"})


@pytest.mark.parametrize(
    ("bias", "verdict"),
    [
        (" - 0.3 * i.flip(0)", "correct"),
        (" + 0.3 * i**2", "unsure"),
    ],
)
def test_a_slope_in_the_keys_position_is_one_in_the_distance(bias, verdict):
    """The two differ by one number per query, which changes no weight."""
    assert check(edited(BIASED, [(_BIAS, bias)])).verdict == verdict


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


def test_a_norm_over_another_axis_is_named():
    wrong = COSINE.replace(", dim=-1)", ")")
    report = check(wrong)
    assert (report.verdict, ids(report)) == ("wrong", {"norm-over-wrong-axis"})
    line = report.findings[0].line
    assert line is not None
    assert "normalize" in wrong.splitlines()[line - 1]


def test_a_slope_that_is_learned_does_not_excuse_a_missing_scale():
    """A parameter of the bias is not a learned scale."""
    slopes = " - self.slopes.exp()[:, None, None] * (i[:, None] - i).abs()"
    report = check(edited(BIASED, [(_BIAS, slopes), (" / self.hd**0.5", "")]))
    assert (report.verdict, ids(report)) == ("unsure", {"missing-scale"})


def test_values_that_are_never_used_are_wrong():
    one = edited(BIASED, [(_BIAS, ""), ("softmax(-1) @ v", "softmax(-1) @ v[:, :1]")])
    report = check(one)
    assert (report.verdict, ids(report)) == ("wrong", {"unexplained"})
    assert "10 of the 15 outputs of v.weight are never used" in report.findings[0].evidence


def test_a_width_that_was_asked_for_is_no_break_at_longer_texts():
    """The name of its argument may be anything."""
    hidden = "(i > i[:, None]) | (i[:, None] - i >= self.r)"
    narrow = edited(
        BIASED,
        [(_BIAS, ""), ("n_heads, max_len=80", "n_heads, reach"), (", 2 * max_len - 1", ""),
         ("self.max_len = max_len", "self.r = reach"),
         ("        y = s", f"        s = s.masked_fill({hidden}, -torch.inf)\n        y = s")],
    )  # fmt: skip
    report = check(narrow)
    assert (report.verdict, ids(report)) == ("correct", set())
    assert "In longer sequences, each token sees a window of 11 tokens." in report.notes


ROTARY = edited(
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


def test_mixed_pairs_of_rotary_positions_are_named():
    assert check(ROTARY).verdict == "correct"
    old, new = "torch.cat([i[:, None] * f] * 2, -1)", "(i[:, None] * f).repeat_interleave(2, -1)"
    assert ids(check(edited(ROTARY, [(old, new)]))) == {"rotary-pairs-mixed"}


def test_angles_that_grow_along_the_heads_are_named():
    along_heads = [
        ("torch.cat([i[:, None] * f] * 2, -1)",
         "torch.cat([torch.arange(self.h)[:, None] * f] * 2, -1)[:, None]"),
    ]  # fmt: skip
    report = check(edited(ROTARY, along_heads))
    assert (report.verdict, ids(report)) == ("wrong", {"rotary-ignores-position"})
    line = report.findings[0].line
    assert line is not None
    assert "f.cos()" in ROTARY.splitlines()[line - 1]


RELATIVE = edited(
    BIASED,
    [
        ("torch.zeros(n_heads, 2 * max_len - 1)",
         "torch.zeros(2 * max_len - 1, d_model // n_heads)"),
        ("        s = q @ k.mT / self.hd**0.5 + self.table[:, i[None] - i[:, None] + "
         "self.max_len - 1]",
         "        r = self.table[i[None] - i[:, None] + self.max_len - 1]\n"
         "        s = (q @ k.mT + torch.einsum('bhid,ijd->bhij', q, r)) / self.hd**0.5"),
    ],
)  # fmt: skip


def test_a_term_of_queries_and_distances_is_right():
    """As in Transformer-XL, queries are also multiplied with vectors of relative positions."""
    report = check(RELATIVE)
    assert (report.verdict, ids(report)) == ("correct", set())
    assert "A relative position term is added to the scores." in report.notes


@pytest.mark.parametrize(
    ("old", "new", "verdict", "id"),
    [
        (") / self.hd**0.5", ")", "wrong", "missing-scale"),
        ("[i[None] - i[:, None] +", "[i[None] + 0 * i[:, None] +", "unsure", "unsure"),
    ],
)
def test_a_term_of_positions_does_not_hide_a_mistake(old, new, verdict, id):
    report = check(edited(RELATIVE, [(old, new)]))
    assert (report.verdict, ids(report)) == (verdict, {id})


_HEADS = """
class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        wei = self.query(x) @ self.key(x).mT * C ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return wei.softmax(-1) @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self, n_embd, num_heads, head_size, block_size):
        super().__init__()
        self.heads = nn.ModuleList(
            [Head(n_embd, head_size, block_size) for _ in range(num_heads)]
        )
        self.proj = nn.Linear(num_heads * head_size, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))
"""


def test_the_width_of_all_heads_as_scale_of_each_head_in_a_list():
    head, whole = check_file(HEAD + _HEADS, "file.py")
    assert [f.id for f in whole.findings] == ["scale-by-d-out"]
    assert [f.id for f in head.findings] == ["wrong-scale"]
    for report in (head, whole):
        assert "the square root of the input's width" in report.findings[0].evidence


SLOPED = edited(
    BIASED,
    [
        (_BIAS, ""),
        ("i = torch.arange(n, device=x.device)", "i = torch.arange(n, dtype=x.dtype)"),
        ("        y =", """\
        s = 30 * torch.tanh(s / 30)
        s = s - (i[:, None] - i) / 2 ** torch.arange(1, self.h + 1)[:, None, None]
        s = s.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        y ="""),
    ],
)  # fmt: skip
_FROM_HEADS = ("self.hd**0.5", "self.h**0.5")


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([], {}),
        ([_FROM_HEADS], {"wrong-scale": "self.h**0.5"}),
        ([("s - (i[:, None]", "s + (i[:, None]")], {"bias-favours-distant": "s + (i"}),
        ([_FROM_HEADS, ("s - (i[:, None]", "s + (i[:, None]"), ("triu(1)", "triu(2)")],
         {"wrong-scale": "self.h", "bias-favours-distant": "s + (i", "mask-off-by-one": "triu"}),
    ],
)  # fmt: skip
def test_a_cap_hides_neither_the_scale_nor_the_mask(edits, expected):
    """And each is found at its own line, with 0 for what rounding leaves of it."""
    source = edited(SLOPED, edits)
    report = check(source)
    wrong = [found for found in report.findings if found.severity == "wrong"]
    lines = {found.id: source.splitlines()[(found.line or 0) - 1] for found in wrong}
    assert lines.keys() == expected.keys(), report
    assert all(part in lines[id] for id, part in expected.items()), lines
    assert all("e-1" not in found.evidence for found in report.findings)


BARE = """\
class ScaledDotProductAttention(nn.Module):
    def __init__(self, {name}):
        super().__init__()
        self.{name} = {name}

    def forward(self, q, k, v):
        return (q @ k.mT / self.{name}).softmax(-1) @ v
"""


@pytest.mark.parametrize(("name", "wrong"), [("d_k", {"scale-twice"}), ("temperature", set())])
def test_a_width_is_no_scale(name, wrong):
    assert ids(check(HEAD + BARE.format(name=name))) == wrong


SKEWED = (
    HEAD
    + """\
class RelativeAttention(nn.Module):
    def __init__(self, d_model, max_len):
        super().__init__()
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v, self.max_len = nn.Linear(d_model, d_model), max_len
        self.table = nn.Parameter(torch.randn(2 * max_len, d_model))

    def forward(self, x):
        n, d = x.shape[1:]
        i = torch.arange(n)
        rows = self.table[i[:, None] - i + self.max_len]
        q = self.q(x)
        s = (q @ self.k(x).mT + torch.einsum("bid,ijd->bij", q, rows)) / d**0.5
        s = s.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        return s.softmax(-1) @ self.v(x)
"""
)


def test_relative_embeddings_do_not_depend_on_the_length():
    """The same prefix gives the same outputs, however long the text is."""
    assert check(SKEWED).verdict == "correct"
    shifted = edited(SKEWED, [("- i + self.max_len", "- i + n")])
    assert "breaks-with-length" in ids(check(shifted))


def test_a_bias_that_is_passed_in_is_another_one_for_another_length():
    """So that the outputs of a prefix tell nothing of the class."""
    file = Path(__file__).parents[1] / "submissions/blind_engineers_5/e17_bloom_attention.py"
    report = check(file.read_text(encoding="utf-8"))
    assert (report.verdict, ids(report)) == ("correct", set())
