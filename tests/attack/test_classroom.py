"""A folder of submissions as an attack: links, names, signals, deep nesting, strange policies."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_trials import need, until
from stub_judge import mark

from clearhead.checker.classroom import batch
from clearhead.checker.classroom import check_command as runner
from clearhead.checker.classroom.marks_file import unpack
from clearhead.checker.classroom.policy import Policy
from clearhead.checker.sandbox.resource_usage import descendants
from clearhead.checker.source.notebooks import cell_source

pytestmark = [
    pytest.mark.usefixtures("plain_terminal"),
    pytest.mark.skipif(os.name != "posix", reason="links, pipes and signals"),
]


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "submissions"
    (made / "anna").mkdir(parents=True)
    (made / "anna" / "hw.py").write_text("# correct\n", encoding="utf-8")
    return made


def rows_in(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


# Outputs

OPTIONS = ["csv", "html", "feedback"]


def secret(folder: Path, option: str) -> Path:
    """What a planted link leads to: a folder for the feedback, else a file."""
    target = folder.parent / "secret"
    if option == "feedback":
        target.mkdir()
    else:
        target.write_text("secret", encoding="utf-8")
    return target


def plant_link(folder: Path, target: Path) -> Path:
    (folder / "out").symlink_to(target)
    return folder / "out"


def plant_link_below(folder: Path, target: Path) -> Path:
    (folder / "anna" / "out").symlink_to(target)
    return folder / "anna" / "out"


def plant_folder(folder: Path, target: Path) -> Path:
    (folder / "away").symlink_to(folder.parent)
    return folder / "away" / target.name


def plant_folder_and_back(folder: Path, target: Path) -> Path:
    (folder / "away").symlink_to(folder.parent / "anywhere")
    (folder.parent / "anywhere").mkdir()
    return folder / "away" / ".." / target.name


def plant_chain(folder: Path, target: Path) -> Path:
    (folder / "second").symlink_to(target)
    (folder / "first").symlink_to("second")
    return folder / "first"


def outer_link_into_the_folder(folder: Path, target: Path) -> Path:
    (folder.parent / "marks").symlink_to(folder / "out")
    if target.is_dir():
        (folder / "out").mkdir()
    return folder.parent / "marks"


def link_to_the_folder(folder: Path, target: Path) -> Path:
    (folder.parent / "same").symlink_to(folder)
    return folder.parent / "same" / "out"


def dots(folder: Path, target: Path) -> Path:
    return folder.parent / "nothing" / ".." / folder.name / "out"


def plain(folder: Path, target: Path) -> Path:
    return folder / "out"


def dangling(folder: Path, target: Path) -> Path:
    (folder / "out").symlink_to(folder.parent / "new")
    return folder / "out"


PATHS = [plant_link, plant_link_below, plant_folder, plant_folder_and_back, plant_chain,
         outer_link_into_the_folder, link_to_the_folder, dots, plain, dangling]  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("option", OPTIONS)
def test_nothing_is_written_among_submissions(option, path, folder):
    target = secret(folder, option)
    (folder.parent / "nothing").mkdir()
    output = path(folder, target)
    with pytest.raises(ValueError, match=r"expected a path outside .*\n.* Use another") as error:
        mark(folder, **{option: output})
    suggested = Path(str(error.value).rpartition(" ")[2])
    assert suggested.resolve().parent == folder.parent.resolve()
    assert not os.path.lexists(suggested)
    assert target.is_dir() or target.read_text(encoding="utf-8") == "secret"
    assert not (folder.parent / "new").exists()


@pytest.mark.parametrize("option", OPTIONS)
def test_the_folder_itself_is_the_current_one(option, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=r"Use another folder: --\w+ \.\./marks"):
        mark(Path("."), **{option: Path("marks")})


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("path", [plant_link, plant_folder, plant_chain], ids=lambda p: p.__name__)
def test_beside_a_single_file_no_link_is_followed(option, path, folder):
    target = secret(folder, option)
    output = path(folder, target)
    (folder / "hw.py").write_text("# correct\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"got a link in .*\n.* Use another folder"):
        mark(folder / "hw.py", **{option: output})
    assert target.is_dir() or target.read_text(encoding="utf-8") == "secret"


def test_the_users_own_links_are_followed(folder, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "mine").symlink_to(tmp_path / "real")
    outputs = {"csv": "marks.csv", "html": "marks.html", "feedback": "feedback"}
    assert mark(folder, **{o: tmp_path / "mine" / name for o, name in outputs.items()}) == 0
    assert {file.name for file in (tmp_path / "real").iterdir()} == {*outputs.values()}


def test_planted_marks_are_not_believed(folder, tmp_path):
    """A row with the right hashes in a file behind a link passed for the checker's own."""
    (folder / "anna" / "hw.py").write_text("# wrong missing-scale\n", encoding="utf-8")
    marks = tmp_path / "marks.csv"
    assert mark(folder, csv=marks) == 1
    forged = marks.read_text(encoding="utf-8").replace(",no,wrong,", ",yes,correct,")
    (folder / "anna" / "forged.csv").write_text(forged, encoding="utf-8")
    marks.unlink()
    marks.symlink_to(folder / "anna" / "forged.csv")
    with pytest.raises(ValueError, match="expected a path outside"):
        mark(folder, csv=marks)


