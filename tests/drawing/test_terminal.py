"""Drawing in a terminal, in a pipe and in a notebook."""

import io
import re

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console, Group
from rich.text import Text

from clearhead import drawing

HOSTILE = ["[red]", "[/]", "\x1b[31m", "a\nb", "\r", "\u202e", "\ud800", ":smile:", "<b>", " cat"]


def colours(renderable, width=80):
    """The output for a terminal with all colours."""
    file = io.StringIO()
    Console(
        file=file, width=width, force_terminal=True, color_system="truecolor", _environ={}
    ).print(renderable)
    return file.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cat", "cat"),
        (" cat ", "␣cat␣"),
        ("two words", "two words"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\t", r"a\nb\t"),
        ("\u202e", r"\u202e"),
        ("\u200b", r"\u200b"),
        ("\ud800", r"\ud800"),
        ("\xa0", r"\xa0"),
        ("猫", "猫"),
        ("", ""),
    ],
)
def test_visible(text, shown):
    assert drawing.visible(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.95442, "0.9544"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (-1e-9, "0.0000"),
        (3, "3"),
    ],
)
def test_number(value, shown):
    assert drawing.number(value) == shown


def test_excerpt_shows_its_index():
    tensor = torch.arange(168).view(2, 3, 4, 7)
    assert drawing.excerpt("keys", tensor, rows=2).splitlines() == [
        "keys[0, 0, :2, :6]",
        "  [ 0,  1,  2,  3,  4,  5, ...]",
        "  [ 7,  8,  9, 10, 11, 12, ...]",
        "  ...",
    ]


def test_hidden_is_not_zero():
    matrix = drawing.Matrix(
        [[1.0, 0.0], [0.0, 1.0]], "ab", "ab", hidden=[[False, True], [False, False]]
    )
    assert drawing.plain(matrix).splitlines()[1:] == ["a  1.00    ·", "b  0.00 1.00"]


def test_matrix_is_split_into_panels_that_fit():
    n = 15
    labels = [f"word{i}" for i in range(n)]
    values = torch.arange(n * n).view(n, n) / 1000
    for width in (30, 80, 200):
        lines = drawing.plain(drawing.Matrix(values, labels, labels), width=width).splitlines()
        assert max(map(cell_len, lines)) <= width
        shown = re.findall(r"\d\.\d\d", "\n".join(lines))
        assert len(shown) == n * n  # no number is lost at the edge
    assert len(lines) == n + 1  # one panel if there is room


def test_matrix_refuses_labels_that_do_not_fit():
    with pytest.raises(ValueError, match=r"values: expected 2 × 3 to fit the labels, got 2 × 2\."):
        drawing.Matrix([[1.0, 2.0], [3.0, 4.0]], "ab", "abc")
    with pytest.raises(ValueError, match=r"hidden: expected 1 × 1 to fit the labels, got 1 × 2\."):
        drawing.Matrix([[1.0]], "a", "a", hidden=[[True, False]])


def test_heat_grows_and_can_be_read():
    """Black or white text on every colour has a contrast of at least 4.5 to 1 (WCAG AA)."""

    def luminance(colour):
        channels = [c / 255 for c in bytes.fromhex(colour.removeprefix("#"))]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lightness = []
    for share in np.linspace(0, 1, 101):
        back = luminance(drawing.shade(float(share)))
        front = luminance(drawing.text_on(float(share)))
        assert (max(back, front) + 0.05) / (min(back, front) + 0.05) >= 4.5, share
        lightness.append(back)
    assert lightness == sorted(lightness)


@pytest.mark.parametrize("no_color", [True, False])
def test_console_respects_no_color(monkeypatch, no_color):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    drawing.console(file, width=60).print(
        Group(Text("bold", style="bold"), drawing.Matrix([[0.1, 0.9]], "a", "ab"))
    )
    assert ("\x1b" not in file.getvalue()) == no_color


@pytest.mark.parametrize("token", HOSTILE)
def test_hostile_labels_print_harmlessly(token):
    drawn = Group(
        drawing.Matrix([[0.5]], [token], [token]),
        drawing.table(["key"], [[drawing.visible(token)]]),
        drawing.Flow("Tokens", [drawing.visible(token)]),
    )
    shown = drawing.plain(drawn)
    # The header, the row, two lines of the table and the flow: nothing vanished or broke a line.
    assert len(shown.splitlines()) == 5
    assert shown.count(drawing.visible(token)) == 4
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e\ud800]", shown)


def test_html_is_escaped_and_coloured(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    page = drawing.html(drawing.Matrix([[0.5]], ["<script>"], ["&"]))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "background-color" in page
    assert page.startswith("<pre")
    assert page.endswith("</pre>")


def test_a_narrow_window_leaves_out_columns_and_cuts_no_number():
    """At 50 columns, numbers were cut: "0.2…"."""
    rows = [["0", "first token", "1.25", "0.99"], ["10", "all", "12.50", "0.01"]]
    made = drawing.FittingTable(
        ["head", "looks at", "entropy", "same"],
        rows,
        left=2,
        drop=[3, 2],
        titles={0: "one", 1: "two"},
        more="--json has all.",
    )
    whole = drawing.plain(made, width=32).splitlines()
    assert whole == [
        "head  looks at     entropy  same",
        "one",
        "0     first token     1.25  0.99",
        "two",
        "10    all            12.50  0.01",
    ]
    assert drawing.plain(made, width=31).splitlines() == [
        "head  looks at     entropy",
        "one",
        "0     first token     1.25",
        "two",
        "10    all            12.50",
        "Too narrow for: same. --json",
        "has all.",
    ]
    narrow = drawing.plain(made, width=20).splitlines()
    assert narrow[2] == "0     first token"
    assert "same" in " ".join(narrow[5:])
