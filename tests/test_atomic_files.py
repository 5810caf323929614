"""Writing files: only a regular file is replaced, and it keeps its owner and permissions."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clearhead import GPT2, AttentionMap, export, timing
from clearhead.atomic_files import beside, check_place
from clearhead.checker.classroom import marks_file as marks
from clearhead.configs import GPT2Config

CONFIG = GPT2Config(
    vocab_size=11,
    context_length=5,
    d_model=6,
    num_heads=2,
    num_layers=1,
    dropout=0.0,
    qkv_bias=True,
)


def model() -> GPT2:
    torch.manual_seed(3)
    return GPT2(CONFIG).eval()


def write_map(path: Path) -> None:
    torch.manual_seed(5)
    AttentionMap(torch.randn(1, 2, 3, 5), torch.randn(1, 2, 3, 5)).save(path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "page.html": write_map,
    "figure.svg": write_map,
    "results.json": lambda path: timing.write_json(path, {"a": 1}),
    "marks.html": lambda path: marks.write(path, b"text"),
}


@pytest.fixture(params=list(WRITERS))
def writer(request, tmp_path) -> tuple[Callable[[Path], object], Path]:
    return WRITERS[request.param], tmp_path / request.param


def rights(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_link_stays_a_link(writer):
    """The link became a file, and what it led to stayed as it was."""
    write, path = writer
    real = path.parent / "elsewhere" / path.name
    real.parent.mkdir()
    real.write_text("old")
    path.symlink_to(real)
    write(path)
    assert path.is_symlink()
    assert real.stat().st_size > 3
    assert list(real.parent.iterdir()) == [real]


def test_a_link_to_nothing_makes_the_file_it_names(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new")
    timing.write_text(link, "text")
    assert link.is_symlink()
    assert (tmp_path / "new").read_text() == "text"
    link.unlink()
    link.symlink_to(tmp_path / "none" / "new")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none"):
        timing.write_text(link, "text")


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_private_file_stays_private(writer, mode):
    """A file that only its owner could read became one that all can."""
    write, path = writer
    path.write_text("old")
    path.chmod(mode)
    write(path)
    assert path.stat().st_size > 3
    assert rights(path) == mode


def test_a_new_file_has_the_rights_of_any_new_file(writer):
    write, path = writer
    plain = path.parent / "plain"
    plain.touch()
    write(path)
    assert rights(path) == rights(plain)


def test_a_file_that_may_not_be_written_is_refused(writer, monkeypatch):
    write, path = writer
    path.write_text("old")
    access = os.access
    monkeypatch.setattr(os, "access", lambda name, how: name != path and access(name, how))
    with pytest.raises(PermissionError, match="the file exists and is not writable"):
        write(path)
    assert path.read_text() == "old"


def test_a_pipe_is_written_into(writer):
    """A pipe, and as root a device, was replaced by a file."""
    write, path = writer
    os.mkfifo(path)
    got = list[bytes]()
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
    reader.start()
    write(path)
    reader.join(timeout=20)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert len(got[0]) > 3
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="open files have no names here")
def test_an_open_file_is_written_into(tmp_path):
    """`--csv >(cat)` and `--csv /dev/stdout > file` could not be written, or were replaced."""
    reads, writes = os.pipe()
    timing.write_text(Path(f"/dev/fd/{writes}"), "text")
    os.close(writes)
    with os.fdopen(reads) as pipe:
        assert pipe.read() == "text"
    file = tmp_path / "redirected"
    with file.open("w") as redirected:
        timing.write_text(Path(f"/dev/fd/{redirected.fileno()}"), "text")
        assert os.fstat(redirected.fileno()).st_ino == file.stat().st_ino
    assert file.read_text() == "text"


def test_a_file_of_another_owner_keeps_its_owner(tmp_path, monkeypatch):
    path = tmp_path / "theirs"
    path.write_text("old")
    there = path.stat()
    monkeypatch.setattr(
        "clearhead.atomic_files._stat_of_a_new_file",
        lambda folder: os.stat_result((*there[:4], there.st_uid + 1, *there[5:])),
    )
    timing.write_text(path, "text")
    assert path.read_text() == "text"
    assert path.stat().st_ino == there.st_ino


def test_what_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "kept"
    path.write_text("old")

    def write_half() -> None:
        with beside(path) as whole:
            whole.write_text("new")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half"):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "expected the name of a file"),
        ("folder", "expected the name of a file, got a folder"),
        ("none/x", "there is no folder"),
        ("file/x", "there is no folder"),
    ],
)
def test_where_nothing_can_be_written(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    with pytest.raises(OSError, match=f"--out {name}.*: {said}"):
        check_place(Path(name), "--out")
    with pytest.raises(OSError, match=said):
        timing.write_text(Path(name), "text")


def test_save_pretrained_follows_links_and_keeps_rights(tmp_path):
    folder, real = tmp_path / "model", tmp_path / "blob"
    folder.mkdir()
    real.touch(mode=0o600)
    (folder / "model.safetensors").symlink_to(real)
    model().save_pretrained(folder)
    assert (folder / "model.safetensors").is_symlink()
    assert rights(real) == 0o600
    assert GPT2.from_pretrained(folder).config["vocab_size"] == 11


def test_an_export_follows_a_link_and_makes_no_folder(tmp_path):
    real, link = tmp_path / "real.pt2", tmp_path / "link.pt2"
    real.touch(mode=0o600)
    link.symlink_to(real)
    export(model(), link)
    assert link.is_symlink()
    assert rights(real) == 0o600
    assert real.stat().st_size > 0
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        export(model(), tmp_path / "none" / "a.pt2")


def full(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command whose output meets a full disk; /dev/full is only written to."""
    with open("/dev/full", "w") as output:
        return subprocess.run(
            [sys.executable, "-m", "clearhead", *arguments],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line():
    """It was a traceback, and for short outputs Python's status 120."""
    done = full("--version")
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
    assert done.returncode == 1
