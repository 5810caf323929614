"""A whole class: two hundred submissions, two at a time, each with its row.

python tests/checker/test_whole_class.py benchmarks/results/check-cpu-200.json     measures it
"""

import csv
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from uncatalogued_mistakes import UNUSUAL

from clearhead.checker.classroom import check_command as runner

STUDENTS = 200
SUBMISSIONS = sorted((Path(__file__).parent / "submissions").glob("[0-9]*.py"))
HEAVY = ("transformers", "timm")  # importing these takes longer than the check


def submissions() -> Iterator[tuple[str, str]]:
    """Distinct files, each with its expected verdict ("" if any is accepted)."""
    others = [(file.read_text(encoding="utf-8"), "") for file in SUBMISSIONS]
    for text, verdict in (*others, *((text, "correct") for text in UNUSUAL.values())):
        if not any(name in text for name in HEAVY):
            yield text, verdict


def write_class(folder: Path, students: int = STUDENTS) -> dict[str, str]:
    """Write the submissions; return their expected verdicts."""
    expected = {}
    every = STUDENTS // students  # fewer students: a sample of all
    for number, (text, verdict) in enumerate(islice(submissions(), 0, STUDENTS, every)):
        name = f"student_{number:03}.py"
        (folder / name).write_text(f"{text}\n# handed in by student {number}\n", encoding="utf-8")
        expected[name] = verdict
    return expected


def mark(folder: Path, marks: Path) -> dict[str, dict[str, str]]:
    runner.check(str(folder), runner.Options(csv=marks, jobs=2))
    with marks.open(encoding="utf-8", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_two_hundred_submissions_all_get_their_row(tmp_path, capsys):
    folder = tmp_path / "submissions"
    folder.mkdir()
    expected = write_class(folder)
    assert len(expected) == STUDENTS
    assert len({file.read_bytes() for file in folder.iterdir()}) == STUDENTS
    rows = mark(folder, tmp_path / "marks.csv")
    assert rows.keys() == expected.keys()
    other = {
        name: (verdict, rows[name]["verdict"], rows[name]["findings"])
        for name, verdict in expected.items()
        if verdict and rows[name]["verdict"] != verdict
    }
    assert not other
    errors = [name for name, row in rows.items() if row["verdict"] == "error"]
    assert [name for name in errors if expected[name]] == []
    assert len(errors) <= 5  # submissions that are not understood: see test_submissions.py
    before = (tmp_path / "marks.csv").read_bytes()
    mark(folder, tmp_path / "marks.csv")
    assert (tmp_path / "marks.csv").read_bytes() == before
    assert f"{STUDENTS} of {STUDENTS} were judged before" in capsys.readouterr().out


def measure(students: int = STUDENTS) -> dict[str, object]:
    """Run the checker once over the class and time it."""
    from clearhead import timing

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "submissions"
        folder.mkdir()
        expected = write_class(folder, students)
        load = os.getloadavg()[0]
        began = time.perf_counter()
        rows = mark(folder, Path(place) / "marks.csv")
        wall = time.perf_counter() - began
    seconds = sorted(float(row["seconds"]) for row in rows.values())
    return {
        "schema": 1,
        "benchmark": "check",
        **timing.environment(["torch", "safetensors"]),
        "settings": {"submissions": len(expected), "jobs": 2},
        "wall_seconds": round(wall, 1),
        "load_average_before": round(load, 2),
        "seconds_a_file": {"median": seconds[len(seconds) // 2], "longest": seconds[-1]},
        "verdicts": dict(Counter(row["verdict"] for row in rows.values())),
    }


if __name__ == "__main__":
    result = measure(int(sys.argv[2]) if len(sys.argv) > 2 else STUDENTS)
    print(json.dumps(result, indent=2))
    Path(sys.argv[1]).write_text(json.dumps(result) + "\n", encoding="utf-8")
