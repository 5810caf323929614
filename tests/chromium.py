"""The Chromium of this machine: for the tests of pages, and for the documentation's pictures."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """Where it is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def launch(playwright: Playwright, path: str | None) -> Browser:
    """Start it; as root only without its sandbox."""
    sandbox = [] if os.getuid() else ["--no-sandbox"]
    return playwright.chromium.launch(executable_path=path, args=sandbox)
