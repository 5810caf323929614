"""view(): zoom into maps that are too long for a file.

grids       one head at every zoom: an overview in one pass, finer tiles when somebody looks
work        the thread that makes overviews, and how much of them is kept
labels      tokens, and where a word stands
guard       who may ask: this machine, this page, this token
site        the page and its answers; assets/ is the page itself
running     the server in a thread
app         the command line
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.maps import AttentionMap
    from clearhead.viewer.server import View
    from clearhead.watcher import Seen


def view(
    seen: Seen | AttentionMap,
    *,
    tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ids: Tensor | None = None,
    port: int = 0,
    browser: bool = True,
    wait: bool = True,
) -> View:
    """Look at maps of any length in the browser, zooming as on a street map.

    A page is served on this machine only. It shows the whole map of a head at once, and computes
    exact weights where one zooms in.

    Args:
        seen: What `watch` recorded (of each layer the last map), or one map.
        tokens: A label for each key, or a list of these a sequence; numbers by default.
        ids: The token ids, (batch, tokens), for more scores of each head.
        port: Where to listen; a free port by default.
        browser: Whether to open the browser.
        wait: Whether to stay until Ctrl-C. Otherwise close the `View` that comes back.

    >>> import clearhead, torch
    >>> weights = clearhead.AttentionMap(torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4))
    >>> with view(weights, browser=False, wait=False) as page:
    ...     page.url[:17]
    'http://127.0.0.1:'
    """
    try:
        from clearhead.viewer.server import View, open_browser
    except ImportError as error:
        raise ImportError(
            f"The viewer needs starlette and uvicorn ({error}).\n"
            "  Install them: pip install 'clearhead[view]'"
        ) from None
    from clearhead.maps import AttentionMap
    from clearhead.maps.axis_labels import check_labels
    from clearhead.viewer.jobs import Work
    from clearhead.viewer.token_labels import Labels
    from clearhead.watcher import Seen

    if isinstance(seen, AttentionMap):
        layers, model = {"map": seen}, "Attention map"
    elif isinstance(seen, Seen):
        if not seen.layers:
            raise ValueError("No attention was seen yet: run the model inside the block.")
        layers, model = {name: seen[name] for name in seen.layers}, seen.model
    else:
        raise TypeError(
            f"seen: expected what watch() gives, or an AttentionMap, got {type(seen).__name__}."
        )
    keys = sorted({m.shape[3] for m in layers.values()})
    if isinstance(tokens, str):
        check_labels("tokens", tokens, keys, "key")
    lists = [] if tokens is None else list(tokens)
    sequences = [lists] if lists and isinstance(lists[0], str) else lists
    if sequences and not any(len(each) in keys for each in sequences):
        check_labels("tokens", sequences[0], keys, "key")
    page = View(Work(layers, ids), Labels(sequences), model=model, port=port)  # type: ignore[arg-type]  # lists of labels by now
    if not wait:
        if browser:
            open_browser(page.url)
        return page
    with contextlib.suppress(KeyboardInterrupt), page:
        print(f"Look at {page.url}\nStop with Ctrl-C.", flush=True)
        if browser:
            open_browser(page.url)
        page.wait()
    return page
