"""What the heads of a language model do with ordinary English, on sentences of our own.

Three measurements: what each head attends to, how much the loss rises without it, minimal pairs.
The sentences in `sentences.txt` were written for this purpose, so no model was trained on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import torch
from jaxtyping import Int
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from clearhead import drawing
from clearhead.lab.minimal_pairs import PairScore, measure_pairs
from clearhead.models import LoadedModel
from clearhead.tokenizers import Tokenizer
from clearhead.watcher.head_losses import HeadLosses, head_losses
from clearhead.watcher.head_table import HeadTable
from clearhead.watcher.one_text import see

ROW = 128  # tokens
_ABLATED_ROWS = 8  # each head is removed once, and reads these


@dataclass(frozen=True)
class TextReport:
    """What the heads of a model do with English; `print` it.

    Attributes:
        model: The name of the model.
        tokens: The number of tokens that it read.
        table: What each head attends to.
        losses: How much the loss rises without each head.
        pairs: Minimal pairs, by kind.
    """

    model: str
    tokens: int
    table: HeadTable
    losses: HeadLosses
    pairs: list[PairScore]

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "schema": 1,
            "model": self.model,
            "tokens": self.tokens,
            "heads": self.table.to_json()["heads"],
            "ablation": self.losses.to_json(),
            "pairs": [asdict(pair) for pair in self.pairs],
        }

    def __rich__(self) -> RenderableType:
        layers = list(dict.fromkeys(row.layer for row in self.losses.rows))
        rows = [
            [
                pair.kind,
                f"{pair.accuracy.mean:.2f} ± {(pair.accuracy.high - pair.accuracy.low) / 2:.2f}",
                f"{layers.index(pair.layer)}.{pair.head}",
                f"{pair.attention.mean:.2f}",
                f"{pair.chance:.2f}",
                f"{100 * pair.lost.mean:.0f} ± {50 * (pair.lost.high - pair.lost.low):.0f}",
            ]
            for pair in self.pairs
        ]
        head = ["Minimal pairs", "right", "head", "on the cue", "chance", "lost"]
        count = sum(pair.accuracy.count for pair in self.pairs)
        return Group(
            Text(f"What the heads of {drawing.visible(self.model)} do", style="bold"),
            Text(f"On {self.tokens:,} tokens of English that it was not trained on.\n"),
            self.table,
            Text("\nWithout each head", style="bold"),
            self.losses,
            Text(),
            drawing.FittingTable(head, rows, drop=[4, 5, 3, 2]),
            Text(
                f"{count} pairs such as 'The author near the doctors was / were': right is the "
                "share in which the right word gets the higher probability (guessing: 0.50, ± a "
                "95 % interval). head attends most to the word that decides, the cue; lost: "
                "percentage points without this head."
            ),
        )


def own_sentences() -> str:
    """The text of `sentences.txt`: short passages separated by <|endoftext|>."""
    return (resources.files("clearhead.lab") / "sentences.txt").read_text(encoding="utf-8")


def rows_of(tokenizer: Tokenizer, tokens: int = ROW) -> Int[Tensor, "rows tokens"]:
    """Our own sentences as rows of token ids; the end that does not fill a row is left out."""
    text = own_sentences().replace("\n<|endoftext|>\n", "<|endoftext|>")
    ids = torch.tensor(tokenizer.encode(text))
    return ids[: len(ids) // tokens * tokens].view(-1, tokens)


def measure_text(
    loaded: LoadedModel, *, on_progress: Callable[[str, float], None] | None = None
) -> TextReport:
    """Measure the heads of a GPT-2.

    Args:
        loaded: The model; it must be our own `GPT2`.
        on_progress: Called repeatedly with what is being measured and the share that is done.
    """

    def report(what: str, share: float) -> None:
        if on_progress is not None:
            on_progress(what, share)

    ids = rows_of(loaded.reader.tokenizer)
    model = loaded.gpt2
    table = see(loaded.network, ids, name=loaded.name).heads(
        ids, on_progress=lambda share: report("what heads attend to", 0.1 * share)
    )
    some = ids[:_ABLATED_ROWS]
    seen = see(model, some[:1], name=loaded.name)
    losses = head_losses(
        model,
        some,
        heads={name: seen[name].shape[1] for name in seen},
        name=loaded.name,
        on_progress=lambda share: report("the loss without each head", 0.1 + 0.8 * share),
    )
    report("minimal pairs", 0.9)
    pairs = measure_pairs(model, loaded.reader.tokenizer)
    return TextReport(loaded.name, ids.numel(), table, losses, pairs)
