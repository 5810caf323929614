"""The training loop: it can be interrupted at any point and resumed.

What a step reads depends on the seed and the number of the step only, and a checkpoint holds model,
optimiser, random state and curve in one file, written atomically. So a run on the CPU that was
interrupted and resumed gives the same curve, bit for bit, on the same machine. On a GPU, products
are computed in bfloat16, and sums may differ in the last digits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import safetensors
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.gpt2.model import GPT2
from clearhead.models.trained_model import CHECKPOINT, METADATA, write_safetensors

_READ_EVERY = 50  # steps between two readings of the loss on a GPU


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is trained. A task may add its own settings.

    Attributes:
        seed: Determines the initial weights and the order of the data.
        steps: The number of steps.
        batch: Rows per step.
        learning_rate: The maximum, after `warmup` steps; then a cosine down to a hundredth of it.
        warmup: Steps during which the learning rate rises.
        weight_decay: AdamW's weight decay, applied to matrices only.
        every: Steps between two evaluations and checkpoints; may change when a run is resumed.
        minutes: Train for this long instead of for `steps` steps. The learning rate then follows
            the clock, so that two runs differ.
    """

    seed: int = 0
    steps: int = 2000
    batch: int = 64
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1
    every: int = 100
    minutes: float | None = None


class Batch(NamedTuple):
    """What one step reads.

    Attributes:
        inputs: Token ids.
        targets: The token that follows each of them.
        floor: The lowest mean loss that any model can reach on the targets; NaN if unknown.
    """

    inputs: Int[Tensor, "rows tokens"]
    targets: Int[Tensor, "rows tokens"]
    floor: float = math.nan


class Task(Protocol):
    """What to train on. Each method must give the same result whenever it is called."""

    @property
    def settings(self) -> Settings:
        """How to train."""

    def new_model(self) -> GPT2:
        """The model before its first step."""

    def batch(self, step: int) -> Batch:
        """The data of a step, counted from 0."""

    def evaluate(self, model: GPT2) -> dict[str, Any]:
        """Results on data that is not trained on, among them "loss"; stored with the curve."""


@dataclass
class Curve:
    """What was recorded during training.

    Attributes:
        loss: The loss of each step, in nats per token.
        floor: The lowest possible loss of each step; see `Batch`.
        evaluations: What `Task.evaluate` returned, with the number of steps done as "step".
        seconds: The time that training took, up to the newest checkpoint if it was resumed.
    """

    loss: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = field(default=0.0, compare=False)


def train(
    task: Task,
    folder: Path | None = None,
    *,
    resume: bool = False,
    device: str | torch.device = "cpu",
    compiled: bool = False,
    on_step: Callable[[int, Curve, GPT2], None] | None = None,
) -> tuple[GPT2, Curve]:
    """Train one model.

    Args:
        task: What to train on.
        folder: Where to write the checkpoint; None writes none.
        resume: Continue from the checkpoint in the folder, if there is one.
        device: Where to train. On a GPU, matrix products are computed in bfloat16.
        compiled: Whether to use `torch.compile`, which takes about a minute at the start.
        on_step: Called after every step with the number of steps done, the curve and the model. On
            a GPU, the losses of the newest steps may not have arrived in the curve yet.

    Returns:
        The model, in eval mode and on the device, and its curve.

    Raises:
        ValueError: The checkpoint is damaged, or belongs to a run with other settings.
    """
    settings, device = task.settings, torch.device(device)
    model = task.new_model().to(device)
    optimiser = new_optimiser(model, settings)
    curve = Curve()
    file = None if folder is None else folder / CHECKPOINT
    if resume and file is not None and file.is_file():
        curve = load_checkpoint(file, settings, model, optimiser)
    loss_of = torch.compile(token_loss) if compiled else token_loss
    began = time.monotonic() - curve.seconds
    pending: list[Tensor] = []
    done = len(curve.loss)
    while not is_finished(settings, done, curve.seconds):
        inputs, targets, floor = task.batch(done)
        inputs, targets = (x.to(device, non_blocking=True) for x in (inputs, targets))
        rate = learning_rate(settings, done, curve.seconds)
        pending.append(take_step(model, optimiser, inputs, targets, rate, loss_of).detach())
        curve.floor.append(floor)
        done += 1
        curve.seconds = time.monotonic() - began
        looks = done % settings.every == 0 or is_finished(settings, done, curve.seconds)
        # Reading a number waits for the GPU, so losses are read in groups.
        if looks or device.type == "cpu" or len(pending) == _READ_EVERY:
            curve.loss += torch.stack(pending).tolist()
            pending.clear()
        if looks:
            curve.evaluations.append({"step": done, **task.evaluate(model.eval())})
            if file is not None:
                save_checkpoint(file, settings, model, optimiser, curve)
        if on_step is not None:
            on_step(done, curve, model)
    return model.eval(), curve


