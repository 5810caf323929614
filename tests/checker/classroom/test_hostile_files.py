"""Files made to harm the checker: each gets a row, and the others are still checked."""

import csv
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
import stub_judge
import torch
from in_process_check import Here, check_file
from stub_judge import mark

from clearhead import cli
from clearhead.checker.classroom import batch
from clearhead.checker.classroom import check_command as runner
from clearhead.checker.classroom import class_page as page
from clearhead.checker.classroom.marks_file import HEAD, Marks, Row, guarded
from clearhead.checker.harness.constructor_arguments import _default_in, with_configs
from clearhead.checker.report import Report
from clearhead.checker.sandbox import answers
from clearhead.checker.sandbox import resource_usage as usage
from clearhead.checker.sandbox.answers import Forged
from clearhead.checker.sandbox.submission import Failure, InProcess

pytestmark = pytest.mark.usefixtures("plain_terminal")


def rows_of(folder: Path, **options) -> dict[str, Row]:
    found = batch.run(batch.collect(folder), folder, check=stub_judge.judge, **options)
    return {result[0].file: result[0] for result in found if result}


def rows_in(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


# Kinds of entries in a folder of submissions


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_a_pipe_and_a_file_of_a_terabyte_are_rows(tmp_path):
    """Opening the pipe would block forever, and reading the file would exhaust memory."""
    os.mkfifo(tmp_path / "a.py")
    with (tmp_path / "b.py").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "c.py").write_text("# correct\n", encoding="utf-8")
    rows = rows_of(tmp_path)
    assert {name: row.verdict for name, row in rows.items()} == {
        "a.py": "error", "b.py": "error", "c.py": "correct"
    }  # fmt: skip
    assert rows["a.py"].note == "a.py: expected a file, got a pipe. It was not read."
    assert "1,099,511,627,776 bytes; the most is" in rows["b.py"].note
    with pytest.raises(ValueError, match="expected a file, got a pipe"):
        runner.check(str(tmp_path / "a.py"), runner.Options(), judge=stub_judge.judge)


@pytest.fixture
def deep(tmp_path):
    """Folders nested more deeply than Python's recursive functions can handle."""
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    yield tmp_path
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_what_is_too_deep_is_endless_and_can_be_removed(deep):
    """Otherwise the process that enforces the limits would crash on such folders."""
    assert sum(usage.size_of(str(deep))) >= 1 << 60
    usage.remove(str(deep / "d"))
    assert list(deep.iterdir()) == []
    assert sum(usage.size_of(str(deep))) == 0


