"""Measure the figures from which docs/scale.md starts, and draw its estimate.

    python docs/scale_figures.py benchmarks/results/scale-h200.json                          measure
    python docs/scale_figures.py benchmarks/results/scale-h200.json docs/images/scale.svg    draw

Measuring needs a CUDA device with about 60 GiB and takes two minutes. Drawing only reads the file.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from clearhead import GPT2_CONFIGS, MultiHeadAttention
from clearhead.drawing import figures
from clearhead.gpt2 import GPT2


def measure(work: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Median time and peak memory, after one warm-up run."""
    work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1000)
    return {
        "median_ms": round(statistics.median(times), 3),
        "lowest_ms": round(min(times), 3),
        "highest_ms": round(max(times), 3),
        "rounds": rounds,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def layer(tokens: int, rounds: int) -> dict[str, Any]:
    """Measure the attention layer of GPT-2 small, forward and forward + backward, in bfloat16."""
    module = MultiHeadAttention(768, 768, tokens, 0.0, num_heads=12, qkv_bias=True)
    module = module.to("cuda", torch.bfloat16)
    x = torch.randn(1, tokens, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def training() -> None:
        module(x).sum().backward()

    return {
        "tokens": tokens,
        "forward": measure(forward, rounds),
        "forward_backward": measure(training, rounds),
    }


def step(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """Measure one training step: float32 weights, bfloat16 autocast, AdamW."""
    config = GPT2_CONFIGS[name] | {"dropout": 0.0}
    with torch.device("cuda"):
        model = GPT2(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(config["vocab_size"], (batch, 1025), device="cuda")

    def training() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"model": name, "batch": batch, "tokens": 1024, "step": measure(training, rounds)}


def main(out: Path) -> None:
    """Measure everything and write the file."""
    found = {
        "schema": 1,
        "benchmark": "scale",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0]},
        "command": "python docs/scale_figures.py " + str(out),
        "layers": [layer(131_072, 5), layer(1_048_576, 1)],
        "steps": [step("gpt2-small", 16, 9), step("gpt2-xl", 8, 5)],
    }
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


def draw(source: Path, picture: Path) -> None:
    """Draw the time of the long layer on 1 to 512 GPUs, calculated as in docs/scale.md."""
    from matplotlib.figure import Figure

    layer_ms = json.loads(source.read_text(encoding="utf-8"))["layers"][1]["forward"]["median_ms"]
    gpus = [2**n for n in range(10)]
    lines: dict[str, list[float]] = {"all-gather": [], "ring": [], "no communication": []}
    for ranks in gpus:
        turn = layer_ms / ranks**2
        sending = 2 * 2**20 * 768 * 2 / ranks / (450e6 if ranks <= 8 else 50e6)
        lines["all-gather"].append((ranks - 1) * sending + layer_ms / ranks)
        lines["ring"].append((ranks - 1) * max(turn, sending) + turn)
        lines["no communication"].append(layer_ms / ranks)
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    styles = (
        {"marker": "s", "ls": "--"},
        {"marker": "o"},
        {"color": "black", "lw": 0.8, "ls": ":"},
    )
    for (name, times), style in zip(lines.items(), styles, strict=True):
        axes.plot(gpus, times, label=name, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(gpus, [str(n) for n in gpus])
    axes.set(xlabel="GPUs", ylabel="ms (calculated)", title="One layer, 1,048,576 tokens, forward")
    axes.legend()
    figures.write(figure, picture)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        draw(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