def generator(*numbers: int) -> torch.Generator:
    """Random numbers that depend on these numbers only, for example on the seed and the step."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**63
    return torch.Generator().manual_seed(seed)


def chosen_rows(count: int, settings: Settings, step: int) -> Int[Tensor, " batch"]:
    """The rows of a step, out of `count`: every epoch reads them in a new random order."""
    epoch, position = divmod(step, count // settings.batch)
    order = torch.randperm(count, generator=generator(settings.seed, 1, epoch))
    return order[position * settings.batch : (position + 1) * settings.batch]


def is_finished(settings: Settings, steps: int, seconds: float) -> bool:
    """Whether a run is finished after so many steps and seconds."""
    if settings.minutes is None:
        return steps >= settings.steps
    return seconds >= 60 * settings.minutes


def learning_rate(settings: Settings, step: int, seconds: float = 0.0) -> float:
    """A linear rise during `warmup`, then a cosine down to a hundredth.

    Args:
        settings: The maximum, the warm-up and the length of the run.
        step: The step, counted from 0.
        seconds: The time since the run began, for runs of a number of minutes.
    """
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    if settings.minutes is None:
        done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    else:
        done = min(1.0, seconds / (60 * settings.minutes))
    low = 0.01
    return settings.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * done)) / 2)


def new_optimiser(model: GPT2, settings: Settings) -> torch.optim.AdamW:
    """AdamW without weight decay on biases, norms and embeddings."""
    decays = [p for name, p in model.named_parameters() if p.ndim > 1 and "embedding" not in name]
    chosen = {id(p) for p in decays}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    groups = [
        {"params": decays, "weight_decay": settings.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=fused)


def token_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
    """The mean cross-entropy of the next token, in nats; on a GPU with bfloat16 products."""
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.is_cuda):
        logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def take_step(
    model: nn.Module,
    optimiser: torch.optim.AdamW,
    inputs: Tensor,
    targets: Tensor,
    rate: float,
    loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor] = token_loss,
) -> Float[Tensor, ""]:
    """Update the weights once and return the loss before the update."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    loss = loss_of(model.train(), inputs, targets)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types here
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss


def save_checkpoint(
    file: Path, settings: Settings, model: GPT2, optimiser: torch.optim.AdamW, curve: Curve
) -> None:
    """Write everything needed to resume to one file, replacing it atomically."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in state.items()}
    tensors["random"] = torch.get_rng_state()
    if next(model.parameters()).is_cuda:
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    # As tensors, not as text: the curve must be restored bit for bit.
    tensors["curve.loss"] = torch.tensor(curve.loss, dtype=torch.float64)
    tensors["curve.floor"] = torch.tensor(curve.floor, dtype=torch.float64)
    tensors["curve.seconds"] = torch.tensor(curve.seconds, dtype=torch.float64)
    about = {
        "schema": 1,
        "settings": asdict(settings),
        "threads": torch.get_num_threads(),
        "looks": curve.evaluations,
    }
    write_safetensors(file, tensors, {METADATA: json.dumps(about)})


def load_checkpoint(
    file: Path, settings: Settings, model: GPT2, optimiser: torch.optim.AdamW
) -> Curve:
    """Restore model, optimiser and random state from a checkpoint, and return the curve.

    Raises:
        ValueError: The file is damaged, or belongs to a run with other settings.
    """
    about, tensors = _read(file)
    check_settings(file, about["settings"], settings)
    # Sums are split among the threads, so the last digits depend on the number of threads.
    torch.set_num_threads(about["threads"])
    model.load_state_dict(_below("model.", tensors))
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _below("optimiser.", tensors).items():
        index, _, part = name.partition(".")
        state.setdefault(int(index), {})[part] = tensor
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    torch.set_rng_state(tensors["random"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    loss, floor = tensors["curve.loss"].tolist(), tensors["curve.floor"].tolist()
    seconds = tensors.get("curve.seconds", torch.tensor(0.0)).item()  # none before 0.2
    return Curve(loss, floor, about["looks"], seconds)


def check_settings(where: Path, stored: Mapping[str, Any], settings: Settings) -> None:
    """Raise ValueError unless a stored run has these settings; `every` may differ."""
    changed = [
        f"{name} is {stored.get(name)} there and {value} here"
        for name, value in asdict(settings).items()
        if name != "every" and stored.get(name) != value
    ]
    if changed:
        raise ValueError(
            f"{where}: a run with other settings: {', '.join(changed)}.\n"
            "  Resume with the same settings, or start a new run in another folder."
        )


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = (opened.metadata() or {}).get(METADATA)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # not iterable
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(
            f"{file}: not a complete safetensors file ({error}).\n"
            "  Was it copied only in part? Delete it to start the run again."
        ) from None
    if about is None:
        raise ValueError(
            f"{file}: expected a checkpoint of `clearhead train`, got another safetensors file."
        )
    return json.loads(about), tensors


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}
