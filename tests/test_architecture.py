"""The house: imports go upwards only, the README shows the real tree, files stay small."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "clearhead"
FILES = sorted(PACKAGE.rglob("*.py"))

# Data flows downwards: a module imports only from modules above it.
ORDER = [
    "version",
    "files",
    "harness",
    "configs",
    "costs",
    "shapes",
    "drawing",
    "masks",
    "text",
    "embedding",
    "ladder",
    "kernels",
    "pages",
    "maps",
    "cache",
    "projections",
    "attention",
    "steps",
    "tracing",
    "watching",
    "gpt2",
    "parallel",
    "lab",
    "following",
    "explaining",
    "sizes",
    "checker",
    "server",
    "exporting",
    "bench",
    "cli",
    "__main__",
]


def module_of(file: Path) -> str:
    """The name below `clearhead`: "masks", also "kernels" for kernels/sdpa.py."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(source: str, *, skip_type_checking: bool = False) -> Iterator[str]:
    """Every imported name with its dots, wherever in the file it is imported."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.update(inner for part in node.body for inner in ast.walk(part))
        if skip_type_checking and node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full: from clearhead.masks import Mask"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(source: str, **options: bool) -> set[str]:
    """The modules of clearhead that this source imports; `from clearhead import x` included."""
    names = (name.split(".") for name in imports(source, **options))
    return {parts[1] for parts in names if parts[0] == "clearhead" and len(parts) > 1}


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def test_every_module_has_its_place_in_the_order():
    found = {module_of(file) for file in FILES} - {"__init__"}
    assert found <= set(ORDER), f"put these into ORDER, below what they import: {found - {*ORDER}}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_go_upwards(file):
    module = module_of(file)
    used = own_imports(file.read_text(encoding="utf-8"), skip_type_checking=module == "__init__")
    if module == "__init__":
        assert used == {"version"}, "the public names are imported when first used"
        return
    assert module in ORDER, f"{module} has no place in ORDER"
    above = set(ORDER[: ORDER.index(module) + 1])
    assert used <= above, f"{module} imports from below itself: {sorted(used - above)}"
    if file.parent == PACKAGE:
        assert module not in used


def test_the_ladder_shares_no_code_with_what_it_proves():
    names = set(imports((PACKAGE / "ladder.py").read_text(encoding="utf-8")))
    assert {name.split(".")[0] for name in names} == {"torch", "jaxtyping", "clearhead"}
    assert own_imports((PACKAGE / "ladder.py").read_text(encoding="utf-8")) == {"shapes"}


def test_drawing_knows_nothing_of_attention():
    files = [file for file in FILES if module_of(file) == "drawing"]
    assert files
    for file in files:
        used = own_imports(file.read_text(encoding="utf-8"))
        assert used <= ({"drawing", "files"} if file.parent != PACKAGE else set())


def test_the_reader_of_imports_sees_all_kinds():
    source = """
import clearhead.cli
from clearhead import masks, ladder
if TYPE_CHECKING:
    from clearhead.tokenizers import WordTokenizer
def later():
    from benchmarks.app import app
"""
    assert own_imports(source) == {"cli", "masks", "ladder", "text", "bench"}
    assert own_imports(source, skip_type_checking=True) == {"cli", "masks", "ladder", "bench"}
    with pytest.raises(AssertionError, match="written in full"):
        own_imports("from . import masks")


def tree_in(text: str) -> set[str]:
    """The entries of the block that starts with `src/clearhead/`: two spaces, then the name."""
    block = re.search(r"^```\w*\nsrc/clearhead/.*?^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None, "README.md has no fenced block that starts with src/clearhead/"
    lines = block[0].splitlines()[2:]
    end = next(i for i, line in enumerate(lines) if not line.startswith(" "))
    return {line.split()[0] for line in lines[:end] if re.match(r"  \S", line)}


def test_the_tree_in_the_readme_is_the_folder():
    shown = tree_in((ROOT / "README.md").read_text(encoding="utf-8"))
    real = {file.name for file in PACKAGE.glob("*.py")}
    real |= {f"{folder.parent.name}/" for folder in PACKAGE.glob("*/__init__.py")}
    assert shown - {"py.typed"} == real


def test_the_reader_of_the_tree_takes_names_only():
    tree = "src/clearhead/   it\n  a.py   words\n         more words\n  b/     c\ntests/\n  no.py\n"
    text = f"x\n```text\n{tree}```\n"
    assert tree_in(text) == {"a.py", "b/"}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_files_stay_small(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 600


def swallows(source: str) -> list[int]:
    """The lines with `except:`, or with a catch-all whose body does nothing."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = "" if node.type is None else ast.unparse(node.type)
        nothing = all(
            isinstance(part, ast.Pass | ast.Continue)
            or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            or (isinstance(part, ast.Return) and ast.unparse(part) in ("return", "return None"))
            for part in node.body
        )
        if caught == "" or (re.search(r"\b(Base)?Exception\b", caught) and nothing):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_error_is_swallowed(file):
    assert swallows(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("handler", "bad"),
    [
        ("except: raise", True),
        ("except Exception: pass", True),
        ("except (ValueError, BaseException): return None", True),
        ("except Exception as error: raise ValueError from error", False),
        ("except ValueError: pass", False),
    ],
)
def test_the_finder_of_swallowed_errors_finds_them(handler, bad):
    assert bool(swallows(f"def f():\n    try: g()\n    {handler}")) == bad
