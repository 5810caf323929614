"""Checking a folder: no row is lost, no file runs twice, a bad file affects only its own row."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
import stub_judge
from in_process_check import in_this_process
from stub_judge import mark

from clearhead import cli
from clearhead.checker.classroom import batch, regular_files
from clearhead.checker.classroom import check_command as runner
from clearhead.checker.classroom import class_page as page
from clearhead.checker.classroom.marks_file import HEAD, Detail, Marks, Row, pack
from clearhead.checker.classroom.policy import _KEYS as POLICY_KEYS
from clearhead.checker.classroom.policy import Policy
from clearhead.checker.report import Finding, Form, Report
from clearhead.checker.source.notebooks import find_cell, parse_notebook

pytestmark = pytest.mark.usefixtures("plain_terminal")

CLASSROOM = {
    "ada.py": "# correct\n",
    "bo.py": "# wrong missing-scale\n",
    "cy.py": "# wrong missing-scale\n",
    "dee.py": "# raise\n",
    "eve.py": "# crash\n",
    "more/fay.py": "# compat heads-interleaved\n",
    "=cmd.py": "# error =1+1\n",
    ".hidden.py": "# correct\n",
    "__pycache__/gus.py": "# correct\n",
    "notes.txt": "no code",
}


@pytest.fixture
def classroom(tmp_path: Path) -> Path:
    folder = tmp_path / "submissions"
    for name, text in CLASSROOM.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def rows_in(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def log_of(path: Path) -> list[str]:
    return sorted(path.read_text(encoding="utf-8").split()) if path.exists() else []


def test_a_folder_gives_a_row_a_file(classroom, tmp_path, capsys):
    marks, html = tmp_path / "marks.csv", tmp_path / "class.html"
    assert mark(classroom, csv=marks, html=html, jobs=2) == 1
    rows = rows_in(marks)
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert verdicts == {
        "ada.py": "correct",
        "bo.py": "wrong",
        "cy.py": "wrong",
        "dee.py": "error",
        "eve.py": "error",
        "more/fay.py": "correct",
        "'=cmd.py": "error",
    }
    assert rows["eve.py"]["note"] == "the worker ended with status 7"
    assert rows["dee.py"]["note"] == "RuntimeError: =the stub was asked to\\nfail"
    assert rows["'=cmd.py"]["note"] == "'=1+1"
    assert rows["'=cmd.py"]["severities"] == "-"  # nothing was judged
    assert rows["dee.py"]["severities"] == ""
    assert rows["bo.py"]["findings"] == "missing-scale"
    assert rows["more/fay.py"]["severities"] == "compat"
    assert all(re.fullmatch(r"[0-9a-f]{64}", row["sha256"]) for row in rows.values())
    out = capsys.readouterr().out
    assert "7 submissions: 3 error, 2 correct (1 of them with a remark), 2 wrong" in out
    assert re.search(r"^missing-scale +2 +29%$", out, re.MULTILINE)
    shown = html.read_text(encoding="utf-8")
    assert "missing-scale</code>: 2 of 7</h3>" in shown
    assert "<dt>Evidence</dt><dd>It shows.</dd>" in shown
    wrong_line = "<dt>Wrong line</dt><dd><code># wrong missing-scale</code>"
    assert 0 < shown.index(wrong_line) < shown.index("<dt>Fix</dt>")
    assert rows["bo.py"]["places"] == "line 1"


def test_the_files_that_were_written_are_named(classroom, tmp_path, capsys):
    marks, html = tmp_path / "marks.csv", tmp_path / "class.html"
    mark(classroom, csv=marks, html=html, as_json=True)
    out, err = capsys.readouterr()
    assert err.endswith(f"Wrote {marks}\nWrote {html}\n")
    assert "Wrote" not in out


def test_the_note_of_a_crash_is_its_last_line(tmp_path):
    """Not the whole traceback, whose line breaks would be escaped."""
    evidence = 'File "a.py", line 9, in __init__\n    x()\n    ^\nNameError: no x\n'
    found = Finding("cannot-run", "wrong", "It failed.", evidence, "", 9)
    answer = {"reports": [Report("a.py", "", "error", (found,)).to_json()]}
    row, _ = batch.row_of("a.py", "0" * 64, answer, 1.0, Policy())
    assert (row.note, row.places) == ("NameError: no x", "line 9")


def test_it_goes_on_where_it_was_interrupted(classroom, tmp_path, monkeypatch, capsys):
    marks, log = tmp_path / "marks.csv", tmp_path / "log"
    monkeypatch.setenv("STUB_LOG", str(log))
    mark(classroom, csv=marks)
    assert len(log_of(log)) == 7
    whole = marks.read_bytes()
    lines = whole.splitlines(keepends=True)
    # As after a power failure while the last row was written.
    marks.write_bytes(b"".join(lines[:-1]) + lines[-1][:9])
    lost = next(csv.reader([lines[-1].decode()]))[0].removeprefix("'")
    log.unlink()
    mark(classroom, csv=marks)
    assert log_of(log) == [lost]
    assert rows_in(marks).keys() == {row[0] for row in csv.reader(whole.decode().splitlines()[1:])}
    assert marks.read_bytes().startswith(b"".join(lines[:-1]))
    assert "6 of 7 were judged before" in capsys.readouterr().out


def test_a_changed_file_is_judged_again_and_keeps_one_row(classroom, tmp_path, monkeypatch):
    marks, log = tmp_path / "marks.csv", tmp_path / "log"
    mark(classroom, csv=marks)
    monkeypatch.setenv("STUB_LOG", str(log))
    (classroom / "bo.py").write_text("# correct now\n", encoding="utf-8")
    mark(classroom, csv=marks)
    assert log_of(log) == ["bo.py"]
    assert rows_in(marks)["bo.py"]["verdict"] == "correct"
    assert len(marks.read_text(encoding="utf-8").splitlines()) == 8


def test_an_interruption_keeps_the_rows_before_it(classroom, tmp_path, monkeypatch, capsys):
    marks = tmp_path / "marks.csv"
    real, calls = Marks.add, []

    def add(self: Marks, row: Row) -> None:
        calls.append(row)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(self, row)

    monkeypatch.setattr(Marks, "add", add)
    assert mark(classroom, csv=marks) == 130
    assert len(rows_in(marks)) == 2
    err = capsys.readouterr().err
    assert f"Stopped: 2 of 7 checked, and kept in {marks}." in err
    assert "Repeat the command to check the rest." in err


@pytest.mark.parametrize("start", ["", "fi", ",".join(HEAD)])
def test_an_incomplete_header_is_repaired(start, tmp_path):
    path = tmp_path / "marks.csv"
    path.write_text(start, encoding="utf-8")
    Marks(path).close()
    assert path.read_text(encoding="utf-8") == ",".join(HEAD) + "\n"


@pytest.mark.parametrize("text", ["name,mark\nada,1\n", "my notes"])
def test_another_file_of_that_name_is_left_alone(text, tmp_path, classroom):
    path = tmp_path / "marks.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="left as it is"):
        mark(classroom, csv=path)
    assert path.read_text(encoding="utf-8") == text


def test_a_worker_that_hangs_is_ended(tmp_path):
    (tmp_path / "a.py").write_text("# hang\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("# correct\n", encoding="utf-8")
    files = batch.collect(tmp_path)
    check = stub_judge.judge
    results = list(batch.run(files, tmp_path, check=check, patience=5.0))
    assert [result[0].verdict for result in results if result] == ["error", "correct"]
    assert results[0] is not None
    assert results[0][0].note == "took longer than 5 s"


def test_a_file_is_judged_on_one_thread():
    """On a busy machine, threads that wait for each other take three times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batch.check_text("x = 1\n", "a.py")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_what_cannot_be_read_is_a_row(tmp_path, monkeypatch):
    (tmp_path / "latin.py").write_bytes(b"# correct \xe9\n")
    (tmp_path / "cookie.py").write_bytes(b"# correct\n# coding: latin-1\n# \xe9\n")
    (tmp_path / "large.py").write_bytes(b"# correct\n" + b" " * regular_files.LARGEST)
    (tmp_path / "no.ipynb").write_text("not a notebook", encoding="utf-8")
    rows = {r[0].file: r[0] for r in batch.run(
        batch.collect(tmp_path), tmp_path, check=stub_judge.judge) if r}  # fmt: skip
    assert rows["cookie.py"].verdict == "correct"
    assert "not text in UTF-8" in rows["latin.py"].note
    assert "the most is" in rows["large.py"].note
    assert "expected a Jupyter notebook" in rows["no.ipynb"].note


