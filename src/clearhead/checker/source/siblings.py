"""The modules next to a submission that it imports, as source text for the sandbox."""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from clearhead.checker.source.call_sites import parsed

MOST_FILES, MOST_BYTES = 30, 1 << 20
_INSTALLED = {"torch", "numpy", "safetensors", "einops", *sys.stdlib_module_names}


def siblings_of(path: Path, source: str, inside: Path) -> dict[str, str]:
    """The source of each module that a file imports from the folders around it, by dotted name.

    Args:
        path: The file.
        source: Its source.
        inside: The outermost folder that belongs to this submission. Without this limit, a file in
            a folder of many submissions could import another student's work.
    """
    here, inside = path.resolve(), inside.resolve()
    homes = [home for home in here.parents if home.is_relative_to(inside)]
    found: dict[str, str] = {}
    open_ends, left = [source], MOST_BYTES
    while open_ends and len(found) < MOST_FILES:
        for name in imported(open_ends.pop()):
            known = name in found or name.partition(".")[0] in _INSTALLED
            file = None if known else _file(homes, name)
            if file is None or file == here or file.stat().st_size > left:
                continue
            text = file.read_text(encoding="utf-8", errors="replace")
            left -= file.stat().st_size
            found[name] = text
            open_ends.append(text)
    return found


def imported(source: str) -> list[str]:
    """The modules that a file may import, by dotted name; relative ones without leading dots."""
    names: list[str] = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            names += base or [one.name for one in node.names]
            names += [f"{node.module}.{one.name}" for one in node.names] if base else []
    return list(dict.fromkeys(names))


def _file(homes: Sequence[Path], name: str) -> Path | None:
    """The file of a module below one of these folders, innermost first.

    The name may include the outermost folder: in model/attention.py, `model.config` is
    model/config.py.
    """
    inner = Path(*name.split("."))
    places = [home / inner for home in homes]
    if homes and inner.parts[0] == homes[-1].name and len(inner.parts) > 1:
        places.append(homes[-1].parent / inner)
    for place in places:
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file() and file.resolve().is_relative_to(homes[-1]):
                return file.resolve()
    return None
