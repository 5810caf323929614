"""What `clearhead explain` shows: a text on its way to context vectors, drawn or as JSON."""

from clearhead.explainer.examples import Example, build, build_from_lab, build_from_model
from clearhead.explainer.output_files import save, script, select, to_json
from clearhead.explainer.terminal_view import draw_all, draw_query, draw_result, draw_step

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
