"""The generation benchmark: tokens a second, ours beside Hugging Face's `generate`.

Equality first, from the same random weights and prompts, greedily. In float32 and float64 the
tokens must be those of Hugging Face. In half precision two correct programs part ways at the first
near tie; there each token must be one that the same model in float32, reading the same text, finds
best or nearly so, and how many tokens are equal is reported.

The floor: at one row every weight is read once for a token, so no program can write more tokens a
second than the memory's speed divided by the bytes of the weights.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead import timing
from clearhead.configs import find_config
from clearhead.gpt2 import decoding, key_names
from clearhead.gpt2.model import GPT2

_PACKAGES = ("torch", "transformers", "triton", "numpy", "clearhead")
_HALF = {"bfloat16": 4e-2, "float16": 1e-2}  # how far below the best logit, of the largest one
_PROMPT = 32
OURS = "clearhead"


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        size: A model's name, such as "gpt2-small". The weights are random.
        batches: How many texts at a time; each a case of its own.
        device: "cpu" or "cuda".
        dtype: "float32" and so on.
        tokens: How many new tokens a run writes.
        rounds: Interleaved rounds of each case.
        prefill: The length of the prompt whose reading is timed, too; 0 = not.
        compiled: Whether Hugging Face's static cache with torch.compile takes part (CUDA only).
        seconds: The rounds of one case end after this time.
        layers: How many layers, if not the model's own number: for a trial.
    """

    size: str = "gpt2-small"
    batches: Sequence[int] = (1, 16)
    device: str = "cpu"
    dtype: str = "float32"
    tokens: int = 64
    rounds: int = 9
    prefill: int = 1024
    compiled: bool = True
    seconds: float = math.inf
    layers: int | None = None


def measure(
    settings: Settings,
    *,
    say: Callable[[str, int], Callable[[], None]] = lambda *_: timing.nothing,
) -> dict[str, Any]:
    """Run the benchmark; everything found, as plain data.

    Args:
        settings: What and how.
        say: Told a title and a number of rounds; gives what to call after each round.
    """
    config = find_config(settings.size)
    config["num_layers"] = settings.layers or config["num_layers"]
    longest = config["context_length"]
    if _PROMPT + settings.tokens > longest or settings.prefill > longest:
        raise ValueError(
            f"tokens: a prompt of {_PROMPT} and {settings.tokens} new tokens, or a prefill of "
            f"{settings.prefill}, do not fit into the context of {longest}."
        )
    torch.manual_seed(0)
    ours = GPT2(config).to(settings.device, getattr(torch, settings.dtype)).eval()
    _liven(ours)
    theirs = _hugging_face(ours)
    per_second = bandwidth(settings.device)
    bytes_a_token = weight_bytes(ours)
    found: dict[str, Any] = {
        "schema": timing.SCHEMA,
        "benchmark": "generate",
        **timing.environment(_PACKAGES),
        "threads": torch.get_num_threads(),
        "model": settings.size,
        "dtype": settings.dtype,
        "device": settings.device,
        "prompt": _PROMPT,
        "tokens": settings.tokens,
        "floor": {
            "bytes_of_weights": bytes_a_token,
            "bytes_per_second": round(per_second),
            "tokens_per_second_batch_1": round(per_second / bytes_a_token, 1),
        },
        "cases": [],
    }
    if settings.device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    for batch in settings.batches:
        tick = say(f"batch {batch}, {settings.tokens} tokens", settings.rounds)
        found["cases"].append(_decode(settings, ours, theirs, batch, tick))
    if settings.prefill:
        tick = say(f"prefill of {settings.prefill}", settings.rounds)
        found["prefill"] = _prefill(settings, ours, theirs, tick)
    return found


def draw(found: dict[str, Any]) -> list[str]:
    """The result as lines of text."""
    floor = found["floor"]
    lines = [
        f"{found['model']}, {found['dtype']}, {found['device']}: a prompt of {found['prompt']}, "
        f"{found['tokens']} new tokens",
        f"floor at batch 1: {floor['tokens_per_second_batch_1']:,.0f} tokens/s "
        f"({floor['bytes_of_weights'] / 1e6:,.0f} MB of weights at "
        f"{floor['bytes_per_second'] / 1e9:,.1f} GB/s)",
    ]
    for case in found["cases"]:
        lines.append(f"batch {case['batch']}")
        for row in case["rows"]:
            lines.append(_line(row, lambda row: f"{row['tokens_per_second']:12,.0f} tokens/s"))
    if "prefill" in found:
        lines.append(f"prefill of {found['prefill']['tokens']:,} tokens")
        for row in found["prefill"]["rows"]:
            lines.append(_line(row, lambda row: f"{row['median_ms']:12,.1f} ms"))
    return lines


def _line(row: dict[str, Any], value: Callable[[dict[str, Any]], str]) -> str:
    if row["status"] != "timed":
        return f"  {row['name']:32} {row.get('note', row['status'])}"
    ratio, beside = row["ratio_to_ours"], ""
    if ratio is not None:
        low, high = ratio["interval_95"]
        beside = f"   {ratio['median']:.2f} [{low:.2f}, {high:.2f}] x our time"
    return f"  {row['name']:32} {value(row)}{beside}"


