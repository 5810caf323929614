"""A submitted class: how it is built, how it is called, what it returns.

Submissions come without instructions, so names are interpreted ("n_embd", "block_size", "p"), sizes
that cannot be confused are chosen, and if the class raises an error, other sizes and other calls
are tried.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from clearhead.checker.harness import axis_orders
from clearhead.checker.harness.axis_orders import CHANNELS_FIRST, STATES, taken
from clearhead.checker.harness.constructor_arguments import (
    Sizes,
    likely_meaning,
    meaning_of,
    value_of,
)
from clearhead.checker.harness.forward_arguments import (
    ANGLE_ROLES,
    GRID,
    MARKS,
    rotary_tables,
    shaped_mask,
)
from clearhead.checker.harness.weight_roles import role_of, takes_last
from clearhead.checker.sandbox.submission import Built, ClassInfo, Failure, Output, Submission

ONLY_WEIGHTS = "forward returned the weights alone"
Session = Submission  # in a separate process, or in this one
Inputs = tuple[Tensor, Tensor, Tensor]  # for queries, keys and values; may be the same tensor


@dataclass(frozen=True, eq=False)
class Subject:
    """A class that was built, and how to call it.

    Args:
        info: The class.
        sizes: The sizes it was built with.
        keywords: The constructor's arguments.
        built: The object that was built.
        axes: The order of its axes, "batch" for (batch, tokens, d); see axis_orders.py.
        feed: Forward's parameters in order, each with its role: "q", "k", "v", "x", "kv", "list"
            for all three, "mask", "none", a plain value such as "zero", or a random tensor such as
            "tensor b n 15"; see `arguments_for`.
        polarity: How a mask is written: one of POLARITIES, or "" if none is passed.
        mask_shape: The mask's shape: one of MASK_SHAPES.
        mask_field: The field that holds the mask, if forward takes an object with a mask; else "".
        rotary: How rotary angles are passed: one of ROTARY, or "" if they are not.
        dtype: float64, or float32 if the class requires it.
        d_in: The width of its inputs, judging by its weights.
        weights: Its current random weights.
        arguments: Positional-only arguments of the constructor.
        d_kv: The width of the separate input for keys and values, if it differs; else 0.
        memory: The axis order of the separate input for keys and values, if it differs; else "".
        marks: What is passed for a required (batch, tokens) argument: one of MARKS, or "".
        texts: How many sequences are packed into one row, if not as many as `sizes` says.
        how: One line on how it was built and called.
        switched: The name of the flag that has its other value.
        seed: The random seed for weights and inputs.
    """

    info: ClassInfo
    sizes: Sizes
    keywords: dict[str, object]
    built: Built
    axes: str = "batch"
    feed: tuple[tuple[str, str], ...] = ()
    polarity: str = ""
    mask_shape: str = "nn"
    mask_field: str = ""
    rotary: str = ""
    dtype: torch.dtype = torch.float64
    d_in: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)
    arguments: tuple[object, ...] = ()
    d_kv: int = 0
    memory: str = ""
    marks: str = ""
    texts: int = 0
    how: str = ""
    switched: str = ""
    seed: int = 0

    @property
    def takes_mask(self) -> str:
        """The name of forward's mask parameter, or ""."""
        return next((n for n, role in self.feed if role == "mask"), "")

    @property
    def separate(self) -> bool:
        """Whether queries, keys and values come from separate inputs."""
        roles = {role for _, role in self.feed}
        return bool({"k", "kv", "list"} & roles)


def random_weights(built: Built, seed: int = 1) -> dict[str, Tensor]:
    """Distinct random values for every parameter, including biases, in float64.

    A tensor attribute of an object that is not a module may also be a mask or a table: it keeps its
    values if its name does not identify it as a weight.
    """
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, Tensor] = {}
    for name, shape in built.parameters.items():
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        owner = built.modules.get(name.rpartition(".")[0], "")
        if built.loose and not owner and not role_of(name) and name in built.weights:
            values[name] = built.weights[name].to(torch.float64)
        elif len(shape) < 2:
            is_gain = "Norm" in owner and name.endswith("weight")
            values[name] = 1 + 0.3 * noise if is_gain else 0.4 * noise
        else:
            fan_in = shape[1] if takes_last(owner) else max(shape[-2:])
            values[name] = noise * 1.3 / max(fan_in, 1) ** 0.5
    return values


