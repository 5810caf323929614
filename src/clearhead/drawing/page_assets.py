"""Style and script of a page, assembled from `assets/`, and the policy that allows only these.

All pages are built here: those in a file, the viewer and the class page. They share the palette,
`base.css`, `elements.js` and `paint.js`; each adds its own files. Data is put into a page as blocks
that are not executed: JSON, or deflated bytes as base64.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from clearhead.drawing import palette

_SHARED = "clearhead.drawing"
_SHARED_SCRIPTS = ("elements.js", "paint.js")


class PageAssets:
    """The style, script and template of one kind of page.

    Args:
        package: The package whose folder `assets` holds the page's own files. A file that is not
            there is one of `drawing/assets`.
        html: The name of its template.
        css: The names of its style sheets, added to the shared one.
        scripts: The names of its scripts, added to the shared ones, in this order; None for a
            page without any script.
        sources: The end of its content security policy: what it may load or contact.
    """

    def __init__(
        self,
        package: str,
        *,
        html: str,
        css: Sequence[str],
        scripts: Sequence[str] | None,
        sources: str,
    ) -> None:
        self._template = read_asset(package, html)
        sheets = [read_asset(package, name) for name in ("base.css", *css)]
        self.style = palette.css() + "".join(sheets)
        self.script, allowed = "", "'none'"
        if scripts is not None:
            parts = [palette.script()]
            parts += [read_asset(package, name) for name in (*_SHARED_SCRIPTS, *scripts)]
            # In a scope of its own.
            self.script = '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"
            allowed = f"'{_hash(self.script)}'"
        self.policy = (
            f"default-src 'none'; script-src {allowed}; "
            f"style-src '{_hash(self.style)}'; {sources}; base-uri 'none'; form-action 'none'"
        )

    def page(self, texts: Mapping[str, str]) -> str:
        """The template with style, script and these texts in place of their marks.

        Args:
            texts: HTML by the name of its mark, `<!-- name -->`. A mark inside a text is not
                replaced again.
        """
        all_texts = {
            "policy": self.policy,
            "style": f"<style>{self.style}</style>",
            "script": f"<script>{self.script}</script>",
            **texts,
        }
        return re.sub(r"<!-- (\w+) -->", lambda mark: all_texts[mark[1]], self._template)


def json_block(name: str, value: Any) -> str:
    """A block of JSON, which the script reads with `byId(name)`."""
    # Nothing in it can close the script element, whatever texts it contains.
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def binary_block(name: str, data: bytes) -> str:
    """A block of bytes, which the script reads with `unpack(name)`."""
    text = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
    return f'<script type="application/octet-stream" id="{name}">{text}</script>'


def read_asset(package: str, name: str) -> str:
    """The text of a file in the package's folder `assets`, or else in that of `drawing`."""
    own = files(package).joinpath("assets", name)
    file = own if own.is_file() else files(_SHARED).joinpath("assets", name)
    return file.read_text(encoding="ascii")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
