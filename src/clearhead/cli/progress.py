"""The progress bar of long commands: on stderr, and only if that is a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar() -> Progress:
    """Description, bar, count and elapsed time; it disappears when the work is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from clearhead import drawing

    err = drawing.console(sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn())
    return Progress(
        *columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal
    )
