"""Files of weights: which they are, and their tensors, a few at a time.

Names, shapes and dtypes are known before any number is read. Files are memory-mapped and closed
again after a portion, and the largest tensors come first: who copies each tensor as it comes needs
little more memory than the copies themselves.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import safetensors
import torch
from torch import Tensor

from clearhead.configs import GPT2_CONFIGS
from clearhead.gpt2.pickle_guard import check_pickle

PICKLES = (".bin", ".pth", ".pt")
SUFFIXES = (".safetensors", *PICKLES)
# In a folder, the first of these that is there.
_USUAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# A training script's file: the weights are one entry beside the optimizer's state and the like.
_INSIDE = ("model_state_dict", "state_dict", "model")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_CUT_OFF = "Cut off on its way here? Compare its size with the original's, and fetch it again."
# What is read before the files are closed, and with them the pages that were mapped.
_PORTION = 16 * 2**20


class Spec(NamedTuple):
    """What is known of a tensor before its numbers are read."""

    shape: tuple[int, ...]
    dtype: str
    file: Path
    bytes: int


class _Open(Protocol):
    """An open file of weights."""

    def specs(self) -> dict[str, Spec]: ...
    def get(self, key: str) -> Tensor: ...


class Tensors:
    """The tensors of one file, or of the several that a large model is cut into.

    Attributes:
        specs: Shape, dtype, file and size of each, by its name in the file.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.specs: dict[str, Spec] = {}
        for file in files:
            for key, spec in _open(file).specs().items():
                if key in self.specs:
                    raise ValueError(f"{key} is in two files: {self.specs[key].file} and {file}.")
                self.specs[key] = spec

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Each of these tensors with its name, the largest first. Copy it: its file is closed."""
        opened: dict[Path, _Open] = {}
        since = 0
        for key in sorted(keys, key=lambda key: -self.specs[key].bytes):
            spec = self.specs[key]
            if since + spec.bytes > _PORTION:
                opened.clear()
                since = 0
            if spec.file not in opened:
                opened[spec.file] = _open(spec.file)
            since += spec.bytes
            yield key, opened[spec.file].get(key)


class _Safetensors:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.handle: Any = safetensors.safe_open(path, framework="pt")
        except (safetensors.SafetensorError, OSError) as error:
            raise ValueError(
                f"{path}: not a whole safetensors file: {error}\n  {_CUT_OFF}"
            ) from None

    def specs(self) -> dict[str, Spec]:
        found = {}
        for key in self.handle.keys():  # noqa: SIM118  # a handle is no dictionary
            part = self.handle.get_slice(key)
            shape, dtype = tuple(part.get_shape()), part.get_dtype()
            size = int(re.sub(r"\D", "", dtype.partition("_")[0]) or 8) // 8
            total = size * torch.Size(shape).numel()
            found[key] = Spec(shape, _DTYPES.get(dtype, dtype), self.path, total)
        return found

    def get(self, key: str) -> Tensor:
        tensor: Tensor = self.handle.get_tensor(key)
        return tensor


class _Pickle:
    """What `torch.save` wrote, read without running any code of the file's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the age of a file's format, on odd characters
            check_pickle(path)
            content = self._load()
        for inside in _INSIDE:
            if isinstance(content, Mapping) and isinstance(content.get(inside), Mapping):
                content = content[inside]
        if not isinstance(content, Mapping):
            raise ValueError(
                f"{path}: expected a dictionary of tensors, got {type(content).__name__}.\n"
                "  Save the state dict: torch.save(model.state_dict(), path)."
            )
        self.content = dict(content)

    def _load(self) -> Any:
        path = self.path
        try:
            return self._mapped()
        except pickle.UnpicklingError as error:
            asked = re.search(r"GLOBAL ([\w.]+)", str(error))  # the rest is advice to run it
            raise ValueError(
                f"{path}: refused, because it holds more than tensors"
                f"{f' ({asked[1]})' if asked else ''}, and loading the rest could run code of a "
                "stranger.\n"
                "  Save the state dict alone: torch.save(model.state_dict(), path)."
            ) from None
        except Exception as error:
            raise ValueError(
                f"{path}: cannot be read as a file of torch.save: "
                f"{type(error).__name__}: {str(error).partition('. ')[0]}\n  {_CUT_OFF}"
            ) from error

    def _mapped(self) -> Any:
        options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
        try:
            return torch.load(self.path, mmap=True, **options)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
        return torch.load(self.path, **options)  # the format before 2020 cannot be mapped

    def specs(self) -> dict[str, Spec]:
        found = {}
        for key, value in self.content.items():
            if not isinstance(value, Tensor) or not isinstance(key, str):
                raise ValueError(
                    f"{self.path}: expected a tensor under {key!r}, got {type(value).__name__}.\n"
                    "  Expected a state dict: names and tensors, nothing else."
                )
            if value.layout != torch.strided or value.is_meta:
                raise ValueError(
                    f"{self.path}: {key} is sparse or has no numbers; it must be dense."
                )
            dtype = str(value.dtype).removeprefix("torch.")
            found[key] = Spec(tuple(value.shape), dtype, self.path, value.nbytes)
        total, size = sum(spec.bytes for spec in found.values()), self.path.stat().st_size
        if total > 2 * size:  # the head may be there twice; see `torch.Tensor.expand`
            raise ValueError(
                f"{self.path}: its tensors say that they have {total:,} bytes, and the file has "
                f"{size:,}: they show the same numbers again and again.\n"
                "  Save each with numbers of its own: tensor.contiguous().clone()."
            )
        return found

    def get(self, key: str) -> Tensor:
        tensor: Tensor = self.content[key]
        return tensor.detach()  # the file may hold parameters


