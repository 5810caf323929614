"""The page about speed and its charts, from the committed results."""

import copy
import json
from pathlib import Path

import pytest

from benchmarks import charts, speed_page

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def results():
    return speed_page.load(RESULTS)


def test_results_have_the_schema(results):
    for name, found in results.items():
        assert found["schema"] == 1, name
        assert found["benchmark"] in name or name == "import-cpu", name
        assert {"date", "versions"} <= found.keys(), name
        json.dumps(found, allow_nan=False)
        for case in found.get("cases", ()):
            for row in case.get("rows", ()):
                assert ("median_ms" in row) == (row["status"] == "timed"), name
                if row["status"] == "timed" and found["benchmark"] == "attention":
                    assert row["gap"] is None or row["gap"] < 0.05, name


def test_the_page_fits_on_three_screens_and_every_chart_is_shown(results):
    text = speed_page.markdown(results)
    assert len(text.splitlines()) <= 120
    pages = text + speed_page.tables(results)
    for chart in charts.charts(results):
        assert f"![{chart.alt}](charts/{chart.file})" in pages


def page_without(name, results):
    """None where the page cannot be made without the file."""
    try:
        return speed_page.tables({key: found for key, found in results.items() if key != name})
    except (KeyError, RuntimeError):
        return None


def test_every_file_is_used(results):
    page = speed_page.tables(results)
    for name in results:
        if not name.startswith(("check", "claims", "play", "scale")):  # of other pages
            assert page_without(name, results) != page, name


def test_the_page_says_where_we_lose_and_why(results):
    other = copy.deepcopy(results)
    cases = other["attention-cpu-sweep-float32"]["cases"]
    case = next(c for c in cases if (c["tokens"], c["direction"]) == (8192, "forward"))
    lost = {"name": "fused QKV + SDPA", "median": 2.5, "interval_95": [2.4, 2.6], "rounds": 9}
    case["ours_to_fastest_other"] = lost
    short, text = speed_page.markdown(other), speed_page.tables(other)
    assert "| **2.50** |" in short
    assert "1.04 to 2.50." in short.partition("## Where we lose")[2]
    assert "**2.50 [2.40, 2.60]**" in text
    losses = text.partition("### Where we lose")[2].partition("##")[0]
    line = next(line for line in losses.splitlines() if "8,192 (2.50)" in line)
    assert line.startswith("- The same kernel, but the alternative projects with one matrix")
    case["ours_to_fastest_other"] = lost | {"interval_95": [1.0, 2.6]}
    losses = speed_page.tables(other).partition("### Where we lose")[2].partition("##")[0]
    assert "(2.50)" not in losses, "not certain"
    assert "| 2.50 |" in speed_page.markdown(other)


def test_charts_carry_their_numbers_and_are_the_same_every_time(results):
    made = charts.charts(results)
    assert [c.file for c in made] == ["ratio-cpu.svg", "ratio-h200.svg", "memory-h200.svg"]
    ours = made[2].panels["forward"]["clearhead"]
    assert [point[0] for point in ours] == [100, 1024, 8192, 32768, 131072]
    svg = charts.draw(made[0])
    assert svg == charts.draw(made[0])
    assert charts.data_in(svg) == made[0].data()
    assert "<title>Our time as a multiple of the fastest other&#x27;s, CPU</title>" in svg
    with pytest.raises(ValueError, match="carries no numbers"):
        charts.data_in("<svg></svg>")
