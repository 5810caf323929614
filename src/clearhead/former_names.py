"""Names of version 0.1 that the second edition changed.

`import clearhead.watching` gives `clearhead.watcher`, with a DeprecationWarning; what has no
successor raises an error that says what to use. docs/from-0.1.md has the table for users.
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

REMOVAL = "0.4"  # the release in which the former names stop working

# Below `clearhead.`: the former path of a module, and its path now.
MOVED = {
    "shapes": "validation",
    "text": "tokenizers",
    "text.words": "tokenizers.word_tokenizer",
    "text.byte_pairs": "tokenizers.gpt2_tokenizer",
    "text.windows": "tokenizers.sliding_windows",
    "tracing": "explainer.tracing",
    "steps": "explainer.steps",
    "following": "explainer.one_query",
    "explaining": "explainer",
    "watching": "watcher",
    "watching.seen": "watcher.seen",
    "watching.heads": "watcher.head_table",
    "server": "viewer",
    "exporting": "exporter",
    "exporting.files": "exporter",
    "harness": "timing",
    "files": "atomic_files",
    "masks.kinds": "masks.mask",
    "maps.summary": "maps.statistics",
    "maps.pictures": "maps.map_figures",
    "drawing.page": "drawing.html_page",
    "drawing.writing": "drawing.text_format",
    "drawing.colours": "drawing.palette",
    "gpt2.generate": "gpt2.generation",
    "lab.model": "models.trained_model",
    "parallel.checkpoints": "parallel.sharded_checkpoints",
    "parallel.context": "parallel.context_plan",
    "parallel.data": "parallel.data_plan",
    "parallel.tensor": "parallel.tensor_plan",
}

# Below `clearhead.`: what has no successor in the package, and what to use.
GONE = {
    "bench": "The benchmarks are in the repository: python -m benchmarks.attention --help.",
    "pages": "Pages are made by .page() and .save() of Trace, AttentionMap and Seen.",
    "projections": "MultiHeadAttention(packed=True) has one projection.",
    "sizes": "clearhead.costs has the numbers that `clearhead info` prints.",
    "parallel.timeline": "docs/scale_figures.py draws the figure that it was for.",
    "watching.native": "watch records in Python only; there is nothing to compile.",
    "watching.checkpoints": "clearhead.load and `--model` read checkpoints.",
}


def former_module(name: str, stacklevel: int = 2) -> ModuleType | None:
    """The module that had this name below `clearhead.`, with a warning; None if none had it.

    Raises:
        ImportError: It has no successor; the message says what to use.
    """
    if name in GONE:
        message = f"clearhead.{name} was removed in 0.2.\n  {GONE[name]}"
        raise ImportError(message, name=f"clearhead.{name}")
    parent, _, last = name.rpartition(".")
    now = MOVED.get(name) or (f"{MOVED[parent]}.{last}" if parent in MOVED else None)
    if now is None or importlib.util.find_spec(f"clearhead.{now}") is None:
        return None
    warnings.warn(
        f"clearhead.{name} is clearhead.{now} since 0.2. The former name works until {REMOVAL}.",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )
    return importlib.import_module(f"clearhead.{now}")


class FormerModules:
    """Imports modules by their former names.

    It comes before Python's own finders, which would load a second copy of `watcher.seen` under the
    name of `watching.seen`.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for a former name of ours, else None."""
        package, _, below = name.partition(".")
        found = former_module(below) if package == "clearhead" and below else None
        if found is None:
            return None
        # importlib.abc has the base class that is expected, and takes 10 ms to import.
        return ModuleSpec(name, self, loader_state=found)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create an empty one."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in the place of the empty one."""
        assert module.__spec__ is not None
        sys.modules[module.__name__] = module.__spec__.loader_state
