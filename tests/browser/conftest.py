"""One real Chromium for all tests. The requests and errors of each page are recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import chromium
import page_cases
from clearhead.drawing import shade

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@dataclass
class Visit:
    """An open page, with its requests and errors.

    Attributes:
        page: The page.
        requests: The URLs that it requested, except the first.
        complaints: Messages in the console, errors, dialogs.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = chromium.find()
    if found is None:
        message = f"no Chromium is installed ({', '.join(chromium.NAMES)})"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = chromium.launch(playwright, found)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """visit(path, "view=matrix", width=390, dark=True) opens a file or a URL."""
    contexts = []

    def open_it(
        where: Path | str,
        fragment: str = "",
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        **options: Any,
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        made = Visit(page)

        def dismiss(dialog: Any) -> None:
            made.complaints.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("request", lambda request: made.requests.append(request.url))
        page.on("console", lambda message: made.complaints.append(message.text))
        page.on("pageerror", lambda error: made.complaints.append(str(error)))
        page.on("dialog", dismiss)
        address = where.as_uri() if isinstance(where, Path) else where
        page.goto(f"{address}#{fragment}" if fragment else address)
        if isinstance(where, Path):
            page.wait_for_selector("html[data-ready=yes]")
        del made.requests[:1]
        return made

    yield open_it
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """The page of a small model, all its layers and heads."""
    path = folder / "model.html"
    page_cases.model().save(path, tokens=page_cases.words(40))
    return path


@pytest.fixture
def same_scale() -> Callable[[Page, str], None]:
    """same_scale(page, selector) checks that a canvas shows the colour scale of palette.py."""

    def check(page: Page, selector: str) -> None:
        row = page.locator(selector).evaluate(
            "c => [...c.getContext('2d').getImageData(0, 0, c.width, 1).data]"
        )
        pixels = [tuple(row[i : i + 3]) for i in range(0, len(row), 4)]
        for i, pixel in enumerate(pixels):
            expected = bytes.fromhex(shade(i / (len(pixels) - 1)).removeprefix("#"))
            # The page has 256 steps; half a step changes a channel by at most two.
            assert max(abs(a - b) for a, b in zip(pixel, expected, strict=True)) <= 2, i

    return check
