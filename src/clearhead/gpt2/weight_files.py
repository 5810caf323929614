"""Weights files: finding them, and reading their tensors a few at a time.

Names, shapes and dtypes are known before any tensor is read. Files are memory-mapped, closed again
after each portion, and read from the largest tensor to the smallest. A caller that copies each
tensor as it comes needs little more memory than the copies themselves.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import safetensors
import torch
from torch import Tensor

from clearhead.configs import GPT2_CONFIGS
from clearhead.gpt2.pickle_guard import check_pickle, more_than_tensors
from clearhead.version import install

PICKLES = (".bin", ".pth", ".pt")
SUFFIXES = (".safetensors", *PICKLES)
# In a folder, the first of these that exists.
_USUAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# Checkpoints of training scripts hold the weights under one of these keys.
_INSIDE = ("model_state_dict", "state_dict", "model")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TRUNCATED = "Truncated? Compare its size with the original's, and download it again."
# Bytes to read before closing the files, which releases the mapped pages.
_PORTION = 16 * 2**20


class Spec(NamedTuple):
    """A tensor's description, known before the tensor is read."""

    shape: tuple[int, ...]
    dtype: str
    file: Path
    bytes: int


class _Open(Protocol):
    """An open weights file."""

    def specs(self) -> dict[str, Spec]: ...
    def get(self, key: str) -> Tensor: ...


