"""Three mistakes in one file: the verdict is wrong, and at least two of them are named."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process_check import check, ids
from planted_mistakes import PLANTED, STYLES, edited

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