def test_folders_inside_each_other_end_somewhere(deep, tmp_path):
    (tmp_path / "c.py").write_text("# correct\n", encoding="utf-8")
    rows = rows_of(tmp_path)
    place = "/".join("d" * (batch.DEEPEST + 1))
    assert {name: row.verdict for name, row in rows.items()} == {"c.py": "correct", place: "error"}
    assert "folders deep" in rows[place].note


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may open every folder")
def test_a_folder_that_cannot_be_opened_is_a_row(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    assert rows_of(tmp_path)["closed"].verdict == "error"


def test_a_link_that_the_user_names_is_followed(tmp_path):
    (tmp_path / "real.py").write_text("# correct\n", encoding="utf-8")
    (tmp_path / "link.py").symlink_to(tmp_path / "real.py")
    marks = tmp_path / "marks.csv"
    assert mark(tmp_path / "link.py", csv=marks) == 0
    assert rows_in(marks)[0][:4] == ["link.py", "Attention", "yes", "correct"]


def no_memory(*given: object) -> None:
    raise MemoryError("no room")


def test_an_error_about_one_file_is_its_row(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("# correct\n", encoding="utf-8")
    monkeypatch.setattr(batch.Worker, "ask", no_memory)
    assert rows_of(tmp_path)["a.py"].note == "MemoryError: no room"


@pytest.mark.parametrize("name", ["punycode", "rot13", "utf-7", "unicode_escape"])
def test_a_strange_encoding_is_refused(name, tmp_path):
    """Decoding 1.7 MB of punycode takes hours."""
    file = tmp_path / "a.py"
    file.write_bytes(f"# coding: {name}\n".encode() + b"x" * 1_700_000)
    with pytest.raises(ValueError, match=r"its encoding is .*; save it as UTF-8"):
        batch.read_source(file)


@pytest.mark.parametrize("name", ["utf-8", "latin-1", "ascii", "cp1252", "windows-1251", "gbk"])
def test_the_usual_encodings_are_read(name, tmp_path):
    file = tmp_path / "a.py"
    file.write_bytes(f"# coding: {name}\nx = 1\n".encode())
    assert batch.read_source(file).text.endswith("x = 1\n")


def test_the_folder_of_a_worker_that_was_killed_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker = batch.Worker(stub_judge.judge, patience=60.0)  # it has to start first
    worker.ask(b"# correct\n", "a.py", None)
    left = tmp_path / f"clearhead-{worker._process.pid}-x"
    left.mkdir()
    (left / "file").write_text("x", encoding="utf-8")
    worker.close()
    assert not left.exists()


# The CSV file


def row(file: str, note: str = "", cls: str = "A") -> Row:
    return Row(file, cls, "unclear", "error", "", "", "", "-", note, "1.0", "0" * 64, "r")


def test_a_long_cell_does_not_spoil_the_file(tmp_path):
    """300 classes with long names must not give a marks file that the next run cannot read."""
    path = tmp_path / "marks.csv"
    marks = Marks(path)
    marks.add(row("a.py", note="x" * 200_000, cls="A" * 150_000))
    marks.close()
    assert max(map(len, rows_in(path)[0])) == 20_000
    path.write_text(
        f"{','.join(HEAD)}\n{','.join(['x' * 200_000] * len(HEAD))}\n", encoding="utf-8"
    )
    again = Marks(path)  # as an earlier version wrote it
    assert list(again.rows) == ["x" * 200_000]
    again.close()


def test_the_note_of_an_endless_encoding_is_short(tmp_path):
    (tmp_path / "a.py").write_bytes(b"# coding: " + b"x" * 200_000 + b"\n")
    assert len(rows_of(tmp_path)["a.py"].note) <= 300


NAMES = ["=x.py", "'=x.py", "''=x.py", "a\nb.py", "a\\nb.py", "a\\\\nb.py", " =x.py", "' =x.py",
         "a;=x.py", "a;'=x.py", "-", "'-", "-x.py", "a\u2028b.py", "a\\u2028b.py"]  # fmt: skip


def test_every_file_has_a_row_of_its_own(tmp_path):
    """`=x.py` and `'=x.py` are different files: one student's mark must not stand for two."""
    path = tmp_path / "marks.csv"
    marks = Marks(path)
    for name in NAMES:
        assert not marks.done(name, "0" * 64, "r")
        marks.add(row(name))
    marks.close()
    assert len({cells[0] for cells in rows_in(path)}) == len(NAMES)
    again = Marks(path)
    assert all(again.done(name, "0" * 64, "r") for name in NAMES)
    folder = tmp_path / "subs"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text("", encoding="utf-8")
    there, gone = again.there_and_gone([], folder)
    assert (len(there), gone) == (len(NAMES), [])
    again.close()


def test_the_row_of_a_name_that_no_file_can_have_is_gone(tmp_path):
    marks = Marks(tmp_path / "marks.csv")
    names = ["x" * 5000, "a\0b", "bad\\escape\\x"]
    for name in names:
        marks.rows[name] = row(name)
    assert len(marks.there_and_gone([], tmp_path)[1]) == len(names)
    marks.close()


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        ("x;=1+1;=cmd", "x;'=1+1;'=cmd"),
        (" =1+1", "' =1+1"),
        ("＝1+1", "'＝1+1"),
        ("x; -1+1", "x;' -1+1"),
        ("line 3; -", "line 3; -"),
        ("-; -", "-; -"),
        ("- -", "- -"),
        ("a = b; c - d", "a = b; c - d"),
    ],
)
def test_no_part_of_a_cell_is_a_formula(cell, safe):
    """In locales where `;` separates cells, the text after one starts a new cell."""
    assert guarded(cell) == safe


def test_marks_among_the_submissions_are_refused(tmp_path):
    """A student could submit a marks.csv with the right sha256."""
    folder = tmp_path / "subs"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("# wrong x\n", encoding="utf-8")
    for place in (folder, folder / "inner"):
        with pytest.raises(ValueError, match=r"expected a path outside .*subs"):
            mark(folder, csv=place / "marks.csv")
    assert mark(folder, csv=tmp_path / "marks.csv") == 1


def test_the_page_says_how_the_files_were_run():
    assert "<footer" not in page.html([])
    assert "Contained by &lt;x&gt;." in page.html([], contained="Contained by <x>.")


# Names that a submission chooses


HONEST = """
import torch
from torch import nn

class MyAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.note = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
        SET
    def forward(self, x):
        scores = self.W_query(x) @ self.W_key(x).transpose(-2, -1) * 0.125
        return scores.softmax(dim=-1) @ self.W_value(x)
"""


@pytest.mark.parametrize(
    "line",
    [
        'setattr(self, "scale|(x+x+)+y", 0.125)',
        'setattr(self, "mask(", torch.ones(2))',
    ],
)
def test_a_name_is_not_a_pattern(line):
    """The name of an attribute must not be used as a regular expression."""
    with runner._patient(Path("a.py"), 60):
        (report,) = check_file(HONEST.replace("SET", line), "a.py")
    assert "wrong-scale" in [found.id for found in report.findings]


