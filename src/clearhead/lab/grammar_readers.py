"""Models that read the grammar's sentences, behind one interface.

The grammar's own models have one token per word. Other checkpoints split words into pieces, and
each word is then a span of tokens.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.gpt2.model import GPT2
from clearhead.lab.grammar import Sentence, score
from clearhead.models import LoadedModel, find_model
from clearhead.tokenizers import END_OF_TEXT, WordTokenizer
from clearhead.watcher import NothingSeen, watch

Span = tuple[int, int]


class Reader(Protocol):
    """A model, and how it reads the grammar's sentences.

    Attributes:
        name: The name to show.
        causal: Whether a token sees only itself and earlier tokens.
    """

    name: str
    causal: bool

    @property
    def model(self) -> nn.Module:
        """The model to record."""

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""

    def untrained(self) -> Reader:
        """The same model with random weights."""

    def read(self, sentence: Sentence) -> tuple[list[int], list[Span]]:
        """The ids of a sentence, and the tokens [begin, end) of each of its words."""

    def piece(self, word: str) -> int:
        """The id of the first piece of a word inside a sentence."""

    def run(self, ids: Int[Tensor, "batch tokens"], real: Bool[Tensor, "batch tokens"]) -> Tensor:
        """Run the model; returns its last hidden vectors (batch, tokens, d_model)."""

    def logits(self, hidden: Float[Tensor, "positions d_model"]) -> Tensor | None:
        """Its predictions, (positions, vocabulary); None if it has no output head."""


class WordReader:
    """A model with whole words as tokens, as `clearhead train` trains it."""

    causal = True

    def __init__(self, model: GPT2, words: WordTokenizer, name: str = "the grammar model") -> None:
        self._model = model
        self.name = name
        self._words = words
        self._start = words.encode(END_OF_TEXT)[0]
        self.piece = functools.cache(lambda word: words.encode(word)[0])

    @property
    def model(self) -> GPT2:
        """The model to record."""
        return self._model

    @property
    def vocabulary(self) -> int:
        """The number of words, with the special tokens."""
        return self._words.vocab_size

    def untrained(self) -> WordReader:
        """A model of the same size with random weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            plain = GPT2(self._model.config, rope=self._model.rope).eval()
        return WordReader(plain, self._words, f"{self.name}, untrained")

    def read(self, sentence: Sentence) -> tuple[list[int], list[Span]]:
        """<|endoftext|>, then one id per word."""
        ids = [self.piece(word) for word in sentence.words]
        return [self._start, *ids], [(i + 1, i + 2) for i in range(len(ids))]

    def run(self, ids: Tensor, real: Tensor) -> Tensor:
        """The hidden vectors; padding is on the right, where no real token attends to it."""
        return self._model.hidden(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """One number per word of the vocabulary."""
        return self._model.head(hidden)


class PieceReader:
    """A Hugging Face checkpoint, as `clearhead.models.find_model` returns it.

    The checkpoint is loaded without its output head. So it predicts words only if it is causal and
    its head is tied to its token embedding, as in GPT-2.

    Raises:
        ValueError: The tokenizer gives no character offsets, or no attention can be recorded.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.config: Any = loaded.network.config
        self._kind: Any = type(loaded.network)
        self.model = self._encoder_of(loaded.network)
        self.name = loaded.name
        self._tokenizer: Any = loaded.reader.tokenizer
        if not getattr(self._tokenizer, "is_fast", False):
            raise ValueError(
                f"{self.name}: --relations needs a fast tokenizer, which gives the character "
                "offsets of each token; got a slow one.\n"
                "  Save the fast tokenizer (tokenizer.json) in the folder, or give a TEXT instead."
            )
        self.piece = functools.cache(self._first_piece)
        self.causal = True  # `read` needs a value before it is measured
        self.causal = self._is_causal()

    def _encoder_of(self, model: Any) -> nn.Module:
        """The part of a model that reads a text: the encoder, if there is one."""
        part: nn.Module = model
        if getattr(self.config, "is_encoder_decoder", False):
            part = model.get_encoder()
        return part

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""
        return int(self._embedding().weight.shape[0])

    def untrained(self) -> PieceReader:
        """The same model with random weights."""
        twin = copy.copy(self)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            twin.model = self._encoder_of(self._kind(copy.deepcopy(self.config))).eval()
        twin.name = f"{self.name}, untrained"
        return twin

    def read(self, sentence: Sentence) -> tuple[list[int], list[Span]]:
        """The ids of the text, after the BOS token if the model has one, and each word's span."""
        text = sentence.text
        found = self._tokenizer(text, return_offsets_mapping=True, verbose=False)
        ids, offsets = list(found["input_ids"]), list(found["offset_mapping"])
        start = self._tokenizer.bos_token_id
        if self.causal and start is not None and ids[:1] != [start]:
            ids, offsets = [start, *ids], [(0, 0), *offsets]
        spans, begin = [], 0
        for word in sentence.words:
            begin = text.lower().index(word.lower(), begin)
            end = begin + len(word)
            # A piece may include the space before the word; special tokens have no width.
            inside = [i for i, (a, b) in enumerate(offsets) if a < end and b > begin]
            if not inside:
                raise ValueError(f"{self.name}: no token of {text!r} covers {word!r}.")
            spans.append((inside[0], inside[-1] + 1))
            begin = end
        return ids, spans

    def _first_piece(self, word: str) -> int:
        """The id of the word's first piece, when it follows another word."""
        before = "" if word in ".," else " "
        found = self._tokenizer(
            f"the{before}{word}", return_offsets_mapping=True, add_special_tokens=False
        )
        ends = [end for _, end in found["offset_mapping"]]
        first = next(i for i, end in enumerate(ends) if end > 3 + len(before))
        return int(found["input_ids"][first])

    def run(self, ids: Tensor, real: Tensor) -> Tensor:
        """The last hidden vectors."""
        hidden: Tensor = self.model(input_ids=ids, attention_mask=real.long()).last_hidden_state
        return hidden

    def logits(self, hidden: Float[Tensor, "positions d_model"]) -> Tensor | None:
        """Predictions of the tied head; None for a model without one."""
        weight = self._embedding().weight
        tied = getattr(self.config, "tie_word_embeddings", False)
        if not self.causal or not tied or weight.shape[1] != hidden.shape[1]:
            return None
        return hidden @ weight.T

    def _embedding(self) -> nn.Embedding:
        found: nn.Embedding = self.model.get_input_embeddings()  # type: ignore[operator]  # transformers is untyped
        return found

    @torch.no_grad()
    def _is_causal(self) -> bool:
        """Whether no token attends to a later one, in one sentence."""
        ids = torch.tensor([self.read(score(["the", "cat", "sat", "."]))[0]])
        try:
            with watch(self.model) as seen:
                self.run(ids, torch.ones_like(ids, dtype=torch.bool))
        except NothingSeen as error:
            raise ValueError(f"{self.name}: {error}") from None
        return all(float(m.dense().triu(1).abs().max()) == 0.0 for m in seen.values())


def load_reader(model: str | Path | None = None) -> Reader:
    """Load the model that `--model` names.

    Args:
        model: Output of `clearhead train`, or a Hugging Face checkpoint; None for the model that
            comes with Clearhead.
    """
    loaded = find_model(model, any_architecture=True)
    if loaded.reader.kind == "word":
        return WordReader(loaded.gpt2, loaded.reader.tokenizer, loaded.name)
    if loaded.reader.kind == "byte pairs":
        raise ValueError(
            f"--relations: {loaded.name} reads pieces of words; the relations are between the "
            "words of the grammar.\n  Use --model grammar, or leave out --relations."
        )
    return PieceReader(loaded)
