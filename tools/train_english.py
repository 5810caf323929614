"""Train candidates for the shipped English model, all at once on one GPU.

    clearhead train --text english.txt.xz --prepare -o english        # without a GPU
    python tools/train_english.py english run --minutes 9            # on a GPU

Each candidate is a process of its own, because one model of this size leaves most of a large GPU
idle. It ends by the clock and writes `seed-N.safetensors`, with the weights in float16, and
`seed-N.json`, with the settings, the loss during training, and what it was trained on.
`tools/ship_english_model.py` turns one of them into the files of the package.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from clearhead.gpt2.model import GPT2
from clearhead.models.trained_model import write_safetensors
from clearhead.training.loop import Curve, train
from clearhead.training.text_corpus import load_corpus
from clearhead.training.text_task import TextSettings, TextTask

CURVE_POINTS = 200


def train_one(given: argparse.Namespace, settings: TextSettings) -> None:
    """Train one candidate, and write its weights and its JSON."""
    device = torch.device(given.device)
    torch.set_float32_matmul_precision("high")
    corpus = load_corpus(given.folder)
    task = TextTask(settings, corpus, device)

    def on_step(done: int, curve: Curve, model: GPT2) -> None:
        if done % settings.every == 0:
            loss, last = curve.evaluations[-1]["loss"], sum(curve.loss[-100:]) / 100
            text = f"seed {settings.seed}: step {done:,}, {curve.seconds:.0f} s, "
            print(text + f"trained {last:.4f}, held out {loss:.4f}", flush=True)

    scratch = given.scratch / f"seed-{settings.seed}"
    scratch.mkdir(parents=True, exist_ok=True)
    model, curve = train(
        task,
        scratch,
        resume=given.resume,
        device=device,
        compiled=given.compile,
        on_step=on_step,
    )
    parameters = sum(weight.numel() for weight in model.parameters())
    name = f"seed-{settings.seed}"
    weights = {key: value.half().cpu() for key, value in model.state_dict().items()}
    write_safetensors(given.out / f"{name}.safetensors", weights, {"format": "pt"})
    group = max(1, len(curve.loss) // CURVE_POINTS)
    losses = torch.tensor(curve.loss[: len(curve.loss) // group * group])
    content = {
        "settings": asdict(settings),
        "config": dict(model.config),
        "parameters": parameters,
        "loss": curve.evaluations[-1]["loss"],
        "evaluations": curve.evaluations,
        "trained": losses.view(-1, group).mean(1).tolist(),
        "steps": len(curve.loss),
        "seconds": curve.seconds,
        "tokens_seen": len(curve.loss) * settings.batch * settings.tokens,
        "tokens": len(corpus.train),
        "held_out_tokens": len(corpus.validation),
        "bytes_per_token": corpus.bytes_per_token,
        "computed_in": "bfloat16" if device.type == "cuda" else "float32",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "at_once": len(given.seeds) if given.at_once is None else given.at_once,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    (given.out / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(f"{name}: {len(curve.loss):,} steps, loss {content['loss']:.4f}", flush=True)


def train_all(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Start one process per candidate, wait for all, and return 0 if all succeeded."""
    processes = []
    for index, seed in enumerate(given.seeds):
        dropout = given.dropout[index % len(given.dropout)]
        rate = given.learning_rate[index % len(given.learning_rate)]
        decay = given.weight_decay[index % len(given.weight_decay)]
        own = ["--seeds", str(seed), "--dropout", str(dropout), "--learning-rate", str(rate)]
        own += ["--weight-decay", str(decay)]
        own += ["--at-once", str(len(given.seeds))]
        processes.append(subprocess.Popen([sys.executable, __file__, *arguments, *own]))
    return max(process.wait() for process in processes)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the prepared text: text.safetensors")
    parser.add_argument("out", type=Path, help="where to write the results")
    parser.add_argument("--scratch", type=Path, default=Path("run"), help="for checkpoints")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=9.0, help="per candidate, all at once")
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0], help="one per seed")
    parser.add_argument("--learning-rate", type=float, nargs="+", default=[2e-3])
    parser.add_argument("--weight-decay", type=float, nargs="+", default=[0.1])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--at-once", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if len(given.seeds) > 1:
        return train_all(given, sys.argv[1:])
    settings = TextSettings(
        seed=given.seeds[0],
        minutes=given.minutes,
        dropout=given.dropout[0],
        learning_rate=given.learning_rate[0],
        weight_decay=given.weight_decay[0],
        batch=given.batch,
        every=given.every,
    )
    train_one(given, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
