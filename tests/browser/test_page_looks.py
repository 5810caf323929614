"""The layout of the page: nothing overlaps or is cut, it is accessible, and no string does harm."""

import dataclasses
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import page_cases
from clearhead import MultiHeadAttention, trace
from page_layout import LINES, overlaps, serious_faults

VIEWS = ("heads", "matrix", "sentence", "steps")
SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}


@pytest.fixture(scope="module")
def sentence(folder):
    example = page_cases.sentence()
    path = folder / "sentence.html"
    example.trace.save(path, title=example.text, notes=["Untrained: how attention works."])
    return path


@pytest.fixture(scope="module")
def right_to_left(folder):
    path = folder / "rtl.html"
    page_cases.right_to_left().save(path)
    return path


@pytest.mark.parametrize(
    ("name", "screen"),
    [
        ("sentence", "phone"),
        ("model", "phone"),
        ("right_to_left", "desktop"),
        pytest.param("sentence", "desktop", marks=pytest.mark.slow),
        pytest.param("model", "desktop", marks=pytest.mark.slow),
        pytest.param("right_to_left", "phone", marks=pytest.mark.slow),
    ],
)
def test_no_overlap_and_no_cut_text(visit, request, name, screen):
    width, height = SCREENS[screen]
    file = request.getfixturevalue(name)
    seen = visit(file, width=width, height=height, dark=screen == "phone", has_touch=True)
    views = [(view, None) for view in VIEWS if name != "model" or view != "steps"]
    if name != "model":
        views += [("steps", number) for number in ("2", "4a", "4c", "4d", "6")]
    for view, step in views:
        end = f"&step={step}" if step else ""
        seen.page.evaluate("hash => { location.hash = hash }", f"view={view}&query=4&key=3{end}")
        seen.page.wait_for_selector(f"#panel-{view}:not([hidden])")
        found = seen.page.evaluate(LINES)
        where = f"{name}, {screen}, {view} {step or ''}"
        assert found["cut"] == [], where
        assert not found["wide"], f"{where}: the page is wider than the screen"
        assert overlaps(found["lines"]) == [], where
        assert len(found["lines"]) > 10
    assert seen.complaints == []


def test_the_finder_of_overlaps_finds_them(visit, sentence):
    seen = visit(sentence, "view=steps")
    seen.page.evaluate(
        """() => {
            document.querySelector("#subtitle").style.marginTop = "-24px";
            document.querySelector(".explain").style.whiteSpace = "nowrap";
        }"""
    )
    found = seen.page.evaluate(LINES)
    assert overlaps(found["lines"])
    assert found["cut"] or found["wide"]


@pytest.mark.parametrize(
    "dark", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["dark", "light"]
)
def test_axe_finds_no_serious_fault(visit, sentence, dark):
    seen = visit(sentence, "view=heads", dark=dark)
    for view in VIEWS:
        seen.page.evaluate(
            "hash => { location.hash = hash }", f"view={view}&query=2&show=several&several=0.1"
        )
        seen.page.wait_for_selector(f"#panel-{view}:not([hidden])")
        assert serious_faults(seen.page) == [], view
    seen.page.keyboard.press("?")
    assert serious_faults(seen.page) == []


def test_light_and_dark_are_different_and_can_be_switched(visit, sentence):
    back = "() => getComputedStyle(document.documentElement).backgroundColor"
    light, dark = visit(sentence).page, visit(sentence, dark=True).page
    assert light.evaluate(back) != dark.evaluate(back)
    light.get_by_role("button", name="Switch between light and dark").click()
    assert light.evaluate(back) == dark.evaluate(back)


def test_the_scale_has_the_colours_of_python(visit, sentence, same_scale):
    same_scale(visit(sentence, "view=matrix").page, "canvas.bar")


def test_right_to_left_and_long_tokens(visit, right_to_left):
    page = visit(right_to_left, "view=sentence&query=6").page
    line = page.locator("#panel-sentence .tokens")
    assert line.get_attribute("dir") == "rtl"
    first, second = (line.locator(".token").nth(i).bounding_box()["x"] for i in (0, 1))
    assert first > second
    assert line.locator(".token").nth(4).locator(".word").inner_text().endswith("…")
    line.locator(".token").first.focus()
    page.keyboard.press("ArrowLeft")  # forwards, because the text runs to the left
    assert "query=1" in page.url


def test_white_space_and_control_characters_can_be_seen(visit, folder):
    tokens = [" the", "\n", "\t", "", "a\u202eb", "\x1b[31m", "é"]
    module = MultiHeadAttention(6, 6, 16, 0.0, num_heads=1)
    trace(module, torch.randn(1, 7, 6), tokens=tokens).save(folder / "control.html")
    page = visit(folder / "control.html", "view=sentence").page
    shown = page.locator("#panel-sentence .token .word").all_inner_texts()
    assert shown == ["␣the", r"\n", r"\t", "(empty)", r"a\u202eb", r"\x1b[31m", "é"]


def test_hostile_strings_do_nothing(visit, folder):
    strings = page_cases.hostile()
    assert len(strings) > 200
    blank = folder / "blank.html"
    blank.write_text("<!doctype html><title>blank</title>")
    names = "() => Object.getOwnPropertyNames(window).sort()"
    usual = visit(blank.as_uri()).page.evaluate(names)

    module = MultiHeadAttention(4, 4, 512, 0.0, num_heads=2)
    made = trace(module, torch.randn(1, len(strings), 4), tokens=strings)
    page = made.page(title=strings[0] * 2, notes=strings[:40])
    layer = dataclasses.replace(page.layers[0], name=strings[1])
    file = folder / "hostile.html"
    file.write_text(dataclasses.replace(page, layers=(layer, layer)).html())

    seen = visit(file, "view=heads")
    view = seen.page
    inside = "img, iframe, object, embed, link, base, form, math, audio, video, animate"
    for name in VIEWS:
        view.click(f"#tab-{name}")
        if name == "matrix":
            view.locator("canvas.over").focus()
            for _ in range(12):
                view.keyboard.press("ArrowDown")
        if name == "sentence":
            for i in (0, 57):
                view.locator("#panel-sentence .token").nth(i).hover()
        if name == "steps":
            for _ in made.steps:
                view.keyboard.press("n")
        assert view.evaluate("s => document.querySelectorAll(s).length", inside) == 0
        with view.expect_download() as saved:
            view.keyboard.press("s")
        picture = ElementTree.parse(saved.value.path())
        assert not {each.tag.rpartition("}")[2] for each in picture.iter()} - {
            *("svg", "defs", "pattern", "rect", "path", "text", "image", "g")
        }
    scripts = "() => [...document.scripts].map((s) => s.type).sort()"
    assert view.evaluate(scripts) == ["", "application/json", *["application/octet-stream"] * 3]
    assert view.evaluate("() => window.hacked") is None
    assert view.evaluate(names) == usual
    assert seen.complaints == []
    assert seen.requests == []


@pytest.mark.slow
def test_the_screenshots_for_the_readme(browser, tmp_path):
    script = Path(__file__).with_name("screenshots.py")
    runpy.run_path(str(script))["take_page"](browser, tmp_path)
    pictures = sorted(tmp_path.iterdir())
    assert [each.name for each in pictures] == ["page-matrix.png", "page-steps.png"]
    assert all(20_000 < each.stat().st_size < 200_000 for each in pictures)
