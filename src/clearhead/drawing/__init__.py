r"""Arrays and labels -> terminal, figures, HTML pages, whatever the numbers mean.

Untrusted text is made harmless: control characters become escapes (`\x1b`, `\n`). Start reading in
`terminal`, `figures` or `html_page`; all colours are in `palette`, and `file_formats` writes files.
The terminal takes arrays of torch or numpy and imports neither; pages and figures take numpy's.
"""

from clearhead.drawing.palette import shade, text_on
from clearhead.drawing.terminal import (
    Drawn,
    FirstThatFits,
    FittingTable,
    Flow,
    Indent,
    Matrix,
    Stack,
    console,
    html,
    plain,
    table,
)
from clearhead.drawing.text_format import (
    HIDDEN,
    Axis,
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
    "Axis",
    "Drawn",
    "FirstThatFits",
    "FittingTable",
    "Flow",
    "Indent",
    "Matrix",
    "Stack",
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
