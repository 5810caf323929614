"""Attention kernels: q, k, v and a mask -> the context vectors. Start reading at `attend`.

    eager    a few readable lines that build queries × keys; any device, any derivative
    sdpa     `torch.nn.functional.scaled_dot_product_attention`, PyTorch's fused kernels
    blocked  our own: a block of queries at a time, memory O(tokens), also with dropout

`kernel="auto"` runs the kernel that `choose` returns. A kernel named explicitly runs or raises. In
every kernel, a query that may attend to nothing gets zeros and no gradient.

For statistics of the weights, `scores` computes tiles of scores and `tile_loop` iterates over them.
On CUDA, `triton_statistics` does both at once (its device code is `triton_device`).
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

# SDPA needs most masks as a queries × keys tensor, which is built up to this many cells.
_SMALL_MASK = {"cpu": 2**16, "cuda": 2**26}


class Told(threading.local):
    """The function that intercepts each call of `attend` in this thread; it must call `run`."""

    def __init__(self) -> None:
        self.listener: (
            Callable[[Tensor, Tensor, Mask | None, float | None, Callable[[], Tensor]], Tensor]
            | None
        ) = None


told = Told()


class Choice(NamedTuple):
    """The kernel that `kernel="auto"` runs, and why.

    Reasons contain no sizes: formatting one would make `torch.compile` recompile for each length.
    """

    kernel: str
    reason: str


def choose(
    q: Tensor,
    k: Tensor,
    mask: Mask | None = None,
    dropout: float = 0.0,
    *,
    v: Tensor | None = None,
) -> Choice:
    """Choose the kernel for `kernel="auto"`, from shapes and device but not from values."""
    choice = _fastest(q, k, mask, dropout)
    if choice.kernel == "blocked" and blocked.is_transformed(q, k, v, mask):
        return Choice("sdpa", "torch.func can transform PyTorch's operator, not blocked")
    return choice


def _fastest(q: Tensor, k: Tensor, mask: Mask | None, dropout: float) -> Choice:
    if dropout > 0 and q.device.type == "cpu":
        return Choice(
            "blocked", "with dropout PyTorch's CPU kernel builds queries × keys; blocked does not"
        )
    if torch.compiler.is_exporting():
        return Choice("sdpa", "an exported graph needs one operator for all lengths")
    queries, keys = q.shape[-2], k.shape[-2]
    if sdpa.needs_no_matrix(mask, queries, keys):
        return Choice("sdpa", "PyTorch's fused kernel applies this mask without building it")
    if queries == 1 or queries * keys <= _SMALL_MASK.get(q.device.type, 2**16):
        return Choice("sdpa", "PyTorch's fused kernel; this mask is small enough to build")
    return Choice(
        "blocked", "PyTorch's kernel needs this mask as a queries × keys tensor; blocked does not"
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
    """softmax(q kᵀ scale + mask) v.

    Args:
        q: The queries.
        k: The keys; `heads` must be a multiple of `kv_heads`.
        v: The values.
        mask: Who may attend to whom; None = every query to every key.
        scale: The factor of the scores; 1 / √head_dim by default.
        dropout: The probability of dropping a weight; pass 0 outside training.
        kernel: "auto", or the kernel that must run.
    """
    if has_torch_function((q, k, v)):  # modes get one call, whichever kernel runs
        return handle_torch_function(
            attend, (q, k, v), q, k, v, mask, scale=scale, dropout=dropout, kernel=kernel
        )
    _check_mask(q, k, mask)
    if not torch.compiler.is_compiling() and told.listener is not None:
        return told.listener(q, k, mask, scale, lambda: _run(q, k, v, mask, scale, dropout, kernel))
    return _run(q, k, v, mask, scale, dropout, kernel)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    scale: float | None,
    dropout: float,
    kernel: Kernel,
) -> Tensor:
    chosen = _pick(q, k, v, mask, dropout, kernel)
    context: Tensor = chosen.attend(q, k, v, mask, _scale(q, scale), dropout)
    return context


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
    """As `attend`, plus each row's log-sum-exp if the kernel computes it anyway, else None."""
    _check_mask(q, k, mask)
    context, lse = _pick(q, k, v, mask, dropout, kernel).attend_with_lse(
        q, k, v, mask, _scale(q, scale), dropout
    )
    # In half precision, PyTorch's CPU kernels use a coarse exponential: errors of up to 6e-5.
    coarse = q.device.type == "cpu" and q.dtype in (torch.float16, torch.bfloat16)
    return context, None if coarse else lse


def _check_mask(q: Tensor, k: Tensor, mask: Mask | None) -> None:
    """Refuse a mask of another shape, even if it happens to broadcast."""
    if mask is not None:
        as_mask(mask).check(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _pick(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, dropout: float, kernel: Kernel
) -> ModuleType:
    # Empty inputs return early: PyTorch's CPU kernel crashes on them.
    if not torch.compiler.is_exporting() and 0 in (*q.shape, *k.shape):
        return eager
    return KERNELS[choose(q, k, mask, dropout, v=v).kernel if kernel == "auto" else kernel]


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def check_kernel(kernel: str) -> None:
    """Raise ValueError unless this is the name of a kernel."""
    if kernel != "auto" and kernel not in KERNELS:
        names = ", ".join(f'"{name}"' for name in ("auto", *KERNELS))
        raise ValueError(f"kernel must be one of {names}, got {kernel!r}.")
