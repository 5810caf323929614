"""Examples in the terminal: what is shown of long and of short texts."""

import pytest

from clearhead.drawing import number, plain
from clearhead.explainer.examples import model_example, untrained_example
from clearhead.explainer.one_query import draw_query
from clearhead.explainer.presentation import draw_all, draw_chosen, draw_result, save, select

TEXT = "the cat sat on the mat"


def test_a_long_text_is_also_drawn_as_a_whole():
    example = untrained_example(
        "the cat sat on the mat and then the dog ran to the red box by itself"
    )
    text = plain(draw_result(example), width=120)
    whole = text[text.index("All tokens") : text.index("Context vectors")]
    rows = [line for line in whole.splitlines() if line.startswith("itself")]
    assert rows
    assert "more row" not in whole
    short = plain(draw_result(untrained_example("the cat sat")), width=120)
    assert "All tokens" not in short


def test_a_figure_shows_the_chosen_layer_and_head(tmp_path):
    chosen = [(None, None), (0, None), (1, None), (1, 2), (1, 3)]
    figures = []
    for layer, head in chosen:
        example = model_example(TEXT, model="grammar", layer=layer, head=head)
        save(example, tmp_path / "weights.svg")
        figures.append((tmp_path / "weights.svg").read_text(encoding="utf-8"))
    assert len(set(figures)) == len(chosen)
    assert ">the grammar model, layer 0<" in figures[1]
    assert ">head 3<" in figures[1]
    assert ">the grammar model, layer 1, head 2<" in figures[3]
    assert ">head 3<" not in figures[3]


@pytest.mark.parametrize("head", [None, 3])
def test_steps_show_the_numbers_of_the_selected_head(head):
    example = model_example(TEXT, model="grammar", layer=0, head=head)
    shown = example.head if head is None else head
    assert shown
    (row,) = example.trace["scaled_scores"][0, shown, 1:2, :2].tolist()
    for drawn in (draw_chosen(example, select(example, "4c")), draw_all(example)):
        text = plain(drawn, width=120)
        assert f"4c ATTENTION: softmax, head {shown}\n" in text
        assert f"scaled_scores[0, {shown}, :2, :]" in text
        assert f"[{', '.join(map(number, row))}," in text.replace("[ ", "[").replace(",  ", ", ")
    split = plain(draw_chosen(example, select(example, "2")), width=120)
    first = example.trace["queries_split"][0, 0, shown, 0].item()
    assert f"queries_split[0, :2, {shown}, :6]\n     [{number(first)}," in split.replace("[ ", "[")
    assert "output[0, :3, :6]" in plain(draw_all(example), width=120)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_window_keeps_the_results_of_a_query(width):
    example = model_example("The dog chased the cat because it was hungry", layer=4, head=7)
    text = plain(draw_query(example.trace, 1, heads=[7]), width=width)
    assert "…" not in text
    scores = text[text.index("4a ATTENTION") : text.index("4b ATTENTION")]
    weights = text[text.index("4c ATTENTION") : text.index("4d ATTENTION")]
    first = example.trace["attn_scores"][0, 7, 1, 0].item()
    assert f" {number(first)}\n" in scores
    assert ("×" in scores) == (width > 40)
    weight = example.trace["attn_weights"][0, 7, 1, 0].item()
    assert f" {number(weight)}\n" in weights
