"""The installed Chromium, for the tests of pages and the images of the documentation."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The path of the installed browser."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def launch(playwright: Playwright, path: str | None) -> Browser:
    """Start the browser. As root, it runs only without its sandbox."""
    sandbox = [] if os.getuid() else ["--no-sandbox"]
    return playwright.chromium.launch(executable_path=path, args=sandbox)
