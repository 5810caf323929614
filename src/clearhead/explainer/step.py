"""Step: what one step of a forward pass is, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from clearhead import drawing

Dims = tuple[tuple[str, int], ...]


def show_dims(dims: Dims) -> str:
    """Named dimensions as people write them.

    >>> show_dims((("batch", 1), ("tokens", 6), ("d_in", 8)))
    '(batch=1, tokens=6, d_in=8)'
    """
    return "(" + ", ".join(f"{name}={size}" for name, size in dims) + ")"


@dataclass(frozen=True)
class Step:
    """One step of a forward pass.

    Attributes:
        number: "1" to "6", with a letter for the parts of step 4 and the extras after step 3.
        title: What the step is called, such as "SPLIT" or "ATTENTION: softmax".
        operation: The PyTorch that does it, in short.
        formula: The same in mathematics.
        before: Named dimensions of what goes in (of the first tensor, where several do).
        dims: Named dimensions of each tensor that comes out, by the tensor's name.
        tensors: What comes out, by name.
        code: PyTorch lines that give these tensors. They use `torch`, `module`, `x`, `mask`,
            `context` and the names of earlier steps.
    """

    number: str
    title: str
    operation: str
    formula: str
    before: Dims
    dims: dict[str, Dims]
    tensors: dict[str, Tensor] = field(repr=False)
    code: str = field(repr=False)

    @property
    def after(self) -> Dims:
        """Named dimensions of the first tensor that comes out."""
        return next(iter(self.dims.values()))

    def __rich__(self) -> RenderableType:
        """Title, operation, formula, shapes, and the first few numbers."""
        facts = [
            ("operation", self.operation),
            ("formula", self.formula),
            ("shape", show_dims(self.before)),
            ("", f"-> {show_dims(self.after)}"),
        ]
        lines = Text("\n").join(
            Text.assemble((f"{name:<11}", "dim"), drawing.visible(fact)) for name, fact in facts
        )
        rows = 3 if len(self.tensors) == 1 else 2
        numbers = "\n".join(
            drawing.excerpt(name, tensor, rows=rows) for name, tensor in self.tensors.items()
        )
        return Group(
            Text(f"{self.number} {self.title}", style="bold"),
            drawing.Indent(Group(lines, Text(numbers))),
        )