class Tensors:
    """The tensors of one weights file, or of the shards of a large model.

    Attributes:
        specs: Shape, dtype, file and size of each tensor, by its name in the file.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.specs: dict[str, Spec] = {}
        for file in files:
            for key, spec in _open(file).specs().items():
                if key in self.specs:
                    raise ValueError(f"{key}: in two files, {self.specs[key].file} and {file}.")
                self.specs[key] = spec

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors, largest first. Copy each tensor: its file is closed later."""
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
                f"{path}: not a whole safetensors file: {error}\n  {_TRUNCATED}"
            ) from None

    def specs(self) -> dict[str, Spec]:
        found = {}
        for key in self.handle.keys():  # noqa: SIM118  # not a dictionary
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
    """A file written by `torch.save`, read without running any code in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats and unusual characters
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
            asked = re.search(r"GLOBAL ([\w.]+)", str(error))  # the rest recommends running it
            raise more_than_tensors(path, asked[1] if asked else "") from None
        except Exception as error:
            raise ValueError(
                f"{path}: not a file that torch.save wrote, or truncated: "
                f"{type(error).__name__}: {str(error).partition('. ')[0]}\n  {_TRUNCATED}"
            ) from error

    def _mapped(self) -> Any:
        options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
        try:
            return torch.load(self.path, mmap=True, **options)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
        return torch.load(self.path, **options)  # the format before 2020 cannot be memory-mapped

    def specs(self) -> dict[str, Spec]:
        found = {}
        for key, value in self.content.items():
            if not isinstance(value, Tensor) or not isinstance(key, str):
                raise ValueError(
                    f"{self.path}: expected a tensor under {key!r}, got {type(value).__name__}.\n"
                    "  Save the state dict alone: torch.save(model.state_dict(), path)."
                )
            if value.layout != torch.strided or value.is_meta:
                raise ValueError(
                    f"{self.path}: {key}: expected a dense tensor, got a sparse or a meta tensor."
                )
            dtype = str(value.dtype).removeprefix("torch.")
            found[key] = Spec(tuple(value.shape), dtype, self.path, value.nbytes)
        total, size = sum(spec.bytes for spec in found.values()), self.path.stat().st_size
        if total > 2 * size:  # the head may be stored as a second name; see `torch.Tensor.expand`
            raise ValueError(
                f"{self.path}: its tensors have {total:,} bytes, but the file has only {size:,}: "
                "they repeat the same values.\n"
                "  Save copies instead: tensor.contiguous().clone()."
            )
        return found

    def get(self, key: str) -> Tensor:
        tensor: Tensor = self.content[key]
        return tensor.detach()  # the file may hold parameters


def _open(path: Path) -> _Open:
    check_file(path)
    return _Safetensors(path) if path.suffix == ".safetensors" else _Pickle(path)


def check_file(path: Path) -> None:
    """Raise ValueError unless this is a regular file that is not empty."""
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}.") from None
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path}: expected a weights file, got a folder.")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: expected a regular file.")
    if status.st_size == 0:
        raise ValueError(
            f"{path}: the file is empty (0 bytes).\n  Did a download fail? Download it again."
        )


def find_files(path: str | Path) -> tuple[list[Path], Path | None]:
    """Find the weights files, and the config.json beside them or None.

    Args:
        path: A folder, a weights file, or the name of a model on the Hugging Face hub.
    """
    location = Path(path).expanduser()
    if isinstance(path, str) and not os.path.lexists(location):
        location = from_hub(path)
    config: Path | None
    if location.suffix in SUFFIXES and not location.is_dir():
        config = location.parent / "config.json"
        return [location], config if config.is_file() else None
    try:
        present = sorted(entry.name for entry in location.iterdir())
    except NotADirectoryError:
        raise ValueError(
            f"{location}: expected a folder or a file that ends with {', '.join(SUFFIXES)}."
        ) from None
    except OSError as error:
        raise ValueError(f"{location}: {error.strerror or error}.") from None
    config = location / "config.json" if "config.json" in present else None
    usual = next((name for name in _USUAL if name in present), None)
    if usual is None:
        others = [name for name in present if name.endswith(SUFFIXES)]
        if len(others) != 1:
            raise ValueError(f"{location}: {_no_weights(present, others)}")
        usual = others[0]
    if usual.endswith(".index.json"):
        return _parts(location / usual), config
    return [location / usual], config


def _no_weights(present: list[str], others: list[str]) -> str:
    if others:
        return f"several weights files: {', '.join(others[:5])}\n  Pass the path of one of them."
    if any(name.startswith("model.ckpt") for name in present):
        return (
            "TensorFlow checkpoints are not supported.\n"
            "  The same weights are on the Hugging Face hub: openai-community/gpt2."
        )
    listed = ", ".join(present[:5]) + (", ..." if len(present) > 5 else "")
    return f"expected weights ({', '.join(_USUAL[::2])}), got {listed or 'an empty folder'}."


def _parts(index: Path) -> list[Path]:
    """The files listed in an index, after checking that they hold the tensors it lists."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index}: expected a weight_map with the file of each tensor, got none.")
    files = []
    for name in sorted(set(map(str, weight_map.values()))):
        # A name with a folder in it could point anywhere on the disk.
        if Path(name).name != name or not name.endswith(SUFFIXES):
            raise ValueError(
                f"{index}: expected the name of a weights file beside it, got {name!r}."
            )
        files.append(index.parent / name)
    for file in files:
        check_file(file)
    tensors = Tensors(files)
    for key, name in weight_map.items():
        if key not in tensors.specs or tensors.specs[key].file.name != name:
            raise ValueError(f"{index}: lists {key} in {name}, but it is not there.")
    return files


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    check_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(content).__name__}.")
    return content


def from_hub(name: str, *, also: Sequence[str] = ()) -> Path:
    """The local folder of a model on the Hugging Face hub, downloaded unless cached.

    Args:
        name: A name such as "openai-community/gpt2-medium", or gpt2-small, -medium, -large, -xl.
        also: Patterns of further files to download, beside configuration and weights.
    """
    unknown = f"{name}: no such file or folder"
    if name.endswith(SUFFIXES) or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name):
        raise ValueError(f"{unknown}; a name on the hub looks like openai-community/gpt2.")
    if name in ("gpt2", *GPT2_CONFIGS):
        name = f"openai-community/{name.removesuffix('-small')}"
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise ValueError(
            f"{unknown}; downloading from the Hugging Face hub needs huggingface_hub.\n"
            f"  Install it: {install('hub')}"
        ) from None
    wanted = ["config.json", "model*.safetensors", "model.safetensors.index.json", *also]
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
            f"{unknown}, not in the cache of the Hugging Face hub, and the download failed: "
            f"{type(error).__name__}.\n"
            "  Check the name and the network connection. On a computer with a network: "
            f"hf download {name} --local-dir my-model, then pass my-model."
        ) from error
    return folder
