"""What `clearhead explain` shows: a text on its way to context vectors, drawn or as JSON."""

from clearhead.explaining.examples import Example, build, build_from_lab, build_from_model
from clearhead.explaining.showing import draw_all, draw_query, draw_result, draw_step
from clearhead.explaining.writing import save, script, select, to_json

__all__ = [
    "Example",
    "build",
    "build_from_lab",
    "build_from_model",
    "draw_all",
    "draw_query",
    "draw_result",
    "draw_step",
    "save",
    "script",
    "select",
    "to_json",
]
