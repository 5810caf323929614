r"""Arrays and labels -> terminal, figures, pages. Nothing here knows what the numbers mean.

What cannot be shown harmlessly is shown as an escape (`\x1b`, `\n`). For the terminal, arrays come
from torch or numpy, and neither is imported; pages and figures take numpy's.
"""

from clearhead.drawing.palette import VIRIDIS, shade, text_on
from clearhead.drawing.terminal import (
    FittingTable,
    Flow,
    Indent,
    Matrix,
    console,
    html,
    plain,
    table,
)
from clearhead.drawing.text_format import (
    HIDDEN,
    Array,
    excerpt,
    guarded,
    harmless,
    number,
    shorten,
    vector,
    visible,
)

__all__ = [
    "HIDDEN",
    "VIRIDIS",
    "Array",
    "FittingTable",
    "Flow",
    "Indent",
    "Matrix",
    "console",
    "excerpt",
    "guarded",
    "harmless",
    "html",
    "number",
    "plain",
    "shade",
    "shorten",
    "table",
    "text_on",
    "vector",
    "visible",
]
