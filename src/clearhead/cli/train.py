"""`clearhead train`: train a model on a text, or the small grammar model."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clearhead.atomic_files import check_folder
from clearhead.cli.shared import INTERRUPTED, out_option, progress_bar, seed_option

if TYPE_CHECKING:
    from clearhead.gpt2.model import GPT2
    from clearhead.training.loop import Curve
    from clearhead.training.text_task import TextSettings

EXAMPLE = "clearhead train --text my_texts/ -o my-model"
_TEXT, _GRAMMAR = "With --text", "Without --text"
Size = Literal["tiny", "small"]


def train(
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE_OR_DIR",
            help="Train on this text instead of the grammar: files in UTF-8, whose documents may "
            "be separated by <|endoftext|>; .xz and .gz are unpacked.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, out_option("The folder for models, curves and figures.", metavar="DIR")
    ] = Path("clearhead-train"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run in this folder.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Steps per model. [default: 2000; with --text, 1000 for tiny, 20000 for small]",
        ),
    ] = None,
    size: Annotated[
        Size,
        typer.Option(
            metavar="SIZE",
            help="tiny takes minutes on a CPU; small has the size of the English model and needs "
            "a GPU.",
            rich_help_panel=_TEXT,
        ),
    ] = "tiny",
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.01,
            help="Train for so long, instead of --steps.",
            rich_help_panel=_TEXT,
        ),
    ] = None,
    seed: Annotated[int, seed_option("The seed of weights and batches.", _TEXT)] = 0,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=257,
            help="The tokens of the vocabulary. [default: 1024 for tiny, 8192 for small]",
            rich_help_panel=_TEXT,
        ),
    ] = None,
    dropout: Annotated[
        float,
        typer.Option(metavar="P", min=0, max=0.9, help="The dropout.", rich_help_panel=_TEXT),
    ] = 0.0,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="cpu, or cuda, where products are in bfloat16.",
            rich_help_panel=_TEXT,
        ),
    ] = "cpu",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Use torch.compile.", rich_help_panel=_TEXT)
    ] = False,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Only train the vocabulary and encode the text. --resume trains.",
            rich_help_panel=_TEXT,
        ),
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=64,
            help="Train N grammar models: seeds 0, 1, 2, ...",
            rich_help_panel=_GRAMMAR,
        ),
    ] = 1,
) -> int:
    """Train a model on your own text, or the small grammar model.

    With --text, a byte-pair vocabulary and a GPT-2 are trained on it; every other command takes the
    folder as --model, and transformers loads it too. With several GPUs: torchrun --nproc-per-node 8
    -m clearhead train --text ...

    Without --text, the model learns a small grammar whose relations between words are known, so
    that what its heads do can be measured. A run can be interrupted at any point; with --resume it
    continues, on a CPU bit for bit.
    """
    check_folder(out, "--out")
    if text is not None or _is_text_run(out, resume):
        if seeds != 1:
            raise ValueError("--seeds trains several grammar models.\n  With --text: --seed N.")
        from clearhead.training.text_task import SIZES

        settings, tokens = SIZES[size]
        settings = replace(
            settings,
            seed=seed,
            steps=settings.steps if steps is None else steps,
            minutes=minutes,
            dropout=dropout,
        )
        if minutes is not None and steps is not None:
            raise ValueError("--steps and --minutes: give one of the two.")
        tokens = tokens if vocabulary is None else vocabulary
        return _train_text(text, settings, tokens, out, device, compiled, prepare, resume)
    if (minutes, vocabulary, seed, dropout, device) != (None, None, 0, 0.0, "cpu") or prepare:
        raise ValueError(
            "--minutes, --vocabulary, --seed, --dropout, --device and --prepare belong to --text."
        )
    return _train_grammar(seeds, 2000 if steps is None else steps, out, resume)


def _is_text_run(out: Path, resume: bool) -> bool:
    """Whether `--resume` continues a run with a text."""
    from clearhead.training.text_run import is_prepared

    return resume and is_prepared(out)


def _train_text(
    text: Path | None,
    settings: TextSettings,
    vocab_size: int,
    out: Path,
    device: str,
    compiled: bool,
    prepare: bool,
    resume: bool,
) -> int:
    """Train a model on a text, with loss and a sample at each evaluation."""
    import torch

    from clearhead.tokenizers import BytePairTokenizer
    from clearhead.training import text_run

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch finds no GPU.\n  Leave it out to use the CPU.")
    if "WORLD_SIZE" in os.environ:  # torchrun starts each process with it
        return _train_text_distributed(text, settings, vocab_size, out)
    if not resume and (text_run.has_started(out) or text_run.is_prepared(out)):
        raise ValueError(
            f"{out}: this folder already holds a run.\n"
            "  Continue it with --resume, or start a new one with another --out DIR."
        )
    print("Reading the text", file=sys.stderr)
    corpus = text_run.prepared_corpus(out, text, vocab_size)
    print(
        f"{len(corpus.train):,} tokens to train on, {len(corpus.validation):,} held out; "
        f"{corpus.vocab_size:,} different ones, {corpus.bytes_per_token:.1f} bytes each",
        file=sys.stderr,
    )
    if prepare:
        print(f"Prepared in {out}. Train: clearhead train --resume --out {out}")
        return 0
    tokenizer = BytePairTokenizer(out)
    with progress_bar() as progress:
        total = settings.steps if settings.minutes is None else settings.minutes * 60
        task = progress.add_task("Training", total=total)

        def on_step(done: int, curve: Curve, model: GPT2) -> None:
            last = curve.loss[-20:]
            if last:
                words = f"loss {sum(last) / len(last):.3f}"
                if curve.evaluations:
                    words += f", held out {curve.evaluations[-1]['loss']:.3f}"
                completed = done if settings.minutes is None else curve.seconds
                progress.update(task, completed=completed, description=words)
            if curve.evaluations and curve.evaluations[-1]["step"] == done:
                held_out = curve.evaluations[-1]["loss"]
                wrote = drawing.shorten(text_run.sample(model, tokenizer), 60)
                progress.console.print(
                    f"step {done:,}: held out {held_out:.3f}  {wrote}",
                    markup=False,
                    highlight=False,
                )

        from clearhead import drawing

        try:
            curve = text_run.train_text(
                corpus, settings, out, device=device, compiled=compiled, on_step=on_step
            )
        except KeyboardInterrupt:
            print(f"\nInterrupted. Continue: the same command with --resume, --out {out}")
            return INTERRUPTED
    loss = curve.evaluations[-1]["loss"]
    bits = loss / math.log(2) / corpus.bytes_per_token
    print(f"Loss on the held-out text: {loss:.3f} nats per token, {bits:.2f} bits per byte.")
    print(f"In Python: model, tokenizer = clearhead.load({str(out)!r})")
    print(f'Next: clearhead explain --model {out} "some words"')
    return 0


def _train_text_distributed(
    text: Path | None, settings: TextSettings, vocab_size: int, out: Path
) -> int:
    """Train with the processes that torchrun started; a run continues where it was."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from clearhead.training import distributed, text_run

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(dist.get_node_local_rank(fallback_rank=0))
    dist.init_process_group(backend, timeout=timedelta(minutes=30))
    first = dist.get_rank() == 0
    try:
        if first:
            text_run.prepared_corpus(out, text, vocab_size)
        dist.barrier()
        corpus = text_run.prepared_corpus(out, None, vocab_size)

        def on_step(done: int, loss: float) -> None:
            if first and (done % settings.every == 0 or done == settings.steps):
                print(f"step {done:,} of {settings.steps:,}: loss {loss:.3f}", flush=True)

        loss = text_run.train_text_distributed(corpus, settings, out, on_step)
    except distributed.LostRank as error:
        raise ValueError(str(error)) from error
    if first:
        count = dist.get_world_size()
        print(f"{out}: trained by {count} process(es), loss on the held-out text {loss:.3f}")
    dist.destroy_process_group()
    return 0


