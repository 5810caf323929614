"""Adds the pages that run a model to the site, without files of nine megabytes in the repository.

mkdocs calls these functions because mkdocs.yml lists this file under `hooks`.
"""

import html
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from clearhead.explainer.play_page import FIRST_TEXT, play_html

# The picture of the page, as Markdown; other viewers, such as GitHub's, show it as it is.
_PICTURE = re.compile(r"^\[!\[(?P<alt>.*?)\]\((?P<file>images/play\.png)\)\]\(.*?\)$", re.MULTILINE)
# The picture in a frame: a click opens the page in its place, on a phone in the whole window.
# Nothing is loaded before.
_STYLE = """<style>
body { margin: 0; font: 16px sans-serif; text-align: center; background: #fcfbf8 }
a { color: #2a5f8f }
img { width: 100% }
.phone { display: none }
@media (max-width: 30rem) { .phone { display: inline } .wide { display: none } }
</style>"""
_LINK = """<a class="{name}" target="{target}" href="play/english.html">
<img src="{file}" alt="{alt}"><br>Run the model here (9 MB)</a>"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add play/english.html and play/grammar.html."""
    for model in FIRST_TEXT:
        files.append(File.generated(config, f"play/{model}.html", content=play_html(model)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the living page where a page of the site shows its picture."""
    return _PICTURE.sub(_frame, markdown)


def _frame(picture: re.Match[str]) -> str:
    file, alt = picture["file"], html.escape(picture["alt"])
    links = [
        _LINK.format(name=name, target=target, file=file, alt=alt)
        for name, target in (("wide", "_self"), ("phone", "_top"))
    ]
    inside = html.escape(_STYLE + "".join(links))
    return f'<iframe class="live" srcdoc="{inside}" title="A page that runs a model"></iframe>'
