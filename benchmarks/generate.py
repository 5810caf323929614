"""Compare how fast GPT-2 generates text: ours, Hugging Face's `generate`, and without a cache.

Equality first, with the same random weights and prompts, decoding greedily. In float32 and float64
the tokens must be those of Hugging Face. In half precision, two correct programs diverge at the
first near tie; there each token must be one that the same model in float32, reading the same text,
ranks first or nearly so, and the number of equal tokens is reported.

The limit: at batch 1 every weight is read once per token, so no program can exceed the memory
bandwidth divided by the bytes of the weights, in tokens per second.
"""

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from benchmarks import command
from benchmarks.command import Say, model_size, option, positive, row_as_json, row_line
from clearhead import timing
from clearhead.configs import find_config
from clearhead.gpt2 import decoding
from clearhead.gpt2.model import GPT2

# How far below the best logit a token may be, relative to the largest logit.
_HALF = {"bfloat16": 4e-2, "float16": 1e-2}
_PROMPT = 32
OURS, THEIRS = "clearhead", "Hugging Face"


@dataclass(frozen=True)
class Settings(command.Settings):
    """Settings of the generation benchmark."""

    size: str = model_size()
    batch: tuple[int, ...] = option((1, 16), "Number of texts at a time.", type=positive)
    tokens: int = option(32, "New tokens per text.", type=positive)
    prefill: int = option(1024, "Also time a prompt of this length; 0 = skip it.")
    compiled: bool = option(True, "Include Hugging Face's static cache with torch.compile (CUDA).")
    layers: int | None = option(None, "Number of layers, if not that of the size.", type=positive)

    def quick(self) -> Self:
        """One layer, two tokens."""
        return replace(self, batch=(1,), tokens=2, prefill=8, layers=1, rounds=1, compiled=False)

    def check(self) -> None:
        """Refuse lengths beyond the context of the model."""
        super().check()
        longest = find_config(self.size)["context_length"]
        if max(_PROMPT + self.tokens, self.prefill) > longest:
            raise ValueError(
                f"--tokens, --prefill: a prompt of {_PROMPT} and {self.tokens} new tokens, or a "
                f"prefill of {self.prefill}, exceed the context of {longest}."
            )


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Run the benchmark; everything that was measured, as plain data."""
    config = find_config(settings.size)
    config["num_layers"] = settings.layers or config["num_layers"]
    torch.manual_seed(0)
    ours = GPT2(config).to(settings.device, settings.torch_dtype()).eval()
    _strengthen(ours)
    theirs = hugging_face(ours)
    per_second = bandwidth(settings.device)
    weights = weight_bytes(ours)
    found = command.header("generate", settings) | {
        "model": settings.size,
        "prompt": _PROMPT,
        "tokens": settings.tokens,
        "floor": {
            "bytes_of_weights": weights,
            "bytes_per_second": round(per_second),
            "tokens_per_second_batch_1": round(per_second / weights, 1),
        },
        "cases": [],
    }
    for batch in settings.batch:
        say(f"batch {batch}, {settings.tokens} new tokens")
        found["cases"].append(_decode(settings, ours, theirs, batch))
    if settings.prefill:
        say(f"prefill of {settings.prefill:,} tokens")
        found["prefill"] = _prefill(settings, ours, theirs)
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The results as text."""
    limit = found["floor"]
    yield (
        f"{found['model']}, {found['dtype']}, {found['device']}: a prompt of {found['prompt']}, "
        f"{found['tokens']} new tokens"
    )
    yield (
        f"limit at batch 1: {limit['tokens_per_second_batch_1']:,.0f} tokens per second "
        f"({limit['bytes_of_weights'] / 1e6:,.0f} MB of weights at "
        f"{limit['bytes_per_second'] / 1e9:,.1f} GB/s)"
    )
    for case in found["cases"]:
        yield f"batch {case['batch']}"
        for row in case["rows"]:
            yield row_line(row, f"{row.get('tokens_per_second', 0):,.0f} tokens/s")
    if "prefill" in found:
        yield f"prefill of {found['prefill']['tokens']:,} tokens"
        yield from map(row_line, found["prefill"]["rows"])


def _prompt(model: GPT2, batch: int, tokens: int, settings: Settings) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(model.config["vocab_size"], (batch, tokens), generator=generator)
    return ids.to(settings.device)


