"""Every row of docs/from-0.1.md."""

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.masks import Mask
from clearhead.validation import ShapeError
from clearhead.watcher import NothingSeen

PAGE = (Path(__file__).parents[1] / "docs" / "from-0.1.md").read_text(encoding="utf-8")
# Tested elsewhere, by a function of that name.
ELSEWHERE = {
    "clearhead bench": "cli/test_cli.py::test_bench_says_what_replaces_it",
    "clearhead.lab.train": "test_first_edition.py::test_torchrun_resumes_with_another_number",
    "marks.csv": "test_first_edition.py::test_check_resumes_a_file_of_marks",
    "saved maps": "test_first_edition.py::test_seen_loads_the_maps_of_a_gpt2",
    "exit status 1 for a full disk": "attack/test_full_disk.py::def test_",
    "state dicts": "test_first_edition.py::test_attention_loads_its_state_dict",
    "whole objects": "test_first_edition.py::test_the_paths_in_pickles_of_whole_models_exist",
    "looks_at": "test_first_edition.py::test_json_has_the_same_structure_and_numbers",
}
HERE = (
    *("report.form", "clearhead.view(", "Mask.padding([80, 5])", "module.forward(x)"),
    *("CLEARHEAD_NATIVE", "--relations", "without `--model`", "`clearhead explain TEXT`"),
)


def rows() -> list[list[str]]:
    """The cells of every row of every table."""
    lines = re.findall(r"^\| (?!in 0\.1)(.+) \|$", PAGE, flags=re.M)
    return [line.split(" | ") for line in lines]


def test_every_row_is_tested():
    others = [row[0] for row in rows() if len(row) == 3]
    untested = [row for row in others if not any(key in row for key in (*ELSEWHERE, *HERE))]
    assert untested == []
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert name in (Path(__file__).parent / file).read_text(encoding="utf-8")


MODULES = [row for row in rows() if len(row) == 2]


@pytest.mark.parametrize("row", MODULES, ids=[row[0] for row in MODULES])
def test_a_module_has_moved(row):
    former, now = (cell.strip("`") for cell in row)
    with contextlib.suppress(ModuleNotFoundError):  # its folder has gone too
        assert importlib.util.find_spec(former) is None
    if not now.startswith("none"):
        assert importlib.util.find_spec(now) is not None


def test_a_misspelled_public_name_is_suggested():
    done = subprocess.run(
        [sys.executable, "-c", "import clearhead; clearhead.MultiheadAttention"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Did you mean: 'MultiHeadAttention'?" in done.stderr


# The rows about Python and about commands.


def test_the_form_of_a_report():
    report = clearhead.Report("file.py", "Mine", "correct")
    found = json.loads(json.dumps(report.to_json()))
    assert str(report.form) == found["form"]
    assert found["form_fields"]["heads"] is None


def test_text_as_labels_of_a_view():
    q = torch.rand(1, 2, 3, 4)
    with pytest.raises(ShapeError, match="tokens: expected"):
        clearhead.view(clearhead.AttentionMap(q, q), tokens="text", browser=False, wait=False)


def test_lengths_beyond_the_text():
    attention = clearhead.MultiHeadAttention(6, 6, 16, 0.0, num_heads=2)
    with pytest.raises(ShapeError, match="Truncated the input"):
        attention(torch.rand(2, 8, 6), mask=Mask.padding([80, 5]))


def test_forward_under_watch(monkeypatch):
    monkeypatch.setenv("CLEARHEAD_NATIVE", "1")  # without effect
    attention, x = clearhead.MultiHeadAttention(6, 6, 16, 0.0, num_heads=2), torch.rand(1, 3, 6)
    with clearhead.watch(attention) as seen:
        attention(x)
    assert len(seen) == 1
    with pytest.raises(NothingSeen, match=r"model\(x\), not as model.forward\(x\)"):  # noqa: SIM117
        with clearhead.watch(attention):
            attention.forward(x)


def test_the_default_model_and_the_steps(command_line):
    status, brief, _ = command_line("explain", "the cat sat")
    assert status == 0
    _, steps, _ = command_line("explain", "the cat sat", "--steps")
    assert "SPLIT" in steps
    assert "SPLIT" not in brief
    _, grammar, _ = command_line("explain", "the cat sat", "--model", "grammar", "--json")
    assert json.loads(grammar)["model"] == "grammar"


def test_relations_of_another_model(command_line):
    status, _, errors = command_line("heads", "--relations", "--model", "english")
    assert status == 2
    assert "grammar" in errors
