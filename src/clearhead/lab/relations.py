"""Labelled sentences as a model's tokens: which weights of its maps to read, what it must predict.

A causal model is tested at the last token of the query word, which must predict the next word. A
bidirectional model is tested at the next word itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.lab.grammar import Relation, Sentence
from clearhead.lab.grammar_readers import Reader


@dataclass(frozen=True)
class Examples:
    """Sentences with one labelled pair each, as a reader's tokens.

    Attributes:
        relation: The name of the relation.
        ids: The tokens, padded on the right.
        real: True at tokens, False at padding.
        query: The position that must predict.
        key: True at the tokens of the key.
        distractor: True at the tokens of the distractor.
        right: The id to predict.
        wrong: True at the ids that must get lower logits.
        decisive: Whether the sentence counts for the accuracy.
        values: The feature value of each key.
    """

    relation: str
    ids: Int[Tensor, "batch tokens"]
    real: Bool[Tensor, "batch tokens"]
    query: Int[Tensor, " batch"]
    key: Bool[Tensor, "batch tokens"]
    distractor: Bool[Tensor, "batch tokens"]
    right: Int[Tensor, " batch"]
    wrong: Bool[Tensor, "batch vocabulary"]
    decisive: Bool[Tensor, " batch"]
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Sequence[int] | Int[Tensor, " chosen"]) -> Examples:
        """The examples at these indices."""
        rows = torch.as_tensor(rows, dtype=torch.long)
        chosen = {
            field.name: getattr(self, field.name)[rows]
            for field in fields(self)
            if field.name not in ("relation", "values")
        }
        return replace(self, values=tuple(self.values[i] for i in rows.tolist()), **chosen)

    def correct(self, logits: Float[Tensor, "batch vocabulary"]) -> Bool[Tensor, " batch"]:
        """Whether the right word gets a higher logit than every wrong one."""
        right = logits.gather(1, self.right[:, None])  # (batch, 1)
        return (right > logits.masked_fill(~self.wrong, -torch.inf)).all(1)


def encode(reader: Reader, pairs: Sequence[tuple[Sentence, Relation]]) -> Examples:
    """Labelled sentences as the reader's tokens.

    Args:
        reader: The model that reads them.
        pairs: Sentences of one relation, from `grammar.labelled`.
    """
    read = [reader.read(sentence) for sentence, _ in pairs]
    batch, tokens = len(pairs), max(len(ids) for ids, _ in read)
    all_ids = torch.zeros(batch, tokens, dtype=torch.long)
    real, key, distractor = (torch.zeros(batch, tokens, dtype=torch.bool) for _ in range(3))
    wrong = torch.zeros(batch, reader.vocabulary, dtype=torch.bool)
    query, right = [], []
    for row, ((ids, spans), (_, relation)) in enumerate(zip(read, pairs, strict=True)):
        all_ids[row, : len(ids)] = torch.tensor(ids)
        real[row, : len(ids)] = True
        query.append(
            spans[relation.query][1] - 1 if reader.causal else spans[relation.query + 1][0]
        )
        key[row, slice(*spans[relation.key])] = True
        distractor[row, slice(*spans[relation.distractor])] = True
        right.append(reader.piece(relation.right))
        if relation.wrong:
            wrong[row, [reader.piece(word) for word in relation.wrong]] = True
        else:
            wrong[row] = True
            wrong[row, right[-1]] = False
    # Two words with the same first piece cannot be told apart.
    told_apart = ~wrong.gather(1, torch.tensor(right)[:, None])[:, 0]
    decisive = torch.tensor([relation.decisive for _, relation in pairs]) & told_apart
    return Examples(
        pairs[0][1].name,
        all_ids,
        real,
        torch.tensor(query),
        key,
        distractor,
        torch.tensor(right),
        wrong,
        decisive,
        tuple(relation.value for _, relation in pairs),
    )


@torch.no_grad()
def answers(reader: Reader, examples: Examples) -> Bool[Tensor, " batch"] | None:
    """Whether the model predicts each sentence's word; None if it has no output head."""
    hidden = reader.run(examples.ids, examples.real)
    logits = reader.logits(hidden[torch.arange(len(examples)), examples.query])
    return None if logits is None else examples.correct(logits)