def _train_grammar(seeds: int, steps: int, out: Path, resume: bool) -> int:
    """Train grammar models, one folder per seed, and say what their heads do."""
    folders = [out / f"seed-{seed}" for seed in range(seeds)]
    started = [folder for folder in folders if any(folder.glob("*.safetensors"))]
    if started and not resume:
        raise ValueError(
            f"{started[0]}: this folder already holds a run.\n"
            "  Continue it with --resume, or start a new one with another --out DIR."
        )
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)

    from clearhead import drawing
    from clearhead.lab import seed_runs

    try:
        curves = _train_all(folders, steps, resume)
    except KeyboardInterrupt:
        print(_interrupted(out, folders, steps), file=sys.stderr)
        return INTERRUPTED
    screen = drawing.console()
    screen.print(seed_runs.draw_summary(out, curves))
    picture = out / "training.svg"
    try:
        seed_runs.save_curves(curves, picture)
    except ImportError as error:
        print(error, file=sys.stderr)
    else:
        screen.print(f"\nCurves: {picture}")
    screen.print(f"In Python: model, words = clearhead.load({str(folders[0])!r})")
    screen.print(f'Next: clearhead explain --model {folders[0]} "the cat sat on the mat"')
    return 0


def _train_all(folders: Sequence[Path], steps: int, resume: bool) -> dict[int, Curve]:
    """Train each seed in its folder, then measure the heads of all, with a progress bar."""
    from clearhead.lab import seed_runs
    from clearhead.lab.grammar_training import GrammarSettings

    with progress_bar() as progress:
        curves: dict[int, Curve] = {}
        for seed, folder in enumerate(folders):
            task = progress.add_task(f"seed {seed}: writing sentences", total=steps)

            def on_step(
                done: int, curve: Curve, model: GPT2, task: int = task, seed: int = seed
            ) -> None:
                text = f"seed {seed}: {seed_runs.progress_text(curve)}"
                progress.update(task, completed=done, description=text)  # type: ignore[arg-type]  # TaskID is an int

            settings = GrammarSettings(seed=seed, steps=steps)
            curves[seed] = seed_runs.train_seed(settings, folder, resume=resume, on_step=on_step)
        task = progress.add_task("Measuring the heads", total=len(folders))
        for folder in folders:
            seed_runs.measure_heads(folder)
            progress.advance(task)
    return curves


def _interrupted(out: Path, folders: Sequence[Path], steps: int) -> str:
    """What an interrupted run has saved, and how to resume it."""
    from clearhead.lab.seed_runs import saved_steps

    done = {seed: saved_steps(folder) for seed, folder in enumerate(folders)}
    saved = [f"seed {seed} to step {step:,} of {steps:,}" for seed, step in done.items() if step]
    if not saved:
        return f"\nInterrupted before the first checkpoint: nothing is saved in {out}."
    return (
        f"\nInterrupted. Saved in {out}: {', '.join(saved)}.\n"
        f"Resume: clearhead train --seeds {len(folders)} --steps {steps} --out {out} --resume"
    )
