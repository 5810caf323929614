"""Logits -> the next token: the likeliest one, or one drawn by chance.

A draw needs a single random number u in [0, 1) for each token: walk along the probabilities, sum
them up, and take the token at which the sum passes u. The numbers are drawn on the CPU, before the
first step. So the same seed means the same numbers on every device, with a cache or without one. A
seed has a generator of its own, and no other random numbers of the program are touched; without one
it is torch's, which `torch.manual_seed` sets.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Args:
        temperature: What the logits are divided by before softmax: below 1 the likely tokens
            become likelier, above 1 all become more alike. None: no chance, the likeliest token.
        top_k: Draw among this many likeliest tokens only.
        top_p: Draw among the fewest likeliest tokens whose probabilities sum to at least this.
        seed: Of the draws; None: torch's own random numbers, another text each time.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    @staticmethod
    def read(
        temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
    ) -> Sampling:
        """The settings as a user gives them, checked: top_k or top_p alone mean temperature 1."""
        if temperature is not None and not (
            isinstance(temperature, numbers.Real) and 0 < temperature < math.inf
        ):
            hint = "\n  For the likeliest token at each step leave it out." * (temperature == 0)
            raise ValueError(f"temperature: expected a positive number, got {temperature!r}.{hint}")
        if top_k is not None and (
            isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1
        ):
            raise ValueError(f"top_k: expected a whole number of at least 1, got {top_k!r}.")
        if top_p is not None and not (isinstance(top_p, numbers.Real) and 0 < top_p <= 1):
            hint = ""
            if isinstance(top_p, numbers.Real) and 1 < top_p <= 100:
                hint = f"\n  A percentage? {top_p} % is {top_p / 100:g}."
            raise ValueError(
                f"top_p: expected a probability above 0 and up to 1, got {top_p!r}.{hint}"
            )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed: expected a whole number, got {seed!r}.")
        if seed is not None and not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed: expected a number of 64 bits, up to 2**64 - 1, got {seed}.")
        chance = temperature is not None or top_k is not None or top_p is not None
        if not chance and seed is not None:
            raise ValueError(
                f"seed={seed} changes nothing: the likeliest token is taken at each step.\n"
                "  To draw tokens by chance, give a temperature (1.0: as the model says), "
                "top_k or top_p."
            )
        if not chance:
            return Sampling()
        return Sampling(1.0 if temperature is None else float(temperature), top_k, top_p, seed)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without chance."""
        return self.temperature is None

    def draws(self, steps: int, batch: int) -> Float[Tensor, "steps batch"] | None:
        """The random numbers of all steps, on the CPU; None where no chance is involved."""
        if self.greedy:
            return None
        own = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        return torch.rand(steps, batch, generator=own, device="cpu")

    def pick(
        self,
        logits: Float[Tensor, "batch vocab_size"],
        draw: Float[Tensor, " batch"] | None,
    ) -> Int[Tensor, " batch"]:
        """The next token of each row. No synchronisation: it can be captured into a graph."""
        if self.temperature is None or draw is None:
            return logits.argmax(-1)
        # In float64: the sum of 50,000 small numbers must not lose the smallest of them.
        if self.top_k is None and self.top_p is None:
            return _walk((logits.double() / self.temperature).softmax(-1), draw)
        most = logits.shape[-1] if self.top_k is None else min(self.top_k, logits.shape[-1])
        likeliest, order = logits.topk(most, dim=-1)  # (batch, vocab_size) -> (batch, most)
        likeliest = likeliest.double() / self.temperature
        probabilities = likeliest.softmax(-1)
        if self.top_p is not None:
            before = probabilities.cumsum(-1) - probabilities
            probabilities = probabilities.masked_fill(before >= self.top_p, 0.0)
        return order.gather(-1, _walk(probabilities, draw)[:, None])[:, 0]


def _walk(
    weights: Float[Tensor, "batch choices"], draw: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """The first choice at which the sum of the weights passes `draw` of the whole."""
    passed = weights.cumsum(-1)
    # A draw has 24 bits and is below 1, so that this product is below the whole in float64.
    goal = draw.double()[:, None] * passed[:, -1:]
    return torch.searchsorted(passed, goal, right=True)[:, 0].clamp(max=weights.shape[-1] - 1)


def is_bad(logits: Float[Tensor, "batch vocab_size"]) -> bool:
    """Whether some row has NaN, plus infinity or nothing but minus infinity in it."""
    return not bool(logits.amax(-1).isfinite().all())


def refuse_bad(step: int, *, late: bool = False) -> None:
    """Raise the error for logits that no token can be chosen from.

    Args:
        step: At which step, counted from 0.
        late: Whether it was noticed a few steps later.
    """
    where = f"new token {step + 1}" + " or soon after" * late
    raise ValueError(
        f"logits: NaN or infinite numbers came out of the model at {where}.\n"
        "  Are there NaN weights? Look with: "
        "[name for name, p in model.named_parameters() if not p.isfinite().all()]\n"
        "  In float16 large values overflow: bfloat16 or float32 do not."
    )
