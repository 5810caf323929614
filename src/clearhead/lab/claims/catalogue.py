"""All claims in the order in which they are shown, and running them."""

import difflib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from clearhead import timing
from clearhead.lab.claims import (
    arithmetic_claims,
    cost_claims,
    figure_claims,
    head_claims,
    mask_claims,
    shape_claims,
    training_claims,
)
from clearhead.lab.claims.claim import Claim

_MODULES = (
    arithmetic_claims,
    figure_claims,
    mask_claims,
    shape_claims,
    cost_claims,
    training_claims,
    head_claims,
)
CLAIMS: dict[str, Claim[...]] = {
    value.name: value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, Claim)
}


def find(names: Iterable[str]) -> list[Claim[...]]:
    """The claims with these names; an unknown one raises ValueError and says what is near it."""
    found = []
    for name in names:
        if name not in CLAIMS:
            close = difflib.get_close_matches(name, CLAIMS, n=1, cutoff=0.4)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ValueError(
                f"no claim is called {name!r}.{hint}\n  All names: clearhead claims --list"
            )
        found.append(CLAIMS[name])
    return found


def measure(
    claims: Sequence[Claim[...]],
    *,
    quick: bool = False,
    on_start: Callable[[Claim[...]], None] = lambda claim: None,
    on_done: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Run these experiments, one after the other; everything as plain data.

    Args:
        claims: Which ones.
        quick: Smaller sizes and fewer seeds, where an experiment takes long.
        on_start: Called before each.
        on_done: Called after each with all that was measured so far.
    """
    found: dict[str, Any] = {
        "schema": timing.SCHEMA,
        "benchmark": "claims",
        **timing.environment(["torch", "clearhead"]),
        "settings": {"quick": quick},
        "claims": [],
    }
    found["machine"]["threads"] = torch.get_num_threads()
    found["machine"]["device"] = cost_claims.device()
    if cost_claims.device() == "cuda":
        found["machine"]["gpu"] = torch.cuda.get_device_name()
    for claim in claims:
        on_start(claim)
        started = time.perf_counter()
        finding = claim.run(quick=quick)
        found["claims"].append(
            {
                "name": claim.name,
                "says": claim.says,
                "verdict": finding.verdict,
                "condition": finding.condition,
                "figure": finding.figure,
                "spread": finding.spread,
                "seeds": claim.seeds,
                "timed": claim.timed,
                "explanation": claim.explanation,
                "file": claim.file,
                "function": claim.experiment.__name__,
                "numbers": finding.numbers,
                "seconds": round(time.perf_counter() - started, 2),
            }
        )
        on_done(found)
    return found
