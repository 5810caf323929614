"""Heatmaps in the terminal: they fit the window and are readable without colour."""

import io

import pytest
import rich.console
import torch

import view_cases
from clearhead import AttentionMap, Mask
from clearhead.drawing import Axis, plain, shade
from clearhead.drawing.heatmap import RAMP, Heatmap, blocks

TOKENS = ["the", "cat", "sat"]


def coloured(renderable, width=80, height=24):
    """The output for a terminal with all colours, as lines of (text, style)."""
    screen = rich.console.Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor",
        _environ={},
    )
    lines = screen.render_lines(renderable, pad=False)
    return [[(piece.text, piece.style) for piece in line if piece.text] for line in lines]


def small():
    torch.manual_seed(5)
    return AttentionMap(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4), Mask.causal())


def test_every_cell_has_the_colour_of_its_weight():
    m = small()
    lines = coloured(m.draw(1, tokens=TOKENS))
    rows = [line for line in lines if line[0][0].split() and line[0][0].split()[0] in TOKENS]
    top = float(m[0, 1].max())
    assert len(rows) == 3
    for i, line in enumerate(rows):
        cells = line[1:]
        assert [text for text, _ in cells] == ["  "] * (i + 1) + ["··"] * (2 - i)
        for j, (_, style) in enumerate(cells[: i + 1]):
            assert style.bgcolor.name == shade(float(m[0, 1, i, j]) / top)


def test_without_colour_the_characters_get_fuller():
    cells = [[0.0, 0.001, 0.5, 1.0, None]]
    m = Heatmap(lambda *_: cells, Axis("row", 1, ["r"]), Axis("column", 5, list("abcde")))
    text = plain(m)
    assert "r    ..++@@··" in text
    assert text.splitlines()[-1] == f"0.00 [{RAMP}] 1.00, · hidden"


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 24), (120, 50), (20, 8)])
@pytest.mark.parametrize("colour", [True, False])
def test_it_fits_the_window(width, height, colour):
    m = view_cases.structured(911, heads=1, head_dim=8)
    if colour:
        lines = ["".join(text for text, _ in line) for line in coloured(m.draw(), width, height)]
    else:
        lines = plain(m.draw(), width=width).splitlines()
    assert max(map(len, lines)) <= width
    if colour:
        assert len(lines) <= max(height, 8)
    assert any("▀" in line for line in lines) == colour


def test_two_rows_share_a_line_in_colour():
    m = view_cases.structured(41, heads=1, head_dim=8)
    lines = coloured(m.draw(), 100, 40)
    rows = [line for line in lines if any("▀" in text for text, _ in line)]
    assert len(rows) == 21
    first = [piece for piece in rows[3][1:] if piece[0] == "▀"]
    weights = m[0, 0]
    _, style = first[4]
    assert style.color.name == shade(float(weights[6, 4] / weights.max()))
    assert style.bgcolor.name == shade(float(weights[7, 4] / weights.max()))


def test_hostile_labels_stay_in_their_place():
    tokens = ["\x1b[31m", "a\nb", "[red]x[/]", "中文", "\u202e", "</b>", ":smile:"]
    m = AttentionMap(torch.randn(1, 1, 7, 4), torch.randn(1, 1, 7, 4))
    text = plain(m.draw(tokens=tokens))
    assert "\x1b" not in text
    assert "\u202e" not in text
    rows = text.splitlines()[-8:-1]
    assert [row.split()[0] for row in rows] == [
        "\\x1b[31m",
        "a\\nb",
        "[red]x[/]",
        "中文",
        "\\u202e",
        "</b>",
        ":smile:",
    ]


def test_there_is_no_such_head():
    with pytest.raises(IndexError, match="head: index 2 is out of range for 2"):
        small().draw(2)


def test_blocks_keep_the_sums_of_rows():
    m = view_cases.structured(47, heads=1, head_dim=8)
    weights = m[0, 0]
    hidden = torch.ones(47, 47).triu(1).bool()
    found = torch.tensor(blocks(weights, hidden)(13, 7))
    by_row, by_col = torch.arange(47) * 13 // 47, torch.arange(47) * 7 // 47
    for i in range(13):
        for j in range(7):
            inside = weights[by_row == i][:, by_col == j]
            if hidden[by_row == i][:, by_col == j].all():
                assert found[i, j].isnan()
            else:
                assert float(found[i, j]) == pytest.approx(float(inside.sum() / len(inside)))
    exact = torch.tensor(blocks(weights, hidden)(47, 47))
    assert torch.equal(exact.isnan(), hidden)
    torch.testing.assert_close(exact[~hidden].float(), weights[~hidden])
