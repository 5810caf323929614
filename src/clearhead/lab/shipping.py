"""The model that is shipped: how it was chosen, its figures, and the card that says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from clearhead.lab.head_report import HeadReport
from clearhead.models.shipped_models import shipped_file
from clearhead.models.trained_model import MODEL
from clearhead.training.loop import Settings
from clearhead.training.runs import HEADS, best_seed, parse_report, reached

CHOSEN = (
    "the best of three seeds: the one that reaches most of the bars below and, of these, the one "
    "with the least loss"
)


def data_file(name: str) -> Traversable:
    """A file of the lab's package data."""
    return shipped_file(name)


def shipped_report() -> HeadReport:
    """What the heads of the shipped model do, as it was measured when it was chosen."""
    return parse_report(data_file(HEADS).read_text(encoding="utf-8"))


def ship(out: Path, folder: Path, seeds: Mapping[int, Mapping[str, Any]]) -> None:
    """Copy the best seed of a run to the package's data, with its figures and its card.

    Args:
        out: Where `clearhead train` wrote.
        folder: Where the package keeps its data.
        seeds: What the card says of each seed; among it "loss" and "floor".
    """
    best = best_seed(out, {seed: float(told["loss"]) for seed, told in seeds.items()})
    for name in (MODEL, HEADS):
        (folder / name).write_bytes((out / f"seed-{best}" / name).read_bytes())
    card = {
        "schema": 1,
        "seed": best,
        "chosen": CHOSEN,
        "settings": asdict(Settings(seed=best)),
        "bars": [asdict(bar) for bar in reached(out, best)],
        "seeds": [
            {**seeds[seed], "seed": seed, "bars": [asdict(bar) for bar in reached(out, seed)]}
            for seed in seeds
        ],
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (folder / "card.md").write_text(card_text(card), encoding="utf-8")


def card_text(card: Mapping[str, Any]) -> str:
    """The card in words."""
    settings = card["settings"]
    lines = [
        "# The lab's model",
        "",
        f"A GPT-2 of Clearhead's own parts: {settings['num_layers']} layers, "
        f"{settings['num_heads']} heads, d_model {settings['d_model']}, rotary positions, "
        "whole words as tokens.",
        "It has read only sentences of the lab's grammar (`clearhead.lab.grammar`, some 260 "
        "words), and is for looking at attention, not for writing.",
        "",
        f"This is seed {card['seed']}, {card['chosen']}. Where a head stands changes with the "
        "seed, and so does what a single head does alone.",
        "",
        f"Trained for {settings['steps']} steps of {settings['batch']} rows × "
        f"{settings['tokens']} tokens with AdamW, learning rate {settings['learning_rate']}, "
        "in float32 on the CPU. To make it again: `clearhead train --seeds 3`. Another machine "
        "or another number of threads gives other last digits.",
        "",
        "Loss and floor are nats a token on fresh sentences; the floor is the grammar's own "
        "entropy, below which no model can come.",
        "",
        "| seed | loss | floor | CPU seconds | bars reached |",
        "|---|---|---|---|---|",
    ]
    for seed in card["seeds"]:
        count = sum(bar["reached"] for bar in seed["bars"])
        lines.append(
            f"| {seed['seed']} | {seed['loss']:.4f} | {seed['floor']:.4f} | "
            f"{seed['cpu_seconds']:.0f} | {count} of {len(seed['bars'])} |"
        )
    lines += ["", "Measured on sentences with held-out pairs of words, by seed:", ""]
    numbers = " | ".join(f"seed {seed['seed']}" for seed in card["seeds"])
    lines += [f"| bar | asked | {numbers} |", "|---|---|" + "---|" * len(card["seeds"])]
    for place, bar in enumerate(card["bars"]):
        values = [f"{seed['bars'][place]['value']:,.2f}" for seed in card["seeds"]]
        lines.append(f"| {bar['what']} | {bar['least']:,g} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"
