"""A full disk, and no temporary folder: one line, exit status 2, and the old file is intact."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead import atomic_files, cli
from clearhead.checker.sandbox import process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits on the size of files")

# RLIMIT_FSIZE makes the system refuse larger files, as a full disk does.
PROGRAM = r"""
import contextlib, io, json, os, resource, sys, traceback
from pathlib import Path
from clearhead import cli
import torch, clearhead
from clearhead.models.trained_model import write_safetensors

os.chdir(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
found = {}
for name, arguments in json.loads(sys.argv[2]).items():
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            cli.main(arguments)
        except SystemExit as end:
            found[name] = [end.code, err.getvalue()]
        except BaseException:
            found[name] = ["traceback", traceback.format_exc()]
for name, write in {
    "checkpoint": lambda: write_safetensors(
        Path("checkpoint.safetensors"), {"x": torch.rand(999)}, {}
    ),
    "save_pretrained": lambda: clearhead.lab.load()[0].save_pretrained("model"),
    "seen.save": lambda: seen.save("seen.safetensors"),
    "page": lambda: seen.save("page.html"),
}.items():
    module = clearhead.MultiHeadAttention(64, 64, 64, 0.0, num_heads=2)
    with clearhead.watch(module) as seen:
        module(torch.rand(1, 40, 64))
    try:
        write()
    except OSError as error:
        found[name] = [2, f"Error: {error.filename}: {error.strerror}\n"]
    except BaseException:
        found[name] = ["traceback", traceback.format_exc()]
json.dump(found, sys.__stdout__)
"""
COMMANDS = {
    "explain": ["explain", "the cat sat", "--out", "old.html"],
    "heads": ["heads", "the dog near the cats barks", "--out", "old.html"],
    "figure": ["explain", "the cat sat", "--out", "old.png"],
}
LONGER = {
    "train": ["train", "--steps", "1", "--out", "old"],
    "onnx": ["export", "old.onnx"],
    "pt2": ["export", "old.pt2"],
}
FILES = ("old.html", "old.onnx", "old.pt2", "old.png")


@pytest.mark.parametrize("commands", [COMMANDS, pytest.param(LONGER, marks=pytest.mark.slow)])
def test_a_full_disk_is_one_line_and_the_old_file_stays(commands, tmp_path):
    for name in FILES:
        (tmp_path / name).write_text("old", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert {*found} == {*commands, "checkpoint", "save_pretrained", "seen.save", "page"}
    for name, (status, err) in found.items():
        assert status == 2, (name, err)
        assert err.splitlines()[-1].endswith(": File too large"), (name, err)
        assert err.splitlines()[-1].startswith("Error: "), (name, err)
    for name in FILES:
        assert (tmp_path / name).read_text(encoding="utf-8") == "old"
    assert [*tmp_path.rglob(".clearhead-*")] == []
    assert [*tmp_path.rglob("*.safetensors")] == []


def test_marks_on_a_full_disk(tmp_path, monkeypatch, command_line):
    """The status was 1, which means that a submission is wrong."""
    import resource

    from clearhead.checker.classroom.marks_file import Marks, Row

    row = Row("a.py", "A", "yes", "correct", "", "", "", "-", "x" * 5000, "1", "0" * 64, "r")
    marks = Marks(tmp_path / "marks.csv")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OSError, match="File too large") as error:
            marks.add(row)
        assert error.value.filename == str(tmp_path / "marks.csv")
        with contextlib.suppress(OSError):  # what is left over is tried once more
            marks.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    again = Marks(tmp_path / "marks.csv")  # the torn line is taken away
    assert again.rows == {}
    again.add(row)
    again.close()
    assert len((tmp_path / "marks.csv").read_text(encoding="utf-8").splitlines()) == 2


class RustError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RustError("I/O error: No space left on device (os error 28)"), "No space left on device"),
        (RustError("Read-only file system (os error 30)"), "Read-only file system"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(122, "Disk quota exceeded", "draft"), "Disk quota exceeded"),
        (OSError(27, "File too large"), "File too large"),
    ],
)
def test_every_librarys_error_names_the_file(error, said, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(OSError, match=said) as found, atomic_files.beside(path):
        raise error
    assert found.value.filename == str(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_other_errors_stay_as_they_are(tmp_path):
    for error in (KeyError("x"), BrokenPipeError(32, "Broken pipe"), RustError("os error 28")):
        with pytest.raises(type(error)), atomic_files.beside(tmp_path / "a.txt"):
            raise error


# No temporary folder


@pytest.fixture
def no_temporary_folder(monkeypatch, tmp_path):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])


def test_no_temporary_folder_is_said(no_temporary_folder, tmp_path, capsys):
    with pytest.raises(OSError, match=r"no temporary folder: .*\n.*Set TMPDIR"):
        atomic_files.temporary_folder()
    with pytest.raises(OSError, match="no temporary folder"):
        process.working_folder(process.WAYS[-1])
    assert process.working_folder(process.WAYS[0]) is None


def test_a_pipe_without_a_temporary_folder_is_one_line(no_temporary_folder, tmp_path, capsys):
    """What goes into a pipe is written to a temporary file first."""
    os.mkfifo(tmp_path / "pipe.html")
    reader = os.open(tmp_path / "pipe.html", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["explain", "the cat sat", "--out", str(tmp_path / "pipe.html")])
    os.close(reader)
    assert stopped.value.code == 2
    assert "no temporary folder" in capsys.readouterr().err


def test_the_check_needs_none(no_temporary_folder, tmp_path):
    """In bubblewrap the working folder is in memory; a worker that ends has none to remove."""
    from stub_judge import mark

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.py").write_text("# correct\n", encoding="utf-8")
    (tmp_path / "in" / "b.py").write_text("# crash\n", encoding="utf-8")
    assert mark(tmp_path / "in", csv=tmp_path / "marks.csv") == 2
    assert len(Path(tmp_path / "marks.csv").read_text(encoding="utf-8").splitlines()) == 3
