"""Whether a contestant computes the same as the ladder: the gate before the clock.

The reference is rung 4 at the same size with the same weights, in float32 or wider. Compared are
the output and, with a backward pass, the gradient at the input and the norm of all weight
gradients (which is the same however the weights are laid out).

Where tokens × tokens would be too large for that, `ROWS_CHECKED` rows stand for all, from the first
to the last. They are written out by hand in float64, which needs rows × tokens only, and
differentiated by torch. With a backward pass the contestant gets a gradient that is zero but at
these rows. As gradients add up over rows, its answer must be the exact gradient of these rows, at
every token. The rows' own tokens and all other tokens are compared apart: the others have their
gradient through keys and values alone, which is smaller the longer the input is, and an error there
must not hide behind the rows' own. A contestant that is wrong in other rows only is not found.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.cases import Case, make_input, make_weights
from benchmarks.contestants import BOOK, Builder

# The largest difference, relative to the largest value, that counts as rounding.
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}

ROWS_CHECKED = 64  # of an input too long for the reference
LARGEST_REFERENCE = 512  # MiB of its weights, (batch, heads, tokens, tokens)
DRAWS = 1024  # of dropout
MOST_STANDARD_ERRORS = 6.0

Found = TypeVar("Found")

# What to look for in the list of operations, the most telling first.
_KERNELS = (
    "clearhead.blocked_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._native_multi_head_attention",
    "aten._safe_softmax",
    "aten._softmax",
)


def make_run(module: nn.Module, x: Tensor, gradient: Tensor, case: Case) -> Callable[[], object]:
    """One run, as it is timed. Gradients are computed and dropped, never accumulated."""
    if case.direction == "forward":

        def forward() -> object:
            with torch.no_grad():
                return module(x)

        return forward
    wanted = [x, *module.parameters()]
    return lambda: torch.autograd.grad(module(x), wanted, gradient)


def answers(
    module: nn.Module, x: Tensor, gradient: Tensor, case: Case, rows: Tensor | None = None
) -> list[Tensor]:
    """What is compared. Rows of filling are nobody's business and left out of the output.

    Args:
        module: The contestant.
        x: Its input.
        gradient: What arrives at its output, in a backward pass.
        case: What it computes.
        rows: Only these rows of the output count, and only there a gradient arrives.
    """
    if case.direction == "forward":
        with torch.no_grad():
            output = module(x)
            return [output[:, case.padding :] if rows is None else output[:, rows]]
    if rows is not None:
        gradient = torch.zeros_like(gradient).index_copy_(1, rows, gradient[:, rows])
    return _differentiate(module(x), module, x, gradient, case, rows)


def _differentiate(
    output: Tensor, module: nn.Module, x: Tensor, gradient: Tensor, case: Case, rows: Tensor | None
) -> list[Tensor]:
    """The output that counts, its gradient at x, and the norm of its gradient at all weights."""
    weights = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    # A weight that the output does not depend on counts as a gradient of zero: a wrong answer here.
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
    """What the ladder computes for a case, with biases and without; computed when first asked.

    Attributes:
        case: The case.
        x: Its input.
        gradient: What arrives at the output.
        rows: The rows that are compared; None = all.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.x, self.gradient = make_input(case)
        maps = case.batch * case.heads * case.tokens**2 * _wide(case).itemsize
        sampled = case.section == "long" or maps > LARGEST_REFERENCE * 2**20
        self.rows = _spread_rows(case) if sampled else None
        self._known: dict[bool, list[Tensor]] = {}

    def gap(self, builder: Builder, module: nn.Module) -> float | str:
        """How far the module is from the ladder, relative to the largest value; NaN stays NaN.

        A sentence when its dropout is wrong.
        """
        case = self.case
        # Dropout cannot be compared draw by draw: without it first, then on average.
        module.train(case.training and not case.dropout)
        found = answers(module, self.x, self.gradient, case, self.rows)
        gap = relative_gap(found, self.answers(builder.biases))
        module.train(case.training)
        if case.dropout and gap <= TOLERANCES[case.dtype]:
            errors = dropout_error(builder, case)
            if not errors <= MOST_STANDARD_ERRORS:
                return f"dropout's mean is {errors:.0f} standard errors away from no dropout"
        return gap

    def answers(self, biases: bool = True) -> list[Tensor]:
        """The ladder's own answers."""
        if biases not in self._known:
            self._known[biases] = (
                self._compute(biases) if self.rows is None else self._by_hand(biases, self.rows)
            )
        return self._known[biases]

    def _compute(self, biases: bool) -> list[Tensor]:
        case = self.case
        x, gradient = (t.detach().to(_wide(case)) for t in (self.x, self.gradient))
        # Filling on the left is simply cut off: the ladder never sees it.
        short = replace(case, tokens=case.tokens - case.padding, padding=0, dropout=0.0)
        x, gradient = x[:, case.padding :].contiguous(), gradient[:, case.padding :]
        x.requires_grad_(case.direction == "forward+backward")
        # The weights are rounded to the case's dtype first; the reference is wider, not different.
        book = BOOK.build(make_weights(case, biases=biases).to(_wide(case)), short)
        book = book.to(case.device, _wide(case)).train(case.training)
        found = answers(book, x, gradient.contiguous(), short)
        if case.direction == "forward+backward" and case.padding:
            # Filling gets no gradient: it is hidden from all, and nothing arrives at its rows.
            found[1] = torch.nn.functional.pad(found[1], (0, 0, case.padding, 0))
        return found

    def _by_hand(self, biases: bool, rows: Tensor) -> list[Tensor]:
        """A few rows of rung 4, written out: the whole would need tokens × tokens."""
        case = self.case
        source = make_weights(case, biases=biases).double()
        backward = case.direction == "forward+backward"
        x = self.x.detach().double().requires_grad_(backward)
        size = (case.heads, source.head_dim)
        with torch.set_grad_enabled(backward):
            # -> (batch, rows or tokens, heads, head_dim)
            queries = source.W_query(x[:, rows]).unflatten(-1, size)
            keys = source.W_key(x).unflatten(-1, size)
            values = source.W_value(x).unflatten(-1, size)
            scores = torch.einsum("brhd,bkhd->bhrk", queries, keys) / source.head_dim**0.5
            weights = scores.masked_fill(case.hidden_from(rows), -torch.inf).softmax(-1)
            context = torch.einsum("bhrk,bkhd->brhd", weights, values)
            output: Tensor = source.out_proj(context.flatten(2))
        if not backward:
            return [output]
        gradient = self.gradient[:, rows].double()
        return _differentiate(output, source, x, gradient, case, rows)