def width_in(built: Built, sizes: Sizes, given: Mapping[str, object]) -> int:
    """The width of the inputs, judging by the weights that receive them.

    Args:
        built: The object.
        sizes: The sizes it was built with.
        given: The constructor's arguments, which determine the width if there are no weights.
    """
    told = [v for n, v in given.items() if meaning_of(n) in ("d", "d_in", "head_dim")]
    if not built.parameters and told and type(told[0]) is int:
        return told[0]
    shapes = {n: s for n, s in built.parameters.items() if len(s) >= 2}
    for name, shape in shapes.items():
        owner = built.modules.get(name.rpartition(".")[0], "")
        if role_of(name) in ("q", "qkv", "k"):
            inside = shape == (sizes.head_dim, sizes.head_dim)
            if inside and any(role_of(n) == "o" and sizes.d_out in s for n, s in shapes.items()):
                return sizes.d_out  # projections inside each head; the output's takes all heads
            if takes_last(owner) or name.endswith("in_proj_weight"):
                return shape[1]
            if "Conv1D" in owner:
                return shape[0]
            known = [n for n in shape if n in (sizes.d_in, sizes.d_out)]
            return sizes.d_in if sizes.d_in in known else (known or [shape[-2]])[0]
    for name, shape in shapes.items():
        if takes_last(built.modules.get(name.rpartition(".")[0], "")):
            return shape[1]
    return sizes.d_out if sizes.d_in not in {n for s in shapes.values() for n in s} else sizes.d_in


def joined_widths(built: Built, sizes: Sizes, given: Mapping[str, object]) -> tuple[int, int]:
    """The widths of a query and of a key that one layer takes concatenated; 0 if none does.

    The keys may come from a bidirectional encoder, and are then twice as wide.
    """
    told = [(n, v) for n, v in given.items() if type(v) is int]
    widths = [v for n, v in told if v == sizes.d_out or likely_meaning(n) in ("d", "d_in", "d_out")]
    for name, shape in built.parameters.items():
        layer = takes_last(built.modules.get(name.rpartition(".")[0], "")) and len(shape) == 2
        if not layer or role_of(name) in ("q", "k", "v", "qkv", "kv"):
            continue
        for width in sorted(widths, key=lambda one: one != shape[0]):  # the queries' width first
            if shape[1] - width in {times * one for one in widths for times in (1, 2)}:
                return width, shape[1] - width
    return 0, 0


def width_of_memory(built: Built, d_in: int) -> int:
    """The input width of the key and value layers, if it differs from the queries'; else 0."""
    memory, queries = _widths_of(built, "k", "v", "kv"), _widths_of(built, "q")
    return memory.pop() if len(memory) == 1 and not memory & {d_in, *queries} else 0


def _widths_of(built: Built, *roles: str) -> set[int]:
    """The input widths of the layers with these roles."""
    return {
        shape[1]
        for name, shape in built.parameters.items()
        if role_of(name) in roles
        and len(shape) == 2
        and re.search(r"Linear|MultiheadAttention", built.modules.get(name.rpartition(".")[0], ""))
    }


