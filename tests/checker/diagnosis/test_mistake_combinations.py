"""Three mistakes in one file: the verdict is wrong, and at least two of them are named."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process_check import check, ids
from planted_mistakes import HEAD, PLANTED, STYLES, edited

# One from each part of attention, since two in the same part hide each other. A mistake in the
# weights beside one in the heads gives the verdict wrong, but not always both names.
PARTS = (
    ("missing-scale", "scale-by-d-out", "scale-multiplied", "scale-twice"),
    ("mask-off-by-one", "mask-inverted", "mask-result-dropped", "mask-fill-not-inf"),
    (
        *("key-from-query-weights", "query-from-key-weights", "value-from-keys"),
        *("out-proj-unused", "split-without-transpose", "merge-without-transpose"),
    ),
)
Triple = tuple[str, tuple[str, ...], str]


def sources() -> list[Triple]:
    """Every style with three mistakes whose edits do not overlap: style, ids, source."""
    found = []
    for style, triple in itertools.product(STYLES, itertools.product(*PARTS)):
        try:
            source = STYLES[style]
            for id in triple:
                source = edited(source, PLANTED[id][style])
        except (AssertionError, KeyError):  # two edits of the same text, or no edit for this style
            continue
        found.append((style, triple, source))
    return found


SOURCES = sources()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # submissions may warn
@settings(max_examples=40)
@given(st.sampled_from(SOURCES))
def test_of_three_mistakes_two_are_named(case: Triple) -> None:
    style, triple, source = case
    report = check(source)
    assert report.verdict == "wrong"
    assert len(ids(report) & set(triple)) >= 2, (style, triple, ids(report))


def test_there_are_enough_triples() -> None:
    assert len(SOURCES) > 50
    assert {style for style, _, _ in SOURCES} == set(STYLES)


MASKED = (
    HEAD
    + """\
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        B, N, D = x.shape
        q = self.W_q(x).view(B, N, self.h, self.d_k).transpose(1, 2)
        k = self.W_k(x).view(B, N, self.h, self.d_k).transpose(1, 2)
        v = self.W_v(x).view(B, N, self.h, self.d_k).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = torch.softmax(scores, dim=-1)
        out = (weights @ v).transpose(1, 2).reshape(B, N, D)
        return self.W_o(out)
"""
)
_EDGES = {"mask-fill-overflows-half", "made-on-cpu"}
_MERGE = (".transpose(1, 2).reshape(B, N, D)", ".reshape(B, N, D)")
_QUERY = ("self.W_q(x)", "self.W_k(x)")
_SPLIT = ("k = self.W_k(x).view(B, N, self.h, self.d_k).transpose(1, 2)",
          "k = self.W_k(x).view(B, self.h, N, self.d_k)")  # fmt: skip
_LATE = "\n        if mask is not None:\n            weights = weights.masked_fill(mask == 0, 0)"


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([_MERGE], {"merge-without-transpose"}),  # its mask is right
        ([_MERGE, ("-1e9", "-1e-9")], {"merge-without-transpose", "mask-fill-not-inf"}),
        ([_MERGE, _QUERY, ("-1e9", 'float("inf")')],
         {"merge-without-transpose", "query-from-key-weights", "mask-fill-not-inf"}),
        ([_MERGE, ("masked_fill", "masked_fil")], {"merge-without-transpose", "mask-branch-fails"}),
        ([_QUERY, ("scores = scores.m", "scores.m")],
         {"query-from-key-weights", "mask-result-dropped"}),
        ([_SPLIT], {"split-without-transpose"}),
        ([_SPLIT, ("dim=-1", "dim=-2"), ("math.sqrt(self.d_k)", "self.d_k")],
         {"split-without-transpose", "softmax-over-queries", "scale-twice"}),
        ([("-1e9", "1e9")], {"mask-fill-not-inf"}),
        ([("masked_fill(mask == 0, -1e9)", "clone()"), ("dim=-1)", "dim=-1)" + _LATE)],
         {"mask-after-softmax"}),
    ],
)  # fmt: skip
def test_an_optional_mask_is_judged_beside_other_mistakes(edits, expected):
    """Each mistake is found, and none that only follows from another."""
    assert ids(check(edited(MASKED, edits))) - _EDGES == expected


CAUSAL = edited(
    MASKED,
    [(", mask=None", ""), ("        if mask is not None:\n    ", ""),
     ("mask == 0, -1e9", "torch.ones(N, N).triu(1).bool(), -torch.inf")],
)  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([], set()),
        ([("weights @ v", "weights.mT @ v")], {"weights-transposed"}),
        ([("-torch.inf", "0.0"), ("triu(1)", "triu(0)")], {"mask-fill-not-inf", "mask-hides-self"}),
    ],
)
def test_a_causal_mask_beside_another_mistake(edits, expected):
    assert ids(check(edited(CAUSAL, edits))) - _EDGES == expected


THREE = edited(
    MASKED,
    [("x, mask=None", "Q, K, V, attn_mask"), ("= x.shape", "= Q.shape"), ("W_q(x)", "W_q(Q)"),
     ("W_k(x)", "W_k(K)"), ("W_v(x)", "W_v(V)"), (".view(B, N", ".view(B, -1"),
     ("        if mask is not None:\n    ", ""), ("mask == 0", "attn_mask.unsqueeze(1)")],
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [("V", set()), ("Q", {"keys-and-values-apart"}), ("K", {"input-ignored"})],
)
def test_the_meaning_of_a_mask_is_not_the_mistake(value, expected):
    """Of the two meanings that a mask may have, the one counts in which it hides the future."""
    report = check(edited(THREE, [("self.W_v(V)", f"self.W_v({value})")]))
    assert ids(report) - _EDGES == expected
