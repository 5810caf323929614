"""Read files that others name: only regular ones, and only up to a size limit."""

import os
import re
import stat
from pathlib import Path

LARGEST = 4 * 2**20  # bytes


def read_bytes(path: Path, *, links: bool = True) -> bytes:
    """The bytes of a file; a pipe or a device is rejected without reading from it or waiting.

    Args:
        path: The file.
        links: Whether it may be a symbolic link.

    Raises:
        ValueError: If it is not a regular file, is too large, or cannot be read, with the reason.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if links else _NO_LINKS)
    try:
        _check_kind(path, os.stat(path, follow_symlinks=links))  # opening may have an effect
        with open(os.open(path, flags), "rb") as file:
            _check_kind(path, os.fstat(file.fileno()))
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"{path.name}: {error.strerror}.") from None
    if len(data) > LARGEST:
        raise ValueError(f"{path.name}: it grows while it is read; the most is {LARGEST:,} bytes.")
    return data


_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_KINDS = {
    stat.S_IFDIR: "a folder that cannot be opened, or that lies too many folders deep",
    stat.S_IFIFO: "a pipe",
    stat.S_IFLNK: "a link",
    stat.S_IFSOCK: "a socket",
}


def _check_kind(path: Path, told: os.stat_result) -> None:
    if not stat.S_ISREG(told.st_mode):
        kind = _KINDS.get(stat.S_IFMT(told.st_mode), "a device")
        raise ValueError(f"{path.name}: expected a file, got {kind}. It was not read.")
    if told.st_size > LARGEST:
        raise ValueError(f"{path.name}: {told.st_size:,} bytes; the most is {LARGEST:,}.")


def read_text(option: str, path: Path) -> str:
    """The text of a file that a command-line option names.

    Raises:
        ValueError: If it is not a regular file, is too large, or is not text, with the reason.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{option} {path}: not text in UTF-8 (byte {error.start}).") from None
    except ValueError as error:
        raise ValueError(f"{option} {path}{str(error).removeprefix(path.name)}") from None


def package_of(path: Path, source: str) -> Path:
    """The outermost folder of the package that a file belongs to; its own folder if there is none.

    A folder above it that its imports name counts as a package too: `from src.rotary import turn`.
    """
    folder = path.resolve().parent
    for above in (folder, *folder.parents):
        named = rf"(?m)^\s*(?:from|import)\s+{re.escape(above.name)}\.\w"
        if above.name and re.search(named, source):
            return above
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder
