"""Adds the pages that run a model to the site, without files of nine megabytes in the repository.

mkdocs calls `on_files` because mkdocs.yml lists this file under `hooks`.
"""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from clearhead.explainer.play_page import FIRST_TEXT, play_html


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add play/english.html and play/grammar.html."""
    for model in FIRST_TEXT:
        files.append(File.generated(config, f"play/{model}.html", content=play_html(model)))
    return files
