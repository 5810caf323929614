"""Take the picture of the viewer that the documentation shows: a made-up map of 4,096 tokens.

python tests/browser/view_screenshot.py [FOLDER]     (docs/images by default)
"""

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

import clearhead
import view_cases

FOLDER = Path(__file__).parents[2] / "docs" / "images"
TOKENS = 4096


def take(browser: Browser, folder: Path) -> None:
    """Write the picture into a folder."""
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
    names = ("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=next(filter(None, map(shutil.which, names))),
            args=[] if os.getuid() else ["--no-sandbox"],
        )
        take(opened, Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
        opened.close()
