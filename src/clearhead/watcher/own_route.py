"""Clearhead's own `MultiHeadAttention`, whichever kernel it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from clearhead import kernels
from clearhead.masks import Mask
from clearhead.watcher.interception import AttentionCall, intercept, is_active, running
from clearhead.watcher.snapshots import Inputs


@dataclass(kw_only=True)
class OwnCall(AttentionCall):
    """A call of `kernels.attend`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None
    scale: float | None
    kernel: Callable[[Mask | None], Tensor]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        return (*self.q.shape[:3], self.k.shape[2])

    def inputs(self) -> Inputs:
        """What the weights are computed from."""
        return Inputs(self.q, self.k, self.v, self.mask, scale=self.scale)

    def run(self) -> Tensor:
        """Run the kernel, with edits and without blocked edges."""
        mask = self.mask
        if self.blocked is not None:
            keep = Mask.custom(~self.blocked.to(self.q.device))
            mask = keep if mask is None else mask & keep
        context = self.kernel(mask)
        return self.edited(context.transpose(1, 2)).transpose(1, 2) if self.edits else context


@contextmanager
def listening() -> Iterator[None]:
    """Intercept the calls of `kernels.attend` in this context."""
    token = kernels.listener.set(_listen)
    try:
        yield
    finally:
        kernels.listener.reset(token)


def _listen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    scale: float | None,
    kernel: Callable[[Mask | None], Tensor],
) -> Tensor:
    if not is_active():
        return kernel(mask)
    call = OwnCall(modules=running(), q=q, k=k, v=v, mask=mask, scale=scale, kernel=kernel)
    output: Tensor = intercept(call)
    return output