def each(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply a function to each input; inputs that are one tensor stay one."""
    made = {key: function(tensor) for key, tensor in {id(t): t for t in inputs}.items()}
    q, k, v = (made[id(tensor)] for tensor in inputs)
    return q, k, v


def call(
    session: Session,
    subject: Subject,
    inputs: Inputs,
    *,
    train: bool = False,
    seed: int = 0,
    mask: Tensor | None = None,
    given: Mapping[str, object] | None = None,
) -> Tensor | Failure:
    """The class's output for inputs (batch, tokens, d_in), converted to (batch, tokens, d).

    Args:
        session: The process that runs the submission.
        subject: How it is called.
        inputs: The inputs for queries, keys and values.
        train: Whether it is in training mode.
        seed: The random seed for the call.
        mask: The value for its mask argument.
        given: Values for other arguments of forward, by name.
    """

    def one(shaped: Inputs) -> Tensor | Failure:
        arguments = arguments_for(subject, shaped, mask, given)
        output = session.forward(*arguments, train=train, seed=seed)
        return output if isinstance(output, Failure) else _result(subject, output, shaped[0].shape)

    if subject.axes in ("single", *STATES):
        rows = []
        for row in range(len(inputs[0])):
            got = one(one_text(subject, inputs, row))
            if isinstance(got, Failure):
                return got
            rows.append(got)
        return torch.stack(rows)
    if subject.axes == "packed":
        subject = replace(subject, texts=len(inputs[0]))
    got = one(handed(subject, inputs))
    if isinstance(got, Tensor) and subject.axes == "packed":
        return got.view(*inputs[0].shape[:2], -1) if len(got) == inputs[0][..., 0].numel() else got
    return got if isinstance(got, Failure) else taken(got, subject.axes)


def handed(subject: Subject, inputs: Inputs) -> Inputs:
    """Inputs (batch, tokens, width) in the axis order that the class expects."""
    q, k, v = map(axis_orders.given, inputs, orders(subject))
    return q, k, v


def orders(subject: Subject) -> tuple[str, str, str]:
    """The orders of the axes of queries, keys and values."""
    memory = subject.memory or subject.axes
    return subject.axes, memory, subject.axes if memory == "turned" else memory


def one_text(subject: Subject, inputs: Inputs, row: int) -> Inputs:
    """One sequence of a batch as the class expects it; inputs that are one tensor stay one."""
    q, k, v = each(inputs, lambda x: x[row : row + 1])
    shaped = dict(zip(map(id, (q, k, v)), handed(subject, (q, k, v)), strict=True))
    return shaped[id(q)], shaped[id(k)], shaped[id(v)]


def renew(session: Session, subject: Subject) -> bool:
    """Rebuild it with the same weights; return whether that worked."""
    built = session.build(subject.info.name, subject.arguments, subject.keywords)
    weights = {name: w.to(subject.dtype) for name, w in subject.weights.items()}
    return not isinstance(built, Failure) and not (weights and session.load(weights) is not None)


def length_of(x: Tensor, axes: str) -> int:
    """How many tokens an input in the submission's own axis order has."""
    if axes in CHANNELS_FIRST:
        return x[0, 0].numel()
    if axes in ("pixels", "frames"):
        return x.shape[1] * (x.shape[2] if axes == "pixels" else 1)
    if axes in ("spread", "crossed", "columns"):
        return x.shape[1]
    return x.shape[0 if axes in ("first", "each-first") else -2]


def arguments_for(
    subject: Subject,
    inputs: Inputs,
    mask: Tensor | None = None,
    given: Mapping[str, object] | None = None,
) -> tuple[list[object], dict[str, object]]:
    """Forward's arguments, positional as far as possible; see `call`."""
    q, k, v = inputs
    length = length_of(v, orders(subject)[2])
    single = subject.axes == "single"
    batch = 1 if single else q.shape[1 if subject.axes in ("first", "states") else 0]
    if mask is None and subject.polarity:
        shape = subject.mask_shape
        mask = shaped_mask(subject.polarity, shape, batch, length, subject.dtype)
    value: dict[str, object] = {"x": q, "q": q, "k": k, "v": v, "kv": k, "mask": mask, "none": None}
    value |= {
        "list": [q, k, v],
        "zero": 0,
        "one": 1,
        "false": False,
        "true": True,
        "length": length,
        "marks": None,
    }
    value["base"] = 10000.0
    value["positions of each"] = torch.arange(length).expand(batch, -1)
    value |= {"positions": torch.arange(length), "lengths": torch.full((batch,), length)}
    for role in (role for _, role in subject.feed if role.startswith("tensor ")):
        letters = {"b": batch, "n": length, "m": 2 * length - 1, "h": subject.sizes.heads}
        letters["e"] = batch * subject.sizes.heads
        first, *axes = (letters.get(axis) or int(axis) for axis in role.split()[1:])
        seeds = (torch.Generator().manual_seed(3 + row) for row in range(first))
        rows = [torch.randn(axes, generator=seed) for seed in seeds]  # the same in a larger batch
        value[role] = torch.stack(rows).to(subject.dtype)
    value |= dict.fromkeys(ANGLE_ROLES)
    value |= {"grid": list(GRID), "rows": GRID[0], "columns": GRID[1]}
    if subject.axes == "packed":
        each = length // (subject.texts or subject.sizes.batch)
        value["cumulative"] = torch.arange(0, length + 1, each, dtype=torch.int32)
    if subject.mask_field and mask is not None:
        value["mask"] = {"__config__": {subject.mask_field: mask}}
    if subject.rotary:
        value |= rotary_tables(subject.rotary, length, turned_width(subject), subject.dtype)
    if subject.marks:
        number, dtype = MARKS[subject.marks]
        value["marks"] = torch.full([length] if single else [batch, length], number, dtype=dtype)
    kinds = {p.name: p.kind for p in subject.info.forward}
    optional = {p.name for p in subject.info.forward if p.has_default}
    keywords = {
        name: value[role]
        for name, role in subject.feed
        if not (name in optional and value[role] is None)
    } | dict(given or {})
    positional: list[object] = []
    for parameter in subject.info.forward:
        if parameter.name not in keywords or kinds[parameter.name] == "KEYWORD_ONLY":
            break
        positional.append(keywords.pop(parameter.name))
    return positional, keywords


def _result(subject: Subject, output: Output, shape: Sequence[int]) -> Tensor | Failure:
    """The result among the returned tensors, for inputs of this shape."""
    chosen = result_in(subject, output, shape)
    if chosen is None:
        return Failure("exception", "NoTensor", "forward returned no tensor")
    result = output.tensors[chosen]
    if subject.axes in STATES:
        rows = math.prod(shape[:-1])
        if [n for n in result.shape if n != 1][:1] != [rows]:
            return Failure("exception", "ShapeError", "forward returned no vector for each state")
        weights = result.to(torch.float64).reshape(rows, -1)
        if weights.shape[1] == rows and bool(((weights.sum(1) - 1).abs() < 1e-5).all()):
            return Failure("exception", "ShapeError", ONLY_WEIGHTS)
        return result.reshape(rows, -1).to(torch.float64)
    if subject.axes == "pooled" and result.numel() == shape[0] * result.shape[-1]:
        return result.reshape(shape[0], 1, -1).to(torch.float64)
    if result.ndim != len(shape) or not result.is_floating_point():
        shapes = f"{tuple(result.shape)} for inputs {tuple(shape)}"
        if result.ndim == 2 and len(shape) == 3 and len(result) == shape[0]:
            shapes = f"one vector per sequence, {shapes}"
        return Failure("exception", "ShapeError", f"forward returned {shapes}")
    return result.to(torch.float64)


def result_in(subject: Subject, output: Output, shape: Sequence[int]) -> int | None:
    """Which of the returned tensors is the result, for inputs of this shape."""
    if subject.axes in STATES:
        rows = math.prod(shape[:-1])  # as many as tokens, so that the weights are square
        sizes = [[n for n in tensor.shape if n != 1] for tensor in output.tensors]
        fits = [i for i, one in enumerate(sizes) if one[:1] == [rows] and one != [rows, rows]]
        return fits[0] if fits else 0 if output.tensors else None
    return pick(output, shape)


def pick(output: Output, shape: Sequence[int]) -> int | None:
    """Which returned tensor is the result: shaped like the input, except for the last axis."""
    tensors = output.tensors
    if not tensors:
        return None
    pools = tensors[0].ndim == 2 < len(shape) and len(tensors[0]) == shape[0]
    for index, tensor in enumerate(tensors):
        square = tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2] == shape[-2]
        weights = square or (pools and tensor.shape[-1] == 1)
        if tensor.ndim == len(shape) and tensor.shape[:-1] == tuple(shape[:-1]) and not weights:
            return index
    return 0