def notebook(path: Path, *cells: tuple[str, int | None]) -> Path:
    """A notebook: a heading, then code cells, each with its execution count."""
    made = [{"cell_type": "markdown", "source": ["# Title"]}]
    for text, count in cells:
        source = text.splitlines(keepends=True)
        made.append({"cell_type": "code", "source": source, "execution_count": count})
    path.write_text(json.dumps({"cells": made}), encoding="utf-8")
    return path


def test_cells_are_named_as_jupyter_numbers_them(tmp_path):
    path = notebook(
        tmp_path / "a.ipynb",
        ("!pip install x\nimport torch", 3),
        ("a = 1", None),
        ("b = 1\n\nc = 2\n", 1),
        ("d = 1", 1),
    )
    text, cells = parse_notebook(path.read_bytes(), path.name)
    lines = text.split("\n")
    assert [cell.name for cell in cells] == ["In[3]", "code cell 2", "code cell 3", "code cell 4"]
    assert [lines[cell.first - 1] for cell in cells] == [
        "pass  # !pip install x", "a = 1", "b = 1", "d = 1"
    ]  # fmt: skip
    assert find_cell(cells, 3) == ("In[3]", 2)
    assert find_cell(cells, lines.index("c = 2") + 1) == ("code cell 3", 3)
    assert find_cell(cells, 1) is None
    assert find_cell(cells, 99) is None


