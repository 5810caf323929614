"""What a submission's processes use, according to Linux: processes, memory, files, folders."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

_ALONE = ("RssAnon", "VmSwap", "HugetlbPages")
# Memory that processes can share without a file: its pages stay even if no page table maps them.
_SHARED = ("/dev/zero", "/memfd:", "/SYSV")


def user_threads() -> int:
    """How many threads this user already has; they all count against the process limit."""
    count = 0
    for task in Path("/proc").glob("[0-9]*/task"):
        with contextlib.suppress(OSError):
            count += len(os.listdir(task)) if task.stat().st_uid == os.getuid() else 0
    return count


def descendants(root: int) -> set[int]:
    """A process and all its descendants."""
    found, left = set(), [root]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            with contextlib.suppress(OSError, ValueError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                    left += map(int, text.split())
    return found


def takes_more(pids: Collection[int], most: int) -> bool:
    """Whether these processes together use more bytes of memory than `most`."""
    hidden = shared(pids)
    alone, together = 0, 0
    for pid in pids:
        told = _sizes(f"/proc/{pid}/status")
        alone += sum(told.get(one, 0) for one in _ALONE)
        together += told.get("RssShmem", 0)
    if alone + max(together, hidden) <= most:
        return False
    # A page that several processes share was counted for each of them: count it once. This is slow.
    alone, together = 0, 0
    for pid in pids:
        told = _sizes(f"/proc/{pid}/status") | _sizes(f"/proc/{pid}/smaps_rollup")
        alone += told.get("Pss_Anon", told.get("RssAnon", 0))
        alone += told.get("SwapPss", told.get("VmSwap", 0)) + told.get("HugetlbPages", 0)
        together += told.get("Pss_Shmem", told.get("RssShmem", 0))
    return alone + max(together, hidden) > most


def _sizes(file: str) -> dict[str, int]:
    """The lines `RssAnon:  12 kB` of a file in /proc, in bytes."""
    sizes = {}
    with contextlib.suppress(OSError):
        for line in Path(file).read_text().splitlines():
            words = line.split()
            if words[-1:] == ["kB"]:
                sizes[words[0].removesuffix(":")] = int(words[1]) << 10
    return sizes


def shared(pids: Collection[int]) -> int:
    """Bytes of memory that processes share without a file, each piece once, as large as mapped.

    A process can hold such a piece without being charged for it: it removes the pages from its page
    table, and they stay in memory.
    """
    pieces: dict[int, int] = {}  # by inode
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                words = line.split(maxsplit=5)
                if len(words) == 6 and words[1].endswith("s") and words[5].startswith(_SHARED):
                    start, end = (int(place, 16) for place in words[0].split("-"))
                    size = int(words[2], 16) + end - start
                    pieces[int(words[4])] = max(size, pieces.get(int(words[4]), 0))
        with contextlib.suppress(OSError):
            for open_file in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(open_file.path).startswith(_SHARED[1:]):
                        told = os.stat(open_file.path)
                        size = max(told.st_blocks * 512, pieces.get(told.st_ino, 0))
                        pieces[told.st_ino] = size
    return sum(pieces.values())


def size_of(folder: str | None, most: int = 2000, deepest: int = 50) -> Iterator[int]:
    """Sizes of the files in a folder; with too many files or levels, it counts as infinite."""
    if folder is None:
        return
    for number, (path, _, files) in enumerate(os.walk(folder)):
        if path.count(os.sep) - folder.count(os.sep) > deepest:
            yield 1 << 60
            return
        for count, name in enumerate(files):
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(path, name)).st_size
            if count > most or number > most:
                yield 1 << 60
                return


def folder_prefix(pid: int) -> str:
    """The prefix of the names of the folders that a process creates for submissions."""
    return f"clearhead-{pid}-"


def remove_folders(pid: int) -> None:
    """Remove the folders of a process that was killed before it could."""
    with contextlib.suppress(FileNotFoundError):  # no temporary folder: then there are none
        for folder in Path(tempfile.gettempdir()).glob(f"{folder_prefix(pid)}*"):
            remove(str(folder))


def remove(folder: str | None) -> None:
    """Remove a folder, if there is one, with everything that a submission put into it."""
    if folder is None:
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # a thousand nested folders
        subprocess.run(["rm", "-rf", "--", folder], check=False, capture_output=True)
