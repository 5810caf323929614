"""Write a file completely or not at all: the old one stays until the new one is complete."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A temporary file to write to; it replaces `path` if the block ends without an error.

    As with `open`, links are followed, an existing file keeps its owner and permissions, and a file
    that is not writable is refused. Pipes and /dev/stdout are written to, not replaced.

    Args:
        path: The file to write.

    Raises:
        OSError: The file cannot be written; see `check_place`.
    """
    check_place(path)
    there = _stat(path)
    target = Path(os.path.realpath(path))
    replaced = there is None or (
        stat.S_ISREG(there.st_mode)
        and not _is_open_already(path)
        and os.access(target.parent, os.W_OK)
    )
    folder = target.parent if replaced else temporary_folder()
    with (
        disk_errors(path),
        tempfile.TemporaryDirectory(dir=folder, prefix=".clearhead-") as aside,
    ):
        new = _stat_of_a_new_file(Path(aside))
        draft = Path(aside) / path.name
        yield draft
        old = there or new
        if replaced and (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid):
            draft.chmod(old.st_mode & 0o777)  # some libraries make files private
            os.replace(draft, target)
        else:
            with draft.open("rb") as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Name the file where the disk is full, whatever the library that writes it raises."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))  # as Rust ends its messages
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def temporary_folder() -> str:
    """The folder for temporary files.

    Raises:
        OSError: There is none that can be written to.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise OSError(
            f"no temporary folder: {error.strerror}.\n"
            "  Is the disk full, or read-only? Set TMPDIR to a folder that you can write to."
        ) from None


def check_place(path: Path, option: str = "") -> None:
    """Raise unless a file can be written there. Call this before a long computation.

    Args:
        path: The file to write.
        option: The command-line option that named it, for the message.

    Raises:
        OSError: The folder does not exist, the path is a folder, or it is not writable.
    """
    name = f"{option} {path}".strip()
    if not path.name:
        raise IsADirectoryError(f"{name}: expected the name of a file, got none.")
    there = _stat(path)
    if there is None:
        folder = path.parent if not path.is_symlink() else Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise FileNotFoundError(f"{name}: there is no folder {folder}. Create it first.")
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{name}: the folder {folder} is not writable.")
    elif stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(f"{name}: expected the name of a file, got a folder.")
    elif not os.access(path, os.W_OK):
        raise PermissionError(f"{name}: the file exists and is not writable. Choose another name.")


def check_folder(path: Path, option: str) -> None:
    """Raise if the path exists and is not a folder."""
    there = _stat(path)
    if there is not None and not stat.S_ISDIR(there.st_mode):
        raise NotADirectoryError(f"{option} {path}: expected a folder, got a file.")


def is_plain(path: Path) -> bool:
    """Whether the path is a regular file that can be read back: not a pipe, not /dev/stdout."""
    there = _stat(path)
    return there is not None and stat.S_ISREG(there.st_mode) and not _is_open_already(path)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_open_already(path: Path) -> bool:
    """Whether the path names an open file, as /dev/stdout and /dev/fd/63 do."""
    while path.is_symlink():
        if os.path.realpath(path.parent).startswith("/proc/"):  # Linux
            return True
        path = path.parent / path.readlink()
    return os.path.realpath(path.parent) == "/dev/fd"  # macOS


def _stat_of_a_new_file(folder: Path) -> os.stat_result:
    """The owner and permissions that a new file gets in this folder."""
    empty = folder / "new"
    empty.touch()
    found = empty.stat()
    empty.unlink()
    return found
