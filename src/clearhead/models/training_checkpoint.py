"""The checkpoint of an unfinished training run: its name, and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from clearhead.atomic_files import beside

CHECKPOINT = "checkpoint.safetensors"
METADATA = "clearhead.training"


def read_about(file: Path) -> dict[str, Any] | None:
    """What a checkpoint says of itself: "settings", "looks"; None if there is none."""
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = (opened.metadata() or {}).get(METADATA)
        found = None if about is None else json.loads(about)
    except (safetensors.SafetensorError, OSError, ValueError, RecursionError):
        return None
    if isinstance(found, dict) and {"settings", "looks"} <= found.keys():
        return found
    return None


def write_safetensors(file: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """Write tensors and metadata to a file, whole or not at all."""
    with beside(file) as whole:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, whole, about)
