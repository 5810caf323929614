"""Take the two pictures of the page that the README shows.

python tests/browser/screenshots.py [FOLDER]     (docs/images by default)
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from clearhead.explaining import build_from_lab, save

FOLDER = Path(__file__).parents[2] / "docs" / "images"
PICTURES = {
    "page-steps.png": ("view=steps&query=4&key=1&head=1&step=4c", "light", (1280, 860)),
    "page-matrix.png": ("view=matrix&query=5&key=2&head=0", "dark", (1280, 800)),
}


def take(browser: Browser, folder: Path) -> None:
    """Write the pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "page.html"
        save(build_from_lab("the cat sat on the mat"), file)
        for name, (fragment, theme, (width, height)) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, device_scale_factor=1
            )
            page.goto(f"{file.as_uri()}#{fragment}&theme={theme}")
            page.wait_for_selector("html[data-ready=yes]")
            page.screenshot(path=folder / name)
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
