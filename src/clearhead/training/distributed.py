"""Training the lab's model with several processes, on one machine or many.

    torchrun --nproc-per-node 4 -m clearhead.training.loop --out my-run

A step reads the same rows however many ranks share them, so that the loss of each step does not
depend on their number, apart from rounding. Every `every` steps all ranks write one checkpoint
together; whoever starts the same command again, with any number of ranks, goes on from the newest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import typer
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from clearhead.atomic_files import beside
from clearhead.gpt2.model import GPT2
from clearhead.lab.vocabulary import vocabulary
from clearhead.models.trained_model import save_model
from clearhead.parallel import data_parallel, load_checkpoint, save_checkpoint
from clearhead.training.loop import (
    Settings,
    batch,
    learn,
    learning_rate,
    new_model,
    new_optimiser,
    write_rows,
)

CHECKPOINTS = "checkpoints"


class LostRank(RuntimeError):
    """Another rank ended or fell silent while all worked together."""


def train(
    settings: Settings,
    folder: Path,
    *,
    shard: bool = False,
    on_step: Callable[[int, float], None] | None = None,
) -> GPT2:
    """Train one model with all ranks of the process group; every rank must call it.

    Args:
        settings: How; `every` says how many steps lie between two checkpoints.
        folder: Where the checkpoints go; every rank must see it.
        shard: Whether weights and optimiser are split between the ranks (FSDP2), or copied (DDP).
        on_step: Called after every step with the number of steps done and the loss.

    Returns:
        The whole model, on every rank.

    Raises:
        ValueError: The ranks do not divide the batch, or the folder is another training's.
        LostRank: Another rank is gone; the message says what is lost.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if settings.batch % ranks:
        raise ValueError(
            f"batch ({settings.batch} rows) must be divisible by the number of ranks ({ranks}).\n"
            f"  Each rank reads as many rows as the others."
        )
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    whole = new_model(settings).to(device)
    model = data_parallel(whole, init_device_mesh(device, (ranks,)), shard=shard)
    optimiser = new_optimiser(whole, settings)
    rows = write_rows(min(settings.rows, settings.steps * settings.batch), settings.tokens)
    _same_settings(folder / "settings.json", settings)
    begin = load_checkpoint(folder / CHECKPOINTS, model, optimiser)
    saved = done = begin
    try:
        for step in range(begin, settings.steps):
            inputs, targets, _ = batch(rows, settings, step)
            inputs, targets = (x.chunk(ranks)[rank].to(device) for x in (inputs, targets))
            loss = learn(model, optimiser, inputs, targets, learning_rate(settings, step))
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
            f"rank {rank} of {ranks}: another rank does not answer any more, after step {done} of "
            f"{settings.steps}.\n  The newest checkpoint is of step {saved}, so that "
            f"{done - saved} steps are lost. See why the other rank ended, then start the same "
            "command again, with as many ranks as you like."
        ) from error
    trained = new_model(settings)
    trained.load_state_dict(weights)
    return trained.eval()


def _same_settings(file: Path, settings: Settings) -> None:
    """Write the settings beside the checkpoints, or compare them with those that are there."""
    mine = asdict(settings)
    if file.is_file():
        stored = json.loads(file.read_text(encoding="utf-8"))
        changed = [
            f"{name} {stored.get(name)} there, {value} here"
            for name, value in mine.items()
            if name != "every" and stored.get(name) != value
        ]
        if changed:
            raise ValueError(
                f"{file.parent}: a training with other settings ({'; '.join(changed)}).\n"
                "  Go on with the same ones, or begin anew in another folder."
            )
    dist.barrier()  # nobody writes while another still looks
    if dist.get_rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside(file) as whole:
            whole.write_text(json.dumps({"schema": 1, **mine}), encoding="utf-8")


def _lost_a_rank(error: RuntimeError) -> bool:
    """Whether an error says that the connection to another rank is gone or silent."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def main(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where checkpoints and model go.")
    ] = Path("clearhead-train"),
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="How many steps.")] = 2000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="For weights and data.")] = 0,
    every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Steps from one checkpoint to the next.")
    ] = 100,
    shard: Annotated[
        bool, typer.Option("--shard", help="Split the weights (FSDP2) instead of copying (DDP).")
    ] = False,
    patience: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, help="How long to wait for another rank.")
    ] = 300,
) -> None:
    """Train the lab's model with the processes that torchrun started.

    It goes on from the newest checkpoint in the folder, if there is one.
    """
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(dist.get_node_local_rank(fallback_rank=0))
    dist.init_process_group(backend, timeout=timedelta(seconds=patience))
    first = dist.get_rank() == 0
    settings = Settings(seed=seed, steps=steps, every=every)

    def on_step(done: int, loss: float) -> None:
        if first and (done % every == 0 or done == steps):
            print(f"step {done} of {steps}: loss {loss:.4f}", flush=True)

    try:
        model = train(settings, out, shard=shard, on_step=on_step)
    except (ValueError, LostRank) as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        raise typer.Exit(2) from error
    if first:
        save_model(out / "model.safetensors", model, vocabulary(), {"seed": seed})
        print(
            f"{out / 'model.safetensors'}: trained by {dist.get_world_size()} process(es)",
            flush=True,
        )
    dist.destroy_process_group()


def run() -> None:
    """The command line of `python -m clearhead.training.loop`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
