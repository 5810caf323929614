"""Copy the best seed of a `clearhead train` run into the package, with its card.

    clearhead train --seeds 3 --out run
    python tools/ship_grammar_model.py run --cpu-seconds 159 160 168

The model card names every seed, not only the best. Without a run, the card's text is written again
from its JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors

from clearhead.lab.grammar_training import GrammarSettings
from clearhead.lab.seed_runs import HEADS, best_seed, judge_seed
from clearhead.models.trained_model import MODEL

FOLDER = Path(__file__).parents[1] / "src" / "clearhead" / "models" / "grammar"
CHOSEN = (
    "the best of three seeds: it meets most of the criteria below and, among those that do, has "
    "the lowest loss"
)


def make_card(run: Path, cpu_seconds: Sequence[float]) -> dict[str, Any]:
    """The content of the card, from the files of a run with one seed per entry of `cpu_seconds`."""
    seeds = []
    for seed, seconds in enumerate(cpu_seconds):
        with safetensors.safe_open(run / f"seed-{seed}" / MODEL, framework="pt") as file:
            last = json.loads(file.metadata()["clearhead.lab"])["last_look"]
        criteria = [asdict(each) for each in judge_seed(run, seed)]
        told = {"loss": last["loss"], "floor": last["floor"], "cpu_seconds": seconds}
        seeds.append({**told, "seed": seed, "bars": criteria})
    best = best_seed(run, {each["seed"]: each["loss"] for each in seeds})
    settings = asdict(GrammarSettings(seed=best))
    common = {"schema": 1, "seed": best, "chosen": CHOSEN, "settings": settings}
    return {**common, "bars": seeds[best]["bars"], "seeds": seeds}


def card_text(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    settings = card["settings"]
    lines = [
        "# The grammar model",
        "",
        f"A GPT-2 with {settings['num_layers']} layers, {settings['num_heads']} heads, d_model "
        f"{settings['d_model']}, rotary positions and whole words as tokens.",
        "It was trained only on sentences of a small grammar (`clearhead.lab.grammar`, about 260 "
        "words). It is meant for studying attention, not for writing.",
        "",
        f"This is seed {card['seed']}, {card['chosen']}. Which head does what changes with the "
        "seed, and so does what a single head does alone.",
        "",
        f"Trained for {settings['steps']} steps of {settings['batch']} rows × "
        f"{settings['tokens']} tokens with AdamW, learning rate {settings['learning_rate']}, "
        "in float32 on the CPU. To reproduce it: `clearhead train --seeds 3`. Another machine "
        "or another number of threads gives other last digits.",
        "",
        "Loss and floor are in nats per token, on new sentences. The floor is the entropy of the "
        "grammar: no model can have a lower loss.",
        "",
        "| seed | loss | floor | CPU seconds | criteria met |",
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
    lines += [f"| criterion | required | {numbers} |", "|---|---|" + "---|" * len(card["seeds"])]
    for index, bar in enumerate(card["bars"]):
        values = [f"{seed['bars'][index]['value']:,.2f}" for seed in card["seeds"]]
        lines.append(f"| {bar['what']} | {bar['least']:,g} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the command line and write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, nargs="?", help="the folder of `clearhead train`")
    parser.add_argument("--cpu-seconds", type=float, nargs="+", help="what each seed took")
    given = parser.parse_args()
    if given.run is None:
        card = json.loads((FOLDER / "card.json").read_text(encoding="utf-8"))
    else:
        card = make_card(given.run, given.cpu_seconds)
        for name in (MODEL, HEADS):
            source = given.run / f"seed-{card['seed']}" / name
            (FOLDER / name).write_bytes(source.read_bytes())
        text = json.dumps(card, indent=1) + "\n"
        (FOLDER / "card.json").write_text(text, encoding="utf-8")
    (FOLDER / "card.md").write_text(card_text(card), encoding="utf-8")


if __name__ == "__main__":
    main()
