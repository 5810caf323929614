"""The layout: imports go one way, names occur once, private PyTorch names stay in one file."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "clearhead"
FILES = sorted(PACKAGE.rglob("*.py"))

# Data flows downwards: a module imports only from modules above it.
ORDER = [
    "version",
    "foreign_names",
    "configs",
    "costs",
    "atomic_files",
    "torch_internals",
    "validation",
    "timing",
    "drawing",
    "masks",
    "tokenizers",
    "embedding",
    "ladder",
    "kernels",
    "maps",
    "cache",
    "checkpoint_keys",
    "attention",
    "watcher",
    "gpt2",
    "parallel",
    "models",
    "explainer",
    "training",
    "lab",
    "checker",
    "viewer",
    "exporter",
    "cli",
    "__main__",
]
# It runs in the process of a submission, without the package around it.
ALONE = ("checker/sandbox/worker.py",)


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def module_of(file: Path) -> str:
    """The dotted name below `clearhead`: "kernels.sdpa"; "kernels" for its `__init__.py`."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


def imports(source: str) -> Iterator[str]:
    """Every imported name with its dots, wherever in the file it is imported."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full: from clearhead.masks import Mask"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(source: str) -> set[str]:
    """The modules of clearhead that this source imports, by their names below `clearhead`."""
    found = set()
    for name in imports(source):
        top, _, rest = name.partition(".")
        if top != "clearhead" or not rest:
            continue
        while rest not in MODULES and "." in rest:
            rest = rest.rpartition(".")[0]
        found.add(rest)
    return found


def folder_of(module: str) -> str:
    return module.partition(".")[0]


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or an empty list."""
    state: dict[str, int] = {}
    path: list[str] = []

    def visit(module: str) -> list[str]:
        state[module] = 1
        path.append(module)
        for other in sorted(edges.get(module, ())):
            if state.get(other) == 1:
                return [*path[path.index(other) :], other]
            if other not in state and (found := visit(other)):
                return found
        path.pop()
        state[module] = 2
        return []

    for module in sorted(edges):
        if module not in state and (found := visit(module)):
            return found
    return []


def test_every_module_has_its_place_in_the_order():
    found = {folder_of(module) for module in MODULES} - {""}
    assert found <= set(ORDER), f"put these into ORDER, below what they import: {found - {*ORDER}}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_go_upwards(file):
    folder = folder_of(module_of(file))
    if not folder:
        return  # the public names, imported when first used
    above = set(ORDER[: ORDER.index(folder) + 1])
    used = {folder_of(module) for module in own_imports(file.read_text(encoding="utf-8"))}
    assert used <= above, f"{folder} imports from below itself: {sorted(used - above)}"


@pytest.mark.parametrize("folder", ORDER)
def test_no_import_cycle_inside_a_folder(folder):
    """Late imports and imports for type checkers count too."""
    inside = {module: file for module, file in MODULES.items() if folder_of(module) == folder}
    edges = {
        module: own_imports(file.read_text(encoding="utf-8")) & inside.keys()
        for module, file in inside.items()
    }
    assert cycle(edges) == []


def test_the_search_for_cycles_finds_one():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_file_name_occurs_once():
    aliases = {"lab/train.py"}  # of the first edition: torchrun -m clearhead.lab.train
    files = [file for file in FILES if name_of(file) not in aliases]
    names = Counter(file.name for file in files if file.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_the_tests_mirror_the_package():
    """A folder of tests has the name of a package folder, and a file name occurs once."""
    tests = ROOT / "tests"
    files = [file for file in tests.rglob("*.py") if "submissions" not in file.parts]
    folders = {file.parent.relative_to(tests).as_posix() for file in files}
    folders -= {"attack", "benchmarks", "browser"}  # not about one folder of the package
    assert [folder for folder in folders if not (PACKAGE / folder).is_dir()] == []
    names = Counter(file.name for file in files if file.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


PRIVATE = re.compile(
    r"torch(\.[a-z]\w*)*\._[A-Za-z]\w*|\baten\._\w+|TESTING_ONLY|_lazy_clone|_call_impl"
    r"|\._version\b|_global_(forward|backward)\w*|_(forward|backward)(_pre)?_hooks\b"
)


@pytest.mark.parametrize("file", [f for f in FILES if name_of(f) not in ALONE], ids=name_of)
def test_private_pytorch_names_stay_in_one_file(file):
    if file.name == "torch_internals.py":
        return
    assert PRIVATE.findall(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "torch._C._functorch.peek_interpreter_stack()",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)",
        "nn.modules.module._global_forward_hooks",
        "x._version",
    ],
)
def test_the_search_for_private_names_finds_them(line):
    assert PRIVATE.search(line)


def test_explain_imports_only_what_it_needs():
    program = """
import sys
from clearhead import cli
try:
    cli.main(["explain", "the cat sat"])
except SystemExit as end:
    assert not end.code, end.code
unwanted = ("training", "lab", "checker", "viewer", "exporter", "parallel")
loaded = [name for name in sys.modules if name.startswith("clearhead.")]
bad = [name for name in loaded if name.split(".")[1] in unwanted]
commands = [name for name in loaded if name.startswith("clearhead.cli.")]
own = [f"clearhead.cli.{name}" for name in ("explain", "shared", "help_pages")]
bad += [name for name in commands if name not in own]
assert not bad, bad
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_ladder_shares_no_code_with_what_it_proves():
    names = set(imports((PACKAGE / "ladder.py").read_text(encoding="utf-8")))
    assert {name.split(".")[0] for name in names} == {"torch", "jaxtyping", "clearhead"}
    assert own_imports((PACKAGE / "ladder.py").read_text(encoding="utf-8")) == {"validation"}


def test_drawing_knows_nothing_of_attention():
    files = [file for file in FILES if folder_of(module_of(file)) == "drawing"]
    assert files
    for file in files:
        used = {folder_of(module) for module in own_imports(file.read_text(encoding="utf-8"))}
        assert used <= {"drawing", "atomic_files", "version"}


def test_the_reader_of_imports_sees_all_kinds():
    source = """
import clearhead.cli
from clearhead import masks, ladder
if TYPE_CHECKING:
    from clearhead.tokenizers import WordTokenizer
def later():
    from clearhead.kernels.sdpa import attend
"""
    assert own_imports(source) == {"cli", "masks", "ladder", "tokenizers", "kernels.sdpa"}
    with pytest.raises(AssertionError, match="written in full"):
        own_imports("from . import masks")


def tree_in(text: str) -> set[str]:
    """The entries of the block that starts with `src/clearhead/`: two spaces, then the name."""
    block = re.search(r"^```\w*\nsrc/clearhead/.*?^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None, "there is no fenced block that starts with src/clearhead/"
    lines = block[0].splitlines()[2:]
    end = next(i for i, line in enumerate(lines) if not line.startswith(" "))
    return {line.split()[0] for line in lines[:end] if re.match(r"  \S", line)}


def test_the_tree_in_the_docs_is_the_folder():
    shown = tree_in((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    real = {file.name for file in PACKAGE.glob("*.py")}
    real |= {f"{folder.parent.name}/" for folder in PACKAGE.glob("*/__init__.py")}
    assert shown - {"py.typed"} == real


def test_the_files_that_the_docs_name_exist():
    """Every path in backquotes with a slash, or with .py, .js or .css at its end."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|js|css))`", text)
    assert len(named) > 20
    bases = (ROOT, PACKAGE, *PACKAGE.glob("*/assets"))
    missing = [name for name in named if not any((base / name).exists() for base in bases)]
    assert missing == []


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