def _decode(
    settings: Settings, ours: GPT2, theirs: Any, batch: int, tick: Callable[[], None]
) -> dict[str, Any]:
    """All contestants at one batch size, in turns."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(ours.config["vocab_size"], (batch, _PROMPT), generator=generator)
    ids = ids.to(settings.device)
    new = settings.tokens
    runs: dict[str, Callable[[], Tensor]] = {
        OURS: lambda: ours.generate(ids, new),
        "Hugging Face": lambda: _hf_generate(theirs, ids, new),
        "no cache": lambda: ours.generate(ids, new, cache=False),
    }
    if settings.device == "cuda" and settings.compiled and theirs is not None:
        runs["Hugging Face, static + compile"] = lambda: _hf_generate(theirs, ids, new, "static")
    expected = ours.generate(ids, new, cache=False) if theirs is None else runs["Hugging Face"]()
    written: dict[str, Tensor] = {}

    def gap(name: str) -> Callable[[], float | str]:
        def compare() -> float | str:
            written[name] = runs[name]()
            if settings.dtype in _HALF:
                return _regret(ours, written[name])
            equal = _equal(written[name], expected)
            total = batch * new
            return 0.0 if equal == total else f"{equal} of {total} tokens are equal"

        return compare

    contestants = [
        timing.Contestant(name, run, gap(name), ours=name == OURS)
        if theirs is not None or "Hugging" not in name
        else timing.Contestant(name, None, note="transformers is not installed")
        for name, run in runs.items()
    ]
    rows = timing.race(
        contestants,
        tolerance=_HALF.get(settings.dtype, 0.0),
        rounds=settings.rounds,
        seconds=settings.seconds,
        synchronize=torch.cuda.synchronize if settings.device == "cuda" else timing.nothing,
        tick=tick,
    )
    title = f"{settings.size}, {settings.dtype}, batch {batch}, {new} new tokens"
    case: dict[str, Any] = {"title": title, "batch": batch, "new_tokens": new, "rows": []}
    for row in rows:
        line = row.as_json()
        if row.status == "timed":
            line["tokens_per_second"] = round(batch * new / row.median, 1)
        if row.name in written and theirs is not None:
            line["tokens_equal_to_hugging_face"] = [
                _equal(written[row.name], expected),
                batch * new,
            ]
        case["rows"].append(line)
    return case


def _prefill(
    settings: Settings, ours: GPT2, theirs: Any, tick: Callable[[], None]
) -> dict[str, Any]:
    """Reading a long prompt: the caches filled, the logits of what follows it."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(ours.config["vocab_size"], (1, settings.prefill), generator=generator)
    ids = ids.to(settings.device)

    def read() -> Tensor:
        return decoding.choose(ours, 1, settings.prefill).prefill(ids, None)

    @torch.inference_mode()
    def read_theirs() -> Tensor:
        logits: Tensor = theirs(ids, use_cache=True, logits_to_keep=1).logits[:, 0]
        return logits

    expected = read().double()
    tolerance = {"float64": 1e-9, "float32": 1e-4}.get(settings.dtype, 6e-2)
    contestants = [
        timing.Contestant(OURS, read, ours=True),
        timing.Contestant(
            "Hugging Face",
            None if theirs is None else read_theirs,
            lambda: float((read_theirs() - expected).abs().max() / expected.abs().max()),
            note="" if theirs is not None else "transformers is not installed",
        ),
    ]
    rows = timing.race(
        contestants,
        tolerance=tolerance,
        rounds=settings.rounds,
        seconds=settings.seconds,
        synchronize=torch.cuda.synchronize if settings.device == "cuda" else timing.nothing,
        tick=tick,
    )
    return {"tokens": settings.prefill, "rows": [row.as_json() for row in rows]}


@torch.no_grad()
def _liven(model: GPT2) -> None:
    """Make the random blocks matter, or the model would repeat one token and all would agree."""
    for block in model.blocks:
        for parameter in block.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)


def _hugging_face(ours: GPT2) -> Any:
    """The same model in transformers, with a copy of the weights; None without transformers."""
    try:
        import transformers
    except ImportError:
        return None
    sizes = ours.config
    config = transformers.GPT2Config(
        vocab_size=sizes["vocab_size"],
        n_positions=sizes["context_length"],
        n_embd=sizes["d_model"],
        n_head=sizes["num_heads"],
        n_layer=sizes["num_layers"],
    )
    theirs: Any = transformers.GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]  # theirs
    own = ours.state_dict()
    state = {}
    for name in key_names.table("hf", own):
        joined = torch.cat([own[part] for part in name.ours])
        state[f"transformer.{name.theirs}"] = joined.t() if name.transposed else joined
    state["lm_head.weight"] = state["transformer.wte.weight"]
    theirs.load_state_dict(state)
    return theirs.eval().to(ours.embedding.token.weight)  # its device and dtype


def _hf_generate(theirs: Any, ids: Tensor, new: int, cache: str | None = None) -> Tensor:
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


def _equal(one: Tensor, other: Tensor) -> int:
    """How many new tokens are equal, of all rows; after the first other one a row counts no more.

    >>> _equal(torch.tensor([[0] * 32 + [1, 2, 3]]), torch.tensor([[0] * 32 + [1, 5, 3]]))
    1
    """
    same = (one[:, _PROMPT:] == other[:, _PROMPT:]).long()
    return int(same.cumprod(1).sum())


@torch.inference_mode()
def _regret(ours: GPT2, written: Tensor) -> float:
    """How far a chosen token's logit is below the best, at worst, of the largest logit.

    Judged by the same model in float32, which reads the same text.
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
    """The bytes of weights that one token needs: all but the tables of which it takes a row."""
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    sizes.pop("embedding.position.weight", None)
    if model.out_head is not None:
        sizes.pop("embedding.token.weight")
    return sum(sizes.values())


def bandwidth(device: str, *, runs: int = 7) -> float:
    """Bytes a second that the memory gives: the better of a long sum and, on CUDA, a long copy."""
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
        room = torch.empty_like(numbers)
        found = max(found, 8 * count / fastest(lambda: room.copy_(numbers)))
    return found
