"""(q, k, v, mask) -> context: the same function in several speeds.

    eager    a few readable lines that build queries × keys; any device, any derivative
    sdpa     `torch.nn.functional.scaled_dot_product_attention`, PyTorch's fused kernels
    blocked  our own: a block of queries at a time, memory O(tokens), also with dropout

`attend(..., kernel="auto")` chooses; `choose` says what and why. A kernel named explicitly runs or
raises with the reason. A query with nothing to attend to gets zeros from all, and no gradient.
"""

from types import ModuleType
from typing import Literal, NamedTuple, cast

from jaxtyping import Float
from torch import Tensor

from clearhead.kernels import blocked, eager, sdpa
from clearhead.masks import Mask

Kernel = Literal["auto", "eager", "sdpa", "blocked"]
KERNELS: dict[str, ModuleType] = {"eager": eager, "sdpa": sdpa, "blocked": blocked}

# A mask that SDPA cannot be told in words is built as queries × keys: up to this many cells.
_SMALL_MASK = {"cpu": 2**16, "cuda": 2**26}


class Choice(NamedTuple):
    """The kernel that `kernel="auto"` takes, and why.

    The reasons hold no sizes: writing one into text would compile a graph for each length.
    """

    kernel: str
    reason: str


def choose(q: Tensor, k: Tensor, mask: Mask | None = None, dropout: float = 0.0) -> Choice:
    """What `kernel="auto"` runs for these inputs, from shapes and device alone."""
    if dropout > 0 and q.device.type == "cpu":
        return Choice(
            "blocked", "with dropout PyTorch's CPU kernel builds queries × keys; blocked does not"
        )
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
    if kernel == "auto":
        kernel = cast(Kernel, choose(q, k, mask, dropout).kernel)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    context: Tensor = KERNELS[kernel].attend(q, k, v, mask, scale, dropout)
    return context


def check_kernel(kernel: str) -> None:
    """Raise ValueError for a name that is no kernel."""
    if kernel != "auto" and kernel not in KERNELS:
        names = ", ".join(f'"{name}"' for name in ("auto", *KERNELS))
        raise ValueError(f"kernel must be one of {names}, got {kernel!r}.")
