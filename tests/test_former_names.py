"""Every row of docs/from-0.1.md: a former name works with a warning, or an error names ours."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead import former_names
from clearhead.masks import Mask
from clearhead.validation import ShapeError
from clearhead.watcher import NothingSeen

PAGE = (Path(__file__).parents[1] / "docs" / "from-0.1.md").read_text(encoding="utf-8")
# A module below a former one: both warn.
pytestmark = pytest.mark.filterwarnings("ignore:clearhead:DeprecationWarning")
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


@pytest.fixture
def forgotten(monkeypatch):
    """Former modules are imported anew, so that their warnings come again."""
    for name in [*former_names.MOVED, *former_names.GONE]:
        monkeypatch.delitem(sys.modules, f"clearhead.{name}", raising=False)
        monkeypatch.delitem(vars(clearhead), name, raising=False)


def rows() -> list[list[str]]:
    """The cells of every row of every table."""
    lines = re.findall(r"^\| (?!in 0\.1)(.+) \|$", PAGE, flags=re.M)
    return [line.split(" | ") for line in lines]


def test_the_page_lists_every_module():
    listed = {row[0].strip("`").removeprefix("clearhead."): row[1] for row in rows()}
    for name, now in former_names.MOVED.items():
        assert listed[name] == f"`clearhead.{now}`"
    for name, advice in former_names.GONE.items():
        assert listed[name].replace("`", "") == f"none. {advice}".replace("`", "")


def test_every_other_row_is_tested():
    modules = {f"`clearhead.{name}`" for name in (*former_names.MOVED, *former_names.GONE)}
    others = [row[0] for row in rows() if row[0] not in modules]
    untested = [row for row in others if not any(key in row for key in (*ELSEWHERE, *HERE))]
    assert untested == []
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert name in (Path(__file__).parent / file).read_text(encoding="utf-8")


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", former_names.MOVED)
def test_a_former_module_is_the_new_one_with_a_warning(name):
    now = f"clearhead.{former_names.MOVED[name]}"
    with pytest.warns(DeprecationWarning, match=f"clearhead.{name} is {now} since 0.2") as said:
        found = importlib.import_module(f"clearhead.{name}")
    assert found is importlib.import_module(now)
    assert found.__name__ == now
    assert former_names.REMOVAL in str(said[-1].message)


@pytest.mark.parametrize("name", former_names.GONE)
def test_a_module_without_successor_says_what_to_use(name):
    with pytest.raises(ImportError, match=re.escape(former_names.GONE[name])):
        importlib.import_module(f"clearhead.{name}")


@pytest.mark.usefixtures("forgotten")
def test_former_modules_by_other_ways_of_import():
    with pytest.warns(DeprecationWarning, match="clearhead.watcher"):
        from clearhead.watching import watch
    assert watch is clearhead.watch
    with pytest.warns(DeprecationWarning, match="clearhead.watcher.recorder"):
        from clearhead.watching.recorder import Recorder  # no entry of its own
    assert Recorder is importlib.import_module("clearhead.watcher.recorder").Recorder
    with pytest.warns(DeprecationWarning, match="clearhead.tokenizers"):
        assert clearhead.text is clearhead.tokenizers
    with pytest.raises(ImportError, match=r"was removed in 0\.2"):
        from clearhead import bench  # noqa: F401
    with pytest.raises(AttributeError, match=r"was removed in 0\.2"):
        _ = clearhead.bench
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'clearhead\.nothing'"):
        importlib.import_module("clearhead.nothing")


def test_the_warning_shows_the_users_line():
    code = "import clearhead\nclearhead.shapes\nfrom clearhead.files import beside\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.findall(r"<string>:(\d)", done.stderr) == ["2", "3"]


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
