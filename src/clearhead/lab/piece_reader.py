"""A checkpoint of others as a reader of the grammar: word pieces mapped back to words."""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.lab.grammar import Sentence, score
from clearhead.lab.relations import Span
from clearhead.models import LoadedModel
from clearhead.watcher import NothingSeen, watch


class PieceReader:
    """A loaded Hugging Face checkpoint; see `clearhead.models.find_model`.

    It foretells words if it is causal and its head is the matrix of its token vectors, as GPT-2's
    is: the checkpoint is loaded without a head of its own.

    Raises:
        ValueError: its tokenizer cannot say where in the text a token stands, or nothing is seen.
    """

    def __init__(self, checkpoint: LoadedModel) -> None:
        self.config: Any = checkpoint.network.config
        self._kind: Any = type(checkpoint.network)
        self.model = self._read_by(checkpoint.network)
        self.name = checkpoint.name
        self._tokenizer = checkpoint.reader.tokenizer
        if not getattr(self._tokenizer, "is_fast", False):
            raise ValueError(
                f"{self.name}: known relations need a tokenizer that says which characters a token "
                "stands for, and the folder has none of that kind.\n"
                "  Save its fast form there (tokenizer.json). A TEXT of yours is read without it."
            )
        self._pieces: dict[str, int] = {}
        self.causal = True  # for the look that finds it out
        self.causal = self._look()

    def _read_by(self, model: Any) -> nn.Module:
        """The part of a model that reads a text: of an encoder and a decoder, the encoder."""
        part: nn.Module = model
        if getattr(self.config, "is_encoder_decoder", False):
            part = model.get_encoder()
        return part

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return int(self._embedding().weight.shape[0])

    def untrained(self) -> PieceReader:
        """The same model with random weights."""
        torch.manual_seed(0)
        twin = copy.copy(self)
        twin.model = self._read_by(self._kind(copy.deepcopy(self.config))).eval()
        twin.name = f"{self.name}, untrained"
        return twin

    def read(self, sentence: Sentence) -> tuple[list[int], list[Span]]:
        """The ids of the text, <|endoftext|> first if the model has one, and each word's span."""
        text = sentence.text
        found = self._tokenizer(text, return_offsets_mapping=True, verbose=False)
        ids, places = list(found["input_ids"]), list(found["offset_mapping"])
        start = self._tokenizer.bos_token_id
        if self.causal and start is not None and ids[:1] != [start]:
            ids, places = [start, *ids], [(0, 0), *places]
        spans, begin = [], 0
        for word in sentence.words:
            begin = text.lower().index(word.lower(), begin)
            end = begin + len(word)
            # A piece with the space before it stands for the word; one of no width for nothing.
            inside = [i for i, (a, b) in enumerate(places) if a < end and b > begin]
            if not inside:
                raise ValueError(f"{self.name}: no token of {text!r} stands for {word!r}.")
            spans.append((inside[0], inside[-1] + 1))
            begin = end
        return ids, spans

    def piece(self, word: str) -> int:
        """The id of the word's first piece, after another word."""
        if word not in self._pieces:
            before = "" if word in ".," else " "
            found = self._tokenizer(
                f"the{before}{word}", return_offsets_mapping=True, add_special_tokens=False
            )
            places = found["offset_mapping"]
            inside = [i for i, (_, end) in enumerate(places) if end > 3 + len(before)]
            self._pieces[word] = found["input_ids"][inside[0]]
        return self._pieces[word]

    def run(self, ids: Tensor, real: Tensor) -> Tensor:
        """The last hidden vectors."""
        hidden: Tensor = self.model(input_ids=ids, attention_mask=real.long()).last_hidden_state
        return hidden

    def logits(self, hidden: Float[Tensor, "places d_model"]) -> Tensor | None:
        """Its tied head; None for a model without one."""
        weight = self._embedding().weight
        tied = getattr(self.config, "tie_word_embeddings", False)
        if not self.causal or not tied or weight.shape[1] != hidden.shape[1]:
            return None
        return hidden @ weight.T

    def _embedding(self) -> nn.Embedding:
        found: nn.Embedding = self.model.get_input_embeddings()  # type: ignore[operator]  # theirs
        return found

    @torch.no_grad()
    def _look(self) -> bool:
        """Whether no token attends to a later one."""
        ids, _ = self.read(score(["the", "cat", "sat", "."]))
        shown = torch.tensor([ids])
        try:
            with watch(self.model) as seen:
                self.run(shown, torch.ones_like(shown, dtype=torch.bool))
        except NothingSeen as error:
            raise ValueError(f"{self.name}: {error}") from None
        return all(float(m.dense().triu(1).abs().max()) == 0.0 for m in seen.values())
