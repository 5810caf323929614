"""The script and the style that a page carries in it, and the policy that allows only these."""

import base64
import hashlib
from importlib.resources import files


def asset(package: str, name: str) -> str:
    """The text of a file in a package's folder `assets`."""
    return files(package).joinpath("assets", name).read_text(encoding="ascii")


def only(script: str, style: str) -> str:
    """How a content security policy begins that lets this script and this style run, no others."""
    return f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
