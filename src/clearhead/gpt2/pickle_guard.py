"""A file written by `torch.save`, followed instruction by instruction before torch loads it.

`torch.load(weights_only=True)` refuses code, but not work: a file of a few bytes can request
gigabytes, or contain keys that take years to insert. So every instruction, every name and the
arguments of every call must be ones that a dictionary of tensors needs. Nothing is built here.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from clearhead.torch_internals import PICKLED_LAYOUT, PICKLED_TENSOR, PICKLED_UTILS

# A tensor takes about 200 bytes and 40 instructions, so this is enough for twenty thousand.
_MOST_BYTES = 4 * 2**20
_MOST_STEPS = 2**20
# Python computes the hash of an int modulo 2**61 - 1: larger keys can all have the same one.
_LARGEST_KEY = 2**60
_MOST_AXES = 64  # of a tensor, in torch
_PICKLES = 5  # at the start of a file in the format before 2020; raw data follows
# What `zipfile` raises for a damaged file; a RuntimeError for one that wants a password.
_NO_ZIP = (zipfile.BadZipFile, UnicodeDecodeError, RuntimeError, EOFError, OSError, struct.error)
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_TEXTS = ("BINUNICODE", "SHORT_BINSTRING")
_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_STORAGES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int", "QInt32"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Char", "Byte", "Bool", "QInt8", "QUInt8", "QUInt4x2", "QUInt2x4"), 1),
    "ComplexDouble": 16,
    "Untyped": 1,
}
_SIZES = {f"torch.{name}Storage": size for name, size in _STORAGES.items()}
_SIZES |= {f"torch.storage.{name}": size for name, size in _SIZES.items()}
_SIZES["torch.storage.UntypedStorage"] = 1


class _Name(str):
    """The name of a global; a text of the file is a plain str."""


class _Dict(list[object]):
    """The keys of a dictionary."""


class _Result(NamedTuple):
    """What a call returned; of a storage or a tensor also how many numbers it has."""

    name: str
    numbers: int = 0


class _Refused(Exception):
    """Too much work."""


class _Unknown(Exception):
    """A name that a dictionary of tensors does not need."""


def _texts(given: Sequence[object]) -> bool:
    return all(type(one) is str for one in given)


def _bytes(given: Sequence[object]) -> bool:
    """Protocol 2 has no bytes: they are a text and the name of its encoding."""
    if len(given) == 1:
        return given[0] == _Result("_codecs.encode")
    return not given or (len(given) == 2 and _texts(given) and given[1] in ("latin1", "latin-1"))


def _dictionary(given: Sequence[object]) -> bool:
    """Nothing, a dictionary, or a list of pairs."""
    if len(given) != 1 or type(given[0]) is not list:
        return not given or (len(given) == 1 and isinstance(given[0], _Dict))
    pairs = [one for one in given[0] if isinstance(one, list | tuple) and len(one) == 2]
    for key, _ in pairs:
        _check_key(key)
    return len(pairs) == len(given[0])


def _keys(given: Sequence[object]) -> bool:
    """Nothing, a dictionary, or a list of keys."""
    for key in given[0] if len(given) == 1 and type(given[0]) is list else ():
        _check_key(key)
    return not given or (len(given) == 1 and isinstance(given[0], list))


def _plain(given: Sequence[object]) -> bool:
    """Numbers and texts, or one tuple of them."""
    parts = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
    return all(isinstance(one, int | float | str) for one in parts)


def _any(given: Sequence[object]) -> bool:
    return True


def _view(given: Sequence[object]) -> bool:
    """A storage, an offset, sizes and strides that stay inside it; what follows costs nothing."""
    storage, offset, sizes, strides = given[:4] if len(given) >= 4 else (None,) * 4
    if not isinstance(storage, _Result) or not isinstance(offset, int):
        return False
    if not isinstance(sizes, tuple) or not isinstance(strides, tuple):
        return False
    numbers = [*sizes, *strides]
    if len(sizes) != len(strides) or len(sizes) > _MOST_AXES:
        return False
    if not all(type(n) is int and n >= 0 for n in numbers):
        return False
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    return 0 in sizes or 0 <= offset <= last < storage.numbers


def _sparse(given: Sequence[object]) -> bool:
    """Indices and values that are quickly checked by torch; the tensor is refused afterwards."""
    parts = given[1] if len(given) > 1 and isinstance(given[1], tuple) else ()
    return all(one.numbers < _MOST_STEPS for one in parts if isinstance(one, _Result))


def _of_a_type(given: Sequence[object]) -> bool:
    """A tensor with attributes: the call that makes it, with its arguments."""
    return (
        len(given) == 4
        and isinstance(given[0], _Name)
        and given[0].startswith(f"{PICKLED_UTILS}.")
        and isinstance(given[2], tuple)
        and _CALLS.get(given[0], _none)(given[2])
    )


def _none(given: Sequence[object]) -> bool:
    return False


# What may be called, and with which arguments. The functions of torch make a view of a storage that
# is in the file, or a tensor without numbers.
_CALLS: dict[str, Callable[[Sequence[object]], bool]] = {
    "collections.OrderedDict": _dictionary,
    "collections.Counter": _keys,
    "builtins.set": _keys,
    "builtins.bytearray": _bytes,
    "builtins.complex": _plain,
    "_codecs.encode": _bytes,
    "torch.Size": _plain,
    "torch.device": _plain,
    PICKLED_LAYOUT: _texts,
    f"{PICKLED_UTILS}._rebuild_tensor": _view,
    f"{PICKLED_UTILS}._rebuild_tensor_v2": _view,
    f"{PICKLED_UTILS}._rebuild_tensor_v3": _view,
    f"{PICKLED_UTILS}._rebuild_parameter": _any,
    f"{PICKLED_UTILS}._rebuild_parameter_with_state": _any,
    f"{PICKLED_UTILS}._rebuild_sparse_tensor": _sparse,
    f"{PICKLED_UTILS}._rebuild_meta_tensor_no_storage": _any,
    f"{PICKLED_TENSOR}._rebuild_from_type_v2": _of_a_type,
}
_TYPES = ("torch.Tensor", "torch.nn.parameter.Parameter")
# Python 2 wrote other names for the same modules.
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}


def check_pickle(path: Path) -> None:
    """Raise unless the file is a pickle of tensors that is cheap to load.

    Args:
        path: A file that `torch.save` is supposed to have written.

    Raises:
        ValueError: It is a different kind of file, holds more than tensors, or loading it would be
            too expensive.
    """
    with path.open("rb") as file:
        if file.read(2) == b"PK":  # a zip file
            for pickle in _in_zip(path):
                _check(path, pickle)
            return
        file.seek(0)
        start = io.BytesIO(file.read(_MOST_BYTES))
    for number in range(_PICKLES):
        if number and start.tell() == len(start.getbuffer()):
            return
        _check(path, start)


def more_than_tensors(path: Path, name: str) -> ValueError:
    """The error for a file that needs code to be loaded.

    Args:
        path: The file.
        name: What it asks for, or "".
    """
    return ValueError(
        f"{path}: refused, because it holds more than tensors{f' ({name})' if name else ''}, and "
        "loading the rest could run untrusted code.\n"
        "  Save the state dict alone: torch.save(model.state_dict(), path)."
    )


def _in_zip(path: Path) -> list[io.BytesIO]:
    try:
        with zipfile.ZipFile(path) as archive:
            _check_end(path)
            found = []
            for entry in archive.infolist():
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(
                        f"{path}: refused, because {entry.filename} in it is compressed and could "
                        "expand to any size; torch.save compresses nothing."
                    )
                if not entry.filename.casefold().endswith("data.pkl"):  # torch ignores case
                    continue
                if entry.file_size > _MOST_BYTES:
                    raise ValueError(
                        f"{path}: refused, because its pickle has {entry.file_size:,} bytes; "
                        f"expected {_MOST_BYTES:,} at most.\n"
                        "  Save the state dict alone: torch.save(model.state_dict(), path)."
                    )
                found.append(io.BytesIO(archive.read(entry)))
    except _NO_ZIP as error:
        raise _unreadable(path, str(error)) from None
    if len(found) != 1:
        raise _unreadable(path, f"expected one data.pkl in it, got {len(found)}")
    return found


def _check_end(path: Path) -> None:
    """Raise BadZipFile unless every reader finds the same directory in a zip file.

    Python looks for it before the end, torch where the end says that it is. A file can have both.
    """
    with path.open("rb") as file:
        place = file.seek(-22, io.SEEK_END)
        kind, *_, size, offset, comment = struct.unpack("<4s4H2LH", file.read(22))
        if kind != b"PK\5\6" or comment:
            raise zipfile.BadZipFile("its last bytes are not the end of a zip file")
        if place >= 76:  # the same again in 64 bits
            file.seek(place - 20)
            kind, _, where, _ = struct.unpack("<4sLQL", file.read(20))
            if kind == b"PK\6\7":
                place -= 76
                file.seek(place)
                kind, *_, size, offset = struct.unpack("<4sQ2H2L4Q", file.read(56))
                if kind != b"PK\6\6" or where != place:
                    raise zipfile.BadZipFile("the end of its directory is not where it says")
    if offset + size != place:
        raise zipfile.BadZipFile("its directory is not where it says")


def _check(path: Path, pickle: io.BytesIO) -> None:
    """Follow one pickle; ValueError unless it is cheap to load and holds tensors only."""
    try:
        _follow(pickle, path.stat().st_size)
    except _Refused:
        raise ValueError(
            f"{path}: refused, because loading it would take more work or memory than tensors "
            "need.\n  Save the state dict alone: torch.save(model.state_dict(), path)."
        ) from None
    except _Unknown as name:
        raise more_than_tensors(path, str(name)) from None
    except (ValueError, LookupError, TypeError) as error:
        raise _unreadable(path, str(error)) from None


def _follow(pickle: io.BytesIO, size: int) -> None:
    """Follow the instructions, with names in the place of objects.

    Args:
        pickle: The instructions.
        size: The size of the file: its storages are no larger together.
    """
    stack, marks, kept = list[object](), list[int](), dict[object, object]()
    storages: dict[object, int] = {}

    def take(count: int) -> list[object]:
        if count > len(stack) - (marks[-1] if marks else 0):
            raise IndexError("invalid instructions")
        taken = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return taken

    def take_to_mark() -> list[object]:
        taken = stack[marks[-1] :]
        del stack[marks.pop() :]
        return taken

    for step, (opcode, argument, _) in enumerate(pickletools.genops(pickle)):
        name = opcode.name
        if step >= _MOST_STEPS:
            raise _Refused
        if name in _NUMBERS or name in _TEXTS:
            stack.append(argument)
        elif name in _VALUES:
            stack.append(_VALUES[name])
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else _Dict())
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(kept[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            kept[argument] = stack[-1]
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(take_to_mark()))
        elif name in _TUPLES:
            stack.append(tuple(take(_TUPLES[name])))
        elif name in ("APPEND", "APPENDS"):
            items = take(1) if name == "APPEND" else take_to_mark()
            if type(stack[-1]) is not list:
                raise TypeError("an item for something that is not a list")
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            keys = (take(2) if name == "SETITEM" else take_to_mark())[::2]
            for key in keys:
                _check_key(key)
            if isinstance(stack[-1], _Dict):
                stack[-1].extend(keys)
        elif name == "GLOBAL":
            stack.append(_known(str(argument)))
        elif name == "REDUCE":
            called, given = take(2)
            if not isinstance(called, _Name):
                raise TypeError("a call of something that is not a function")
            if called not in _CALLS or not isinstance(given, tuple) or not _CALLS[called](given):
                raise _Refused
            count = math.prod(given[2]) if _CALLS[called] is _view else 0
            stack.append(_Result(called, count))
        elif name == "BUILD":
            built, state = stack[-2:]
            ours = built == _Result("collections.OrderedDict")
            if not ours or not isinstance(state, _Dict) or {*state} - {"_metadata"}:
                raise _Unknown("attributes of an object")
            take(1)
        elif name == "BINPERSID":
            key, count, width = _storage(take(1)[0])
            storages[key] = max(count * width, storages.get(key, 0))
            stack.append(_Result("storage", count))
        elif name == "STOP":
            take(1)
        elif name == "PROTO":
            if argument not in (0, 1, 2):
                raise _Unknown(f"pickle protocol {argument}")
        else:
            raise ValueError(f"torch.save writes no instruction {name}")
    if sum(storages.values()) > size:
        raise _Refused


def _known(argument: str) -> _Name:
    """A name that is in the list; `argument` is as `pickletools` shows it: "module name"."""
    module, _, name = argument.rpartition(" ")
    full = _Name(f"{_RENAMED.get(module, module)}.{name}")
    dtype = module == "torch" and re.fullmatch(r"[a-z]+\d[\da-z_]*|bool", name)
    if full not in _CALLS and full not in _SIZES and full not in _TYPES and not dtype:
        raise _Unknown(full)
    return full


def _check_key(key: object) -> None:
    """Refuse keys with a hash that the writer of a file can choose, or that takes long."""
    if not isinstance(key, str) and (type(key) is not int or abs(key) >= _LARGEST_KEY):
        raise _Refused


def _storage(found: object) -> tuple[object, int, int]:
    """Key, numbers and bytes per number: ("storage", type, key, device, numbers, ...)."""
    if not isinstance(found, tuple) or len(found) < 5 or found[0] != "storage":
        raise TypeError("a storage without its type, key or size")
    kind, key, count = found[1], found[2], found[4]
    if kind not in _SIZES or type(key) not in (str, int) or type(count) is not int:
        raise TypeError("a storage without its type, key or size")
    if count < 0:
        raise ValueError("a storage of negative size")
    return key, count, _SIZES[str(kind)]


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path}: not a file that torch.save wrote, or truncated: {why}.\n"
        "  Compare its size with the original's."
    )
