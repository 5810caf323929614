"""Measure the page that runs the English model, in Chromium: milliseconds from a key to the view.

Two cases per length: a text that is new to the page, and one more word at its end, for which the
page reuses what it computed before. The time ends when the page has drawn everything; "engine" is
the part that the forward pass takes. Equality first: the most likely next words are compared with
PyTorch.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch

from benchmarks import command
from benchmarks.command import Say, option, positive
from clearhead.explainer.play_page import play_html
from clearhead.models import load

_TOLERANCE = 1e-3  # of a probability, which the page shows with three decimals
_WORDS = [
    "When",
    "the",
    "rain",
    "had",
    "stopped,",
    "the",
    "old",
    "woman",
    "opened",
    "the",
    "window",
    "and",
    "looked",
    "out",
    "at",
    "the",
    "garden,",
    "where",
    "two",
    "small",
    "birds",
    "were",
    "singing",
    "in",
    "the",
    "tree.",
]
# The entry that the page makes for each answer, as soon as there is one.
_ANSWER = """async () => {
    while (!performance.getEntriesByName("answer").length) await new Promise((done) => setTimeout(done, 5));
    const { duration, detail } = performance.getEntriesByName("answer").at(-1);
    return { whole: duration, ...detail };
}"""  # noqa: E501


@dataclass(frozen=True)
class Settings(command.Settings):
    """Settings of this benchmark. It runs on the CPU, in float32."""

    rounds: int = option(20, "Texts per length.", type=positive)
    tokens: tuple[int, ...] = option((16, 64, 128), "Lengths in tokens.", type=positive)

    def quick(self) -> Self:
        """One short text."""
        return replace(self, rounds=1, tokens=(8,))

    def check(self) -> None:
        """Refuse what is not supported."""
        if (self.device, self.dtype) != ("cpu", "float32"):
            raise ValueError("--device, --dtype: only cpu and float32 are supported here.")


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Open the page in Chromium, type, and read the times that it measured."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    found = command.header("play", settings)
    model, tokenizer = load("english")
    html = play_html("english")
    found["bytes"] = len(html)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "play.html"
        file.write_text(html, encoding="ascii")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        found["chromium"] = browser.version
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        ready = "() => performance.getEntriesByName('ready')[0].startTime"
        found["ready_ms"] = round(page.evaluate(ready))
        found["cases"] = []

        def type_in(text: str) -> dict[str, float]:
            page.evaluate("() => performance.clearMeasures('answer')")
            page.fill("#text", text)
            answer: dict[str, float] = page.evaluate(_ANSWER)
            return answer

        for tokens in settings.tokens:
            say(f"{tokens} tokens")
            new, more = [], []
            for turn in range(settings.rounds):
                text = _text(tokenizer, tokens, turn)
                new.append(type_in(text))
                if turn == 0:
                    shown = page.locator(".next-words .amount").all_inner_texts()
                    _check(model, tokenizer.encode(text), [float(share) for share in shown])
                more.append(type_in(text + " and"))
            assert all(answer["tokens"] == tokens for answer in new)
            found["cases"].append(
                {"tokens": tokens, "new text": _times(new), "one more word": _times(more)}
            )
        browser.close()
    return found


def _text(tokenizer: Any, tokens: int, turn: int) -> str:
    """A text with so many tokens that no other turn begins with."""
    words = [*_WORDS[turn % len(_WORDS) :], *_WORDS * (tokens // 8)]
    ids: list[int] = tokenizer.encode(f"{turn} " + " ".join(words))[:tokens]
    text: str = tokenizer.decode(ids)
    return text


def _check(model: Any, ids: list[int], shown: list[float]) -> None:
    with torch.no_grad():
        shares = torch.softmax(model(torch.tensor([ids]))[0, -1], dim=-1).topk(len(shown)).values
    gap = (shares - torch.tensor(shown)).abs().max().item()
    if not gap <= _TOLERANCE:
        raise RuntimeError(f"a probability differs by {gap:.1e}: nothing is timed.")


def _times(answers: list[dict[str, float]]) -> dict[str, Any]:
    """The times in milliseconds; the computed tokens of the first answer."""

    def of(name: str) -> dict[str, float]:
        times = sorted(answer[name] for answer in answers)
        return {
            "median": round(median(times), 1),
            "p95": round(times[int(len(times) * 0.95)], 1),
            "least": round(times[0], 1),
        }

    return {"computed": answers[0]["computed"], "whole_ms": of("whole"), "engine_ms": of("engine")}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The results as text."""
    yield f"{found['bytes'] / 1e6:.1f} MB, ready after {found['ready_ms']} ms"
    for case in found["cases"]:
        for name in ("new text", "one more word"):
            whole, engine = case[name]["whole_ms"], case[name]["engine_ms"]
            yield (
                f"{case['tokens']:4} tokens, {name:13}  median {whole['median']:6} ms, "
                f"least {whole['least']:6} ms; engine {engine['median']:6} ms"
            )


main = partial(command.main, "play", Settings, measure, lines, __doc__, "--rounds 20")

if __name__ == "__main__":
    main()
