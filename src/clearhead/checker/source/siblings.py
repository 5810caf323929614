"""The modules that lie beside a submission and that it imports, as text for the sandbox."""

import ast
import sys
from pathlib import Path

from clearhead.checker.source.call_sites import parsed

MOST_FILES, MOST_BYTES = 30, 1 << 20
_INSTALLED = {"torch", "numpy", "safetensors", "einops", *sys.stdlib_module_names}


def siblings_of(path: Path, source: str) -> dict[str, str]:
    """The text of each module that a file imports from its own folder or the one above.

    Only for a folder that belongs to one submission: in a folder of many, a file could import the
    work of another student.

    Args:
        path: The file.
        source: Its text.
    """
    folder = path.resolve().parent
    found: dict[str, str] = {}
    open_ends, left = [source], MOST_BYTES
    while open_ends and len(found) < MOST_FILES:
        for name in _imported(open_ends.pop()):
            file = None if name in found else _file(folder, name)
            if file is None or file == path.resolve() or file.stat().st_size > left:
                continue
            text = file.read_text(encoding="utf-8", errors="replace")
            left -= file.stat().st_size
            found[name] = text
            open_ends.append(text)
    return found


def _imported(source: str) -> list[str]:
    """The modules that a file may import, by dotted name; relative ones without their dots."""
    names: list[str] = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            names += base or [one.name for one in node.names]
            names += [f"{node.module}.{one.name}" for one in node.names] if base else []
    return [name for name in dict.fromkeys(names) if name.partition(".")[0] not in _INSTALLED]


def _file(folder: Path, name: str) -> Path | None:
    """The file of a module below the folder, or below the one above it."""
    inner = Path(*name.split("."))
    for home in (folder, folder.parent):
        for file in (home / inner.with_suffix(".py"), home / inner / "__init__.py"):
            if file.is_file() and file.resolve().is_relative_to(home):
                return file.resolve()
    return None
