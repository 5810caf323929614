"""Run a file whose modules, data or GPU are missing, as far as possible, with stand-ins.

The file runs statement by statement. The first one that fails because something is missing is left
out, and from there on only definitions run: imports, classes, functions and constants. Like
worker.py, which imports it, this shares a process with code that may be hostile: see there.
"""

import ast
import builtins
import contextlib
import importlib
import importlib.util
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DEFINITIONS = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
_CONSTANTS = ast.Assign | ast.AnnAssign | ast.If | ast.Try
NOTES = 5
_NETWORK = r"(?i)name resolution|getaddrinfo|URLError|connection|network"
# Functions that only report what they get: `tracker.debug("scores", scores)`, `wandb.log(...)`.
_TELLS = r"debug|info|warn(ing)?(_once)?|log(_\w+)?|record|track|monitor|add_(scalar|histogram)"
_NO_GPU = ("Torch not compiled with CUDA", "NVIDIA driver", "No CUDA GPUs", "CUDA driver")


class _Named(type):
    """The type of stand-ins: every attribute of one is another one, even if torch has it too."""

    def __getattribute__(cls, name: str) -> Any:
        fields = type.__getattribute__(cls, "__dict__")
        if name.startswith("__") or name in fields or not fields.get("is_stand_in"):
            return super().__getattribute__(name)
        return stand_in(name, fields["origin"])

    def __getitem__(cls, key: Any) -> Any:
        """`Unpack[Kwargs]` in an annotation, or an entry of a registry."""
        return stand_in(type.__getattribute__(cls, "__name__"), cls.origin)

    def __iter__(cls) -> Any:
        """`sorted(set(text))`: without this, entry after entry would be read, forever."""
        raise TypeError(f"{cls.__name__!r} comes from {cls.origin!r}, which is not installed")


class StandIn(nn.Module, metaclass=_Named):
    """Something imported from a missing module: a class, a function or a module.

    It may be a base class or an annotation; computing with it is an error. A class that is derived
    from it inherits methods that do nothing.
    """

    origin = ""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        """An object of a stand-in; if it wraps a layer or one of the file's functions, just that.

        A function that gets tensors would compute with them, and there is nothing to compute.
        """
        missing = bool(vars(cls).get("is_stand_in"))
        own = _wrapped(arguments) if missing else []
        if len(own) == 1:
            return own[0]
        tells = missing and re.fullmatch(_TELLS, cls.__name__) is not None
        if tells and not any(isinstance(one, Tensor) for one in arguments[:1]):
            return None
        if missing and not cls.__name__.endswith("_") and _computes((arguments, keywords)):
            raise ImportError(f"{cls.__name__!r} comes from {cls.origin!r}, which is not installed")
        made = super().__new__(cls)
        nn.Module.__init__(made)  # the missing base class may do so, as fastai's does
        return made

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """Accept any arguments."""
        super().__init__()

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Raise an error: there is nothing to compute."""
        name, origin = type(self).__name__, type(self).origin
        raise ImportError(f"{name!r} comes from {origin!r}, which is not installed")

    def __bool__(self) -> bool:
        """False for what is missing: `if flash_is_available():`."""
        return not is_stand_in(type(self))

    def __getattr__(self, name: str) -> Any:
        """A method of the missing base class: `self.save_hyperparameters()` does nothing."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            asks = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
            if is_stand_in(type(self)) or name.startswith("_") or asks == "torch":
                raise
        return _do_nothing


def _do_nothing(*arguments: Any, **keywords: Any) -> None:
    return


def _wrapped(arguments: tuple[Any, ...]) -> list[Any]:
    """The layers among these arguments, and the submission's own functions."""
    layers = [one for one in arguments if isinstance(one, nn.Module) and not is_stand_in(type(one))]
    functions = [one for one in arguments if isinstance(one, types.FunctionType)]
    return layers + [one for one in functions if one.__module__ == "submission"]


def _computes(value: Any) -> bool:
    """Whether there is a tensor among arguments, other than a parameter to be initialised."""
    if isinstance(value, tuple | list):
        return any(map(_computes, value))
    if isinstance(value, dict):
        return any(map(_computes, value.values()))
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter)


def _undecorate(tree: ast.AST, space: Mapping[str, Any]) -> None:
    """Remove the decorators that come from a missing module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.decorator_list = [one for one in node.decorator_list if not _missing(one, space)]


def _missing(node: ast.AST, space: Mapping[str, Any]) -> bool:
    """Whether `registry.register("name")` starts with a name that stands for something missing."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    value = space.get(node.id) if isinstance(node, ast.Name) else None
    return is_stand_in(value) or is_stand_in(type(value))


