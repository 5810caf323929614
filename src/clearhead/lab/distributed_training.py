"""Train the grammar model with several processes.

torchrun --nproc-per-node 4 -m clearhead.lab.distributed_training --out my-run
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import typer

from clearhead.lab.grammar_training import GrammarSettings, GrammarTask
from clearhead.lab.vocabulary import vocabulary
from clearhead.models.trained_model import MODEL, save_model
from clearhead.training import distributed


def train(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder for checkpoints and the model.")
    ] = Path("clearhead-train"),
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="The number of steps.")] = 2000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The random seed.")] = 0,
    every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Steps between two checkpoints.")
    ] = 100,
    shard: Annotated[
        bool, typer.Option("--shard", help="Split the weights (FSDP2) instead of copying (DDP).")
    ] = False,
    patience: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, help="How long to wait for another rank.")
    ] = 300,
) -> None:
    """Train the grammar model with the processes that torchrun started.

    Training resumes from the newest checkpoint in the folder, if there is one.
    """
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(dist.get_node_local_rank(fallback_rank=0))
    dist.init_process_group(backend, timeout=timedelta(seconds=patience))
    first = dist.get_rank() == 0

    def on_step(done: int, loss: float) -> None:
        if first and (done % every == 0 or done == steps):
            print(f"step {done} of {steps}: loss {loss:.4f}", flush=True)

    task = GrammarTask(GrammarSettings(seed=seed, steps=steps, every=every))
    try:
        model = distributed.train(task, out, shard=shard, on_step=on_step)
    except (ValueError, distributed.LostRank) as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        raise typer.Exit(2) from error
    if first:
        save_model(out / MODEL, model, vocabulary(), {"seed": seed})
        print(f"{out / MODEL}: trained by {dist.get_world_size()} process(es)", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Run the command line."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train)
    app()


if __name__ == "__main__":
    main()
