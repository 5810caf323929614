"""Mistakes that show only in other uses: long texts, padding, batches, caches."""

# ruff: noqa: E501 - submissions have long lines, and the edits must match them

import pytest
from in_process_check import check
from planted_mistakes import BOOK, HEAD, MINIMAL, edited
from uncatalogued_mistakes import FUSED

from clearhead.checker.diagnosis.file_check import check_source
from clearhead.checker.report import Report
from clearhead.checker.source.class_text import order_said

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn


def found(report: Report) -> dict[str, str]:
    return {finding.id: finding.severity for finding in report.findings}


# Grouped queries: more heads of queries than of keys and values.
_GROUPED = (
    HEAD
    + """\
class GroupedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv, self.hd = n_heads, n_kv_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, n_kv_heads * self.hd)
        self.wv = nn.Linear(d_model, n_kv_heads * self.hd)
        self.wo = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.hd)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        times = self.n_heads // self.n_kv
        k = k.repeat_interleave(times, dim=1)
        v = v.repeat_interleave(times, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))
"""
)
_GROUPED_BY_HAND = edited(
    _GROUPED,
    [("        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
      "        s = torch.einsum('bhid,bhjd->bhij', q, k) / math.sqrt(self.hd)\n"
      "        y = torch.einsum('bhij,bhjd->bhid', s.softmax(-1), v)\n")],
)  # fmt: skip

# Queries in chunks, to save memory.
_PIECES = (
    HEAD
    + """\
class PiecewiseAttention(nn.Module):
    def __init__(self, dim, num_heads, piece=8):
        super().__init__()
        self.num_heads, self.piece = num_heads, piece
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        place, made = torch.arange(x.shape[1], device=x.device), []
        for first in range(0, x.shape[1], self.piece):
            part = q[:, :, first : first + self.piece]
            future = place > place[first : first + self.piece, None]
            s = (part @ k.mT * q.shape[-1] ** -0.5).masked_fill(future, -torch.inf)
            made.append(s.softmax(-1) @ v)
        return self.out(torch.cat(made, 2).transpose(1, 2).flatten(2))
"""
)

# A mask of the real tokens, (batch, tokens).
_PADDED_BOOK = edited(
    BOOK,
    [("def forward(self, x):", "def forward(self, x, valid=None):"),
     ("        weights = torch.softmax", "        if valid is not None:\n            scores = scores.masked_fill(~valid[:, None, None, :], -1e9)\n        weights = torch.softmax")],
)  # fmt: skip
_PADDED_FUSED = edited(
    FUSED,
    [("def forward(self, x):", "def forward(self, x, pad_mask=None):"),
     ("        match = match.softmax", "        if pad_mask is not None:\n            match = match + pad_mask.view(B, 1, 1, N) * -1e30\n        match = match.softmax")],
)  # fmt: skip

# PyTorch's own module, with the batch first.
_WRAPPED = (
    HEAD
    + """\
class WrappedAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x):
        batch, tokens, dim = x.shape
        return self.inner(x, x, x)[0]
"""
)
_BY_HAND = (
    HEAD
    + """\
class HandAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        bsz, length, dim = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        s = torch.einsum("bid,bjd->bij", q, k) / dim**0.5
        return torch.einsum("bij,bjd->bid", s.softmax(-1), v)
"""
)

RIGHT = {
    "grouped": _GROUPED, "grouped by hand": _GROUPED_BY_HAND,
    "pieces": _PIECES,
    "padded, book": _PADDED_BOOK, "padded, fused": _PADDED_FUSED,
    "wrapped": _WRAPPED, "by hand": _BY_HAND,
}  # fmt: skip