def test_blank_lines_take_no_time():
    """Two megabytes of blank lines must not take hours."""
    source = HONEST.replace("SET", "pass" + "\n" * 2_000_000)
    began = time.monotonic()
    assert _default_in(source, "d_in") is None
    with InProcess(torch.nn.Linear) as session:
        (info,) = session.classes()
    with_configs(info, source, source)
    assert time.monotonic() - began < 20  # it ended at all; not a measurement


def test_one_file_has_the_patience_of_many(tmp_path, monkeypatch, capsys):
    file = tmp_path / "a.py"
    file.write_text("# hang\n", encoding="utf-8")
    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(runner._patient.__wrapped__, "__defaults__", (0.5,))
    with pytest.raises(ValueError, match=r"a\.py: checking it took longer than 0\.5 s"):
        runner.check(str(file), runner.Options(), judge=stub_judge.judge)
    assert signal.getsignal(signal.SIGALRM) == before
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(
            runner.check(
                str(file), runner.Options(), judge=lambda *_: [Report("a", "A", "correct")]
            )
        )
    )
    thread.start()  # there are no signals in a thread: it runs all the same
    thread.join()
    assert seen == [0]


# Answers


def class_answer(**changes: object) -> dict:
    one = {"name": "A", "line": 1, "end_line": 2, "is_module": True, "init": [], "forward": [],
           "methods": ["forward"], "bases": ["Module"]}  # fmt: skip
    return {"classes": [one | changes]}


BAD = "x\nimport os"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": BAD},
        {"name": "class"},
        {"methods": [BAD]},
        {"bases": [BAD]},
        {"init": [{"name": "d_in=0): pass\n    import os", "kind": "POSITIONAL_OR_KEYWORD",
                   "has_default": False, "default": None, "annotation": ""}]},
    ],
)  # fmt: skip
def test_names_from_the_other_side_are_names(changes):
    """Names are written into an adapter, which the teacher runs."""
    assert answers.read_classes(class_answer(), {})[0].name == "A"
    with pytest.raises(Forged, match="expected a name as Python allows it"):
        answers.read_classes(class_answer(**changes), {})


def test_a_class_with_strange_methods_is_read_without_them():
    cls = type("A", (), {"forward": lambda self: 1, "a b": lambda self: 2})
    with InProcess(cls) as session:
        assert session.classes()[0].methods == ("forward",)


def test_too_many_classes_are_said():
    source = "\n".join(f"class A{number}: pass" for number in range(300))
    got = Here(source, "a.py").classes()
    assert isinstance(got, Failure)
    assert "300 classes in one file: at most 200" in got.message
    many = {"classes": class_answer()["classes"] * 300}
    with pytest.raises(Forged, match="300 classes"):
        answers.read_classes(many, {})


META = """
import torch
from torch import nn
class MyAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.table = nn.Parameter(torch.empty(300_000_000, device="meta"))
    def forward(self, x):
        return x
"""


def test_a_parameter_without_numbers_is_refused():
    """It would take no memory in the submission's process, and 2.4 GB in the checker's."""
    namespace: dict = {}
    exec(META, namespace)
    with InProcess(namespace["MyAttention"]) as session:
        got = session.build("MyAttention", [3, 4], {})
    assert isinstance(got, Failure)
    assert 'parameter table: expected plain numbers, got a tensor of the device "meta"' in (
        got.message
    )


def test_a_parameter_whose_numbers_did_not_come_is_forged():
    header = {"parameters": ["w"], "stray": [], "modules": {}, "plain": {}}
    assert answers.read_built(header, {"w": torch.ones(2, 3)}).parameters == {"w": (2, 3)}
    with pytest.raises(Forged, match="w: its numbers were not sent"):
        answers.read_built(header, {})


def test_all_parameters_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(answers, "MAX_NUMBERS", 5)
    header = {"parameters": ["w"], "stray": [], "modules": {}, "plain": {}}
    with pytest.raises(Forged, match="more numbers than"):
        answers.read_built(header, {"w": torch.ones(2, 3)})


def test_where_nothing_can_be_held_in_the_command_says_so(tmp_path, monkeypatch, capsys):
    from clearhead.checker.sandbox import process as sandbox

    def refuse(first: str) -> None:
        raise RuntimeError("A submission runs only where it can be contained.")

    monkeypatch.setattr(sandbox, "choose_way", refuse)
    (tmp_path / "a.py").write_text("class A: ...\n", encoding="utf-8")
    for words in ([], ["--write-adapter", str(tmp_path / "b.py")]):
        with pytest.raises(SystemExit) as end:
            cli.main(["check", str(tmp_path / "a.py"), *words])
        assert end.value.code == 2
        assert capsys.readouterr().err.startswith("Error: A submission runs only where")
