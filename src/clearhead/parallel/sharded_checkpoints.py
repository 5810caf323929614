"""Checkpoints that any number of ranks can load: `torch.distributed.checkpoint`, a folder per step.

    folder/step-00000200/      weights, optimiser state and the step, in shards

A checkpoint is written under a temporary name and renamed when all ranks have finished, so one with
its final name is complete. Loading splits it for the current number of ranks.
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
    """Write the weights and the optimiser state. Call it on every rank.

    Args:
        folder: The folder of all checkpoints of this run; every rank must have access to it.
        module: The model, under any plan or none.
        optimizer: Its optimiser.
        step: The number of completed steps.
        keep: The number of checkpoints to keep; older ones are removed.

    Returns:
        The folder of the new checkpoint.
    """
    folder = Path(folder)
    final, draft = folder / _NAME.format(step), folder / (_NAME.format(step) + ".part")
    if _rank() == 0:
        shutil.rmtree(draft, ignore_errors=True)  # left by an interrupted run
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
    """Load the newest complete checkpoint into module and optimiser. Call it on every rank.

    Args:
        folder: The folder passed to `save_checkpoint`.
        module: A model of the same sizes, under any plan or none.
        optimizer: Its optimiser.

    Returns:
        The number of completed steps; 0 if there is no checkpoint, and nothing is changed.
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
    """The complete checkpoints in a folder, oldest first."""
    here = Path(folder)
    if not here.is_dir():
        return []
    return sorted(each for each in here.iterdir() if re.fullmatch(r"step-\d{8,}", each.name))


def _inner(module: nn.Module) -> nn.Module:
    """The model without its DDP wrapper, which would change the names."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _wait() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()