def relative_gap(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference over the largest expected value, the worst of all pairs."""
    gaps = []
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            raise ValueError(f"expected {tuple(other.shape)}, got {tuple(one.shape)}.")
        other = other.double()
        gaps.append((one.double() - other).abs().max() / other.abs().max())
    return float(torch.stack(gaps).max())  # torch's max keeps NaN; Python's may lose it


def dropout_error(builder: Builder, case: Case) -> float:
    """How many standard errors the mean over many draws is off, at a tiny size; inf: no dropout.

    The output is linear in what dropout does to the weights, so the mean output, and the mean
    gradient at the input, are those without dropout. 37 tokens give our blocked kernel two blocks.
    """
    tiny = replace(case, section="dropout", batch=1, tokens=37, d_model=24, heads=3)
    module = builder.module(tiny)
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


def which_kernel(run: Callable[[], object], *, compiled: bool = False) -> str:
    """The operation that did the attention in one run.

    As torch's dispatcher saw it; compiled code must not see our mode, and is asked by the profiler.
    """
    if not compiled:
        return watch_kernel(run)[1]
    with _without_stderr(), profile(activities=[ProfilerActivity.CPU]) as profiled:
        run()
    names = {event.name.replace("::", ".") for event in profiled.events() or ()}
    return next((name for name in _KERNELS if name in names), "generated by the compiler")


def watch_kernel(run: Callable[[], Found]) -> tuple[Found, str]:
    """What a run gives, and the operation that did the attention in it."""
    with _Recorder() as seen:
        found = run()
    return found, next((name for name in _KERNELS if name in seen.names), "unknown")


def stored_mask_mib(module: nn.Module) -> float:
    """What the module keeps beside its parameters: masks, mostly tokens × tokens."""
    return round(sum(b.numel() * b.element_size() for b in module.buffers()) / 2**20, 1)


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Torch's profiler writes two lines there, each time."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types here
    """Notes the names of all operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the same
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.add(str(func).rpartition(".")[0])
        return func(*args, **(kwargs or {}))


def _wide(case: Case) -> torch.dtype:
    return torch.promote_types(case.torch_dtype(), torch.float32)


def _spread_rows(case: Case) -> Tensor:
    """Rows from the first real one to the last, evenly."""
    count = min(ROWS_CHECKED, case.tokens - case.padding)
    rows = torch.linspace(case.padding, case.tokens - 1, count, dtype=torch.float64)
    return rows.round().long().to(case.device)
