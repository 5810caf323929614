"""Attention kernels: q, k, v and a mask -> the context vectors. Start reading at `attend`.

    eager    a few readable lines that build queries × keys; any device, any derivative
    sdpa     `torch.nn.functional.scaled_dot_product_attention`, PyTorch's fused kernels
    blocked  our own: a block of queries at a time, memory O(tokens), also with dropout

`kernel="auto"` runs the kernel that `choose` returns. A kernel named explicitly runs or raises. In
every kernel, a query that may attend to nothing gets zeros and no gradient.

For statistics of the weights, `scores` computes tiles of scores and `tile_loop` iterates over them.
On CUDA, `triton_statistics` does both at once (its device code is `triton_device`).
"""

from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from clearhead.kernels import blocked, eager, sdpa
from clearhead.masks import Mask, as_mask

Kernel = Literal["auto", "eager", "sdpa", "blocked"]
KERNELS: dict[str, ModuleType] = {"eager": eager, "sdpa": sdpa, "blocked": blocked}

# Measured: benchmarks/results/kernel-choice-cpu-*.json, `python -m benchmarks.kernel_choice`.
# SDPA needs most masks as a queries × keys tensor, which is built up to this many cells.
_SMALL_MASK = {"cpu": 2**16, "cuda": 2**26}
# With dropout on a CPU, SDPA builds all weights. Up to this many it is the fastest all the same:
# blocked takes 1.8 times as long at 8 × 4 × 32 × 32, as long at 8 × 12 × 128 × 128, and 0.55 times
# as long at 2 × 12 × 1024 × 1024.
_FEW_DROPOUT_WEIGHTS = 2**21
# Training in half precision on a CPU: up to this many weights eager is the fastest. SDPA takes 1.7
# times as long at 8 × 4 × 128 × 128 and 1.1 times at 8 × 12 × 256 × 256.
_FEW_HALF_WEIGHTS = 2**23
_HALF = (torch.float16, torch.bfloat16)


# Intercepts the calls of `attend` in this context. It gets q, k, v, mask, scale and a function that
# runs the kernel with a mask, whose result it returns.
Listener = Callable[
    [Tensor, Tensor, Tensor, Mask | None, float | None, Callable[[Mask | None], Tensor]], Tensor
]
listener: ContextVar[Listener | None] = ContextVar("clearhead_listener", default=None)


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
    if _trains_few_in_half(q, k):
        return Choice(
            "eager",
            "PyTorch's CPU kernel is slow at gradients in half precision; so few weights are "
            "fastest if built",
        )
    queries, keys = q.shape[-2], k.shape[-2]
    if dropout > 0 and q.device.type == "cpu":
        cells = q.shape[0] * q.shape[1] * queries * keys
        if not torch.compiler.is_exporting() and cells <= _FEW_DROPOUT_WEIGHTS:
            return Choice(
                "sdpa",
                "with dropout PyTorch's CPU kernel builds queries × keys; so few are fastest that "
                "way",
            )
        return Choice(
            "blocked", "with dropout PyTorch's CPU kernel builds queries × keys; blocked does not"
        )
    if torch.compiler.is_exporting():
        return Choice("sdpa", "an exported graph needs one operator for all lengths")
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
    growing: bool = False,
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
        growing: Whether more keys may follow, as with a cache. Otherwise no length in
            `Mask.padding` may exceed the number of keys.
    """
    if has_torch_function((q, k, v)):  # modes get one call, whichever kernel runs
        return handle_torch_function(
            attend,
            (q, k, v),
            q,
            k,
            v,
            mask,
            scale=scale,
            dropout=dropout,
            kernel=kernel,
            growing=growing,
        )
    listen = None if torch.compiler.is_compiling() else listener.get()
    if scale is None:
        scale = q.shape[-1] ** -0.5
    queries, keys = q.shape[-2], k.shape[-2]
    plain = mask is None or (isinstance(mask, Mask) and mask.is_start_causal(queries, keys))
    if (
        plain
        and listen is None
        and kernel == "auto"
        and not (dropout or _is_empty(q, k) or _trains_few_in_half(q, k))
    ):
        # Most calls end here. `choose` would choose sdpa too, with more Python.
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=mask is not None, scale=scale, enable_gqa=sdpa.is_grouped(q, k)
        )
    if mask is not None:
        as_mask(mask).check(q.shape[0], q.shape[1], queries, keys, complete=not growing)

    def run(mask: Mask | None) -> Tensor:
        chosen = _pick(q, k, v, mask, dropout, kernel)
        context: Tensor = chosen.attend(q, k, v, mask, scale, dropout)
        return context

    return run(mask) if listen is None else listen(q, k, v, mask, scale, run)


def attend_with_lse(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    kernel: Kernel = "auto",
    growing: bool = False,
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "..."] | None]:
    """As `attend`, plus each row's log-sum-exp if the kernel computes it anyway, else None."""
    if mask is not None:
        sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        as_mask(mask).check(*sizes, complete=not growing)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    chosen = _pick(q, k, v, mask, dropout, kernel)
    context, lse = chosen.attend_with_lse(q, k, v, mask, scale, dropout)
    # In half precision, PyTorch's CPU kernels use a coarse exponential: errors of up to 6e-5.
    coarse = q.device.type == "cpu" and q.dtype in _HALF
    return context, None if coarse else lse


def _pick(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, dropout: float, kernel: Kernel
) -> ModuleType:
    if _is_empty(q, k):
        return eager
    return KERNELS[choose(q, k, mask, dropout, v=v).kernel if kernel == "auto" else kernel]


def _is_empty(q: Tensor, k: Tensor) -> bool:
    """Whether there is nothing to compute: PyTorch's CPU kernel crashes on empty inputs."""
    return not torch.compiler.is_exporting() and not (q.numel() and k.numel())


def _trains_few_in_half(q: Tensor, k: Tensor) -> bool:
    """Whether gradients will be computed, on a CPU, in half precision, of a small input."""
    if not q.requires_grad or q.dtype not in _HALF or q.device.type != "cpu":
        return False
    cells = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return not torch.compiler.is_exporting() and cells <= _FEW_HALF_WEIGHTS


def check_kernel(kernel: str) -> None:
    """Raise ValueError unless this is the name of a kernel."""
    if kernel != "auto" and kernel not in KERNELS:
        names = ", ".join(f'"{name}"' for name in ("auto", *KERNELS))
        raise ValueError(f"kernel must be one of {names}, got {kernel!r}.")
