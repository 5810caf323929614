"""The data of an assignment (`--data DIR`): a copy that submissions can read but not change.

A submission finds the files in its working folder, as `train.csv` and as `DIR/train.csv`.
"""

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from clearhead.atomic_files import temporary_folder

MOST_FILES, MOST_MIB = 1000, 64


class Data(NamedTuple):
    """The copy of a folder, and a digest of its contents."""

    folder: Path
    digest: str


@contextmanager
def staged(folder: Path) -> Iterator[Data]:
    """A temporary read-only copy of a data folder.

    Raises:
        ValueError: If it is not a folder, contains links or devices, or is too large.
    """
    if not folder.is_dir():
        raise ValueError(f"--data {folder}: expected a folder with the assignment's data files.")
    files = list(_files(folder))
    size = sum(file.stat().st_size for file in files)
    if len(files) > MOST_FILES or size > MOST_MIB << 20:
        raise ValueError(
            f"--data {folder}: {len(files):,} files of {size / 2**20:.1f} MiB together; the most "
            f"is {MOST_FILES:,} files of {MOST_MIB} MiB. Pass only what the assignment reads."
        )
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=temporary_folder()) as home:
        copy = Path(home) / (folder.resolve().name or "data")
        copy.mkdir(mode=0o755)
        for file in files:
            inside = file.relative_to(folder)
            target = copy / inside
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            shutil.copyfile(file, target, follow_symlinks=False)
            target.chmod(0o444)
            digest.update(f"{inside.as_posix()}\0{file.stat().st_size}\0".encode())
            digest.update(target.read_bytes())
        yield Data(copy, digest.hexdigest())


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted((*names, *(n for n in folders if (Path(place) / n).is_symlink()))):
            file = Path(place) / name
            if not stat.S_ISREG(file.lstat().st_mode):
                raise ValueError(f"--data {folder}: {file} is not a regular file. Copy its target.")
            yield file
