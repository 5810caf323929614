"""Writing a file: the old one stays until the new one is whole, and nothing else is replaced."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A file to write to; it takes the place of `path` when the block ends without an error.

    As with `open`, a link is followed, an old file keeps its owner and its rights, and one that may
    not be written is refused. What is no file (a pipe, /dev/stdout) is written into, and stays.

    Args:
        path: Where to.

    Raises:
        OSError: It cannot be written there; see `check_place`.
    """
    check_place(path)
    there = _stat(path)
    place = Path(os.path.realpath(path))
    replaced = there is None or (
        stat.S_ISREG(there.st_mode)
        and not _is_open_already(path)
        and os.access(place.parent, os.W_OK)
    )
    folder = place.parent if replaced else None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".clearhead-") as aside:
        new = _of_a_new_file(Path(aside))
        draft = Path(aside) / path.name
        yield draft
        old = there or new
        if replaced and (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid):
            draft.chmod(old.st_mode & 0o777)  # some libraries let only the owner read
            os.replace(draft, place)
        else:
            with draft.open("rb") as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)


def check_place(path: Path, option: str = "") -> None:
    """Raise unless a file can be written there: before long work, not after it.

    Args:
        path: Where a file is to be.
        option: The option that named it, for the message.

    Raises:
        OSError: There is no such folder, it is a folder itself, or it may not be written.
    """
    name = f"{option} {path}".strip()
    if not path.name:
        raise IsADirectoryError(f"{name}: expected the name of a file, got none.")
    there = _stat(path)
    if there is None:
        folder = path.parent if not path.is_symlink() else Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise FileNotFoundError(f"{name}: there is no folder {folder}. Make it first.")
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{name}: you may not write into the folder {folder}.")
    elif stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(f"{name}: this is a folder; expected the name of a file.")
    elif not os.access(path, os.W_OK):
        raise PermissionError(
            f"{name}: there is such a file, and you may not write it. It is left as it is: choose "
            "another name."
        )


def check_folder(path: Path, option: str) -> None:
    """Raise if this cannot be a folder; it need not be there yet."""
    there = _stat(path)
    if there is not None and not stat.S_ISDIR(there.st_mode):
        raise NotADirectoryError(f"{option} {path}: this is a file; expected a folder.")


def is_plain(path: Path) -> bool:
    """Whether a file stands there that can be read back: no pipe, and not /dev/stdout."""
    there = _stat(path)
    return there is not None and stat.S_ISREG(there.st_mode) and not _is_open_already(path)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_open_already(path: Path) -> bool:
    """Whether the name is one of an open file, as /dev/stdout and /dev/fd/63 are."""
    while path.is_symlink():
        if os.path.realpath(path.parent).startswith("/proc/"):
            return True
        path = path.parent / path.readlink()
    return False


def _of_a_new_file(folder: Path) -> os.stat_result:
    """The owner and the rights of any file that is made in this folder."""
    empty = folder / "new"
    empty.touch()
    found = empty.stat()
    empty.unlink()
    return found
