"""One palette: the terminal, figures, pages and the viewer have the colours of palette.py."""

import json
import re
from importlib import resources

import pytest

from clearhead import drawing
from clearhead.drawing import palette
from clearhead.drawing.html_page import Page
from clearhead.drawing.page_assets import PageAssets


def build_page() -> str:
    return Page("x", ()).html()


def build_viewer() -> str:
    routes = pytest.importorskip("clearhead.viewer.routes")
    page, _ = routes.build_page("x")
    return page


PAGES = pytest.mark.parametrize("build", [build_page, build_viewer])


@PAGES
def test_both_pages_carry_the_palette(build):
    text = build()
    carried = json.loads(re.search(r"const PALETTE = (.*);", text)[1])
    assert carried == {
        "scale": [list(point) for point in palette.VIRIDIS],
        "decades": palette.DECADES,
        "manyRows": palette.MANY_ROWS,
        "heads": 8,
    }
    themes = [
        (r":root \{", 0),
        (r":root:not\(\[data-theme\]\) \{", 1),
        (r':root\[data-theme="dark"\], :root:target \{', 1),
        (r":root:has\(> body:target\) \{", 0),
    ]
    for selector, theme in themes:
        (rule,) = re.findall(rf"(?:^|>){selector} color-scheme: \w+;(.*) \}}$", text, re.MULTILINE)
        assert dict(re.findall(r"--([\w-]+): (#\w+);", rule)) == {
            name: colours[theme] for name, colours in palette.THEMES.items()
        }


def test_a_changed_colour_reaches_the_page(monkeypatch):
    monkeypatch.setattr(palette, "VIRIDIS", ((1, 2, 3), (251, 252, 253)))
    monkeypatch.setitem(palette.THEMES, "accent", ("#123456", "#abcdef"))
    made = PageAssets(
        "clearhead.drawing", html="page.html", css=("page.css",), scripts=(), sources=""
    ).page({"title": "x", "data": ""})
    assert '"scale": [[1, 2, 3], [251, 252, 253]]' in made
    assert made.count("--accent: #123456;") == 2
    assert made.count("--accent: #abcdef;") == 2
    assert (drawing.shade(0.0), drawing.shade(1.0)) == ("#010203", "#fbfcfd")


@pytest.mark.parametrize("package", ["clearhead.drawing", "clearhead.viewer"])
def test_no_other_file_of_a_page_has_a_colour(package):
    """Only black and white, for text on the colours of the scale."""
    for file in (resources.files(package) / "assets").iterdir():
        text = file.read_text(encoding="ascii")
        text = re.sub(r"&#\d+;", "", text)
        found = set(re.findall(r"(?<![\w&])#[0-9a-fA-F]{3,8}\b", text))
        assert found <= {"#000", "#fff"}, file.name


@PAGES
def test_every_colour_that_a_page_uses_is_in_the_palette(build):
    text = build()
    own = {"tint"}  # set by the script
    used = set(re.findall(r"var\(--([\w-]+)[,)]", text)) - own
    used |= set(re.findall(r'\bink\("([\w-]+)"\)', text))
    assert len(used) > 8
    assert used <= palette.THEMES.keys()
