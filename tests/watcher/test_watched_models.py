"""The table in docs/watched-models.md: measured again, and as it is written."""

import importlib.util
import json
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "docs" / "watched_models.py"
spec = importlib.util.spec_from_file_location("watched_models", FILE)
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)
FIGURES = json.loads(table.FIGURES.read_text(encoding="utf-8"))
ROWS = list(zip(table.CASES, FIGURES["models"], strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("case", "row"), ROWS, ids=[case.name + case.shows for case, _ in ROWS])
def test_a_model(case, row):
    """Every layer is seen, and its map is what the model computes, up to rounding."""
    found = table.measure(case)
    assert {**found, "difference": None} == {**row, "difference": None}
    for how, difference in row["difference"].items():
        again = found["difference"][how]
        if isinstance(difference, str):
            assert again == difference
        else:
            assert max(again, difference) < 2e-6
    assert found["layers"] or found["unseen"], "what is not seen is named"


def test_enough_models_are_compared():
    seen = {row["model"] for row in FIGURES["models"] if row["layers"]}
    assert len(seen) >= 30


def test_the_page_has_the_table():
    page = table.PAGE.read_text(encoding="utf-8")
    assert table.with_table(page, FIGURES) == page
