"""Logits -> the next token: the most likely one, or a random sample.

A sample needs one random number u in [0, 1) per token: it is the first token at which the
cumulative probability exceeds u. All numbers are drawn on the CPU before the first step, so the
same seed gives the same numbers on every device, with or without a cache. A seed gets its own
generator and leaves torch's global random state alone; without a seed the global one is used.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Args:
        temperature: Divides the logits before softmax: below 1 favours likely tokens, above 1
            flattens the distribution. None always takes the most likely token.
        top_k: Sample from this many most likely tokens only.
        top_p: Sample from the smallest set of most likely tokens whose probabilities sum to at
            least this.
        seed: The seed of the random numbers; None uses torch's global random state.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    @staticmethod
    def read(
        temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
    ) -> Sampling:
        """Check the user's settings; top_k or top_p alone imply temperature 1."""
        if temperature is not None and not (
            isinstance(temperature, numbers.Real) and 0 < temperature < math.inf
        ):
            hint = "\n  For the most likely token at each step, leave it out." * (temperature == 0)
            raise ValueError(f"temperature: expected a positive number, got {temperature!r}.{hint}")
        if top_k is not None and (
            isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1
        ):
            raise ValueError(f"top_k: expected an integer of at least 1, got {top_k!r}.")
        if top_p is not None and not (isinstance(top_p, numbers.Real) and 0 < top_p <= 1):
            hint = ""
            if isinstance(top_p, numbers.Real) and 1 < top_p <= 100:
                hint = f"\n  A percentage? {top_p} % is {top_p / 100:g}."
            raise ValueError(
                f"top_p: expected a probability above 0 and up to 1, got {top_p!r}.{hint}"
            )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed: expected an integer, got {seed!r}.")
        if seed is not None and not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed: expected a 64-bit number, up to 2**64 - 1, got {seed}.")
        if temperature is None and top_k is None and top_p is None:
            if seed is not None:
                raise ValueError(
                    f"seed={seed} has no effect: the most likely token is taken at each step.\n"
                    "  To sample tokens, pass temperature (1.0: the model's own distribution), "
                    "top_k or top_p."
                )
            return Sampling()
        return Sampling(1.0 if temperature is None else float(temperature), top_k, top_p, seed)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature is None

    def draws(self, steps: int, batch: int) -> Float[Tensor, "steps batch"] | None:
        """The random numbers of all steps, on the CPU; None if nothing is sampled."""
        if self.greedy:
            return None
        own = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        return torch.rand(steps, batch, generator=own, device="cpu")

    def pick(
        self,
        logits: Float[Tensor, "batch vocab_size"],
        draw: Float[Tensor, " batch"] | None,
    ) -> Int[Tensor, " batch"]:
        """The next token per row. It never synchronises, so a CUDA graph can capture it."""
        if self.temperature is None or draw is None:
            return logits.argmax(-1)
        # In float64, so that a sum of 50,000 probabilities does not lose the small ones.
        if self.top_k is None and self.top_p is None:
            return _search((logits.double() / self.temperature).softmax(-1), draw)
        most = logits.shape[-1] if self.top_k is None else min(self.top_k, logits.shape[-1])
        top, order = logits.topk(most, dim=-1)  # (batch, vocab_size) -> (batch, most)
        probabilities = (top.double() / self.temperature).softmax(-1)
        if self.top_p is not None:
            before = probabilities.cumsum(-1) - probabilities
            probabilities = probabilities.masked_fill(before >= self.top_p, 0.0)
        return order.gather(-1, _search(probabilities, draw)[:, None])[:, 0]


def _search(
    weights: Float[Tensor, "batch choices"], draw: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """The first choice at which the cumulative weight exceeds `draw` times the total."""
    cumulative = weights.cumsum(-1)
    # A draw has 24 bits and is below 1, so in float64 the product stays below the total.
    goal = draw.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, goal, right=True)[:, 0].clamp(max=weights.shape[-1] - 1)


def is_bad(logits: Float[Tensor, "batch vocab_size"]) -> bool:
    """Whether a row contains NaN or plus infinity, or nothing but minus infinity."""
    return not bool(logits.amax(-1).isfinite().all())


def raise_bad(step: int, *, late: bool = False) -> NoReturn:
    """Raise the error for logits from which no token can be chosen.

    Args:
        step: The step, counted from 0.
        late: Whether it was noticed a few steps later.
    """
    where = f"new token {step + 1}" + " or soon after" * late
    raise ValueError(
        f"logits: expected finite numbers, got NaN or infinity at {where}.\n"
        "  Do the weights contain NaN? Check with: "
        "[name for name, p in model.named_parameters() if not p.isfinite().all()]\n"
        "  In float16 large values overflow; use bfloat16 or float32."
    )