def _pair(value: Any) -> Any:
    return value if isinstance(value, tuple | list) else (value, value)


class _Record:
    """A base class for records, such as pydantic's: fields by keyword, or their defaults."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


def _field(default: Any = None, **_: Any) -> Any:
    """A field's default, without validating its value."""
    return default


def _default(value: Any, other: Any) -> Any:
    """A value, or what replaces it if it is None."""
    if value is None:
        return other() if isinstance(other, types.FunctionType) else other
    return value


def _itself(value: Any, *_: Any, **__: Any) -> Any:
    """Return what is only marked, wrapped or initialised."""
    return value


def _conv_nd(dims: int, *arguments: Any, **keywords: Any) -> Any:
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](*arguments, **keywords)


class Conv1D(nn.Module):
    """The linear layer of GPT-2, whose weight is (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.02)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the weight, and add the bias."""
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], self.nf)


def _group_norm(channels: int, *_: Any, **__: Any) -> Any:
    """The norm of diffusion models: 32 groups, or fewer if the channels do not allow them."""
    return nn.GroupNorm(math.gcd(channels, 32), channels)


def _checkpoint(function: Any, *arguments: Any, **_: Any) -> Any:
    """The function's own result: checkpointing only saves memory."""
    first = arguments[0] if arguments else ()
    return function(*first) if isinstance(first, tuple | list) else function(*arguments)


class _Logger:
    """Accepts every message, and prints nothing."""

    def __getattr__(self, name: str) -> Any:
        return _do_nothing


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """What xformers computes, for (batch, tokens, heads, width), or with heads in the batch."""
    if attn_bias is not None and not isinstance(attn_bias, Tensor):
        raise ImportError(f"a mask of the type {type(attn_bias).__name__!r} is not supported")
    q, k, v = (x.transpose(1, 2) if x.ndim == 4 else x for x in (q, k, v))
    attend = nn.functional.scaled_dot_product_attention
    out = attend(q, k, v, attn_mask=attn_bias, dropout_p=p, scale=scale)
    return out.transpose(1, 2) if q.ndim == 4 else out


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **_: Any,
) -> Tensor:
    """What flash-attn computes, for (batch, tokens, heads, width)."""
    if tuple(window_size) != (-1, -1):
        raise ImportError("a window of flash_attn_func is not supported")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    attend = nn.functional.scaled_dot_product_attention
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))  # shared heads
    out = attend(q, k, v, dropout_p=dropout_p, scale=softmax_scale, is_causal=causal)
    return out.transpose(1, 2)


