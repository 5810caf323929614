"""How much a language model's loss rises without each of its heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor, nn

from clearhead import drawing
from clearhead.drawing import Axis
from clearhead.watcher.interventions import ablate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STRONGEST = 10  # heads that the terminal names


@dataclass(frozen=True)
class HeadLoss:
    """A head, and how much the loss rises without it, in nats per token."""

    layer: str
    head: int
    rise: float


@dataclass(frozen=True, repr=False)
class HeadLosses(drawing.Drawn):
    """The loss of a model on a text, and its rise without each head; `print` it.

    Attributes:
        loss: The mean cross-entropy of the next token, in nats, with all heads.
        rows: One row per head.
        model: The name of the model.
    """

    loss: float
    rows: tuple[HeadLoss, ...]
    model: str = ""

    @property
    def layers(self) -> list[str]:
        """The names of the layers, in order."""
        return list(dict.fromkeys(row.layer for row in self.rows))

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        heads = [asdict(row) for row in self.rows]
        return {"schema": 1, "model": self.model, "loss": self.loss, "heads": heads}

    def grid(self) -> list[list[float]]:
        """The rises as layers × heads; NaN where a layer has fewer heads than another."""
        by_layer = [[row.rise for row in self.rows if row.layer == name] for name in self.layers]
        width = max(map(len, by_layer))
        return [[*rises, *[torch.nan] * (width - len(rises))] for rises in by_layer]

    def figure(self) -> Figure:
        """A picture of layers × heads."""
        from clearhead.drawing import figures

        grid = torch.tensor(self.grid())
        rows, columns = grid.shape
        axes = (
            Axis("layer", rows, [str(i) for i in range(rows)]),
            Axis("head", columns, [str(i) for i in range(columns)]),
        )
        # A loss that falls without a head is shown as no rise: the scale begins at 0.
        panel = figures.Panel(grid.clamp_min(0).numpy(), *axes, title="loss without the head")
        return figures.figure(
            [panel], legend="rise of the loss, nats per token (a fall counts as 0)"
        )

    def __rich__(self) -> RenderableType:
        grid = self.grid()
        head = ["layer", *(str(i) for i in range(len(grid[0])))]
        cells = [
            [str(i), *("" if x != x else f"{x:+.3f}" for x in rises)]
            for i, rises in enumerate(grid)
        ]
        table = drawing.FittingTable(
            head, cells, left=1, drop=list(range(len(head) - 1, 1, -1)), titles={},
            more="--json has all, and so has .rows in Python.",
        )  # fmt: skip
        names = "".join(f"\n  {i}  {drawing.visible(name)}" for i, name in enumerate(self.layers))
        best = sorted(self.rows, key=lambda row: -row.rise)[:_STRONGEST]
        most = ", ".join(
            f"{self.layers.index(row.layer)}.{row.head} {row.rise:+.3f}" for row in best
        )
        words = (
            f"Loss {self.loss:.3f} nats per token; each number is its rise without one head "
            f"(rows: layers, columns: heads).\nMost: {most}.\nLayers:{names}"
        )
        return Group(table, Text(words))

    def __repr__(self) -> str:
        return f"HeadLosses({len(self.rows)} heads, loss {self.loss:.3f}): print it, or take .rows"


@torch.no_grad()
def head_losses(
    model: nn.Module,
    ids: Int[Tensor, "batch tokens"],
    *,
    heads: dict[str, int],
    name: str = "",
    on_progress: Callable[[float], None] | None = None,
) -> HeadLosses:
    """Measure a model's loss on a text without each of its heads, one after the other.

    Args:
        model: A language model that returns logits, or an object that has them as `.logits`.
        ids: The text; at least two tokens.
        heads: The number of heads of each layer, as from `{name: seen[name].shape[1] ...}`.
        name: The name of the model.
        on_progress: Called repeatedly with the share that is done.
    """
    if ids.shape[1] < 2:
        raise ValueError("The text has one token: there is no next token to predict.")

    def loss() -> float:
        output = model(ids)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return float(F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()))

    whole, rows = loss(), list[HeadLoss]()
    total = sum(heads.values())
    for layer, count in heads.items():
        for head in range(count):
            with ablate(model, {layer: [head]}):
                rows.append(HeadLoss(layer, head, loss() - whole))
            if on_progress is not None:
                on_progress(len(rows) / total)
    return HeadLosses(whole, tuple(rows), name)
