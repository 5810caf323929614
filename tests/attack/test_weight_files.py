"""Weights files made to harm: each is refused quickly, by a ValueError, and no memory is taken."""

import io
import os
import pickle
import resource
import struct
import time
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from clearhead import GPT2
from clearhead.gpt2.pickle_guard import check_pickle

REFUSED = r"refused, because|not a file that torch.save wrote"
PARTS = ("data.pkl", "byteorder", "version", ".format_version")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Limit the address space to 2 GiB more than is used now; larger requests fail."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def zipped(data: bytes, *, names: dict[str, str] | None = None, kind: str = "") -> bytes:
    """A file as torch.save writes it, with other instructions.

    Args:
        data: The instructions.
        names: Other names for the parts.
        kind: The part that is compressed.
    """
    plain, made = io.BytesIO(), io.BytesIO()
    torch.save({"x": torch.zeros(2)}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            name = entry.filename.partition("/")[2]
            inner = data if name == "data.pkl" else old.read(entry)
            inner = inner + b"\0" * 10**7 if name == kind else inner
            how = zipfile.ZIP_DEFLATED if name == kind else zipfile.ZIP_STORED
            new.writestr(f"archive/{(names or {}).get(name, name)}", inner, how)
    return made.getvalue()


def number(value: int) -> bytes:
    size = (value.bit_length() + 8) // 8
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def name(module: str, what: str) -> bytes:
    return b"c" + f"{module}\n{what}\n".encode()


def call(module: str, what: str, *arguments: bytes) -> bytes:
    return name(module, what) + b"(" + b"".join(arguments) + b"tR"


def storage(kind: str, count: int, key: str = "0") -> bytes:
    parts = text("storage") + name("torch", kind) + text(key) + text("cpu") + number(count)
    return b"(" + parts + b"tQ"


def view(count: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> bytes:
    numbers = [b"(" + b"".join(map(number, one)) + b"t" for one in (size, stride)]
    hooks = call("collections", "OrderedDict")
    arguments = storage("FloatStorage", count), number(offset), *numbers, b"\x89", hooks
    return call("torch._utils", "_rebuild_tensor_v2", *arguments)


def keys(parts: list[bytes]) -> bytes:
    return b"}(" + b"".join(part + b"K\x01" for part in parts) + b"u"


HUGE = number(2**36)
COLLIDING = [number(n * (2**61 - 1)) for n in range(1, 60_000)]
PAIR = b")" + b"2\x86" * 3  # DUP is an instruction that torch.save does not write
DEEP = b")q\x01" + b"h\x01h\x01\x86q\x01" * 100  # a pair of pairs of pairs

INSTRUCTIONS = {
    "bytearray": call("builtins", "bytearray", HUGE),
    "bytearray of Python 2": call("__builtin__", "bytearray", HUGE),
    "bytearray by another name": name("__builtin__", "bytearray") + b"q\x00h\x00" + HUGE + b"\x85R",
    "bytearray of a text": call("__builtin__", "bytearray", text("x"), text("utf_16")),
    "bytes": call("__builtin__", "bytes", HUGE),
    "range": call("__builtin__", "xrange", HUGE),
    "copyreg": call("copy_reg", "_reconstructor", name("__builtin__", "bytearray"), HUGE),
    "copyreg of Python 3": call("copyreg", "__newobj__", name("builtins", "bytearray"), HUGE),
    "an encoding that takes hours": call("_codecs", "encode", text("é" * 10**5), text("punycode")),
    "a tensor of any size": call("torch", "Tensor", HUGE),
    "a float tensor of any size": call("torch", "FloatTensor", HUGE),
    "a storage of any size": call("torch.storage", "UntypedStorage", HUGE),
    "a new tensor": name("torch", "Tensor") + HUGE + b"\x85\x81",
    "a parameter of any size": name("torch.nn.parameter", "Parameter") + HUGE + b"\x85\x81",
    "a storage larger than the file": storage("FloatStorage", 2**36),
    "many storages": b"("
    + b"".join(storage("ByteStorage", 300, str(n)) for n in range(50))
    + b"t",
    "a storage of negative size": storage("FloatStorage", -4),
    "a storage that is resized": view(2, (2**36,), (1,)),
    "a view behind its storage": view(2, (1,), (1,), offset=2**40),
    "a view before its storage": view(2, (2,), (1,), offset=-1),
    "a stride of any size": view(2, (2, 2), (2**40, 1)),
    "an axis of negative size": view(2, (-1, -1), (1, 1)),
    "a million axes": view(2, (1,) * 10**5, (1,) * 10**5),
    "numbers made from one": call(
        "torch._utils", "_rebuild_device_tensor_from_cpu_tensor",
        view(2, (2**36,), (0,)), name("torch", "float64"), text("cpu"), b"\x89",
    ),
    "a sparse tensor of one number": call(
        "torch._utils", "_rebuild_sparse_tensor",
        call("torch.serialization", "_get_layout", text("torch.sparse_coo")),
        b"(" + view(2, (1, 2**40), (0, 0)) + view(2, (2**40,), (0,)) + b"(K\x01ttt"[:-1],
    ),
    "a type that makes any call": call(
        "torch._tensor", "_rebuild_from_type_v2",
        name("builtins", "bytearray"), name("torch", "Tensor"), HUGE + b"\x85", b"}",
    ),
    "a type that makes a storage": call(
        "torch._tensor", "_rebuild_from_type_v2",
        name("torch", "UntypedStorage"), name("torch", "Tensor"), HUGE + b"\x85", b"}",
    ),
    "keys with one hash": keys(COLLIDING),
    "keys with one hash in a set": call("__builtin__", "set", b"](" + b"".join(COLLIDING) + b"e"),
    "keys with one hash, counted": call("collections", "Counter", b"](" + b"".join(COLLIDING)
                                        + b"e"),
    "keys with one hash in pairs": call(
        "collections", "OrderedDict", b"](" + b"".join(k + b"N\x86" for k in COLLIDING) + b"e"
    ),
    "a key that takes years": b"}" + DEEP + b"K\x01s",
    "a key that takes years in a set": call("__builtin__", "set", b"]" + DEEP + b"a"),
    "a key that takes years in a set of pairs": call(
        "__builtin__", "set", b"](" + text("a") + DEEP + b"\x86e"
    ),
    "methods replaced": call("collections", "OrderedDict") + keys([text("get")]) + b"b",
    "a global of any module": call("os", "system", text("touch was-here")),
    "a global of any module, twice": name("posix", "system") + text("touch was-here") + b"\x85R",
    "a method of a tensor": call("torch", "Tensor.new_empty", HUGE),
    "a class of torch": call("torch.nn.modules.linear", "Linear", HUGE, HUGE),
    "the old instructions for an object": b"(" + HUGE + b"ibuiltins\nbytearray\n",
    "an object of a mark": b"(" + name("builtins", "bytearray") + HUGE + b"o",
    "an extension": b"\x82\x01",
    "a text with no end": b"X\xff\xff\xff\xff",
    "an int in decimal digits": b"I" + b"9" * 10**5 + b"\n",
    "a long in decimal digits": b"L" + b"9" * 10**5 + b"L\n",
    "more instructions than tensors need": b"(" + b"]" * 2**21 + b"t",
    "marks without an end": b"(" * 2**21,
    "a stack that is empty": b"R",
    "a memo that is empty": b"h\x07",
    "an item for a number": b"K\x01K\x01a",
    "copies of the top": PAIR,
}  # fmt: skip


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 2020"])
@pytest.mark.parametrize("what", INSTRUCTIONS)
def test_instructions_are_refused(what, old, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = b"\x80\x02" + INSTRUCTIONS[what] + b"."
    Path("a.pth").write_bytes(data if old else zipped(data))
    start = time.process_time()
    with pytest.raises(ValueError, match=REFUSED):
        GPT2.from_pretrained(Path("a.pth"))
    assert time.process_time() - start < 5
    assert not Path("was-here").exists()


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_refused_in_every_protocol(protocol, tmp_path):
    class Code:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {tmp_path}/was-here",)

    for content in (Code(), {"x": Code()}, [{1: (Code(),)}]):
        for data in (pickle.dumps(content, protocol), zipped(pickle.dumps(content, protocol))):
            (tmp_path / "a.pth").write_bytes(data)
            with pytest.raises(ValueError, match=REFUSED):
                GPT2.from_pretrained(tmp_path / "a.pth")
    assert not (tmp_path / "was-here").exists()


BOMB = b"\x80\x02" + call("__builtin__", "bytearray", number(2**28)) + b"."


def two_directories() -> bytes:
    """A zip file in which Python reads good instructions, and torch the bomb."""
    good, bad = zipped(b"\x80\x02}."), zipped(BOMB)
    end = good.rfind(b"PK\5\6")
    size, offset = struct.unpack("<2L", good[end + 12 : end + 20])
    bad_end = bad.rfind(b"PK\5\6")
    (bad_size,) = struct.unpack("<L", bad[bad_end + 12 : bad_end + 16])
    assert size == bad_size
    # Offsets in the good directory count from its own start: Python adds what stands before.
    return bad[:bad_end] + good[:offset] + good[offset : offset + size] + bad[bad_end:]


ARCHIVES = {
    "two directories": two_directories(),
    "instructions in capitals": zipped(BOMB, names={"data.pkl": "DATA.PKL"}),
    "instructions in mixed case": zipped(BOMB, names={"data.pkl": "Data.pkl"}),
    "no instructions": zipped(BOMB, names={"data.pkl": "other.pkl"}),
    **{f"{part} compressed": zipped(b"\x80\x02}.", kind=part) for part in PARTS[:3]},
    "a comment": zipped(b"\x80\x02}.")[:-2] + b"\x05\x00hello",
    "bytes behind it": zipped(b"\x80\x02}.") + b"PK\5\6" + b"\0" * 10,
    "bytes before it": b"PK" + zipped(b"\x80\x02}."),
    "cut off": zipped(b"\x80\x02}.")[:-30],
    "its end alone": b"PK\5\6" + b"\0" * 18,
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_archives_are_refused(what, tmp_path):
    (tmp_path / "a.pth").write_bytes(ARCHIVES[what])
    with pytest.raises(ValueError, match=REFUSED):
        GPT2.from_pretrained(tmp_path / "a.pth")


def honest() -> dict[str, object]:
    """What training scripts save beside the weights."""
    tensor = torch.arange(12.0).reshape(3, 4)
    module = torch.nn.Linear(3, 4)
    module.weight.no_weight_decay = True
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(3)).sum().backward()
    optimizer.step()
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    return {
        "state dict": module.state_dict(),
        "a module's own parameters": dict(module.named_parameters()),
        "optimizer": {"model": module.state_dict(), "optimizer": optimizer.state_dict()},
        "scheduler": {"model": module.state_dict(), "scheduler": steps.state_dict()},
        "tied": {"a": tensor, "b": tensor, "c": tensor[1:].T},
        "dtypes": {str(d): torch.ones(2).to(d) for d in (
            torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool,
            torch.complex64, torch.float8_e4m3fn, torch.uint16)},
        "empty": {"a": torch.empty(0), "b": torch.tensor(1.0), "c": torch.empty(3, 0, 2)},
        "other things": {"a": tensor, "epoch": 3, "best": 0.5, "name": "é", "bytes": b"\x00\xff",
                         "array": bytearray(b"abc"), "set": {1, "a"}, "complex": 1 + 2j,
                         "size": tensor.shape, "device": torch.device("cpu"), "none": None,
                         "counter": Counter("aab"), "ordered": OrderedDict(a=1), "large": 2**70},
        "generator": {"rng": torch.get_rng_state()},
        "a tensor with an attribute": {"a": module.weight.detach().clone()},
    }  # fmt: skip


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 2020"])
@pytest.mark.parametrize("what", honest())
def test_what_training_scripts_save_passes(what, old, tmp_path):
    content = honest()[what]
    if old and what == "dtypes":
        content = {k: v for k, v in content.items() if "float8" not in k and "uint16" not in k}
    path = tmp_path / "a.pth"
    torch.save(content, path, _use_new_zipfile_serialization=not old)
    check_pickle(path)
    torch.load(path, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 2020"])
def test_changed_bytes_never_crash(old, tmp_path):
    """Each byte of a small file is replaced by others; it loads, or gives a ValueError."""
    path = tmp_path / "a.pth"
    torch.save(
        {"transformer.wte.weight": torch.ones(5, 4)}, path, _use_new_zipfile_serialization=not old
    )
    whole = path.read_bytes()
    for place in range(0, len(whole), 1 if old else 3):
        for value in {0x00, 0x28, 0x52, 0x7F, 0xFF, whole[place] ^ 1} - {whole[place]}:
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            with pytest.raises(ValueError, match=r"a\.pth|expected"):
                GPT2.from_pretrained(path)
