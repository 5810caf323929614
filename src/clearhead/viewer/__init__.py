"""Maps and tokens -> a page in the browser that zooms into maps of any length: view().

Start reading in `server` (the thread that listens), then `routes` (the page and its API, behind
`request_guard`). `tile_pyramid` computes one head at every zoom level, `jobs` runs it in the
background, and `token_labels` searches the text. The page itself is in assets/.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clearhead.foreign_names import explained
from clearhead.version import install

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.maps import AttentionMap
    from clearhead.viewer.server import View
    from clearhead.watcher import Seen


@explained
def view(
    seen: Seen | AttentionMap,
    *,
    tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ids: Tensor | None = None,
    port: int = 0,
    browser: bool = True,
    wait: bool = True,
) -> View:
    """Explore maps of any length in the browser, zooming as in an online street map.

    The page is served to this machine only. It shows the whole map of a head, and computes exact
    weights where you zoom in.

    Args:
        seen: What `watch` recorded (the last map of each layer), or one map.
        tokens: One label per key, or one such list per sequence. Numbers by default.
        ids: The token ids, (batch, tokens), for additional scores of each head.
        port: The port to listen on. A free port by default.
        browser: Open the browser.
        wait: Block until Ctrl-C. If False, close the returned `View` yourself.

    Returns:
        The open page, with its `url`; also a context manager that closes it.

    Examples:
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
            f"  Install them with: {install('view')}"
        ) from None
    from clearhead.maps import AttentionMap
    from clearhead.maps.axis_labels import check_labels
    from clearhead.viewer.jobs import Worker
    from clearhead.viewer.token_labels import Labels
    from clearhead.watcher import Seen

    if isinstance(seen, AttentionMap):
        layers, model = {"map": seen}, "Attention map"
    elif isinstance(seen, Seen):
        if not seen.layers:
            raise ValueError("No attention was seen yet: run the model inside the `with` block.")
        layers, model = {name: seen[name] for name in seen.layers}, seen.model
    else:
        raise TypeError(
            f"seen: expected a Seen from watch(), or an AttentionMap, got {type(seen).__name__}."
        )
    keys = sorted({m.shape[3] for m in layers.values()})
    if isinstance(tokens, str):
        check_labels("tokens", tokens, keys, "key")
    lists: list[Any] = [] if tokens is None else list(tokens)
    sequences: list[Sequence[str]] = [lists] if lists and isinstance(lists[0], str) else lists
    if sequences and not any(len(each) in keys for each in sequences):
        check_labels("tokens", sequences[0], keys, "key")
    page = View(Worker(layers, ids), Labels(sequences), model=model, port=port)
    if not wait:
        if browser:
            open_browser(page.url)
        return page
    with contextlib.suppress(KeyboardInterrupt), page:
        print(f"Open {page.url}\nPress Ctrl-C to stop.", flush=True)
        if browser:
            open_browser(page.url)
        page.wait()
    return page
