"""(q, k, v, mask) -> context: the same function in several speeds.

    eager    a few readable lines that build queries × keys; any device, any derivative
    sdpa     `torch.nn.functional.scaled_dot_product_attention`, PyTorch's fused kernels
    blocked  our own: a block of queries at a time, memory O(tokens), also with dropout

`attend(..., kernel="auto")` chooses; `choose` says what and why. A kernel named explicitly runs or
raises with the reason. A query with nothing to attend to gets zeros from all, and no gradient.

For statistics of the weights, `scores` computes tiles of scores and `tile_loop` walks over them; on
CUDA `triton_statistics` does both at once (its device code is `triton_device`).
"""

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from clearhead.kernels import blocked, eager, sdpa
from clearhead.masks import Mask, as_mask

Kernel = Literal["auto", "eager", "sdpa", "blocked"]
KERNELS: dict[str, ModuleType] = {"eager": eager, "sdpa": sdpa, "blocked": blocked}

# A mask that SDPA cannot be told in words is built as queries × keys: up to this many cells.
_SMALL_MASK = {"cpu": 2**16, "cuda": 2**26}


class Told(threading.local):
    """Who is told of every `attend` of this thread, whichever kernel runs; it must call `run`."""

    def __init__(self) -> None:
        self.listener: (
            Callable[[Tensor, Tensor, Mask | None, float | None, Callable[[], Tensor]], Tensor]
            | None
        ) = None


told = Told()


class Choice(NamedTuple):
    """The kernel that `kernel="auto"` takes, and why.

    The reasons hold no sizes: writing one into text would compile a graph for each length.
    """

    kernel: str
    reason: str


def choose(q: Tensor, k: Tensor, mask: Mask | None = None, dropout: float = 0.0) -> Choice:
    """What `kernel="auto"` runs for these inputs, from shapes and device alone."""
    if blocked.is_transformed():
        return Choice("sdpa", "torch.func can transform PyTorch's operator, not blocked")
    if dropout > 0 and q.device.type == "cpu":
        return Choice(
            "blocked", "with dropout PyTorch's CPU kernel builds queries × keys; blocked does not"
        )
    if torch.compiler.is_exporting():
        return Choice("sdpa", "an exported graph has one form for all lengths: PyTorch's operator")
    queries, keys = q.shape[-2], k.shape[-2]
    if sdpa.knows(mask, queries, keys):
        return Choice("sdpa", "PyTorch's fused kernel does this mask without building it")
    if queries == 1 or queries * keys <= _SMALL_MASK.get(q.device.type, 2**16):
        return Choice("sdpa", "PyTorch's fused kernel; this mask is small enough to build")
    return Choice(
        "blocked", "PyTorch's kernel needs this mask as queries × keys cells; blocked does not"
    )


def attend(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    kernel: Kernel = "auto",
) -> Float[Tensor, "batch heads queries value_dim"]:
    """softmax(q kᵀ scale + mask) v, by the kernel asked for.

    Args:
        q: The queries.
        k: The keys; `heads` must be a multiple of `kv_heads`.
        v: The values.
        mask: Who may attend to whom; None = everybody to everybody.
        scale: What the scores are multiplied with; 1 / √head_dim by default.
        dropout: The probability of dropping a weight. The caller knows whether it is training.
        kernel: "auto", or the one that must run.
    """
    if has_torch_function((q, k, v)):  # modes see one call, whichever kernel runs
        return handle_torch_function(
            attend, (q, k, v), q, k, v, mask, scale=scale, dropout=dropout, kernel=kernel
        )
    _check_mask(q, k, mask)

    def run() -> Tensor:
        chosen = _pick(q, k, mask, dropout, kernel)
        return chosen.attend(q, k, v, mask, _scale(q, scale), dropout)  # type: ignore[no-any-return]  # a module is not typed

    if not torch.compiler.is_compiling() and told.listener is not None:
        return told.listener(q, k, mask, scale, run)
    return run()


def attend_with_lse(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    kernel: Kernel = "auto",
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "..."] | None]:
    """As `attend`, and each row's log-sum-exp if the kernel has it anyway (else None)."""
    _check_mask(q, k, mask)
    context, lse = _pick(q, k, mask, dropout, kernel).attend_with_lse(
        q, k, v, mask, _scale(q, scale), dropout
    )
    # PyTorch's CPU kernels take a coarse exponential in half precision: off by up to 6e-5.
    coarse = q.device.type == "cpu" and q.dtype in (torch.float16, torch.bfloat16)
    return context, None if coarse else lse


def _check_mask(q: Tensor, k: Tensor, mask: Mask | None) -> None:
    """Here a mask meets shapes, whichever kernel runs: what broadcasts by chance is refused."""
    if mask is not None:
        as_mask(mask).check(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _pick(q: Tensor, k: Tensor, mask: Mask | None, dropout: float, kernel: Kernel) -> ModuleType:
    if not torch.compiler.is_exporting() and 0 in (*q.shape, *k.shape):
        return eager  # of nothing there is nothing to compute, and PyTorch's CPU kernel dies of it
    return KERNELS[choose(q, k, mask, dropout).kernel if kernel == "auto" else kernel]


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def check_kernel(kernel: str) -> None:
    """Raise ValueError for a name that is no kernel."""
    if kernel != "auto" and kernel not in KERNELS:
        names = ", ".join(f'"{name}"' for name in ("auto", *KERNELS))
        raise ValueError(f"kernel must be one of {names}, got {kernel!r}.")
