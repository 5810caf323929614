"""Put the best candidate of `tools/train_english.py` into the package, with its card.

    python tools/ship_english_model.py prepared run-1 run-2   # the text, and the candidates
    python tools/ship_english_model.py                        # only card.md again, from card.json

The card names every candidate. The one with the lowest loss is shipped; among those within 0.01
nats of it, the one whose heads are clearest.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from clearhead.gpt2.model import GPT2
from clearhead.lab.minimal_pairs import measure_pairs
from clearhead.lab.text_report import measure_text, rows_of
from clearhead.models import LoadedModel
from clearhead.models.int8_weights import load_int8, save_int8
from clearhead.models.text_readers import BytePairTextReader
from clearhead.models.trained_model import MODEL
from clearhead.tokenizers import BytePairTokenizer
from clearhead.tokenizers.byte_pair_tokenizer import MERGES, VOCABULARY
from clearhead.training.loop import token_loss
from clearhead.training.text_corpus import load_corpus
from clearhead.training.text_task import TextSettings, TextTask
from clearhead.watcher.one_text import see

FOLDER = Path(__file__).parents[1] / "src" / "clearhead" / "models" / "english"
CLOSE = 0.01  # nats per token
SOURCES = (
    ("opening paragraphs of English Wikipedia articles (2015)", 56.5, "CC BY-SA"),
    ("OpenStax textbooks, the editions released under CC BY 4.0", 14.0, "CC BY 4.0"),
    ("chitchat-dataset: casual dialogue", 10.0, "MIT"),
    ("virtual-stories: service dialogues", 6.0, "MIT"),
    ("State of the Union addresses since 1934", 4.0, "public domain"),
    ("Common Voice sentence collection", 2.8, "CC0"),
    ("African Storybook and Pratham children's stories", 1.3, "CC BY"),
)


def summary(model: GPT2, tokenizer: BytePairTokenizer) -> dict[str, float]:
    """The clearest head of each pattern, and the accuracy on minimal pairs."""
    ids = rows_of(tokenizer)
    rows = see(model, ids).heads(ids).rows
    best = {name: max(getattr(row, name) or 0.0 for row in rows) for name in PATTERNS}
    pairs = [pair.accuracy.mean for pair in measure_pairs(model, tokenizer)]
    return {**best, "pairs": sum(pairs) / len(pairs)}


PATTERNS = {
    "previous": "the previous token",
    "induction": "what followed an earlier copy of the token",
    "same_token": "earlier copies of the same token",
    "sink": "the first token",
}


@torch.no_grad()
def own_loss(model: GPT2, tokenizer: BytePairTokenizer) -> float:
    """The loss on our own sentences, in nats per token."""
    ids = rows_of(tokenizer)
    return token_loss(model, ids[:, :-1], ids[:, 1:]).item()


def make_card(prepared: Path, runs: Sequence[Path]) -> dict[str, Any]:
    """Measure all candidates, write the files of the best one, and return the card."""
    tokenizer = BytePairTokenizer(prepared)
    corpus = load_corpus(prepared)
    candidates = []
    for file in (file for run in runs for file in sorted(run.glob("seed-*.json"))):
        made = json.loads(file.read_text(encoding="utf-8"))
        model = GPT2({**made["config"], "dropout": 0.0})
        weights = load_file(file.with_suffix(".safetensors"))
        model.load_state_dict({name: weight.float() for name, weight in weights.items()})
        model.eval()
        heads = summary(model, tokenizer)
        print(file, f"{made['loss']:.4f}", heads, flush=True)
        candidates.append({"made": made, "heads": heads, "model": model})
    lowest = min(each["made"]["loss"] for each in candidates)
    close = [each for each in candidates if each["made"]["loss"] <= lowest + CLOSE]
    best = max(close, key=lambda each: sum(each["heads"].values()))

    settings = TextSettings(**best["made"]["settings"])
    task = TextTask(settings, corpus)
    model = best["model"]
    exact = task.evaluate(model)["loss"]
    save_int8(FOLDER / MODEL, model.config, model.state_dict())
    shipped = load_int8(FOLDER / MODEL)
    loss = task.evaluate(shipped)["loss"]
    if loss >= exact + CLOSE:
        raise SystemExit(f"int8 raises the loss from {exact:.4f} to {loss:.4f}: fewer parameters?")
    for name in (VOCABULARY, MERGES):
        shutil.copyfile(prepared / name, FOLDER / name)
    reader = BytePairTextReader(tokenizer)
    report = measure_text(LoadedModel("the English model", shipped, lambda: reader, "english"))
    text = json.dumps(report.to_json(), allow_nan=False, indent=1)
    (FOLDER / "heads.json").write_text(text + "\n", encoding="utf-8")

    made = best["made"]
    return {
        "schema": 1,
        "seed": settings.seed,
        "chosen": "the lowest loss; among those within 0.01 nats of it, the clearest heads",
        "config": dict(shipped.config),
        "parameters": made["parameters"],
        "bytes": (FOLDER / MODEL).stat().st_size,
        "held_out_loss": loss,
        "held_out_loss_before_int8": exact,
        "bits_per_byte": loss / math.log(2) / corpus.bytes_per_token,
        "bytes_per_token": corpus.bytes_per_token,
        "tokens": len(corpus.train),
        "held_out_tokens": len(corpus.validation),
        "own_sentences": {
            "loss": own_loss(shipped, tokenizer),
            "tokens": report.tokens,
            **summary(shipped, tokenizer),
        },
        "pairs": [asdict(pair) for pair in report.pairs],
        "made": {name: made[name] for name in MADE},
        "seeds": [
            {
                "seed": each["made"]["settings"]["seed"],
                "dropout": each["made"]["settings"]["dropout"],
                "learning_rate": each["made"]["settings"]["learning_rate"],
                "loss": each["made"]["loss"],
                "trained_loss": each["made"]["trained"][-1],
                "steps": each["made"]["steps"],
                **each["heads"],
            }
            for each in candidates
        ],
        "sources": [list(source) for source in SOURCES],
    }


MADE = ("settings", "steps", "seconds", "tokens_seen", "computed_in", "device", "at_once", "torch")


def card_text(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    config, made, own = card["config"], card["made"], card["own_sentences"]
    settings = made["settings"]
    heads = json.loads((FOLDER / "heads.json").read_text(encoding="utf-8"))["heads"]
    lines = [
        "# The English model",
        "",
        f"A GPT-2 with {config['num_layers']} layers, {config['num_heads']} heads, d_model "
        f"{config['d_model']}, a context of {config['context_length']} tokens and "
        f"{card['parameters']:,} parameters: learned positions, pre-norm, GELU, tied output head. "
        f"Its tokens are {config['vocab_size']:,} byte pairs, so it reads any text.",
        "It is meant for looking into: small enough to come with the package and to run in a "
        "browser, and trained on real English, so that its heads do what heads do.",
        "",
        "## Data",
        "",
        f"{sum(size for _, size, _ in card['sources']):.0f} MB of English, "
        f"{card['tokens'] / 1e6:.1f} million tokens of {card['bytes_per_token']:.1f} bytes. One "
        f"document in a hundred ({card['held_out_tokens']:,} tokens) was held out. The text "
        "itself is not distributed with Clearhead.",
        "",
        "| source | MB | licence |",
        "|---|---|---|",
        *(f"| {name} | {size} | {licence} |" for name, size, licence in card["sources"]),
        "",
        "## How it was made",
        "",
        f"{made['steps']:,} steps of {settings['batch']} rows × {settings['tokens']} tokens "
        f"({made['tokens_seen'] / 1e6:,.0f} million tokens, "
        f"{made['tokens_seen'] / card['tokens']:.0f} times the text) in {made['seconds']:.0f} "
        f"seconds on one {made['device']}, {made['at_once']} models at once, in "
        f"{made['computed_in']}, torch {made['torch']}. AdamW, learning rate "
        f"{settings['learning_rate']:g} with a warm-up and a cosine, weight decay "
        f"{settings['weight_decay']:g}, dropout {settings['dropout']:g}. "
        "docs/models.md has the commands.",
        "",
        f"The shipped file holds each matrix in eight bits, with one scale per row: "
        f"{card['bytes'] / 1e6:.1f} MB. That changes the loss from "
        f"{card['held_out_loss_before_int8']:.4f} to {card['held_out_loss']:.4f}.",
        "",
        "## What it reaches",
        "",
        f"Loss on held-out documents: {card['held_out_loss']:.3f} nats per token, "
        f"{card['bits_per_byte']:.3f} bits per byte, measured on "
        f"{settings['held_out_rows'] * settings['tokens']:,} of the tokens held out. Candidates "
        "were compared on the same tokens, so this figure is slightly too good. On sentences that "
        "were written for Clearhead "
        f"(`lab/sentences.txt`, {own['tokens']:,} tokens): {own['loss']:.3f} nats per token.",
        "",
        "Candidates; the loss is on held-out documents, the rest on our own sentences: the largest "
        "weight that a head has on the previous token, on what followed an earlier copy of a "
        "token, on the first token; and the share of minimal pairs that are right.",
        "",
        "| seed | dropout | loss | in training | previous | induction | first | pairs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for seed in card["seeds"]:
        lines.append(
            f"| {seed['seed']} | {seed['dropout']:g} | {seed['loss']:.3f} | "
            f"{seed['trained_loss']:.3f} | {seed['previous']:.2f} | {seed['induction']:.2f} | "
            f"{seed['sink']:.2f} | {seed['pairs']:.2f} |"
        )
    lines += [
        "",
        f"Shipped: seed {card['seed']} with dropout {settings['dropout']:g} ({card['chosen']}). "
        "Which head does what changes with the seed.",
        "",
        "## What its heads do",
        "",
        "The clearest head of each pattern on our own sentences, and the same under uniform "
        "attention. `clearhead heads` measures all of them.",
        "",
        "| weight on | head | weight | chance |",
        "|---|---|---|---|",
    ]
    for name, words in PATTERNS.items():
        best = max(heads, key=lambda row: row[name] or 0.0)
        layer = best["layer"].split(".")[1]
        lines.append(
            f"| {words} | layer {layer}, head {best['head']} | {best[name]:.2f} | "
            f"{best['chance'][name]:.2f} |"
        )
    lines += [
        "",
        "Minimal pairs, such as *The author near the doctors was / were*: how often the right word "
        "gets the higher probability (guessing: 0.50), the head that attends most to the word that "
        "decides (*author*), its weight there beside a uniform share, and the percentage points "
        "lost without it.",
        "",
        "| kind | right | 95 % interval | head | weight | uniform | points lost |",
        "|---|---|---|---|---|---|---|",
    ]
    for pair in card["pairs"]:
        right, lost = pair["accuracy"], pair["lost"]
        lines.append(
            f"| {pair['kind']} | {right['mean']:.2f} | {right['low']:.2f} to {right['high']:.2f} | "
            f"layer {pair['layer'].split('.')[1]}, head {pair['head']} | "
            f"{pair['attention']['mean']:.2f} | {pair['chance']:.2f} | {100 * lost['mean']:.0f} ± "
            f"{50 * (lost['high'] - lost['low']):.0f} |"
        )
    lines += [
        "",
        "## What it cannot do",
        "",
        "It writes fluent phrases and no facts: names, dates and numbers are invented. It knows no "
        "instructions and answers no questions. It reads 256 tokens, about 200 words, and only "
        "English; other languages and code are read as short pieces of bytes. Its data is mostly "
        "encyclopedic, so it repeats the views and gaps of such text. It has no filter. Use it to "
        "study attention, not to write.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the command line and write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prepared", type=Path, nargs="?", help="the folder of the prepared text")
    parser.add_argument("runs", type=Path, nargs="*", help="the folders with the candidates")
    given = parser.parse_args()
    if not given.runs:
        card = json.loads((FOLDER / "card.json").read_text(encoding="utf-8"))
    else:
        card = make_card(given.prepared, given.runs)
        text = json.dumps(card, indent=1) + "\n"
        (FOLDER / "card.json").write_text(text, encoding="utf-8")
    (FOLDER / "card.md").write_text(card_text(card), encoding="utf-8")


if __name__ == "__main__":
    main()