@pytest.mark.parametrize("there", [True, False])
def test_an_adapter_is_not_written_through_a_link(there, folder):
    target = folder.parent / "target.py"
    if there:
        target.write_text("mine", encoding="utf-8")
    (folder / "adapter.py").symlink_to(target)
    with pytest.raises(ValueError, match="it is left alone"):
        runner.write_adapter(str(folder / "anna" / "hw.py"), folder / "adapter.py")
    assert target.exists() == there


# Rows


def test_every_link_is_a_row_and_none_is_followed(folder, tmp_path):
    (tmp_path / "real.py").write_text("# correct\n", encoding="utf-8")
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "x.py").write_text("# correct\n", encoding="utf-8")
    links = {"file.py": tmp_path / "real.py", "book.ipynb": tmp_path / "real.py",
             "nothing.py": tmp_path / "nothing", "circle.py": folder / "circle.py",
             "device.py": Path("/dev/zero"), "anna/other.py": Path("hw.py"),
             "whole": tmp_path / "class", "up": folder, "root": Path("/")}  # fmt: skip
    for name, target in links.items():
        (folder / name).symlink_to(target)
    (folder / "notes.txt").symlink_to(tmp_path / "real.py")
    marks = tmp_path / "marks.csv"
    assert mark(folder, csv=marks) == 2
    rows = rows_in(marks)
    assert {*rows} == {"anna/hw.py", *links}
    for name in links:
        assert rows[name]["verdict"] == "error"
        assert rows[name]["note"] == f"{Path(name).name}: expected a file, got a link. " + (
            "It was not read."
        )


ODD = ["a b.py", "a;rm -rf x.py", "$(touch x).py", "`x`.py", "'\".py", "-rf.py", "--csv.py",
       "%s%n.py", "a\tb.py", "a\nb.py", "\x1b[2J.py", "é.py", "e\u0301.py", "ㅤ.py", "\u202egnp.py",
       "\u2028.py", "<img src=x onerror=alert(1)>.py", "&amp;.py", "[a](javascript:b).py",
       "=HYPERLINK(1).py", "@SUM(1).py", "+1.py", "con.py", "nul.ipynb", ".-.py",
       "x" * 240 + ".py", "\\..\\x.py", "C:x.py", "{0}.py", "{{7*7}}.py", "~.py", "*.py", "?.py",
       "a|b.py", "#.py", "a:B.py", "٣.py", "\ud7ff.py", "😀.py", "PK\x03\x04.py"]  # fmt: skip