def _flash_packed(qkv: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
    q, k, v = qkv.unbind(2)
    return _flash(q, k, v, *arguments, **keywords)


def _sdpa(*tensors: Any, mask: Any = None, **keywords: Any) -> Any:
    """What torch computes, or a function that does so, if there are no tensors."""
    keywords |= {} if mask is None else {"attn_mask": mask}
    attend = nn.functional.scaled_dot_product_attention
    return attend(*tensors, **keywords) if tensors else _sdpa


class _TriangularMask:
    """The causal mask of Informer and the models after it, in the field `mask`: True is hidden."""

    def __init__(self, batch: int, tokens: int, device: Any = None) -> None:
        self.mask = torch.ones(batch, 1, tokens, tokens, dtype=torch.bool).triu(1)


def _started(*arguments: Any, **_: Any) -> Any:
    """A parameter to be initialised, which does not matter: the checker chooses the weights."""
    return next((one for one in arguments if isinstance(one, Tensor)), None)


def _unturned(*given: Any, **_: Any) -> Any:
    """Queries and keys without rotation: how a missing module rotates them is unknown.

    Angles may come first; they have fewer axes, or are the same for the whole batch.
    """
    tensors = [one for one in given[:2] if isinstance(one, Tensor)]
    most = max((one.ndim, one.shape[0]) for one in tensors)
    turned = tuple(one for one in tensors if (one.ndim, one.shape[0]) == most)
    if len({one.shape[-1] for one in turned}) > 1:
        turned = turned[:1]
    return turned if len(turned) > 1 else turned[0]


class Turning(StandIn):
    """A missing layer for rotary positions, which leaves queries and keys as they are."""

    rotate_queries_or_keys = rotate_queries_and_keys = staticmethod(_unturned)
    rotate_queries_with_cached_keys = staticmethod(_unturned)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Queries and keys as they are; a table of angles is not available."""
        both = [one for one in arguments[:2] if isinstance(one, Tensor) and one.ndim > 2]
        gives_angles = "Embedding" in type(self).__name__  # as in Hugging Face's models
        return _unturned(*both) if both[gives_angles:] else super().forward(*arguments, **keywords)


def turns(name: str) -> bool:
    """Whether a function of this name rotates queries and keys by their positions."""
    return name.startswith(("apply_rotary", "apply_rope"))


def _many(change: str) -> Any:
    """What einops_exts does: rearrange or repeat every tensor in a sequence."""
    return lambda tensors, *arguments, **sizes: (
        stand_in(change, "einops")(one, *arguments, **sizes) for one in tensors
    )


_EINOPS = ("rearrange", "repeat", "reduce", "einsum", "pack", "unpack", "Rearrange", "Reduce")
# Small helpers that have the same name in every package, and what fused kernels compute.
_USUAL: dict[str, Any] = {
    "to_2tuple": _pair, "DropPath": nn.Dropout, "BaseModel": _Record, "Field": _field,
    "exists": lambda value: value is not None, "default": _default, "zero_module": _itself,
    "Conv1D": Conv1D, "conv_nd": _conv_nd, "normalization": _group_norm, "checkpoint": _checkpoint,
    "get_logger": lambda *_: _Logger(), "memory_efficient_attention": _fused,
    "rearrange_many": _many("rearrange"), "repeat_many": _many("repeat"), "check_shape": _itself,
    "flash_attn_func": _flash, "flash_attn_qkvpacked_func": _flash_packed,
    "contract": torch.einsum,  # opt_einsum's
    "TriangularCausalMask": _TriangularMask,
    "init": _itself,  # initialises a layer
}  # fmt: skip

# The same by pattern. The model is not distributed over several machines.
_BY_PATTERN: dict[str, Any] = {
    r"apply_(rotary|rope)\w*": _unturned,
    r"(get_)?\w*world_size": lambda *_: 1,
    r"get_\w*rank": lambda *_: 0,
    r"\w*(sdpa|scaled_dot_product_att)\w*": _sdpa,
    r"(?i)\w*(mlp|feed_?forward)": nn.Identity,  # which changes each token alone
}


def stand_in(name: str, origin: str) -> Any:
    """What stands for a name from a missing module: torch's or einops' own, if there is one.

    Examples:
        >>> stand_in("RMSNorm", "layers.norm") is nn.RMSNorm
        True
    """
    for pattern, value in _BY_PATTERN.items():
        if re.fullmatch(pattern, name):
            return value
    if name in _USUAL or hasattr(nn.init, f"{name.rstrip('_')}_"):
        return _USUAL.get(name, _started)
    einops = ("einops", "einops.layers.torch") if name in _EINOPS else ()
    there = [importlib.import_module(one) for one in einops if importlib.util.find_spec("einops")]
    for home in (*there, nn, nn.functional, nn.init):
        found = getattr(home, name, None)
        if callable(found):
            return found
    kind = next((one for one in _KINDS if name.endswith(one.__name__)), None)
    if kind is not None:
        return type(name, (kind,), {"__init__": _of_kind(kind), "__module__": origin})
    return _nothing(name, origin)


def _nothing(name: str, origin: str) -> Any:
    fields = {"origin": origin, "is_stand_in": True, "__module__": origin}
    rotary = re.match(r"([A-Z]\w*)?(Rotary|RoPE)", name) is not None
    return _Named(name, (Turning if rotary else StandIn,), fields)


_KINDS = (nn.Dropout, nn.LayerNorm, nn.RMSNorm, nn.Linear)  # a RowParallelLinear is a Linear


def _of_kind(kind: Any) -> Any:
    """A constructor for a layer that drops arguments which torch's own does not have."""
    known = inspect.signature(kind).parameters
    return lambda self, *arguments, **keywords: kind.__init__(
        self, *arguments, **{n: v for n, v in keywords.items() if n in known}
    )


def is_stand_in(value: object) -> bool:
    """Whether a value stands for something that is missing."""
    return isinstance(value, _Named) and bool(vars(value).get("is_stand_in"))


def run_file(tree: ast.Module, filename: str, space: dict[str, Any]) -> list[str]:
    """Run a file in a namespace; return what was left out of it, in sentences.

    Raises:
        Exception: If a class or a function cannot be defined, and nothing was missing before.
    """
    futures = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    notes: list[str] = []
    first: Exception | SystemExit | None = None
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:  # there is no package around the file
            node.level, node.module = 0, node.module or node.names[0].name
        if first is not None and not _defines(node, defined):
            continue
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.add(node.name)
            _undecorate(node, space)
        whole = ast.Module(body=[*futures, node], type_ignores=[])
        constant = isinstance(node, _CONSTANTS) and _defines(node, defined)
        try:
            with OnCpu() if constant else contextlib.nullcontext():
                exec(compile(whole, filename, "exec"), space)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            imports = isinstance(node, ast.Import | ast.ImportFrom)
            if first is None and isinstance(node, ast.ClassDef | ast.FunctionDef):
                raise
            given = {n: value for n, value in _given(node, tree) if n not in space}
            space |= given
            notes += [
                f"{name} is missing: rotary positions were left out."
                for name, value in given.items()
                if value is _unturned or (is_stand_in(value) and issubclass(value, Turning))
            ]
            notes += [_note(node, error)] if imports or first is None else []
            first = first or error
    if first is not None and not any(isinstance(v, type) and v.__module__ == space["__name__"]
                                     for v in space.values()):  # fmt: skip
        raise first
    if any(one.name == "pdb" for n in ast.walk(tree) if isinstance(n, ast.Import)
           for one in n.names):  # fmt: skip
        vars(importlib.import_module("pdb"))["set_trace"] = _nobody_answers
    sys.breakpointhook = _nobody_answers
    return list(dict.fromkeys(notes))[:NOTES]


def _nobody_answers(*arguments: object, **keywords: object) -> None:
    """Replaces a debugger's breakpoint: execution continues."""


def _defines(node: ast.stmt, defined: set[str]) -> bool:
    """Whether a statement defines something without running the file's own code."""
    if isinstance(node, _DEFINITIONS):
        return True
    guard = isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
    names = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and
             isinstance(n.func, ast.Name)}  # fmt: skip
    loops = any(isinstance(n, ast.For | ast.While) for n in ast.walk(node))
    return isinstance(node, _CONSTANTS) and not guard and not loops and not names & defined


