"""The equality gate: a contestant that does not compute the same as the ladder is not timed.

The reference is rung 4 of the ladder at the same size with the same weights, in float32 or wider.
The output is compared and, with a backward pass, the gradient at the input and the norm of all
weight gradients (which does not depend on how the weights are laid out).

Where the reference would need too much memory, `ROWS_CHECKED` rows from the first to the last are
compared instead. They are written out in float64, which needs rows × tokens only, and
differentiated by torch. In a backward pass, the contestant receives a gradient that is zero
except at these rows. Gradients add up over rows, so its result must be the exact gradient of these
rows, at every token. Tokens at these rows and all other tokens are compared separately: the others
get their gradient through keys and values only, which shrinks with length, and an error there must
not be hidden by larger numbers. A contestant that is wrong only in other rows is not detected.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.cases import Case, make_input, make_weights
from benchmarks.contestants import BOOK, Implementation

# The largest difference, relative to the largest value, that counts as rounding.
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}
ROWS_CHECKED = 64
LARGEST_REFERENCE = 512  # MiB of attention weights, (batch, heads, tokens, tokens)
DRAWS = 1024  # of dropout
MOST_STANDARD_ERRORS = 6.0


def answers(
    module: nn.Module, x: Tensor, gradient: Tensor, case: Case, rows: Tensor | None = None
) -> list[Tensor]:
    """What is compared. The output at padding tokens is undefined and left out.

    Args:
        module: The contestant.
        x: Its input.
        gradient: The gradient at its output.
        case: The case.
        rows: Compare only these rows of the output, with a gradient of zero elsewhere.
    """
    if not case.backward:
        with torch.no_grad():
            output = module(x)
            return [output[:, case.padding :] if rows is None else output[:, rows]]
    if rows is not None:
        gradient = torch.zeros_like(gradient).index_copy_(1, rows, gradient[:, rows])
    return _differentiate(module(x), module, x, gradient, case, rows)


def _differentiate(
    output: Tensor, module: nn.Module, x: Tensor, gradient: Tensor, case: Case, rows: Tensor | None
) -> list[Tensor]:
    """The output, its gradient at x, and the norm of its gradient at all weight matrices."""
    weights = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    # A weight that the output does not depend on gets a gradient of zero, which is a wrong result.
    x_gradient, *weight_gradients = torch.autograd.grad(
        output, [x, *weights], gradient, materialize_grads=True
    )
    norm = torch.stack([g.double().square().sum() for g in weight_gradients]).sum().sqrt()
    output = output.detach()
    if rows is None:
        return [output[:, case.padding :], x_gradient, norm]
    others = torch.ones(case.tokens, dtype=torch.bool, device=x.device)
    others[rows] = False
    output = output if output.shape[1] == len(rows) else output[:, rows]
    parts = [x_gradient[:, rows], x_gradient[:, others]]
    return [output, *(part for part in parts if part.numel()), norm]


class Reference:
    """What the ladder computes for a case, with and without biases.

    Attributes:
        case: The case.
        x: Its input.
        gradient: The gradient at the output.
        rows: The rows that are compared; None = all.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.x, self.gradient = make_input(case)
        self._wide = torch.promote_types(case.torch_dtype(), torch.float32)
        map_mib = case.map_mib() * self._wide.itemsize / case.torch_dtype().itemsize
        self.rows: Tensor | None = None
        if case.section == "long" or map_mib > LARGEST_REFERENCE:
            count = min(ROWS_CHECKED, case.tokens - case.padding)
            rows = torch.linspace(case.padding, case.tokens - 1, count, dtype=torch.float64)
            self.rows = rows.round().long().to(case.device)
        self._known: dict[bool, list[Tensor]] = {}

    def gap(self, contestant: Implementation, module: nn.Module) -> float | str:
        """How far the module is from the ladder, relative to the largest value; NaN stays NaN.

        Returns a sentence if its dropout is wrong.
        """
        case = self.case
        # Dropout cannot be compared draw by draw: compare without it first, then on average.
        module.train(case.training and not case.dropout)
        found = answers(module, self.x, self.gradient, case, self.rows)
        gap = relative_gap(found, self.answers(contestant.biases))
        module.train(case.training)
        if case.dropout and gap <= TOLERANCES[case.dtype]:
            errors = dropout_error(contestant, case)
            if not errors <= MOST_STANDARD_ERRORS:
                return f"the mean with dropout is {errors:.0f} standard errors from no dropout"
        return gap

    def answers(self, biases: bool = True) -> list[Tensor]:
        """The ladder's own results."""
        if biases not in self._known:
            self._known[biases] = self._whole(biases) if self.rows is None else self._some(biases)
        return self._known[biases]

    def _whole(self, biases: bool) -> list[Tensor]:
        case = self.case
        x, gradient = (t.detach().to(self._wide) for t in (self.x, self.gradient))
        # Padding on the left is cut off: the ladder never sees it.
        short = replace(case, tokens=case.tokens - case.padding, padding=0, dropout=0.0)
        x, gradient = x[:, case.padding :].contiguous(), gradient[:, case.padding :]
        x.requires_grad_(case.backward)
        # Weights are rounded to the case's dtype first: the reference is wider, not different.
        book = BOOK.build(make_weights(case, biases=biases).to(self._wide), short)
        book = book.to(case.device, self._wide).train(case.training)
        found = answers(book, x, gradient.contiguous(), short)
        if case.backward and case.padding:  # padding is hidden, and no gradient arrives there
            found[1] = nn.functional.pad(found[1], (0, 0, case.padding, 0))
        return found

    def _some(self, biases: bool) -> list[Tensor]:
        """A few rows of rung 4, written out."""
        case, rows = self.case, self.rows
        assert rows is not None
        source = make_weights(case, biases=biases).double()
        x = self.x.detach().double().requires_grad_(case.backward)
        size = (case.heads, source.head_dim)
        with torch.set_grad_enabled(case.backward):
            # -> (batch, rows or tokens, heads, head_dim)
            queries = source.W_query(x[:, rows]).unflatten(-1, size)
            keys = source.W_key(x).unflatten(-1, size)
            values = source.W_value(x).unflatten(-1, size)
            scores = torch.einsum("brhd,bkhd->bhrk", queries, keys) / source.head_dim**0.5
            weights = scores.masked_fill(case.hidden_from(rows), -torch.inf).softmax(-1)
            context = torch.einsum("bhrk,bkhd->brhd", weights, values)
            output: Tensor = source.out_proj(context.flatten(2))
        if not case.backward:
            return [output]
        return _differentiate(output, source, x, self.gradient[:, rows].double(), case, rows)