def test_odd_names_have_rows_and_feedback_of_their_own(tmp_path):
    folder, marks = tmp_path / "odd", tmp_path / "marks.csv"
    folder.mkdir()
    for name in ODD:
        (folder / name).write_text("# wrong missing-scale\n", encoding="utf-8")
    (tmp_path / "odd" / os.fsdecode(b"\xff\xfe.py")).write_text("# correct\n", encoding="utf-8")
    before = {*tmp_path.iterdir()}
    made = {"csv": marks, "html": tmp_path / "page.html", "feedback": tmp_path / "feedback"}
    assert mark(folder, **made) == 1
    count = len(ODD)  # one more, and one is hidden
    assert len(rows_in(marks)) == len(list(folder.iterdir())) - 1 == count
    assert {*tmp_path.iterdir()} == before | {*made.values()}
    assert len(list((tmp_path / "feedback").iterdir())) == 2 * count
    page = (tmp_path / "page.html").read_text(encoding="utf-8", errors="surrogateescape")
    assert "<img src=x" not in page
    cells = [cell for row in rows_in(marks).values() for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r"))]


# Sources that end Python's own parser

DEEP = {
    "minus": "x = " + "-" * 20_000 + "1",
    "attributes": "x = a" + ".b" * 20_000,
    "sum": "x = 1" + "+1" * 20_000,
    "lambdas": "x = " + "lambda:" * 20_000 + "1",
    "elif": "if 1: pass\n" + "elif 1: pass\n" * 20_000,
    "powers": "x = " + "1**" * 20_000 + "1",
    "lists": "x = " + "[" * 150 + "]" * 150,
    "blocks": "".join(" " * n + "if 1:\n" for n in range(120)) + " " * 120 + "pass",
    "a null": "x = 1\0",
    "digits": "x = " + "9" * 20_000,
    "a surrogate": "x = '\ud800'",
}


@pytest.mark.parametrize("what", DEEP)
def test_a_cell_that_ends_the_parser_is_read(what):
    assert cell_source(f"!ls\n{DEEP[what]}").endswith(DEEP[what][-5:])
    data = json.dumps({"cells": [{"cell_type": "code", "source": DEEP[what]}]})
    assert batch.parse_source(data.encode(), "a.ipynb").text.count("\n") >= 2


NOTEBOOKS = ["", "null", "[]", "{}", '{"cells": 1}', '{"cells": [1]}', '{"cells": [{}]}',
             '{"cells": [{"cell_type": "code"}]}',
             '{"cells": [{"cell_type": "code", "source": 7}]}',
             '{"cells": [{"cell_type": "code", "source": [1]}]}', '{"cells": {"a": 1}}',
             '{"cells": [{"cell_type": "code", "source": null}]}', "[" * 100_000,
             '{"a":' * 100_000, "9" * 100_000, '{"cells": "code"}', "\x00", "NaN", '"' + "x" * 99,
             '{"cells": [{"cell_type": ["code"], "source": "x"}, 3]}']  # fmt: skip


@pytest.mark.parametrize("text", NOTEBOOKS, ids=lambda text: repr(text[:40]))
def test_a_strange_notebook_is_a_row_with_its_reason(text, tmp_path):
    (tmp_path / "a.ipynb").write_text(text, encoding="utf-8")
    try:
        batch.read_source(tmp_path / "a.ipynb")
    except ValueError as error:
        assert "expected a Jupyter notebook" in str(error)  # noqa: PT017


NESTED = """
import torch
from torch import nn
class Attention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W = nn.Linear(d_in, d_out)
    def helper(self):
        return self{}
    def forward(self, x):
        return self.W(x)
"""


def test_what_only_the_checker_cannot_follow_is_said(tmp_path, command_line):
    """Python runs it, but reading it takes more levels than Python allows."""
    (tmp_path / "a.py").write_text(NESTED.format("()" * 700), encoding="utf-8")
    status, out, err = command_line("check", tmp_path / "a.py")
    assert status == 2, (out, err)
    assert "nested too deeply to be read (RecursionError)" in err
    with pytest.raises(ValueError, match="nested too deeply"), batch.not_too_deep("a.py"):
        raise MemoryError


# Policies and adapters

POLICIES = {
    'fail = [["wrong"]]': "fail: expected some of wrong",
    'fail = [{a = "wrong"}]': "fail: expected some of wrong",
    "fail = [[[[]]]]": "fail: expected some of wrong",
    "fail = [1, true, 1.5]": "fail: expected some of wrong",
    'fail = ["wrong", []]': "fail: expected some of wrong",
    'fail = ""': "fail: expected list",
    "fail = 1979-05-27": "fail: expected list",
    'class = ["a"]': "class: expected str",
    "class = 1": "class: expected str",
    "causal = [true]": "causal: expected bool",
    "causal = 1": "causal: expected bool",
    'multi_head = "yes"': "multi_head: expected bool",
    "[class]": "class: expected str",
    "[[fail]]\na = 1": "fail: expected some of",
    "adapter = []": "adapter: expected str",
    'adapter = "/dev/zero"': "adapter /dev/zero: expected a file, got a device",
    'adapter = "pipe"': "adapter .*pipe: expected a file, got a pipe",
    'adapter = "."': "adapter .*: expected a file, got a folder",
    'adapter = "socket"': "adapter .*socket: expected a file, got a socket",
    'adapter = "nothing.py"': "adapter .*nothing.py: No such file",
    'adapter = "large"': "adapter .*large: 1,099,511,627,776 bytes; the most is",
    'adapter = "binary"': "adapter .*binary: not text in UTF-8",
    'adapter = "circle"': "adapter .*circle: Too many levels",
    'adapter = "a\\u0000b"': "null",
    "a = " + "[" * 10_000: "not TOML",
    "a = " + "{b=" * 10_000: "not TOML",
    'a.b.c = 1\n"" = 2': "unknown key",
    "\x00": "not TOML",
    "a = 1\na = 2": "not TOML",
    "x = 9" + "9" * 5000: "not TOML|unknown key",
}


@pytest.mark.parametrize("text", POLICIES, ids=lambda text: repr(text[:30]))
def test_a_strange_policy_says_what_is_wrong(text, tmp_path):
    import socket

    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "circle").symlink_to("circle")
    before = os.getcwd()
    with socket.socket(socket.AF_UNIX) as one:
        try:
            os.chdir(tmp_path)  # the path of a socket is short
            one.bind("socket")
        finally:
            os.chdir(before)
    policy = tmp_path / "policy.toml"
    policy.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=POLICIES[text]):
        Policy.read(policy)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "pipe", ".", "nothing", "a\0b"])