def _given(node: ast.stmt, tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Stand-ins for the names that an import or an assignment would have defined."""
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        yield from _of_star(tree, module) if node.names[0].name == "*" else ()
        given = [one for one in node.names if one.name != "*"]
        yield from ((one.asname or one.name, stand_in(one.name, module)) for one in given)
    elif isinstance(node, ast.Import):
        short = [(one.asname or one.name.partition(".")[0], one.name) for one in node.names]
        yield from ((name, stand_in(f"module {origin}", origin)) for name, origin in short)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        stored = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        names = [n.id for n in stored if isinstance(n.ctx, ast.Store)]
        yield from ((name, stand_in(name, f"line {node.lineno}")) for name in names)


_SHORT = {"np": "numpy", "F": "torch.nn.functional"}


def _of_star(tree: ast.Module, origin: str) -> Iterator[tuple[str, Any]]:
    """What `from .common import *` may have provided: every name the file does not define."""
    known, used, bases = set(dir(builtins)), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.arg):
            known.add(node.arg if isinstance(node, ast.arg) else node.name)
            bases |= {ast.unparse(one) for one in getattr(node, "bases", ())}
    for name in sorted(used - known):
        there = sys.modules.get(_SHORT.get(name, name)) or getattr(torch, name, None)
        there = getattr(typing, name, stand_in(name, origin)) if there is None else there
        yield name, _nothing(name, origin) if name in bases else there


def _note(node: ast.stmt, error: BaseException) -> str:
    said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    if isinstance(error, OSError) and re.search(_NETWORK, said):
        said += "; submissions have no network"
    what = "The import in line" if isinstance(node, ast.Import | ast.ImportFrom) else "Line"
    return f"{what} {node.lineno} failed ({said}). After it, only definitions were run."


def missing_names(space: Mapping[str, Any]) -> list[str]:
    """The names of a namespace that stand for something missing."""
    return [name for name, value in space.items() if is_stand_in(value) or value is _unturned]


class Siblings(MetaPathFinder, Loader):
    """Files next to a submission, importable by name; their source was sent with it.

    Args:
        sources: Source by dotted module name.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """A module that was sent, or a package that holds one."""
        package = any(one.startswith(f"{name}.") for one in self.sources)
        if name in self.sources or package:
            return importlib.util.spec_from_loader(name, self, is_package=package)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Run it like the submission itself."""
        text = self.sources.get(module.__name__, "")
        file = f"{module.__name__}.py"
        run_file(ast.parse(text, file), file, vars(module))

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """An ordinary module."""
        return None


def wants_gpu(error: BaseException) -> bool:
    """Whether this error says that there is no GPU."""
    return isinstance(error, AssertionError | RuntimeError) and any(
        sign in str(error) for sign in _NO_GPU
    )


class OnCpu(TorchFunctionMode):
    """The CPU in place of every GPU: `.cuda()`, `.to("cuda")`, `device="cuda:0"`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function with its devices replaced."""
        if func is Tensor.cuda:
            return args[0]
        named = {name: _cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(_cpu, args), **named)


def _cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value
