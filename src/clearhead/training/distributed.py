"""The training loop on several processes, on one machine or many.

A step reads the same rows however many ranks share them, so the loss of a step does not depend on
the number of ranks, up to rounding. Every `every` steps all ranks write one checkpoint together. A
run resumes from the newest checkpoint in its folder, with any number of ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from clearhead.atomic_files import beside
from clearhead.gpt2.model import GPT2
from clearhead.parallel import data_parallel, load_checkpoint, save_checkpoint
from clearhead.training.loop import (
    Settings,
    Task,
    check_settings,
    learning_rate,
    new_optimiser,
    take_step,
)

CHECKPOINTS = "checkpoints"


class LostRank(RuntimeError):
    """Another rank ended or stopped responding."""


def train(
    task: Task,
    folder: Path,
    *,
    shard: bool = False,
    on_step: Callable[[int, float], None] | None = None,
) -> GPT2:
    """Train one model with all ranks of the process group; every rank must call it.

    Args:
        task: What to train on. Its `evaluate` is not called.
        folder: Where to write checkpoints; every rank must be able to access it.
        shard: Split weights and optimiser state between the ranks (FSDP2) instead of copying them
            to every rank (DDP).
        on_step: Called after every step with the number of steps done and the loss.

    Returns:
        The whole model, on every rank.

    Raises:
        ValueError: The batch is not divisible by the number of ranks, or the folder holds a run
            with other settings.
        LostRank: Another rank is gone.
    """
    settings, ranks, rank = task.settings, dist.get_world_size(), dist.get_rank()
    if settings.batch % ranks:
        raise ValueError(
            f"batch: expected a multiple of the number of ranks ({ranks}), got {settings.batch}.\n"
            "  Every rank reads the same number of rows. Start a number of ranks that divides it."
        )
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    whole = task.new_model().to(device)
    model = data_parallel(whole, init_device_mesh(device, (ranks,)), shard=shard)
    optimiser = new_optimiser(whole, settings)
    _claim_folder(folder / "settings.json", settings)
    saved = done = load_checkpoint(folder / CHECKPOINTS, model, optimiser)
    try:
        for step in range(done, settings.steps):
            inputs, targets, _ = task.batch(step)
            inputs, targets = (x.chunk(ranks)[rank].to(device) for x in (inputs, targets))
            loss = take_step(model, optimiser, inputs, targets, learning_rate(settings, step))
            done = step + 1
            if on_step is not None:
                total = loss.detach()
                dist.all_reduce(total)
                on_step(done, float(total) / ranks)
            if done % settings.every == 0 or done == settings.steps:
                save_checkpoint(folder / CHECKPOINTS, model, optimiser, done)
                saved = done
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        weights = get_model_state_dict(inner, options=StateDictOptions(full_state_dict=True))
    except RuntimeError as error:
        if not _lost_a_rank(error):
            raise
        raise LostRank(
            f"rank {rank} of {ranks}: another rank stopped responding after step {done} of "
            f"{settings.steps}.\n  The newest checkpoint is of step {saved}; steps lost: "
            f"{done - saved}. Find out why the other rank ended, then run the same command again, "
            "with any number of ranks."
        ) from error
    trained = task.new_model()
    trained.load_state_dict(weights)
    return trained.eval()


def _claim_folder(file: Path, settings: Settings) -> None:
    """Check that the folder is new or holds a run with these settings, and write them there."""
    if file.is_file():
        check_settings(file.parent, json.loads(file.read_text(encoding="utf-8")), settings)
    dist.barrier()  # no rank writes while another is still reading
    if dist.get_rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside(file) as draft:
            draft.write_text(json.dumps({"schema": 1, **asdict(settings)}), encoding="utf-8")


def _lost_a_rank(error: RuntimeError) -> bool:
    """Whether an error means that the connection to another rank is lost."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
