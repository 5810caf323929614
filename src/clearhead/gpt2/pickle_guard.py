"""The cost of unpickling a file written by `torch.save`, estimated before torch runs it.

`torch.load(weights_only=True)` refuses code, but not work: a file of a few bytes can request
gigabytes, or contain a key that takes years to compare.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path

# A tensor takes about 200 bytes of description, so this is enough for twenty thousand.
_MOST_BYTES = 4 * 2**20
# The number of visits when all parts are traversed: about a second of work.
_MOST_PARTS = 2**26
_HEADS = 5  # pickles at the start of a file in the format before 2020; raw data follows
_GETS = ("GET", "BINGET", "LONG_BINGET")
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def check_pickle(path: Path) -> None:
    """Raise unless the file is a pickle that is cheap to load.

    Args:
        path: A file that `torch.save` is supposed to have written.

    Raises:
        ValueError: It is a different kind of file, or loading it would be too expensive.
    """
    with path.open("rb") as file:
        if file.read(2) == b"PK":  # a zip file
            for pickle in _in_zip(path):
                _check(path, pickle)
            return
        file.seek(0)
        start = io.BytesIO(file.read(_MOST_BYTES))
    for number in range(_HEADS):
        if number and start.tell() == len(start.getbuffer()):
            return
        _check(path, start)


def _in_zip(path: Path) -> list[io.BytesIO]:
    try:
        with zipfile.ZipFile(path) as archive:
            found = []
            for entry in archive.infolist():
                described = entry.filename.endswith("data.pkl")
                if entry.compress_type != zipfile.ZIP_STORED and (
                    described or "/data/" in entry.filename
                ):
                    raise ValueError(
                        f"{path}: refused, because {entry.filename} in it is compressed and could "
                        "expand to any size; torch.save compresses nothing."
                    )
                if described and entry.file_size > _MOST_BYTES:
                    raise ValueError(
                        f"{path}: refused, because its pickle has {entry.file_size:,} bytes; "
                        f"expected {_MOST_BYTES:,} at most.\n"
                        "  Save the state dict alone: torch.save(model.state_dict(), path)."
                    )
                if described:
                    found.append(io.BytesIO(archive.read(entry)))
            return found
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError) as error:
        raise _unreadable(path, str(error)) from None


def _check(path: Path, pickle: io.BytesIO) -> None:
    """Follow one pickle without building anything; each object is represented by its size.

    Size counts every visit: a tuple that holds another one twice has twice its size, and a hundred
    of them, nested, more than can ever be traversed.
    """
    stack, marks, kept = list[int](), list[int](), dict[object, int]()
    try:
        for opcode, argument, _ in pickletools.genops(pickle):
            before = opcode.stack_before
            if opcode.name in _GETS:
                stack.append(kept[argument])
            elif opcode.name in _PUTS:
                kept[argument] = stack[-1]
            elif opcode.name == "MEMOIZE":
                kept[len(kept)] = stack[-1]
            elif opcode.name == "MARK":
                marks.append(len(stack))
            else:
                if pickletools.markobject in before:
                    first = marks.pop() - before.index(pickletools.markobject)
                else:
                    first = len(stack) - len(before)
                if first < 0:
                    raise IndexError("invalid instructions")
                parts = 1 + sum(stack[first:])
                if parts > _MOST_PARTS or argument == "builtins bytearray":  # of any length
                    raise _TooMuch
                del stack[first:]
                stack += [parts] * len(opcode.stack_after)
    except _TooMuch:
        raise ValueError(
            f"{path}: refused, because loading it would take more work or memory than tensors "
            "need.\n  Save the state dict alone: torch.save(model.state_dict(), path)."
        ) from None
    except (ValueError, LookupError) as error:
        raise _unreadable(path, str(error)) from None


class _TooMuch(Exception):
    pass


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path}: not a file that torch.save wrote, or truncated: {why}.\n"
        "  Compare its size with the original's."
    )
