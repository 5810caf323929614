"""Take the screenshots of the page and the viewer for the README and the documentation.

python tests/browser/screenshots.py [FOLDER]     (docs/images by default)
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

import chromium
import clearhead
import view_cases
from clearhead.explainer.examples import model_example
from clearhead.explainer.presentation import save

FOLDER = Path(__file__).parents[2] / "docs" / "images"
PICTURES = {
    "page-steps.png": ("view=steps&query=4&key=1&head=1&step=4c", "light", (1280, 860)),
    "page-matrix.png": ("view=matrix&query=5&key=2&head=0", "dark", (1280, 800)),
}
TOKENS = 4096


def take_page(browser: Browser, folder: Path) -> None:
    """Write the screenshots of the page to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as parent:
        file = Path(parent) / "page.html"
        save(model_example("the cat sat on the mat"), file)
        for name, (fragment, theme, (width, height)) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, device_scale_factor=1
            )
            page.goto(f"{file.as_uri()}#{fragment}&theme={theme}")
            page.wait_for_selector("html[data-ready=yes]")
            page.screenshot(path=folder / name)
            page.close()


def take_viewer(browser: Browser, folder: Path) -> None:
    """Write the screenshot of the viewer, with an artificial map, to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = view_cases.tokens(TOKENS)
    seen = view_cases.seen(TOKENS, 2, heads=4, head_dim=32)
    ids = view_cases.ids(tokens)
    with clearhead.view(seen, tokens=tokens, ids=ids, browser=False, wait=False) as viewer:
        page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=1)
        page.goto(f"{viewer.url}#head=2&query=2007&key=2000&zoom=14")
        page.get_by_text("Head 3: ").wait_for(timeout=120_000)
        page.wait_for_selector('#map[data-complete="true"]')
        box = page.locator("#map").bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 475, box["y"] + 520)
        page.locator("#row-list button").first.wait_for()
        page.wait_for_timeout(300)
        page.screenshot(path=folder / "view.png")
        page.close()


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with sync_playwright() as playwright:
        opened = chromium.launch(playwright, chromium.find())
        take_page(opened, chosen)
        take_viewer(opened, chosen)
        opened.close()
