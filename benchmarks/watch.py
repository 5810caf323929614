"""Compare a forward pass of GPT-2 inside `watch()` with the same forward pass without it.

The model is Hugging Face's GPT-2 with random weights. Equality first: the outputs must be equal bit
for bit. Opening and closing the `with` block is part of what is timed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Self

import torch
from torch import Tensor

from benchmarks import command
from benchmarks.command import Say, model_size, option, positive, ratio_text, sizes
from clearhead import timing
from clearhead.configs import find_config
from clearhead.watcher import watch

# Tokens per batch from which a run takes seconds on the CPU: few rounds, no warm-up.
_LONG_RUNS, _FEWEST_LONG_ROUNDS = 4096, 5


@dataclass(frozen=True)
class Settings(command.Settings):
    """Settings of the watch benchmark."""

    rounds: int = option(20, "Interleaved rounds per case.", type=positive)
    shape: tuple[tuple[int, int], ...] = option(
        ((1, 512), (8, 512), (8, 1024)),
        "Batch and tokens of each case.",
        type=sizes("batch", "tokens"),
        metavar="B,N",
    )
    size: str = model_size()
    layers: int | None = option(None, "Number of layers, if not that of the size.", type=positive)

    def quick(self) -> Self:
        """A tiny batch and one layer."""
        return replace(self, shape=((2, 16),), rounds=1, layers=1)


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Run the benchmark; everything that was measured, as plain data."""
    found = command.header("watch", settings)
    found["use_cache"] = True  # the default of the model
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    size = find_config(settings.size)
    config = transformers.GPT2Config(
        n_embd=size["d_model"],
        n_head=size["num_heads"],
        n_layer=settings.layers or size["num_layers"],
        n_positions=max(size["context_length"], *(tokens for _, tokens in settings.shape)),
    )
    model = transformers.GPT2Model(config).to(settings.device, settings.torch_dtype()).eval()
    millions = round(sum(parameter.numel() for parameter in model.parameters()) / 1e6)
    found["model"] = f"transformers GPT2Model, {millions}M, random weights"
    found["cases"] = []
    for batch, tokens in settings.shape:
        say(f"{batch} x {tokens:,} tokens")
        found["cases"].append(_compare(model, batch, tokens, settings))
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The results as text."""
    yield f"{found['model']}, {found['dtype']}, {found['device']}"
    for case in found["cases"]:
        ratio = ratio_text(case["watched_over_plain"], 3)
        result = f"watched {ratio} times that" if ratio else case["note"]
        shape = f"{case['batch']} x {case['tokens']:,} tokens"
        yield f"  {shape}: {case['plain_ms']:,.1f} ms plain; {result}"


def _compare(model: Any, batch: int, tokens: int, settings: Settings) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(model.config.vocab_size, (batch, tokens), generator=generator)
    ids = ids.to(settings.device)

    @torch.no_grad()
    def plain() -> Tensor:
        output: Tensor = model(ids).last_hidden_state
        return output

    def watched() -> Tensor:
        with watch(model):
            return plain()

    def gap() -> float | str:
        one, other = plain(), watched()
        different = int((one != other).sum())
        return f"{different:,} of {one.numel():,} numbers differ" if different else 0.0

    takes_long = settings.device == "cpu" and batch * tokens >= _LONG_RUNS
    alone, seen = settings.race(
        [
            timing.Contestant("plain", plain, ours=True),  # what the other is compared with
            timing.Contestant("watched", watched, gap),
        ],
        0.0,
        fewest=_FEWEST_LONG_ROUNDS if takes_long else timing.FEWEST_ROUNDS,
        warm_ups=0 if takes_long else 3,
    )
    return {
        "batch": batch,
        "tokens": tokens,
        "plain_ms": round(alone.median * 1e3, 4),
        "watched_over_plain": seen.ratio_to_ours and seen.ratio_to_ours.as_json(),
        "equal_bit_for_bit": seen.status == "timed",
        **({"note": seen.note} if seen.note else {}),
    }


main = partial(
    command.main,
    "watch",
    Settings,
    measure,
    lines,
    __doc__,
    "--device cuda --dtype bfloat16 --size gpt2-xl",
)

if __name__ == "__main__":
    main()
