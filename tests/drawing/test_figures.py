"""Figures: labelled, reproducible byte for byte, with literal text."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

import view_cases
from clearhead import AttentionMap, Mask, MultiHeadAttention, Seen, trace
from clearhead.drawing import Axis, figures, shade
from clearhead.drawing.html_page import TooLarge

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("matplotlib.pyplot")  # sets the attribute `matplotlib.pyplot`
WORDS = ["The", "cat", "sat", "on", "the", "mat"]


@pytest.fixture
def six():
    torch.manual_seed(3)
    return AttentionMap(torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 5), Mask.causal())


def texts(path):
    """All texts of an SVG file."""
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def mesh(axes):
    return axes.collections[0]


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_the_same_map_gives_the_same_bytes(six, tmp_path, suffix):
    names = [tmp_path / f"{i}{suffix}" for i in range(2)]
    for name in names:
        six.save(name, tokens=WORDS)
    first, second = (name.read_bytes() for name in names)
    assert first == second
    assert len(first) > 1000
    assert not re.search(rb"20\d\d-\d\d-\d\d|D:20\d\d", first)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_the_same_bytes_in_another_process(six, tmp_path):
    """Also: matplotlib is imported by the first figure, and not before."""
    six.save(tmp_path / "a.svg", tokens=WORDS)
    script = (
        "import sys, torch; from clearhead import AttentionMap, Mask; torch.manual_seed(3);"
        "assert 'matplotlib' not in sys.modules;"
        "m = AttentionMap(torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 5), Mask.causal());"
        f"m.save({str(tmp_path / 'b.svg')!r}, tokens={WORDS!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONHASHSEED": "7"})
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_cells_are_the_weights_in_the_pages_colours(six):
    figure = six.plot(head=2, batch=1)
    axes = figure.axes[0]
    weights = six[1, 2].numpy()
    hidden = np.triu(np.ones((6, 6), dtype=bool), 1)
    drawn = mesh(axes).get_array()
    np.testing.assert_array_equal(drawn.mask, hidden)
    np.testing.assert_allclose(drawn[~hidden], weights[~hidden], rtol=1e-6)
    figure.canvas.draw()
    faces = mesh(axes).get_facecolors()
    share = weights / weights.max()
    for i, j in np.argwhere(~hidden):
        expected = matplotlib.colors.to_rgb(shade(float(share[i, j])))
        np.testing.assert_allclose(faces[i * 6 + j][:3], expected, atol=2.5 / 255)
    matplotlib.pyplot.close(figure)


def test_few_cells_have_their_numbers(six, tmp_path):
    six.save(tmp_path / "x.svg", head=1, tokens=WORDS)
    found = texts(tmp_path / "x.svg")
    assert [text for text in found if text in WORDS] == WORDS * 2
    numbers = [text for text in found if re.fullmatch(r"\d\.\d\d", text)]
    weights = six[0, 1]
    assert numbers == [f"{weights[i, j]:.2f}" for i in range(6) for j in range(i + 1)]
    assert {"head 1", "query", "key", "attention weight"} <= set(found)


def test_many_heads_are_a_grid_with_one_scale(six, tmp_path):
    figure = six.plot(tokens=WORDS)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["head 0", "head 1", "head 2"]
    assert len({mesh(axes).norm.vmax for axes in panels}) == 1
    assert len(figure.axes) == 5  # 2 × 2 panels and the colour bar
    matplotlib.pyplot.close(figure)
    six.plot(head=[0, 2])
    assert len(matplotlib.pyplot.get_fignums()) == 1
    matplotlib.pyplot.close("all")
    six.save(tmp_path / "x.svg")  # a file is not shown as well
    assert matplotlib.pyplot.get_fignums() == []


def test_axes_of_your_own(six):
    figure, axes = matplotlib.pyplot.subplots(1, 2)
    assert six.plot(head=0, ax=axes[0]) is figure
    assert axes[0].get_title() == "head 0"
    assert axes[1].get_title() == ""
    with pytest.raises(ValueError, match="one set of axes takes one head, got 3 heads"):
        six.plot(ax=axes[1])
    matplotlib.pyplot.close(figure)


def test_a_head_or_sequence_that_does_not_exist(six):
    with pytest.raises(IndexError, match="head: index 3 is out of range for 3"):
        six.plot(head=3)
    with pytest.raises(IndexError, match="batch: index 2 is out of range for 2"):
        six.plot(head=0, batch=2)
    with pytest.raises(ValueError, match="expected one label per query, 6 of them, got 2"):
        six.plot(tokens=["a", "b"])


HOSTILE = [
    "$x^2$",
    "<b>&amp;",
    "\x1b[31m",
    "a_b^{c}",
    "\\frac{1}{2}",
    "中文",
    "\u202e",
    " cat",
    "%s",
]


def test_hostile_tokens_are_shown_as_they_are(tmp_path):
    count = len(HOSTILE)
    m = AttentionMap(torch.randn(1, 1, count, 4), torch.randn(1, 1, count, 4))
    m.save(tmp_path / "x.svg", tokens=HOSTILE)
    found = texts(tmp_path / "x.svg")
    for shown in ["$x^2$", "<b>&amp;", "\\x1b[31m", "a_b^{c}", "\\frac{1}{2}", "\\u202e", "␣cat"]:
        assert found.count(shown) == 2
    if "Noto Sans CJK SC" not in figures._families():
        assert found.count("\\u4e2d\\u6587") == 2
    for suffix in (".png", ".pdf"):
        m.save(tmp_path / f"x{suffix}", tokens=HOSTILE)


def test_many_tokens_have_numbers_instead_of_labels(tmp_path):
    for count, labelled in ((64, True), (65, False)):
        tokens = [f"w{i}" for i in range(count)]
        view_cases.structured(count, heads=1, head_dim=8).save(tmp_path / "x.svg", tokens=tokens)
        found = texts(tmp_path / "x.svg")
        assert ("w63" in found) == labelled
        assert ("30" in found) != labelled


def test_a_long_map_is_drawn_in_blocks_that_keep_what_is_thin():
    """A column that is one token wide must not disappear between the pixels of a small image."""
    m = view_cases.structured(1201, heads=2, head_dim=8)
    figure = m.plot(log=True)
    dots = figure.axes[1].images[0].get_array()
    assert dots.shape == (768, 768)
    cells = dots[::4, ::4]  # an image of 192 × 192 cells
    expected = m[0, 1, :, :7].sum(1).mean()  # the keys of the first column of cells
    assert float(cells[:, 0].mean()) == pytest.approx(float(expected), rel=0.01)
    assert any("share of attention" in axes.get_ylabel() for axes in figure.axes)
    matplotlib.pyplot.close(figure)


def brightest(weights):
    """As on the page: a quarter of the rows have a larger maximum."""
    bests = sorted(float(row[~row.isnan()].max()) for row in weights if (~row.isnan()).sum() > 1)
    return bests[int(0.75 * len(bests))]


def bar_of(figure):
    return next(axes for axes in figure.axes if "attention" in axes.get_ylabel())


def test_a_long_map_is_not_dark():
    """The first query gives its only key a weight of 1, which made all others black."""
    torch.manual_seed(0)
    m = AttentionMap(torch.randn(1, 1, 150, 4), torch.randn(1, 1, 150, 4), Mask.causal())
    figure = m.plot(head=0)
    top = figure.axes[0].images[0].norm.vmax
    hidden = torch.ones(150, 150).triu(1).bool()
    assert top == pytest.approx(brightest(m[0, 0].masked_fill(hidden, math.nan)), rel=1e-6)
    assert top < 0.2
    label = bar_of(figure).get_ylabel()
    assert label == f"attention weight, brightest at {top:.2g} and more"
    matplotlib.pyplot.close(figure)
    many = AttentionMap(torch.randn(1, 2, 1500, 4), torch.randn(1, 2, 1500, 4), Mask.causal())
    figure = many.plot()
    assert figure.axes[0].images[0].norm.vmax < 0.1
    assert "share of attention, brightest at" in bar_of(figure).get_ylabel()
    matplotlib.pyplot.close(figure)


def test_the_title_is_drawn(six, tmp_path):
    """It was accepted and ignored."""
    six.save(tmp_path / "a.svg", title="Costs $5 and $6")
    assert "Costs $5 and $6" in texts(tmp_path / "a.svg")
    six.save(tmp_path / "a.SVG", title="Upper case", head=1)
    assert {"Upper case", "head 1"} <= set(texts(tmp_path / "a.SVG"))
    six.save(tmp_path / "b.svg")
    assert "Attention map" not in texts(tmp_path / "b.svg")
    seen = Seen("Tiny")
    seen.add("h.0", six)
    seen.save(tmp_path / "c.svg", title="All of it")
    assert "All of it" in texts(tmp_path / "c.svg")
    assert "Tiny" not in texts(tmp_path / "c.svg")
    module = MultiHeadAttention(4, 4, 8, 0.0, num_heads=2)
    trace(module, torch.randn(1, 3, 4)).save(tmp_path / "d.svg", title="A trace")
    assert "A trace" in texts(tmp_path / "d.svg")


def test_a_figure_of_all_layers_has_any_length(tmp_path):
    """It was refused as too large for a page, although figures have no limit."""
    torch.manual_seed(0)
    seen = Seen("Long")
    maps = [
        AttentionMap(torch.randn(1, 2, 6000, 4), torch.randn(1, 2, 6000, 4), Mask.causal())
        for _ in range(2)
    ]
    for i, m in enumerate(maps):
        seen.add(f"h.{i}", m)
    seen.save(tmp_path / "a.svg", log=True)
    found = texts(tmp_path / "a.svg")
    assert [text for text in found if text.startswith("h.")] == ["h.0 0", "h.0 1", "h.1 0", "h.1 1"]
    assert "share of attention" in " ".join(found)
    assert "6,000" in found
    with pytest.raises(TooLarge, match="too many for one page"):
        seen.save(tmp_path / "a.html")


@pytest.mark.parametrize("name", ["x", "x.jpg", "x.svg.gz"])
def test_an_unknown_format(six, tmp_path, name):
    with pytest.raises(ValueError, match=r"expected a file name that ends in \.html, \.svg"):
        six.save(tmp_path / name)
    with pytest.raises(ValueError, match=r"ends in \.svg, \.png, \.pdf(.|\n)*Try x.*\.svg"):
        figures.check_path(tmp_path / name)


def test_without_matplotlib(six, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'clearhead\[plot\]'"):
        six.plot()
    with pytest.raises(ImportError, match=r"pip install 'clearhead\[plot\]'"):
        six.save(tmp_path / "x.png")


def test_labels_must_fit():
    with pytest.raises(ValueError, match="key: expected 3 labels, one per position, got 2"):
        Axis("key", 3, ["a", "b"])
    with pytest.raises(ValueError, match="panels: expected at least one"):
        figures.figure([])