def _decode(settings: Settings, ours: GPT2, theirs: Any, batch: int) -> dict[str, Any]:
    """All contestants at one batch size."""
    ids, new = _prompt(ours, batch, _PROMPT, settings), settings.tokens
    runs: dict[str, Callable[[], Tensor]] = {
        OURS: lambda: ours.generate(ids, new),
        THEIRS: lambda: _their_generate(theirs, ids, new),
        "no cache": lambda: ours.generate(ids, new, cache=False),
    }
    if settings.device == "cuda" and settings.compiled and theirs is not None:
        runs[f"{THEIRS}, static + compile"] = lambda: _their_generate(theirs, ids, new, "static")
    expected = runs["no cache" if theirs is None else THEIRS]()
    written: dict[str, Tensor] = {}

    def gap(name: str) -> float | str:
        written[name] = runs[name]()
        if settings.dtype in _HALF:
            return _regret(ours, written[name])
        equal, total = equal_tokens(written[name], expected), batch * new
        return 0.0 if equal == total else f"{equal} of {total} tokens are equal"

    contestants = [
        timing.Contestant(name, run, partial(gap, name), ours=name == OURS)
        if theirs is not None or name != THEIRS
        else timing.Contestant(name, None, note="transformers is not installed")
        for name, run in runs.items()
    ]
    title = f"{settings.size}, {settings.dtype}, batch {batch}, {new} new tokens"
    case: dict[str, Any] = {"title": title, "batch": batch, "new_tokens": new, "rows": []}
    for row in settings.race(contestants, _HALF.get(settings.dtype, 0.0)):
        line = row_as_json(row)
        if row.status == "timed":
            line["tokens_per_second"] = round(batch * new / row.median, 1)
        if row.name in written and theirs is not None:
            equal = equal_tokens(written[row.name], expected)
            line["tokens_equal_to_hugging_face"] = [equal, batch * new]
        case["rows"].append(line)
    return case


def _prefill(settings: Settings, ours: GPT2, theirs: Any) -> dict[str, Any]:
    """Reading a long prompt: fill the caches, compute the logits of the next token."""
    ids = _prompt(ours, 1, settings.prefill, settings)

    def read() -> Tensor:
        return decoding.choose(ours, 1, settings.prefill).prefill(ids, None)

    @torch.inference_mode()
    def read_theirs() -> Tensor:
        logits: Tensor = theirs(ids, use_cache=True, logits_to_keep=1).logits[:, 0]
        return logits

    expected = read().double()
    contestants = [
        timing.Contestant(OURS, read, ours=True),
        timing.Contestant(
            THEIRS,
            None if theirs is None else read_theirs,
            lambda: float((read_theirs() - expected).abs().max() / expected.abs().max()),
            note="" if theirs is not None else "transformers is not installed",
        ),
    ]
    tolerance = {"float64": 1e-9, "float32": 1e-4}.get(settings.dtype, 6e-2)
    rows = settings.race(contestants, tolerance)
    return {"tokens": settings.prefill, "rows": [row_as_json(row) for row in rows]}


@torch.no_grad()
def _strengthen(model: GPT2) -> None:
    """Scale up the random blocks; otherwise the model repeats one token and all agree."""
    for block in model.blocks:
        for parameter in block.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)


def hugging_face(ours: GPT2) -> Any:
    """The same model in transformers, with a copy of the weights; None without transformers."""
    try:
        import transformers
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        theirs: Any = transformers.GPT2LMHeadModel.from_pretrained(folder)
    return theirs.eval().to(ours.embedding.token.weight)  # its device and dtype


def _their_generate(theirs: Any, ids: Tensor, new: int, cache: str | None = None) -> Tensor:
    """Exactly `new` tokens, greedily."""
    found: Tensor = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        cache_implementation=cache,
    )
    return found


def equal_tokens(one: Tensor, other: Tensor) -> int:
    """The number of equal new tokens; a text counts up to its first difference.

    >>> equal_tokens(torch.tensor([[0] * 32 + [1, 2, 3]]), torch.tensor([[0] * 32 + [1, 5, 3]]))
    1
    """
    same = (one[:, _PROMPT:] == other[:, _PROMPT:]).long()
    return int(same.cumprod(1).sum())


@torch.inference_mode()
def _regret(ours: GPT2, written: Tensor) -> float:
    """How far a token's logit is below the best one, at worst, relative to the largest logit.

    Computed by the same model in float32, reading the same text.
    """
    exact = copy.deepcopy(ours).float()
    worst = 0.0
    for row in written:
        logits = exact(row[None, :-1])[0, _PROMPT - 1 :]
        best, largest = logits.amax(-1), logits.abs().amax()
        chosen = logits.gather(-1, row[_PROMPT:, None])[:, 0]
        worst = max(worst, float((best - chosen).max() / largest))
    return worst


def weight_bytes(model: GPT2) -> int:
    """Bytes of the weights read per token: all but the tables from which it reads one row."""
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    sizes.pop("embedding.position.weight", None)
    if model.out_head is not None:
        sizes.pop("embedding.token.weight")
    return sum(sizes.values())


def bandwidth(device: str, *, runs: int = 7) -> float:
    """Memory bandwidth in bytes per second: the better of a long sum and, on CUDA, a long copy."""
    count = 2**31 // 4 if device == "cuda" else 2**29 // 4
    numbers = torch.ones(count, device=device)

    def fastest(run: Callable[[], object]) -> float:
        times = []
        for _ in range(runs):
            started = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        return min(times) if device == "cpu" else statistics.median(times)

    found = 4 * count / fastest(numbers.sum)
    if device == "cuda":
        target = torch.empty_like(numbers)
        found = max(found, 8 * count / fastest(lambda: target.copy_(numbers)))
    return found


main = partial(command.main, "generate", Settings, measure, lines, __doc__, "--batch 1 --tokens 32")

if __name__ == "__main__":
    main()
