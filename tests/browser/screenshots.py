"""Take the screenshots of the page and the viewer for the README and the documentation.

python tests/browser/screenshots.py [FOLDER]     (docs/images by default)
"""

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

import chromium
import clearhead
from clearhead.checker.classroom import check_command as runner
from clearhead.explainer.examples import model_example
from clearhead.explainer.play_page import play_html
from clearhead.explainer.presentation import save
from clearhead.models import find_model
from clearhead.watcher.one_text import see

FOLDER = Path(__file__).parents[2] / "docs" / "images"
TOUR = Path(__file__).parents[2] / "docs" / "tour-teacher.md"
PICTURES = {
    "page-steps.png": ("view=steps&query=4&key=1&step=4c", "light", (1280, 900)),
    "page-matrix.png": ("view=matrix&query=5&key=2", "dark", (1280, 800)),
}
FILM = (
    "Anna has a",
    "Anna has a red ball.",
    "Anna has a red ball. Tom has a",
    "Anna has a red ball. Tom has a blue ball.",
    "Anna has a red ball. Tom has a blue ball. Anna",
    "Anna has a red ball. Tom has a blue ball. Anna has a",
)
# Two stories that share words and sentences, as long as the English model reads.
STORY = (
    "Anna lived in a small house near the river. Every morning she opened the window, looked "
    "at the water and counted the boats. One day a red boat stopped in front of the house, "
    "and a man with a black hat asked her for some bread. Anna gave him a piece of bread and "
    "a cup of milk. The man thanked her and went away. The next morning, when Anna opened the"
    " window and looked at the water, there was a letter on the table. It said: thank you for"
    " the bread and the milk. Tom lived in a large house near the forest. Every morning he "
    "opened the door, looked at the trees and counted the birds. One day a blue bird stopped "
    "in front of the house, and asked him for some bread. Tom gave it a piece of bread and a "
    "cup of water. The bird thanked him and went away. The next morning, when Tom opened the "
    "door and looked at the trees, there was a letter on the table. It said: thank you for "
    "the bread and the water."
)


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


def take_play(browser: Browser, folder: Path) -> None:
    """Write the screenshot of the page that runs the English model to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as parent:
        file = Path(parent) / "play.html"
        file.write_text(play_html("english"))
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1)
        page.goto(f"{file.as_uri()}#theme=light")
        page.wait_for_selector("html[data-ready=yes]")
        page.wait_for_timeout(200)
        page.screenshot(path=folder / "play.png")
        page.close()


def take_film(browser: Browser, folder: Path) -> None:
    """Write an animation of the page: a text is typed, then the scaling is switched off."""
    frames, milliseconds = [], []
    with tempfile.TemporaryDirectory() as parent:
        file = Path(parent) / "play.html"
        file.write_text(play_html("english"))
        page = browser.new_page(viewport={"width": 1280, "height": 760}, device_scale_factor=1)

        def keep(duration: int) -> None:
            page.wait_for_timeout(1000)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            small = picture.resize((960, 570), Image.Resampling.LANCZOS)
            frames.append(small.quantize(96, dither=Image.Dither.NONE))
            milliseconds.append(duration)

        page.goto(f"{file.as_uri()}#theme=light&layer=5&head=2&text=Anna")
        page.wait_for_selector("html[data-ready=yes]")
        for text in FILM:
            page.get_by_role("textbox").first.fill(text)
            keep(3000 if text == FILM[-1] else 500)
        page.get_by_role("tab", name="What if").click()
        keep(1500)
        page.get_by_role("button", name="nothing").click()
        keep(3000)
        page.close()
    first, *others = frames
    first.save(
        folder / "play.gif", save_all=True, append_images=others, duration=milliseconds, loop=0
    )


def take_viewer(browser: Browser, folder: Path) -> None:
    """Write the screenshot of the viewer, with the English model, to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded = find_model("english")
    reading = loaded.read(STORY)
    ids = reading.tensor(loaded.longest)
    labels = reading.labels[: ids.shape[1]]
    seen = see(loaded.network, ids)
    seen.model = loaded.name
    rows = [row for row in seen.heads(ids).rows if row.induction is not None]
    best = max(rows, key=lambda row: row.induction or 0.0)
    layer = list(seen).index(best.layer)
    query = ids.shape[1] - 12
    with clearhead.view(seen, tokens=labels, ids=ids, browser=False, wait=False) as viewer:
        page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=1)
        page.goto(
            f"{viewer.url}#layer={layer}&head={best.head}&query={query}&key={query - 85}&zoom=14"
        )
        page.get_by_text(f"Head {best.head}: ").wait_for(timeout=120_000)
        page.wait_for_selector('#map[data-complete="true"]')
        page.locator("#map").focus()
        page.keyboard.press("Enter")
        page.locator("#row-list button").first.wait_for()
        page.wait_for_timeout(300)
        page.screenshot(path=folder / "view.png")
        page.close()


def take_class_page(browser: Browser, folder: Path) -> None:
    """Write the screenshot of the class page, for the submissions of the teacher tour."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = re.findall(r"^```python\n(.*?)^```", TOUR.read_text("utf-8"), re.M | re.S)
    with tempfile.TemporaryDirectory() as parent, contextlib.chdir(parent):
        exec("\n".join(blocks[:2]), {})  # the submissions and the policy
        outputs = {"csv": Path("marks.csv"), "html": Path("class.html")}
        runner.check("submissions", runner.Options(policy=Path("policy.toml"), seed=0, **outputs))
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1)
        page.goto(f"{Path('class.html').absolute().as_uri()}#theme=light")
        page.screenshot(path=folder / "class-page.png")
        page.close()


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with sync_playwright() as playwright:
        opened = chromium.launch(playwright, chromium.find())
        take_page(opened, chosen)
        take_play(opened, chosen)
        take_film(opened, chosen)
        take_viewer(opened, chosen)
        take_class_page(opened, chosen)
        opened.close()
