"""Checkpoints that any number of ranks can read: `torch.distributed.checkpoint`, a folder a step.

    folder/step-00000200/      weights, optimiser and a little more, in parts

A checkpoint is written under another name and renamed when all ranks are done, so that one that has
its name is whole. What is read back is cut for the ranks that there are now.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

_NAME = "step-{:08d}"


def save_checkpoint(
    folder: str | Path,
    module: nn.Module,
    optimizer: Optimizer,
    step: int,
    *,
    keep: int = 2,
) -> Path:
    """Write weights and optimiser; every rank must call it.

    Args:
        folder: Where all checkpoints of this training stand; every rank must see it.
        module: The model, under any plan or none.
        optimizer: Its optimiser.
        step: How many steps have been made.
        keep: How many checkpoints to keep; older ones are removed.

    Returns:
        The new checkpoint's folder.
    """
    folder = Path(folder)
    final, draft = folder / _NAME.format(step), folder / (_NAME.format(step) + ".part")
    if _rank() == 0:
        shutil.rmtree(draft, ignore_errors=True)  # left by a training that was broken off
        draft.mkdir(parents=True)
    _wait()
    weights, moments = get_state_dict(_inner(module), optimizer)
    save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=draft)
    _wait()
    if _rank() == 0:
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    _wait()
    return final


def load_checkpoint(folder: str | Path, module: nn.Module, optimizer: Optimizer) -> int:
    """Read the newest whole checkpoint into module and optimiser; every rank must call it.

    Args:
        folder: What was given to `save_checkpoint`.
        module: A model of the same sizes, under any plan or none.
        optimizer: Its optimiser.

    Returns:
        How many steps had been made; 0 if there is no checkpoint, and then nothing changes.
    """
    found = checkpoints(folder)
    if not found:
        return 0
    module = _inner(module)
    weights, moments = get_state_dict(module, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": 0}
    load(state, checkpoint_id=found[-1])
    set_state_dict(
        module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return int(state["step"])


def checkpoints(folder: str | Path) -> list[Path]:
    """The whole checkpoints in a folder, oldest first."""
    here = Path(folder)
    if not here.is_dir():
        return []
    return sorted(each for each in here.iterdir() if re.fullmatch(r"step-\d{8,}", each.name))


def _inner(module: nn.Module) -> nn.Module:
    """The model itself: the names must not depend on what was wrapped around it."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _wait() -> None:
    """Until all ranks are here."""
    if dist.is_initialized():
        dist.barrier()