def test_a_notebooks_findings_name_the_cell_in_every_form(tmp_path, capsys):
    folder = tmp_path / "class"
    folder.mkdir()
    notebook(
        folder / "hw.ipynb",
        ("import torch\nfrom torch import nn", 2),
        (WRONG[WRONG.index("class") :], 5),
    )
    marks, html = tmp_path / "marks.csv", tmp_path / "class.html"
    words = [[], ["--json"], ["--csv", str(marks), "--html", str(html)]]
    said = []
    with in_this_process():
        for each in words:
            with pytest.raises(SystemExit) as end:
                cli.main(["check", str(folder / "hw.ipynb"), *each])
            assert end.value.code == 1
            said.append(capsys.readouterr().out)
    assert "Cell      In[5], line 9: scores = self.W_query(x) @ self.W_key(x)" in said[0]
    found = json.loads(said[1])["findings"][0]
    assert (found["cell"], found["line"]) == ("In[5]", 9)
    assert rows_in(marks)["hw.ipynb"]["places"] == "In[5], line 9"
    assert "<dd><code>scores = " in html.read_text(encoding="utf-8")


# The policy


def policy(tmp_path: Path, text: str) -> Policy:
    file = tmp_path / "policy.toml"
    file.write_text(text, encoding="utf-8")
    return Policy.read(file)


