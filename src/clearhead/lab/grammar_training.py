"""The grammar as a training task: rows of sentences, and an evaluation on held-out word pairs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.embedding import Rope
from clearhead.gpt2.model import GPT2
from clearhead.lab import grammar
from clearhead.lab.grammar_readers import WordReader
from clearhead.lab.relations import Examples, answers, encode
from clearhead.lab.vocabulary import vocabulary
from clearhead.tokenizers import END_OF_TEXT, UNKNOWN
from clearhead.training.loop import Batch, Settings, chosen_rows, generator

# A factor on GPT-2's initialisation. At 0.02, the heads of so narrow a model stay uniform for long.
_INITIAL_SCALE = 4.0
_VALIDATION_SEED, _TEST_SEED = 1_000_001, 1_000_002


@dataclass(frozen=True, kw_only=True)
class GrammarSettings(Settings):
    """How a model is trained on the grammar.

    Attributes:
        tokens: Tokens per row.
        rows: The number of rows to write; they are read repeatedly.
        unknown: The share of words replaced by <unk> in the input, so that the model learns it.
        d_model: The width of the model.
        num_heads: Heads per layer.
        num_layers: The number of layers.
        examples: Held-out sentences per relation and evaluation.
    """

    tokens: int = 32
    rows: int = 30_000
    unknown: float = 0.01
    d_model: int = 64
    num_heads: int = 4
    num_layers: int = 3
    examples: int = 100


@dataclass(frozen=True)
class Rows:
    """Training data: whole sentences, the last one cut off at the end of the row.

    Attributes:
        ids: The tokens. Every other row begins with <|endoftext|>.
        nats: -log p of every token after the first, by the grammar.
    """

    ids: Int[Tensor, "rows tokens_and_one"]
    nats: Float[Tensor, "rows tokens"]


def write_rows(count: int, tokens: int, seed: int = 0) -> Rows:
    """Rows of `tokens` tokens, and one more that is only a target."""
    words = grammar.tokenizer()
    number = {word: words.encode(word)[0] for word in vocabulary()}
    start = words.encode(END_OF_TEXT)[0]
    source = grammar.sentences(seed)
    ids: list[list[int]] = []
    nats: list[list[float]] = []
    for row in range(count):
        # Rows without <|endoftext|> begin with a sentence's first word, which is never a target.
        line, cost = ([start], [0.0]) if row % 2 == 0 else ([], [])
        while len(line) <= tokens:
            sentence = next(source)
            line += [number[word] for word in sentence.words]
            cost += sentence.nats
        ids.append(line[: tokens + 1])
        nats.append(cost[1 : tokens + 1])
    return Rows(torch.tensor(ids), torch.tensor(nats))


class GrammarTask:
    """A `clearhead.training.loop.Task`: predict the next word of the grammar's sentences."""

    def __init__(self, settings: GrammarSettings) -> None:
        self.settings = settings
        self._words = grammar.tokenizer()
        self._unknown = self._words.encode(UNKNOWN)[0]

    def new_model(self) -> GPT2:
        """The model before its first step."""
        torch.manual_seed(self.settings.seed)
        model = GPT2(
            {
                "vocab_size": self._words.vocab_size,
                "context_length": 64,
                "d_model": self.settings.d_model,
                "num_heads": self.settings.num_heads,
                "num_layers": self.settings.num_layers,
                "dropout": 0.0,
                "qkv_bias": False,
            },
            rope=Rope(),
        )
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.mul_(_INITIAL_SCALE)
        return model

    @cached_property
    def rows(self) -> Rows:
        """The training data; no more of it than the run reads."""
        settings = self.settings
        return write_rows(min(settings.rows, settings.steps * settings.batch), settings.tokens)

    def batch(self, step: int) -> Batch:
        """Inputs, targets and floor of a step; they depend on the seed and the step only."""
        chosen = chosen_rows(len(self.rows.ids), self.settings, step)
        ids = self.rows.ids[chosen]
        inputs, targets = ids[:, :-1].clone(), ids[:, 1:]
        random = torch.rand(inputs.shape, generator=generator(self.settings.seed, 2, step))
        inputs[random < self.settings.unknown] = self._unknown
        return Batch(inputs, targets, self.rows.nats[chosen].mean().item())

    @cached_property
    def _held_out(self) -> tuple[list[Examples], list[Tensor], float]:
        """Examples per relation; the ids of fresh sentences, and their floor."""
        with torch.random.fork_rng(devices=[]):
            reader = WordReader(self.new_model(), self._words)  # reads, but does not predict
        count = self.settings.examples
        relations = []
        for name in grammar.RELATIONS:
            pairs = grammar.labelled(name, 2 * count, seed=_TEST_SEED)
            pairs = [pair for pair in pairs if pair[1].decisive][:count]
            relations.append(encode(reader, pairs))
        fresh = list(itertools.islice(grammar.sentences(_VALIDATION_SEED), 8 * count))
        ids = [torch.tensor(reader.read(sentence)[0]) for sentence in fresh]
        floor = sum(sum(s.nats) for s in fresh) / sum(len(s.words) for s in fresh)
        return relations, ids, floor

    @torch.no_grad()
    def evaluate(self, model: GPT2) -> dict[str, Any]:
        """Loss and floor on fresh sentences, and the accuracy on held-out pairs by relation."""
        relations, ids, floor = self._held_out
        padded = torch.nn.utils.rnn.pad_sequence(ids, True, padding_value=-100)
        logits = model(padded[:, :-1].clamp(min=0))
        loss = F.cross_entropy(logits.flatten(0, 1), padded[:, 1:].flatten())
        reader = WordReader(model, self._words)
        accuracy = {}
        for examples in relations:
            correct = answers(reader, examples)
            assert correct is not None  # a WordReader has an output head
            accuracy[examples.relation] = correct.double().mean().item()
        return {"loss": loss.item(), "floor": floor, "accuracy": accuracy}