WRONG = {
    "kv-heads-do-not-match": [
        edited(_GROUPED, [("k = k.repeat_interleave(times, dim=1)", "k = k.repeat(1, times, 1, 1)")]),
        edited(_GROUPED_BY_HAND, [("v = v.repeat_interleave(times, dim=1)", "v = torch.cat([v] * times, dim=1)")]),
    ],
    "breaks-with-length": [
        edited(_PIECES, [("place[first : first + self.piece, None]", "place[: part.shape[2], None]")]),
        edited(MINIMAL, [("m = torch.tril(torch.ones(T, T, device=x.device))", "m = torch.tril(torch.ones(T, T, device=x.device))\n        m[:, 50:] = 0")]),
    ],
    "padding-on-queries": [
        edited(_PADDED_BOOK, [("valid[:, None, None, :]", "valid[:, None, :, None]")]),
        edited(_PADDED_FUSED, [("view(B, 1, 1, N)", "view(B, 1, N, 1)"), ("match + pad_mask", "match - 1e9 * pad_mask"), (" * -1e30", "")]),
    ],
    "attends-across-batch": [
        edited(_WRAPPED, [(", batch_first=True", "")]),
        edited(_BY_HAND, [("bid,bjd->bij", "ibd,jbd->bij"), ("bij,bjd->bid", "bij,jbd->ibd")]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_uses_are_not_flagged(name: str) -> None:
    report = check(RIGHT[name])
    assert report.verdict == "correct", report
    assert set(found(report)) <= {"mask-fill-overflows-half"}, report
    assert not report.notes


@pytest.mark.parametrize(
    ("id", "style"), [(id, i) for id, all in WRONG.items() for i in range(len(all))]
)
def test_a_mistake_in_use_is_named(id: str, style: int) -> None:
    report = check(WRONG[id][style])
    assert report.verdict == "wrong", report
    assert set(found(report)) - {"mask-fill-overflows-half"} == {id}, report
    (finding,) = (f for f in report.findings if f.id == id)
    assert finding.severity == "wrong"
    assert finding.evidence
    assert finding.line is not None


def test_the_length_is_named() -> None:
    """A block of 16 tokens shows only in texts that are longer than a block."""
    report = check(WRONG["breaks-with-length"][0])
    assert "With 8 tokens, the output is that of attention; from 9" in report.findings[0].evidence


def test_a_window_is_no_mistake_at_longer_texts() -> None:
    source = edited(WRONG["breaks-with-length"][0], [("piece", "local_window")])
    report = check(source)
    assert report.verdict == "correct", report
    assert found(report) == {"breaks-with-length": "edge"}


def test_tokens_first_is_a_question_where_nothing_says_so() -> None:
    silent = edited(
        WRONG["attends-across-batch"][0], [("        batch, tokens, dim = x.shape\n", "")]
    )
    report = check(silent)
    assert report.verdict == "correct", report
    assert found(report) == {"attends-across-batch": "edge"}
    assert "meant to be (tokens, batch, d), it is right" in report.findings[0].evidence
    # What another class says about its own input does not count for this one.
    report = check(silent + "\n\nclass Model(nn.Module):\n    # (batch, tokens, dim)\n    pass\n")
    assert found(report) == {"attends-across-batch": "edge"}
    used = "\n\nclass Model(nn.Module):\n    def __init__(self):\n        self.a = WrappedAttention(8, 2)\n"
    for around, severity in (
        ("self.a(torch.cat((cls, x), dim=1))", "wrong"),
        ("self.a(x)", "edge"),
    ):
        model = f"{used}\n    def forward(self, cls, x):\n        return {around}\n"
        assert found(check(silent + model)) == {"attends-across-batch": severity}
    model = f"{used}\n    def forward(self, x):\n        return self.a(x.permute(1, 0, 2))\n"
    assert not check(silent + model).findings
    said = edited(silent, [("    def forward", "    # x: (tokens, batch, dim)\n    def forward")])
    assert not check(said).findings


@pytest.mark.parametrize(
    ("source", "order"),
    [
        ("B, T, C = x.shape", "batch"), ("# (N, L, E) in", "batch"), ("# [batch, seq, dim]", "batch"),
        ("T, B, C = x.shape", "tokens"), ("# (seq_len, batch, dim)", "tokens"), ("y = x", ""),
        ("nn.MultiheadAttention(d, h, batch_first=True)", "batch"),
    ],
)  # fmt: skip
def test_what_the_source_says_of_the_axes(source: str, order: str) -> None:
    assert order_said(source) == order


SLOW_AND_FUSED = (
    HEAD
    + """\
class FusedIfThere(nn.Module):
    def __init__(self, d, heads, length=64):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fused = hasattr(F, "scaled_dot_product_attention")
        if not self.fused:
            self.register_buffer("past", torch.tril(torch.ones(length, length)))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            y = scores.masked_fill(self.past[:n, :n] == 0, -torch.inf).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, d))
"""
)


def test_the_branch_for_older_versions_of_torch_is_read_too() -> None:
    (report,) = check_source(SLOW_AND_FUSED, "file.py")
    assert report.verdict == "correct", report
    inverted = edited(SLOW_AND_FUSED, [("== 0", "== 1"), (" * q.shape[-1] ** -0.5", "")])
    (report,) = check_source(inverted, "file.py")
    assert {"mask-inverted", "missing-scale"} <= set(found(report)), report


STATED = (
    HEAD
    + '''\
class StatedAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.h, self.qkv, self.o = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, attn_mask=None):
        """Attention.

        Args:
            x: (batch, tokens, dim)
            attn_mask: boolean mask, (tokens, tokens). `True` indicates positions that
                should be attended to.
        """
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.o(y.transpose(1, 2).flatten(2))
'''
)


def test_a_mask_must_mean_what_the_docstring_says() -> None:
    hides = [("should be", "should not be")]
    turned = [("=attn_mask)", "=None if attn_mask is None else ~attn_mask)")]
    assert found(check(STATED)) == {}
    assert found(check(edited(STATED, hides + turned))) == {}
    for wrong in (hides, turned):
        assert found(check(edited(STATED, wrong))) == {"padding-inverted": "wrong"}
    # A mask that only runs with an axis for queries is one of pairs.
    square = edited(
        STATED,
        [
            (
                "q, k, v = (t",
                "assert attn_mask is None or attn_mask.shape == (x.shape[1],) * 2\n        q, k, v = (t",
            )
        ],
    )
    assert found(check(square)) == {}
    assert found(check(edited(square, hides))) == {"sdpa-mask-polarity": "wrong"}
