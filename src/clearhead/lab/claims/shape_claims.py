"""Claims about shapes and memory layout, and about the errors when they do not fit."""

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor, nn

from clearhead import attention, ladder
from clearhead.lab.claims.claim import EXACT, Finding, claim, does_not_hold, holds, holds_if


@claim("same-shape", "The output of attention has the shape of its input.")
def same_shape(
    build: Callable[[int, int], nn.Module] = lambda d_in, d_out: ladder.MultiHeadAttention(
        d_in, d_out, 10, 0.0, num_heads=4
    ),
) -> Finding:
    """Modules with d_out equal to d_in, and with other values of d_out."""
    shapes = {}
    for d_in, d_out in ((24, 24), (24, 32), (24, 8)):
        x = torch.zeros(2, 10, d_in)
        shapes[d_out] = tuple(build(d_in, d_out)(x).shape)
    figure = "(2, 10, 24) becomes " + ", ".join(
        f"{shape} with d_out {d_out}" for d_out, shape in shapes.items()
    )
    same = [d_out for d_out, shape in shapes.items() if shape == (2, 10, 24)]
    if len(same) == len(shapes):
        return holds(figure, EXACT)
    return holds_if("d_in = d_out", figure, EXACT) if same == [24] else does_not_hold(figure, EXACT)


def _layouts() -> list[Tensor]:
    """A (4, 6, 8) tensor in many memory layouts: all orders of axes, slices, an expanded axis."""
    turned = []
    for order in permutations(range(3)):
        sizes = [0, 0, 0]
        for index, axis in enumerate(order):
            sizes[axis] = (4, 6, 8)[index]
        turned.append(torch.arange(192).view(sizes).permute(order))
    sliced = [torch.arange(384).view(4, 6, 16)[..., ::2], torch.arange(384).view(4, 12, 8)[:, :6]]
    return [*turned, *sliced, torch.arange(48).view(1, 6, 8).expand(4, 6, 8)]


@claim("view-never-copies", "`.view` never copies.")
def view_never_copies(
    view: Callable[[Tensor, tuple[int, ...]], Tensor] = lambda x, shape: x.view(shape),
) -> Finding:
    """Nine layouts of a (4, 6, 8) tensor, each viewed in six shapes: same memory, copy, or error?

    A view is the same memory with other strides. Where no strides can express the shape, `.view`
    raises an error and `.reshape` silently copies.
    """
    shared = copied = raised = 0
    for x in _layouts():
        for shape in ((192,), (24, 8), (4, 48), (4, 6, 2, 4), (4, 2, 3, 8), (8, 24)):
            try:
                result = view(x, shape)
            except RuntimeError:
                raised += 1
                continue
            if result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                shared += 1
            else:
                copied += 1
    figure = f"of {shared + copied + raised}: {shared} shared, {raised} raised, {copied} copied"
    return (does_not_hold if copied else holds)(figure, EXACT, copied=copied, raised=raised)


@claim("contiguous", "`.contiguous()` is needed before the heads are merged.")
def contiguous_is_needed(
    merge: Callable[[Tensor, tuple[int, ...]], Tensor] = lambda x, shape: x.view(shape),
) -> Finding:
    """The heads of a context (batch, heads, tokens, head_dim) are merged without it.

    After the transpose, the numbers of one token are not adjacent in memory, so `.view` raises.
    With one head or one token they are. `.reshape` and `.flatten` copy where they must.
    """

    def works(merge: Callable[[Tensor, tuple[int, ...]], Tensor], heads: int, tokens: int) -> bool:
        context = torch.randn(2, heads, tokens, 8)
        try:
            merge(context.transpose(1, 2), (2, tokens, heads * 8))
        except RuntimeError:
            return False
        return True

    cases = {"12 heads, 6 tokens": (12, 6), "1 head": (1, 6), "1 token": (12, 1)}
    alone = {name: works(merge, *sizes) for name, sizes in cases.items()}
    reshaped = works(lambda x, shape: x.reshape(shape), 12, 6)
    figure = "without it: " + ", ".join(
        f"{name} {'works' if fine else 'raises'}" for name, fine in alone.items()
    )
    figure += f"; .reshape {'works' if reshaped else 'raises'}"
    if all(alone.values()):
        return does_not_hold(figure, EXACT)
    if reshaped or any(alone.values()):
        condition = ".view merges them, not .reshape, and there are several heads and tokens"
        return holds_if(condition, figure, EXACT)
    return holds(figure, EXACT)


def _error(action: Callable[[], object]) -> str:
    """The name of the error that an action raises."""
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "no error"


class _BookMask(nn.Module):
    """Causal attention as in many notes, without a check: the mask is sliced to the input."""

    future: Tensor

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self.register_buffer("future", torch.ones(context_length, context_length).triu(1).bool())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        scores = x @ x.transpose(1, 2)
        return scores.masked_fill(self.future[:tokens, :tokens], -torch.inf).softmax(-1) @ x


@claim("too-long", "Input longer than context_length raises IndexError.")
def too_long_is_an_index_error(build: Callable[[int], nn.Module] = _BookMask) -> Finding:
    """Nine tokens into attention built for six: as in many notes, and in Clearhead.

    A slice past the end is not an error in Python: mask[:9, :9] of a 6 × 6 mask is 6 × 6, and then
    the shapes do not match. Only a position embedding, indexed with 6 of 6, raises IndexError.
    """
    long = torch.randn(1, 9, 4)
    module, table = build(6), nn.Embedding(6, 4)
    ours = attention.MultiHeadAttention(4, 4, 6, 0.0, num_heads=2)
    found = {
        "attention in notes": _error(lambda: module(long)),
        "a position table": _error(lambda: table(torch.arange(9))),
        "Clearhead": _error(lambda: ours(long)),
    }
    figure = "; ".join(f"{name}: {error}" for name, error in found.items())
    right = found["attention in notes"] == "IndexError"
    return (holds if right else does_not_hold)(figure, EXACT, **found)


class _Forgetful(nn.Module):
    def __init__(self) -> None:
        self.W_query = nn.Linear(4, 4)  # without super().__init__(), on purpose


@claim("no-super-init", "A missing super().__init__() raises RuntimeError.")
def no_super_init_is_a_runtime_error(
    build: Callable[[], object] = _Forgetful,
) -> Finding:
    """A module that assigns a layer without calling nn.Module.__init__."""
    error = _error(build)
    return (holds if error == "RuntimeError" else does_not_hold)(error, EXACT, error=error)


@claim(
    "not-divisible",
    "A d_out that num_heads does not divide raises AssertionError.",
)
def not_divisible_is_an_assertion_error(
    build: Callable[[int, int], object] = lambda d_out, heads: attention.MultiHeadAttention(
        d_out, d_out, 16, 0.0, heads
    ),
) -> Finding:
    """Clearhead's module with d_out 1024 and 24 heads.

    The book's class uses an `assert`, which `python -O` removes: the module is then built, and
    fails later with a message about shapes. Code that catches AssertionError must catch ValueError
    instead when it moves to Clearhead.
    """
    error = _error(lambda: build(1024, 24))
    return (holds if error == "AssertionError" else does_not_hold)(error, EXACT, error=error)
