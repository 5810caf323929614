"""The feedback for a student in a real browser: it fits a phone, loads nothing, is accessible."""

from pathlib import Path

import pytest

from clearhead.checker.catalogue import finding
from clearhead.checker.classroom import feedback
from clearhead.checker.report import Form, Report, Step
from page_layout import LINES, overlaps, serious_faults

LONG = "weights = " + " @ ".join(f"projection_number_{i}(x)" for i in range(12))
NAME = "a_student_with_a_long_name/" + "homework_" * 12 + ".py"


def reports() -> list[Report]:
    """A wrong class with steps, one that is right, and one that could not be run."""
    found = (
        finding("missing-scale", "The scale is 1 and should be 0.447.", 25),
        finding("mask-not-a-buffer", "mask " * 60, 7),
    )
    steps = (
        Step(24, LONG, "matmul", (("batch", 2), ("heads", 3), ("tokens", 7), ("tokens", 7))),
        Step(25, LONG, "softmax", (("batch", 2), ("tokens", 7)), remark="not scaled"),
    )
    form = Form(heads=3, head_dim=5, causal="yes")
    how = "built with " + ", ".join(f"argument_{i}={i}" for i in range(20))
    return [
        Report(NAME, "MultiHeadAttention", "wrong", found, form, ("A note.",), "", how, steps),
        Report(NAME, "Head", "correct", (), form, tested="tested against a reference"),
        Report(NAME, "", "error", (finding("cannot-run", "NameError: x\n" * 9, 3),)),
    ]


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, str]:
    """The address of the feedback, and of the same with hints only."""
    made = {}
    for name, hint in (("whole", False), ("hint", True)):
        file = folder / f"{name}.html"
        file.write_text(feedback.html(NAME, reports(), hint=hint), encoding="utf-8")
        made[name] = file.as_uri()
    return made


@pytest.mark.parametrize(
    ("width", "dark", "name"),
    [  # each setting once; other combinations are slow
        (1280, False, "hint"),
        (390, True, "whole"),
        pytest.param(1280, True, "whole", marks=pytest.mark.slow),
        pytest.param(390, False, "hint", marks=pytest.mark.slow),
    ],
)
def test_feedback_fits_loads_nothing_and_is_accessible(visit, pages, width, dark, name):
    seen = visit(pages[name], width=width, dark=dark)
    found = seen.page.evaluate(LINES)
    assert not found["wide"], "the page is wider than the screen"
    assert found["cut"] == []
    assert overlaps(found["lines"]) == []
    assert len(found["lines"]) > 10
    assert serious_faults(seen.page) == []
    assert (seen.requests, seen.complaints) == ([], [])


def test_the_system_or_the_address_chooses_the_theme(visit, pages):
    back = "() => getComputedStyle(document.documentElement).backgroundColor"
    light, dark = (visit(pages["whole"], dark=dark).page.evaluate(back) for dark in (False, True))
    assert light != dark
    page = visit(pages["whole"], "theme=light", dark=True).page
    assert page.evaluate(back) == light
    assert page.evaluate("() => scrollY") == 0


def test_the_link_of_a_finding_leads_to_its_section(visit, pages):
    page = visit(pages["whole"]).page
    page.get_by_role("link", name="what this mistake is").first.click()
    assert page.url.endswith("#missing-scale")
    assert page.locator("h2#missing-scale").is_visible()


def test_a_page_that_is_too_wide_is_noticed(visit, pages):
    page = visit(pages["whole"], width=390).page
    page.evaluate("() => { document.querySelector('.found p').style.whiteSpace = 'nowrap' }")
    found = page.evaluate(LINES)
    assert found["wide"] or found["cut"]