def relative_gap(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference over the largest expected value, the worst of all pairs."""
    gaps = []
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            raise ValueError(f"expected {tuple(other.shape)}, got {tuple(one.shape)}.")
        other = other.double()
        gaps.append((one.double() - other).abs().max() / other.abs().max())
    return float(torch.stack(gaps).max())  # torch's max keeps NaN; Python's may lose it


def dropout_error(contestant: Implementation, case: Case) -> float:
    """By how many standard errors the mean of many draws differs; inf if nothing is dropped.

    The output is linear in the dropped weights, so the mean output, and the mean gradient at the
    input, equal those without dropout. Measured at 37 tokens: two blocks of our blocked kernel.
    """
    tiny = replace(case, section="dropout", batch=1, tokens=37, d_model=24, heads=3)
    module = contestant.module(tiny)
    x, gradient = make_input(tiny)
    undropped = answers(module.eval(), x, gradient, tiny)[:2]
    copies = x.detach().repeat(DRAWS, 1, 1).requires_grad_(x.requires_grad)
    with torch.random.fork_rng():  # the verdict is the same every time
        torch.manual_seed(22)
        draws = answers(module.train(), copies, gradient.repeat(DRAWS, 1, 1), tiny)[:2]
    worst = []
    for expected, found in zip(undropped, draws, strict=True):
        spread, mean = torch.std_mean(found.double(), 0)
        if not spread.min() > 0:
            return math.inf
        worst.append(((mean - expected[0].double()).abs() * DRAWS**0.5 / spread).max())
    return float(torch.stack(worst).max())
