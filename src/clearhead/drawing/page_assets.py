"""Style and script of a page, assembled from `assets/`, and the policy that allows only these.

Both the page in a file (`html_page`) and the viewer are built here. They share the palette,
`base.css`, `elements.js` and `paint.js`; each adds its own files.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from clearhead.drawing import palette

_SHARED_SCRIPTS = ("elements.js", "paint.js")


class PageAssets:
    """The style, script and template of one kind of page.

    Args:
        package: The package whose folder `assets` holds the page's own files.
        html: The name of its template.
        css: The name of its style sheet, added to the shared one.
        scripts: The names of its scripts, added to the shared ones, in this order; None for a
            page without any script.
        sources: The end of its content security policy: what it may load or contact.
    """

    def __init__(
        self, package: str, *, html: str, css: str, scripts: Sequence[str] | None, sources: str
    ) -> None:
        shared = "clearhead.drawing"
        self._template = _read(package, html)
        self.style = palette.css() + _read(shared, "base.css") + _read(package, css)
        self.script, allowed = "", "'none'"
        if scripts is not None:
            parts = [palette.script()]
            parts += [_read(shared, name) for name in _SHARED_SCRIPTS]
            parts += [_read(package, name) for name in scripts]
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


def _read(package: str, name: str) -> str:
    return files(package).joinpath("assets", name).read_text(encoding="ascii")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
