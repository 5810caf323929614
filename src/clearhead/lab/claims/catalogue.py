"""All claims in the order in which they are shown, and how to run them."""

import difflib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from clearhead import timing
from clearhead.lab.claims import (
    arithmetic_claims,
    cost_claims,
    english_claims,
    figure_claims,
    head_claims,
    mask_claims,
    shape_claims,
    training_claims,
)
from clearhead.lab.claims.claim import Claim

CLAIMS: dict[str, Claim[...]] = {
    value.name: value
    for module in (
        arithmetic_claims,
        figure_claims,
        mask_claims,
        shape_claims,
        cost_claims,
        training_claims,
        head_claims,
        english_claims,
    )
    for value in vars(module).values()
    if isinstance(value, Claim)
}


def find(names: Iterable[str]) -> list[Claim[...]]:
    """The claims with these names.

    Raises:
        ValueError: A name is unknown; the message suggests the closest one.
    """
    found = []
    for name in names:
        if name not in CLAIMS:
            close = difflib.get_close_matches(name, CLAIMS, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ValueError(f"unknown claim {name!r}.{hint}\n  All ids: clearhead claims --list")
        found.append(CLAIMS[name])
    return found


def measure(
    claims: Sequence[Claim[...]],
    *,
    quick: bool = False,
    earlier: Sequence[dict[str, Any]] = (),
    on_start: Callable[[Claim[...]], None] = lambda claim: None,
    on_done: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Run experiments one after the other and return everything as plain data.

    Args:
        claims: The claims to test.
        quick: Use smaller sizes and fewer seeds where an experiment takes long.
        earlier: Entries of an earlier run, which are added to the result.
        on_start: Called before each claim.
        on_done: Called after each claim with everything measured so far.
    """
    found: dict[str, Any] = {
        "schema": timing.SCHEMA,
        "benchmark": "claims",
        **timing.environment(["torch", "clearhead"]),
        "settings": {"quick": quick},
    }
    found["machine"]["threads"] = torch.get_num_threads()
    found["machine"]["device"] = cost_claims.device()
    if cost_claims.device() == "cuda":
        found["machine"]["gpu"] = torch.cuda.get_device_name()
    order = list(CLAIMS)
    entries = [entry for entry in earlier if entry["name"] in CLAIMS]
    for claim in claims:
        on_start(claim)
        entries.append(_entry(claim, quick))
        on_done({**found, "claims": sorted(entries, key=lambda entry: order.index(entry["name"]))})
    return {**found, "claims": sorted(entries, key=lambda entry: order.index(entry["name"]))}


def _entry(claim: Claim[...], quick: bool) -> dict[str, Any]:
    """Run one experiment; what it found, and what it is."""
    started = time.perf_counter()
    finding = claim.run(quick=quick)
    return {
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
