"""Training the lab's model: a plain step loop that can be killed at any moment and gone on with.

What a step does depends on the seed and its number only (which rows it reads, which words are
<unk>), and a checkpoint holds model, optimiser, random state and curve in one file, written beside
and renamed. So a run that was killed and resumed gives the same curve, bit for bit, on one machine.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.configs import GPT2Config
from clearhead.embedding import Rope
from clearhead.gpt2.model import GPT2
from clearhead.lab import grammar
from clearhead.lab.relations import Examples, WordReader, answers, encode
from clearhead.lab.vocabulary import vocabulary
from clearhead.models.trained_model import CHECKPOINT, METADATA, write_safetensors
from clearhead.tokenizers import END_OF_TEXT, UNKNOWN

# Times GPT-2's. At its 0.02 the heads of so narrow a model look everywhere alike for long.
_FIRST_WEIGHTS = 4.0
_VALIDATION_SEED, _TEST_SEED = 1_000_001, 1_000_002


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    Attributes:
        seed: For the first weights, the order of the rows and the words shown as <unk>.
        steps: How many.
        batch: Rows a step.
        tokens: Tokens a row.
        rows: How many rows are written; they are read again when all were read.
        learning_rate: The highest, after `warmup` steps; then down to a hundredth as a cosine.
        warmup: Steps in which the rate rises.
        weight_decay: AdamW's, on matrices only.
        unknown: The share of words that are shown to the model as <unk>, so that it knows it.
        d_model: The width of the vectors.
        num_heads: Heads a layer.
        num_layers: Layers.
        every: Steps from one look at the relations, and one checkpoint, to the next.
        examples: Held-out sentences a relation at such a look.
    """

    seed: int = 0
    steps: int = 2000
    batch: int = 64
    tokens: int = 32
    rows: int = 30_000
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1
    unknown: float = 0.01
    d_model: int = 64
    num_heads: int = 4
    num_layers: int = 3
    every: int = 100
    examples: int = 100


@dataclass
class Curve:
    """What was seen while training.

    Attributes:
        loss: The loss of each step, in nats a token.
        floor: What the grammar's own entropy is for the same tokens.
        looks: Now and then: the step, loss and floor on fresh sentences, accuracy by relation.
    """

    loss: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    looks: list[dict[str, Any]] = field(default_factory=list)


def config(settings: Settings, vocab_size: int) -> GPT2Config:
    """The sizes of the model."""
    return {
        "vocab_size": vocab_size,
        "context_length": 64,
        "d_model": settings.d_model,
        "num_heads": settings.num_heads,
        "num_layers": settings.num_layers,
        "dropout": 0.0,
        "qkv_bias": False,
    }


def new_model(settings: Settings) -> GPT2:
    """The model before its first step."""
    torch.manual_seed(settings.seed)
    model = GPT2(config(settings, grammar.tokenizer().vocab_size), rope=Rope())
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(_FIRST_WEIGHTS)
    return model


@dataclass(frozen=True)
class Rows:
    """What a model reads while it trains: whole sentences, the last one cut where the row ends.

    Attributes:
        ids: The tokens. Half of the rows begin with <|endoftext|>.
        nats: -log p of every token after the first, by the grammar.
    """

    ids: Int[Tensor, "rows tokens_and_one"]
    nats: Float[Tensor, "rows tokens"]


def write_rows(count: int, tokens: int, seed: int = 0) -> Rows:
    """Rows of `tokens` tokens and one more, the last target."""
    words = grammar.tokenizer()
    number = {word: words.encode(word)[0] for word in vocabulary()}
    start = words.encode(END_OF_TEXT)[0]
    source = grammar.sentences(seed)
    ids: list[list[int]] = []
    nats: list[list[float]] = []
    for row in range(count):
        # The second sort begins with a sentence's first word, which is nobody's target.
        line, cost = ([start], [0.0]) if row % 2 == 0 else ([], [])
        while len(line) <= tokens:
            sentence = next(source)
            line += [number[word] for word in sentence.words]
            cost += sentence.nats
        ids.append(line[: tokens + 1])
        nats.append(cost[1 : tokens + 1])
    return Rows(torch.tensor(ids), torch.tensor(nats))


def batch(rows: Rows, settings: Settings, step: int) -> tuple[Tensor, Tensor, float]:
    """Inputs, targets and floor of a step; they depend on the seed and the step only."""
    count = len(rows.ids)
    per_round = count // settings.batch
    round_, place = divmod(step, per_round)
    order = torch.randperm(count, generator=_generator(settings.seed, 1, round_))
    chosen = order[place * settings.batch : (place + 1) * settings.batch]
    ids = rows.ids[chosen]
    inputs, targets = ids[:, :-1].clone(), ids[:, 1:]
    random = torch.rand(inputs.shape, generator=_generator(settings.seed, 2, step))
    inputs[random < settings.unknown] = grammar.tokenizer().encode(UNKNOWN)[0]
    return inputs, targets, rows.nats[chosen].mean().item()


def _generator(*numbers: int) -> torch.Generator:
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**63
    return torch.Generator().manual_seed(seed)


def learning_rate(settings: Settings, step: int) -> float:
    """Up in a straight line, then down as a cosine to a hundredth."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    low = 0.01
    return settings.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * done)) / 2)


def new_optimiser(model: GPT2, settings: Settings) -> torch.optim.AdamW:
    """AdamW; biases, norms and the token vectors do not decay."""
    decays = [p for name, p in model.named_parameters() if p.ndim > 1 and "embedding" not in name]
    chosen = {id(p) for p in decays}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    groups = [
        {"params": decays, "weight_decay": settings.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98))


def learn(
    model: nn.Module, optimiser: torch.optim.AdamW, inputs: Tensor, targets: Tensor, rate: float
) -> Tensor:
    """One step: the weights moved against the gradient of the loss, which is given back."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    logits = model.train()(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss


class Examination:
    """Fresh sentences and held-out pairs, to look at a model while it trains."""

    def __init__(self, settings: Settings) -> None:
        self._words = grammar.tokenizer()
        reader = WordReader(new_model(settings), self._words)
        size = self._words.vocab_size
        self._relations: list[Examples] = []
        for name in grammar.RELATIONS:
            pairs = grammar.labelled(name, 2 * settings.examples, seed=_TEST_SEED)
            pairs = [pair for pair in pairs if pair[1].decisive][: settings.examples]
            self._relations.append(encode(reader, pairs, size))
        fresh = list(itertools.islice(grammar.sentences(_VALIDATION_SEED), 8 * settings.examples))
        self._ids = [torch.tensor(reader.read(sentence)[0]) for sentence in fresh]
        self.floor = sum(sum(s.nats) for s in fresh) / sum(len(s.words) for s in fresh)

    @torch.no_grad()
    def look(self, model: GPT2) -> dict[str, Any]:
        """Loss and floor on the fresh sentences, and the share of right answers by relation."""
        padded = torch.nn.utils.rnn.pad_sequence(self._ids, True, padding_value=-100)
        logits = model(padded[:, :-1].clamp(min=0))
        loss = F.cross_entropy(logits.flatten(0, 1), padded[:, 1:].flatten())
        reader = WordReader(model, self._words)
        right = {}
        for examples in self._relations:
            correct = answers(reader, examples)
            assert correct is not None  # this reader foretells
            right[examples.relation] = correct.double().mean().item()
        return {"loss": loss.item(), "floor": self.floor, "accuracy": right}


def train(
    settings: Settings,
    folder: Path | None = None,
    *,
    resume: bool = False,
    on_step: Callable[[int, Curve], None] | None = None,
) -> tuple[GPT2, Curve]:
    """Train one model.

    Args:
        settings: How.
        folder: Where the checkpoint goes; None = nowhere.
        resume: Go on from the checkpoint that is there, if there is one.
        on_step: Called after every step with the number of steps done.

    Returns:
        The model and its curve.
    """
    model = new_model(settings)
    optimiser = new_optimiser(model, settings)
    curve = Curve()
    file = None if folder is None else folder / CHECKPOINT
    if resume and file is not None and file.is_file():
        curve = load_checkpoint(file, settings, model, optimiser)
    if len(curve.loss) >= settings.steps:
        return model.eval(), curve
    examination = Examination(settings)
    rows = write_rows(min(settings.rows, settings.steps * settings.batch), settings.tokens)
    for step in range(len(curve.loss), settings.steps):
        inputs, targets, floor = batch(rows, settings, step)
        loss = learn(model, optimiser, inputs, targets, learning_rate(settings, step))
        curve.loss.append(loss.item())
        curve.floor.append(floor)
        done = step + 1
        if done % settings.every == 0 or done == settings.steps:
            curve.looks.append({"step": done, **examination.look(model.eval())})
            if file is not None:
                save_checkpoint(file, settings, model, optimiser, curve)
        if on_step is not None:
            on_step(done, curve)
    return model.eval(), curve


# Files.


def save_checkpoint(
    file: Path, settings: Settings, model: GPT2, optimiser: torch.optim.AdamW, curve: Curve
) -> None:
    """Everything that is needed to go on, in one file; a reader sees the old one or this one."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for place, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{place}.{name}": tensor for name, tensor in state.items()}
    tensors["random"] = torch.get_rng_state()
    # As numbers, not as text: the curve must come back bit for bit.
    tensors["curve.loss"] = torch.tensor(curve.loss, dtype=torch.float64)
    tensors["curve.floor"] = torch.tensor(curve.floor, dtype=torch.float64)
    about = {
        "schema": 1,
        "settings": asdict(settings),
        "threads": torch.get_num_threads(),
        "looks": curve.looks,
    }
    write_safetensors(file, tensors, {METADATA: json.dumps(about)})


def load_checkpoint(
    file: Path, settings: Settings, model: GPT2, optimiser: torch.optim.AdamW
) -> Curve:
    """Put model, optimiser and random state where the checkpoint left them; give the curve.

    Raises:
        ValueError: the file is broken, or of a run with other settings.
    """
    about, tensors = _read(file)
    stored = Settings(**about["settings"])
    if replace(stored, every=settings.every) != settings:
        changed = [
            f"{name} {value} there, {asdict(settings)[name]} here"
            for name, value in asdict(stored).items()
            if value != asdict(settings)[name]
        ]
        raise ValueError(
            f"{file}: a run with other settings ({'; '.join(changed)}).\n"
            "  Go on with the same ones, or begin anew in another folder."
        )
    # Sums are split among the threads: another number of threads, other last digits.
    torch.set_num_threads(about["threads"])
    model.load_state_dict(_below("model.", tensors))
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _below("optimiser.", tensors).items():
        place, _, part = name.partition(".")
        state.setdefault(int(place), {})[part] = tensor
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    torch.set_rng_state(tensors["random"])
    return Curve(tensors["curve.loss"].tolist(), tensors["curve.floor"].tolist(), about["looks"])


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = (opened.metadata() or {}).get(METADATA)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it cannot be iterated
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(
            f"{file}: not a whole safetensors file ({error}).\n"
            "  Was it copied only in part? Remove it, and the run begins anew."
        ) from None
    if about is None:
        raise ValueError(f"{file}: a safetensors file, but not a checkpoint of `clearhead train`.")
    return json.loads(about), tensors


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


if __name__ == "__main__":  # torchrun -m clearhead.training.loop
    from clearhead.training.distributed import run

    run()