def others(subject: Subject) -> list[str]:
    """The parameters that belong to no projection or norm: tables, sinks, learned keys."""
    modules, found = subject.built.modules, []
    layers = {role_of(n) for n in subject.built.parameters if modules.get(n.rpartition(".")[0])}
    for name in subject.built.parameters:
        kind = modules.get(name.rpartition(".")[0], "")
        if takes_last(kind) or "Norm" in kind or kind in ("Conv1D", "MultiheadAttention"):
            continue
        if kind or role_of(name) in {"", *layers}:
            found.append(name)
    return found


def head_width(subject: Subject) -> int:
    """The width of one head, as the object states it, or as its sizes suggest."""
    told = [v for n, v in subject.built.plain.items() if meaning_of(n) == "head_dim"]
    return next((v for v in told if isinstance(v, int) and v > 0), subject.sizes.head_dim)


def turned_width(subject: Subject) -> int:
    """The width of the part of a head that gets rotary positions: usually all of it."""
    names = (*subject.built.plain, *(name for name, _ in subject.info.fields))
    parted = any(likely_meaning(name) in ("rope_dim", "rope_part") for name in names)
    return int(str(value_of("rope_dim", subject.sizes, set()))) if parted else head_width(subject)


def inputs_for(subject: Subject, tokens: int, seed: int = 2, batch: int = 0) -> Inputs:
    """Random inputs: one tensor for all, or different ones if forward takes several."""
    generator = torch.Generator().manual_seed(seed + 1009 * subject.seed)
    shape = (batch or subject.sizes.batch, tokens, subject.d_in)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    if subject.d_kv and subject.separate:
        wide = (*shape[:2], subject.d_kv)
        k, v = (torch.randn(wide, generator=generator, dtype=torch.float64) for _ in range(2))
    q, k, v = q.to(subject.dtype), k.to(subject.dtype), v.to(subject.dtype)
    roles = {role for _, role in subject.feed}
    if "list" in roles or {"k", "v"} <= roles:
        return q, k, v
    if "kv" in roles or "k" in roles or "v" in roles:
        return q, k, k
    return q, q, q