@pytest.mark.parametrize("option", ["policy", "adapter"])
def test_options_that_name_no_file(option, path, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(ValueError, match=f"--{option}"):
        mark(folder, **{option: Path(path)})


def test_marks_with_nested_details_are_read():
    for edited in ("[", "[" * 100_000, "7", "[7]", '[["a"]]', '{"a": 1}'):
        assert unpack(edited) == []


# Signals

PROGRAM = """
import sys, tempfile
from pathlib import Path
from clearhead.checker.classroom import check_command
import clearhead.checker.sandbox.submission as submission

tempfile.tempdir, way, target, csv = sys.argv[1:]
submission.choose_way = lambda first, choose=submission.choose_way: choose(way)
options = check_command.Options(csv=Path(csv) if csv else None)
sys.exit(check_command.check(target, options))
"""
SLEEPS = "import time\nclass Attention:\n    pass\ntime.sleep(30)\n"


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 1))],  # Ctrl-C, hang-up
)
@pytest.mark.parametrize("way", ["bwrap", "unshare", "plain"])
def test_a_signal_leaves_nothing_behind(way, number, many, folder, tmp_path):
    """SIGTERM left two folders; SIGINT, in every second run, one."""
    need(way)
    for name in ("a.py", "b.py", "c.py"):
        (folder / name).write_text(SLEEPS, encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    temporary.chmod(0o777)
    for above in temporary.parents[:-1]:  # a submission's own user must reach it
        if os.geteuid() == 0 and above.stat().st_uid == 0:
            above.chmod(above.stat().st_mode | 0o011)
    arguments = [folder, tmp_path / "marks.csv"] if many else [folder / "a.py", ""]
    command = [sys.executable, "-c", PROGRAM, temporary, way, *arguments]
    with subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL) as checker:
        assert until(lambda: len(descendants(checker.pid)) > (3 if many else 1))
        time.sleep(1.0)  # until the submission's own code runs
        started = descendants(checker.pid) - {checker.pid}
        checker.send_signal(number)
        status = checker.wait(30)
    assert status in (128 + number, -number)
    assert until(lambda: not [pid for pid in started if Path(f"/proc/{pid}/exe").exists()])
    assert until(lambda: list(temporary.iterdir()) == []), list(temporary.iterdir())
