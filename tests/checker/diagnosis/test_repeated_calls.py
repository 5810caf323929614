"""Mistakes that show in a second call, in a long text, or at the start of training."""

# ruff: noqa: E501 - submissions have long lines, and the edits must match them

import pytest
from in_process_check import check, ids
from planted_mistakes import BOOK, HEAD, MINIMAL, edited

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn

_MADE = "m = torch.tril(torch.ones(T, T, device=x.device))"

# A mask that is kept, and rebuilt when it is too small.
_KEPT = edited(
    MINIMAL,
    [("self.drop = nn.Dropout(p)", "self.drop = nn.Dropout(p)\n        self.m = None"),
     (_MADE, "if self.m is None or self.m.shape[0] < T:\n            self.m = torch.tril(torch.ones(T, T, device=x.device))\n        m = self.m[:T, :T]")],
)  # fmt: skip


def test_what_is_kept_and_made_anew_is_right() -> None:
    report = check(_KEPT)
    assert (report.verdict, report.findings) == ("correct", ()), report


def test_what_an_earlier_text_has_left_is_named() -> None:
    """A failure that depends on the previous call is wrong, and not an edge case of lengths."""
    report = check(
        edited(_KEPT, [("if self.m is None or self.m.shape[0] < T:", "if self.m is None:")])
    )
    assert (report.verdict, ids(report)) == ("wrong", {"depends-on-earlier-call"}), report
    assert report.findings[0].evidence.startswith("After inputs of up to 7 tokens, one of")
    assert report.findings[0].line is not None


def test_a_length_that_always_fails_is_no_fault_of_an_earlier_text() -> None:
    source = edited(_KEPT, [("B, T, D = x.shape", "B, T, D = x.shape\n        assert T > 2")])
    report = check(source)
    assert ids(report) == {"fails-at-some-lengths"}
    assert report.findings[0].severity == "edge"


# Keys in blocks, with a running maximum.
_STREAMED = (
    HEAD
    + """\
class StreamedAttention(nn.Module):
    def __init__(self, dim, num_heads, block=128):
        super().__init__()
        self.num_heads, self.block = num_heads, block
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        top, below, most = 0.0, 0.0, torch.full_like(q[..., :1], -torch.inf)
        for first in range(0, x.shape[1], self.block):
            keys, values = k[:, :, first : first + self.block], v[:, :, first : first + self.block]
            s = q @ keys.mT * q.shape[-1] ** -0.5
            more = torch.maximum(most, s.amax(-1, keepdim=True))
            old, e = (most - more).exp(), (s - more).exp()
            top, below, most = top * old + e @ values, below * old + e.sum(-1, keepdim=True), more
        return self.out((top / below).transpose(1, 2).flatten(2))
"""
)
_LIMITED = edited(
    BOOK, [("weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)",
            "weights = torch.cat([part.softmax(-1) for part in (scores / keys.shape[-1] ** 0.5).split(90, dim=2)], dim=2)")]
)  # fmt: skip


@pytest.mark.parametrize(
    ("right", "wrong", "last"),
    [
        (_STREAMED, ("below * old + e.sum", "below + e.sum"), 128),
        (_LIMITED, (".split(90, dim=2)], dim=2)", ".split(90, dim=3)], dim=3)"), 90),
    ],
)
def test_blocks_longer_than_a_short_text(right: str, wrong: tuple[str, str], last: int) -> None:
    """A block of 128 tokens needs a text that is longer than a block."""
    report = check(right)
    assert (report.verdict, report.findings) == ("correct", ()), report
    report = check(edited(right, [wrong]))
    assert (report.verdict, ids(report)) == ("wrong", {"breaks-with-length"}), report
    start = f"With {last} tokens, the output is that of attention; from {last + 1} tokens on"
    assert report.findings[0].evidence.startswith(start)


_LONG_WAY = """\
        if T > 300:  # in halves, to save memory
            k, v = self.half(k), self.half(v)
            parts = [(q @ k[:, :, i::2].mT / math.sqrt(self.dk), v[:, :, i::2]) for i in range(2)]
            total = sum(s.exp().sum(-1, keepdim=True) for s, _ in parts)
            y = sum(s.exp() @ values for s, values in parts) / total
            return self.proj(y.transpose(1, 2).reshape(B, T, D))
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_a_long_text_that_takes_another_way_must_give_what_its_tokens_give_once(wrong):
    """Each token of a short text is repeated, which must not change the output."""
    half = "    def half(self, t):\n        return t{}\n\n    def forward".format(
        "[:, :, : t.shape[2] // 2]" if wrong else ""
    )
    ways = edited(
        MINIMAL,
        [("        m = torch.tril(torch.ones(T, T, device=x.device))\n", ""),
         ('        s = s.masked_fill(m == 0, float("-inf"))\n', ""),
         ("    def forward", half), ("        s = q", f"{_LONG_WAY}        s = q")],
    )  # fmt: skip
    report = check(ways)
    assert (report.verdict == "wrong") == wrong, report
    if wrong:
        assert ids(report) == {"breaks-with-length"}
        assert "where each token is repeated several times" in report.findings[0].evidence


def test_a_window_that_only_a_long_text_shows() -> None:
    source = edited(
        MINIMAL,
        [("self.h = h", "self.h = h\n        self.span = 100"), ("m == 0", "m.triu(1 - self.span) == 0")],
    )  # fmt: skip
    report = check(source)
    assert (report.verdict, report.findings) == ("correct", ()), report
    assert report.notes == ("In longer sequences, each token sees a window of 100 tokens.",)


def _starting(source: str, before: str, *names: str) -> str:
    lines = "".join(f"        nn.init.zeros_(self.{name})\n" for name in names)
    return edited(source, [(before, f"{lines}{before}")])


_AT = "        self.drop = nn.Dropout(p)\n"


@pytest.mark.parametrize(
    "names",
    [("proj.weight", "proj.bias"), ("proj.weight", "W_q.weight")],
)  # fmt: skip
def test_one_factor_may_start_at_zero(names: tuple[str, ...]) -> None:
    report = check(_starting(MINIMAL, _AT, *names))
    assert (report.verdict, report.findings) == ("correct", ()), report


@pytest.mark.parametrize(
    ("source", "stuck"),
    [
        (_starting(MINIMAL, _AT, "W_q.weight", "W_q.bias", "W_k.weight", "W_k.bias"), "W_q.weight, W_q.bias, W_k.weight"),
        (_starting(MINIMAL, _AT, "W_v.weight", "W_v.bias", "proj.weight"), "W_q.weight"),
    ],
)  # fmt: skip
def test_weights_that_can_never_move_are_named(source: str, stuck: str) -> None:
    report = check(source)
    assert (report.verdict, ids(report)) == ("wrong", {"never-learns"}), report
    assert stuck in report.findings[0].evidence
    assert report.findings[0].line is not None


def test_zeros_are_room_for_weights_from_elsewhere() -> None:
    names = [
        f"{layer}.{part}" for layer in ("W_q", "W_k", "W_v", "proj") for part in ("weight", "bias")
    ]
    assert check(_starting(MINIMAL, _AT, *names)).findings == ()
    source = _starting(MINIMAL, _AT, "W_q.weight", "W_q.bias", "W_k.weight", "W_k.bias")
    source += "\n\ndef load(module, path):\n    module.load_state_dict(torch.load(path))\n"
    assert check(source).findings == ()
