"""What a file of `torch.save` would cost, seen from its instructions before torch follows them.

torch refuses code, but not work: a file of a few bytes can ask it for gigabytes, or for a key that
takes years to compare.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path

# About 200 bytes say where a tensor is: this is room for twenty thousand of them.
_MOST_BYTES = 4 * 2**20
# How often a part may be looked at when all are walked through: a second of work.
_MOST_PARTS = 2**26
_HEADS = 5  # pickles at the head of a file of the format before 2020; raw numbers follow
_GETS = ("GET", "BINGET", "LONG_BINGET")
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def check_pickle(path: Path) -> None:
    """Raise unless what the file says of its tensors is a pickle of reasonable cost.

    Args:
        path: A file of `torch.save`, or one that is called so.

    Raises:
        ValueError: It is another kind of file, or asks for too much.
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
                        f"{path}: refused, because {entry.filename} in it is compressed, and "
                        "torch.save compresses nothing: it could grow to any size."
                    )
                if described and entry.file_size > _MOST_BYTES:
                    raise ValueError(
                        f"{path}: refused, because the names in it take {entry.file_size:,} bytes; "
                        f"expected {_MOST_BYTES:,} at most.\n"
                        "  Save the state dict alone: torch.save(model.state_dict(), path)."
                    )
                if described:
                    found.append(io.BytesIO(archive.read(entry)))
            return found
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError) as error:
        raise _unreadable(path, str(error)) from None


def _check(path: Path, pickle: io.BytesIO) -> None:
    """Follow one pickle without making anything; each object is the number of its parts.

    A part counts as often as it is met: a tuple that holds another one twice has twice its parts,
    and a hundred of them, each in the next, more than can ever be walked through.
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
                    raise IndexError("its instructions make no sense")
                parts = 1 + sum(stack[first:])
                if parts > _MOST_PARTS or argument == "builtins bytearray":  # of any length
                    raise _TooMuch
                del stack[first:]
                stack += [parts] * len(opcode.stack_after)
    except _TooMuch:
        raise ValueError(
            f"{path}: refused, because a few bytes in it ask for more work or memory than any "
            "tensors need.\n  Save the state dict alone: torch.save(model.state_dict(), path)."
        ) from None
    except (ValueError, LookupError) as error:
        raise _unreadable(path, str(error)) from None


class _TooMuch(Exception):
    pass


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path}: cannot be read as a file of torch.save: {why}.\n"
        "  It is none, or it was cut off on its way here: compare its size with the original's."
    )
