"""Examples in the terminal: what is shown of long and of short texts."""

from clearhead.drawing import plain
from clearhead.explainer.examples import untrained_example
from clearhead.explainer.presentation import draw_result


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