def test_a_policy_says_what_counts(tmp_path):
    (tmp_path / "adapter.py").write_text("class Adapted: ...", encoding="utf-8")
    made = policy(
        tmp_path,
        'class = "Multi*"\ncausal = true\nmulti_head = true\nfail = ["wrong", "compat"]\n'
        'adapter = "adapter.py"',
    )
    assert made == Policy("Multi*", True, True, ("wrong", "compat"), "class Adapted: ...")
    compat = Finding("heads-interleaved", "compat", "", "", "", None)
    form = Form(heads=4, head_dim=8, causal="yes")
    single = Form(heads=1, head_dim=8, causal="no")
    good = Report("f", "MultiHead", "correct", (), form)
    assert made.judge("f", [good, Report("f", "Other", "wrong")]) == [good]
    assert made.judge("f", [Report("f", "MultiHead", "correct", (compat,), form)])[0].status == 1
    (report,) = made.judge("f", [Report("f", "MultiHead", "correct", (), single)])
    assert report.verdict == "wrong"
    assert [f.says for f in report.findings] == [
        "The assignment asks for causal attention.",
        "The assignment asks for several heads.",
    ]
    (report,) = made.judge("f", [Report("f", "Other", "correct", (), form)])
    assert report.findings[0].evidence == 'Asked for: class = "Multi*". Found: Other.'
    broken = Report("f", "", "error")
    assert made.judge("f", [broken]) == [broken]