def _open(path: Path) -> _Open:
    check_file(path)
    return _Safetensors(path) if path.suffix == ".safetensors" else _Pickle(path)


def check_file(path: Path) -> None:
    """Raise ValueError unless this is a file with something in it."""
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}.") from None
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path}: expected a file of weights, and this is a folder.")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: expected a file of weights, and this is none.")
    if status.st_size == 0:
        raise ValueError(
            f"{path}: the file is empty (0 bytes).\n  A download that failed? Fetch it again."
        )


def find_files(path: str | Path) -> tuple[list[Path], Path | None]:
    """The files of weights, and the config.json beside them if there is one.

    Args:
        path: A folder, a file of weights, or the name of a model on the Hugging Face hub.
    """
    place = Path(path).expanduser()
    if isinstance(path, str) and not os.path.lexists(place):
        place = from_hub(path)
    config: Path | None
    if place.suffix in SUFFIXES and not place.is_dir():
        config = place.parent / "config.json"
        return [place], config if config.is_file() else None
    try:
        present = sorted(entry.name for entry in place.iterdir())
    except NotADirectoryError:
        raise ValueError(
            f"{place}: expected a folder or a file that ends with {', '.join(SUFFIXES)}."
        ) from None
    except OSError as error:
        raise ValueError(f"{place}: {error.strerror or error}.") from None
    config = place / "config.json" if "config.json" in present else None
    usual = next((name for name in _USUAL if name in present), None)
    if usual is None:
        others = [name for name in present if name.endswith(SUFFIXES)]
        if len(others) != 1:
            raise ValueError(f"{place}: {_no_weights(present, others)}")
        usual = others[0]
    if usual.endswith(".index.json"):
        return _parts(place / usual), config
    return [place / usual], config


def _no_weights(present: list[str], others: list[str]) -> str:
    if others:
        return f"which of these is the model? {', '.join(others[:5])}\n  Give the file itself."
    if any(name.startswith("model.ckpt") for name in present):
        return (
            "these are TensorFlow's files, which PyTorch does not read.\n"
            "  The same weights are on the Hugging Face hub: openai-community/gpt2."
        )
    listed = ", ".join(present[:5]) + (", ..." if len(present) > 5 else "")
    return f"no weights in it ({', '.join(_USUAL[::2])}); it has {listed or 'no file at all'}."


def _parts(index: Path) -> list[Path]:
    """The files that an index lists, after a look at whether they are there."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{index}: no weight_map in it, which says where each tensor is.")
    files = []
    for name in sorted(set(map(str, places.values()))):
        # A name with a folder in it could lead anywhere on the disk.
        if Path(name).name != name or not name.endswith(SUFFIXES):
            raise ValueError(f"{index}: {name!r} is no name of a file of weights beside it.")
        files.append(index.parent / name)
    for file in files:
        check_file(file)
    tensors = Tensors(files)
    for key, name in places.items():
        if key not in tensors.specs or tensors.specs[key].file.name != name:
            raise ValueError(f"{index}: says that {key} is in {name}, and it is not.")
    return files


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    check_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(content).__name__}.")
    return content


def from_hub(name: str) -> Path:
    """The folder of a model of the Hugging Face hub: from the cache, else downloaded into it.

    Args:
        name: Such as "openai-community/gpt2-medium"; gpt2-small, -medium, -large, -xl work too.
    """
    unknown = f"{name}: there is no such file or folder"
    if name.endswith(SUFFIXES) or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name):
        raise ValueError(f"{unknown}, and a name on the hub looks like openai-community/gpt2.")
    if name in ("gpt2", *GPT2_CONFIGS):
        name = f"openai-community/{name.removesuffix('-small')}"
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise ValueError(
            f"{unknown}, and fetching it from the Hugging Face hub needs huggingface_hub.\n"
            "  Install it: pip install huggingface_hub"
        ) from None
    wanted = ["config.json", "model*.safetensors", "model.safetensors.index.json"]
    try:
        cached = Path(
            huggingface_hub.snapshot_download(name, allow_patterns=wanted, local_files_only=True)
        )
        if any(cached.glob("*.safetensors")):
            return cached
    except (LocalEntryNotFoundError, HFValidationError):
        cached = None
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
        if not any(folder.glob("*.safetensors")):
            wanted = ["config.json", "pytorch_model*.bin", "pytorch_model.bin.index.json"]
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except Exception as error:
        raise ValueError(
            f"{unknown}, it is not in the cache of the Hugging Face hub, and it cannot be "
            f"downloaded: {type(error).__name__}.\n"
            "  Is there a network, and is the name right? On a computer with a network: "
            f"hf download {name} --local-dir my-model, then give my-model here."
        ) from error
    return folder