def test_the_docs_show_the_policy_with_all_its_keys(tmp_path):
    docs = Path(__file__).parents[3] / "docs"
    text = (docs / "check.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert shown == (docs / "examples" / "policy.toml").read_text(encoding="utf-8")
    assert policy(tmp_path, shown) == Policy("MultiHead*", True, True, ("wrong", "compat"))
    table = re.findall(r"^\| `(\w+)` \|", text[text.index("### The policy") :], re.MULTILINE)
    assert table == list(POLICY_KEYS)
    columns = text[text.index("### The CSV") : text.index("### The policy")]
    assert set(re.findall(r"`(\w+)`", columns)) >= set(HEAD)


def test_without_a_policy_nothing_changes():
    edge = Finding("mask-not-a-buffer", "edge", "", "", "", None)
    reports = [Report("f", "A", "correct", (edge,)), Report("f", "B", "wrong")]
    assert Policy().judge("f", reports) == reports
    assert Policy().judge("f", []) == []


# The page


def test_the_page_is_one_file_and_escaped():
    evil = "<img src=x onerror=alert(1)>"
    text = page.html(
        [Row(*[evil] * 9, "1.0", "0" * 64, "", pack([Detail(*[evil] * 4)]))], title=evil
    )
    assert "<img" not in text
    assert "&lt;img" in text
    assert not re.search(r"https?://|<script|<link|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert "None." in page.html([])


# The command


def run(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(batch, "check_text", stub_judge.judge)
    monkeypatch.setattr(runner.check, "__kwdefaults__", {"judge": stub_judge.judge})
    with pytest.raises(SystemExit) as end:
        cli.main(["check", *words])
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("text", "status", "start"),
    [
        ("# correct\n", 0, "Correct: "),
        ("# edge mask-not-a-buffer\n", 0, "Correct, but it fails in some situations: "),
        ("# wrong missing-scale\n", 1, "Wrong: "),
        ("# error x\n", 2, "Could not be run: "),
        ("# none\n", 2, "Could not be run: "),
    ],
)
def test_the_command_ends_with_the_right_status(text, status, start, tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    assert run(monkeypatch, str(file)) == status
    assert capsys.readouterr().out.startswith(start)


def test_json_is_an_object_a_line(classroom, monkeypatch, capsys):
    assert run(monkeypatch, str(classroom / "bo.py"), "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["class"], data["verdict"]) == ("Attention", "wrong")
    assert data["findings"][0]["line"] == 1
    assert run(monkeypatch, str(classroom), "--json", "--jobs", "2") == 1
    lines = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    assert len(lines) == 7


def test_the_line_itself_and_the_hint_are_shown(classroom, monkeypatch, capsys):
    run(monkeypatch, str(classroom / "bo.py"))
    out = capsys.readouterr().out
    assert "1: # wrong missing-scale" in out
    assert "Do this." in out
    run(monkeypatch, str(classroom / "bo.py"), "--hint")
    out = capsys.readouterr().out
    assert "Do this." not in out
    assert "too sharp" in out


def test_an_adapter_is_passed_on(classroom, tmp_path, monkeypatch, capsys):
    adapter = tmp_path / "adapter.py"
    adapter.write_text("class Adapted: ...", encoding="utf-8")
    assert run(monkeypatch, str(classroom / "ada.py"), "--adapter", str(adapter)) == 0
    assert "class Adapted: ..." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tow.py"], "tow.py: there is no such file or folder.\n  Did you mean two.py?"),
        (["notes.txt"], "notes.txt: expected a .py file, an .ipynb notebook or a folder of them."),
        (["empty"], "empty: there are no .py files and no .ipynb notebooks in it."),
        (["a.py", "--json", "--hint"], "--json gives everything"),
        (["a.py", "--csv", "no/marks.csv"], "there is no folder no."),
        (["a.py", "--adapter", "no.py"], "--adapter no.py"),
        (["a.py", "--policy", "no.toml"], "--policy no.toml: No such file or directory."),
        (
            ["two.py:SelfAtention"],
            "two.py: there is no class SelfAtention in it.\n"
            "  Its classes: SelfAttention, Other. Did you mean two.py:SelfAttention?",
        ),
        (["two.py:Nope", "--csv", "marks.csv"], "no class Nope in it.\n  Its classes: SelfA"),
        (["a.py:Nope"], "no class Nope in it.\n  It has no class at all."),
        (["empty", "--write-adapter", "b.py"], "--write-adapter is for one file, and empty is"),
    ],
)
def test_wrong_use_explains_itself(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("# correct\n", encoding="utf-8")
    Path("notes.txt").write_text("x", encoding="utf-8")
    Path("two.py").write_text("class SelfAttention: ...\nclass Other: ...\n", encoding="utf-8")
    Path("empty").mkdir()
    assert run(monkeypatch, *words) == 2
    err = capsys.readouterr().err
    assert err.startswith("Error: ")
    assert message in err
    assert not Path("marks.csv").exists()


@pytest.mark.parametrize(
    "text",
    [
        "if True:\n    class Mine: ...\n",
        "from torch.nn import MultiheadAttention as Mine\n",
        "Mine = type('Mine', (), {})\n",
        "from elsewhere import *\n",
        "pattern = '\\d'\ndef Mine(q, k, v): ...\n",
        "class Mine(:\n",
    ],
)
def test_a_class_that_may_be_there_is_left_to_the_run(text, tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(f"# correct\n{text}", encoding="utf-8")
    assert run(monkeypatch, f"{file}:Mine") == 0


def test_what_is_not_contained_is_said_before_anything_runs(classroom, monkeypatch, capsys):
    def judge(source, file, only, adapter, seed, trusted):
        assert capsys.readouterr().err == "Limited. Not contained: the network.\n"
        return [Report(file, "A", "correct")]

    monkeypatch.setattr(batch, "check_text", judge)
    monkeypatch.setattr(
        batch, "containment", lambda trusted: "Limited. Not contained: the network."
    )
    assert runner.check(str(classroom / "ada.py"), runner.Options(), judge=judge) == 0


WRONG = """
import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out)
        self.W_key = nn.Linear(d_in, d_out)
        self.W_value = nn.Linear(d_in, d_out)

    def forward(self, x):
        scores = self.W_query(x) @ self.W_key(x).transpose(-2, -1)
        return scores.softmax(dim=-1) @ self.W_value(x)
"""


def test_the_real_checker_from_file_to_mark(tmp_path, capsys):
    """End to end, each file in its own process: a mark, a crash, an adapter."""
    folder = tmp_path / "submissions"
    folder.mkdir()
    (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
    (folder / "exit.py").write_text("import os\nos._exit(0)\n", encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        cli.main(["check", str(folder), "--csv", str(tmp_path / "marks.csv"), "--jobs", "2"])
    assert end.value.code == 1
    rows = rows_in(tmp_path / "marks.csv")
    assert rows["wrong.py"]["findings"] == "missing-scale"
    assert rows["wrong.py"]["class"] == "SelfAttention"
    assert rows["exit.py"]["verdict"] == "error"
    assert "2 submissions: 1 error, 1 wrong" in capsys.readouterr().out

    adapter = tmp_path / "adapter.py"
    target = f"{folder / 'wrong.py'}:SelfAttention"
    with pytest.raises(SystemExit) as end:
        cli.main(["check", target, "--write-adapter", str(adapter)])
    assert not end.value.code
    text = adapter.read_text(encoding="utf-8")
    assert "self.inner = SelfAttention(d_in=d_in, d_out=d_out)\n" in text
    assert f"Wrote {adapter}. Now: clearhead check {target}" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        cli.main(["check", str(folder / "wrong.py"), "--adapter", str(adapter), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (end.value.code, data["class"], data["verdict"]) == (1, "Adapted", "wrong")
    assert "missing-scale" in [found["id"] for found in data["findings"]]
    with pytest.raises(SystemExit):
        cli.main(["check", target, "--write-adapter", str(adapter)])
    assert "it is left alone" in capsys.readouterr().err


def test_help_needs_no_torch():
    import subprocess

    program = (
        "import sys\nfrom clearhead.cli import main\n"
        "try:\n    main(['check', '--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "import clearhead.checker.classroom.check_command\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Example: clearhead check" in done.stdout


def test_a_file_finds_the_modules_of_its_package(tmp_path):
    """Of `lib/inner/attention.py`, the package is lib, and not what lies beside it."""
    inner = tmp_path / "lib" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").touch()
    assert regular_files.package_of(inner / "attention.py", "") == tmp_path / "lib"
    assert regular_files.package_of(tmp_path / "attention.py", "") == tmp_path
    source = "import torch\nfrom src.turns import turn\n"
    bare = tmp_path / "src" / "model" / "attention.py"
    assert regular_files.package_of(bare, source) == tmp_path / "src"
    assert regular_files.package_of(bare, "from .turns import turn") == bare.parent


def test_files_that_only_help_are_no_submissions(tmp_path):
    """A folder is one submission; a file of its own is judged whatever it has."""
    texts = {
        "__init__.py": "",
        "dan.py": "def rotate(x): return x\n",
        "eva/__init__.py": "from .attn import Attention\n",
        "eva/attn.py": "class Attention: ...\n",
        "eva/broken.py": "def f(:\n",
        "eva/rope.py": "def rotate(x): return x\n",
        "fin/layers.py": "class Norm: ...\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    files = batch.without_helpers(batch.collect(tmp_path), tmp_path)
    names = sorted(file.relative_to(tmp_path).as_posix() for file in files)
    assert names == ["dan.py", "eva/attn.py", "eva/broken.py", "fin/layers.py"]


def test_trust_is_for_a_file_and_is_passed_on(classroom, monkeypatch, capsys):
    seen = []

    def judge(source, file, only, adapter, **options):
        seen.append(options["trusted"])
        return [Report(file, "A", "correct")]

    monkeypatch.setattr(batch, "check_text", judge)
    options = runner.Options(trust=True)
    assert runner.check(str(classroom / "ada.py"), options, judge=judge) == 0
    assert "Not contained, because of --trust" in capsys.readouterr().err
    with pytest.raises(ValueError, match="not for a folder of submissions"):
        runner.check(str(classroom), options, judge=judge)
    assert seen == [True]
