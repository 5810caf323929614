"""Where a submitted class keeps its query, key, value and output weights.

Names come first (`W_query`, `to_q`, `linears.0`, `c_attn`), then shapes. What the names leave open
(the order inside a fused matrix, (out, in) or (in, out) for a square parameter) becomes several
candidates; the one that reproduces the output is the true one.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis.norms import Around, norms_around, norms_of_queries_and_keys
from clearhead.checker.diagnosis.simulator import Weights
from clearhead.checker.harness.weight_roles import CONVOLUTIONS, role_of, takes_last

ORDERS = ("qkv", "kqv", "qvk", "vqk", "kvq", "vkq")


@dataclass(frozen=True, eq=False)
class Candidate:
    """One reading of the weights.

    Args:
        weights: The weights in the simulator's order.
        order: The order of the three parts in a fused matrix, else "".
        named: Whether names say which is which. If not, any order is as right as another.
    """

    weights: Weights
    order: str = ""
    named: bool = True


@dataclass(frozen=True, eq=False)
class _Matrix:
    """A matrix as (in, out), with its bias; `square` marks an orientation that was guessed."""

    path: str
    value: Tensor
    bias: Tensor | None
    heads: int = 0
    square: bool = False

    def flipped(self) -> "_Matrix":
        return replace(self, value=self.value.T) if self.square else self


def _bias_name(path: str, weights: Mapping[str, Tensor]) -> str:
    """The name of a matrix's bias, or ""."""
    if path.endswith("weight"):
        name = path.removesuffix("weight") + "bias"
        return name if name in weights else ""
    head, _, last = path.rpartition(".")
    plain = re.sub(r"_?(kernel|weights?|matrix|mat)$", "", last)
    spelled = (last.replace("W", "b"), last.replace("w", "b"), f"{plain}_bias", f"b_{plain}")
    for other in (*spelled, f"{last}_bias", f"b_{last}"):
        name = f"{head}.{other}" if head else other
        if name != path and name in weights and weights[name].ndim <= 3:
            return name
    return ""


def _matrices(
    weights: Mapping[str, Tensor], modules: Mapping[str, str], d_in: int
) -> list[_Matrix]:
    found = []
    biased = {path: _bias_name(path, weights) for path in weights}
    biases = set(biased.values())
    for path, value in weights.items():
        owner = path.rpartition(".")[0]
        kind = modules.get(owner, "")
        if (
            kind in CONVOLUTIONS and value.ndim > 2 and value[0, 0].numel() == 1
        ):  # of one token or pixel: a product
            value = value.flatten(1)
        if value.ndim < 2 or value.ndim > 3 or min(value.shape) < 1 or "Embedding" in kind:
            continue
        last = path.rpartition(".")[2].lower()
        if "bias" in last or last.startswith("b_") or last in ("bq", "bk", "bv", "bo"):
            continue
        if re.search(r"(^|[._])(pos|rel|wpe|emb|rope)[a-z_]*", path.lower()):
            continue
        if path in biases:
            continue
        bias = weights[biased[path]].reshape(-1) if biased[path] else None
        is_output = role_of(path) == "o"
        if value.ndim == 3:
            found.append(_three_axes(path, value, bias, d_in, is_output))
        elif "Conv1D" in kind:
            found.append(_Matrix(path, value, bias))
        elif takes_last(kind) or kind == "MultiheadAttention":
            found.append(_Matrix(path, value.T, bias))
        else:
            rows, columns = value.shape
            if rows == columns:
                found.append(_Matrix(path, value, bias, square=True))
            elif (columns == d_in) != (rows == d_in):
                found.append(_Matrix(path, value if rows == d_in else value.T, bias))
            else:
                found.append(_Matrix(path, value, bias))
    return found


def _three_axes(
    path: str, value: Tensor, bias: Tensor | None, d_in: int, is_output: bool
) -> _Matrix:
    """A parameter a head: (heads, d_in, head_dim) and its relatives."""
    first, second, third = value.shape
    if is_output:
        matrix = value.reshape(first * second, third)
        return _Matrix(path, matrix, bias, heads=first)
    if second == d_in:
        return _Matrix(path, value.permute(1, 0, 2).reshape(d_in, -1), bias, heads=first)
    if third == d_in:
        return _Matrix(path, value.permute(2, 0, 1).reshape(d_in, -1), bias, heads=first)
    return _Matrix(path, value.reshape(first, -1), bias, heads=second)


def _joined(matrices: list[_Matrix]) -> _Matrix:
    """Several heads' matrices side by side."""
    if len(matrices) == 1:
        return matrices[0]
    biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
    return _Matrix(
        matrices[0].path,
        torch.cat([matrix.value for matrix in matrices], dim=1),
        torch.cat(biases) if len(biases) == len(matrices) else None,
        heads=len(matrices),
    )


def _by_index(matrices: list[_Matrix]) -> dict[str, list[_Matrix]] | None:
    """`linears.0` to `linears.3`: q, k, v, out in this order, as the Annotated Transformer has."""
    named = [(re.match(r"^(.*\D)(\d+)\.weight$", m.path), m) for m in matrices]
    groups: dict[str, list[_Matrix]] = {}
    for match, matrix in named:
        if match:
            groups.setdefault(match[1], []).append(matrix)
    for group in groups.values():
        if len(group) in (3, 4):
            rest = [m for m in matrices if m not in group]
            return {r: [m] for r, m in zip("qkvo", [*group, *rest], strict=False)}
    return None


def _parts(
    matrix: _Matrix, heads: int, count: int, queries: int = 0
) -> Iterator[tuple[str, list[_Matrix]]]:
    """The ways to cut a fused matrix into `count` equal parts (or queries and two narrow ones)."""
    value, bias = matrix.value, matrix.bias
    width = value.shape[1]
    both = [value] if bias is None else [value, bias[None]]

    def made(pieces: list[list[Tensor]]) -> list[_Matrix]:
        return [
            _Matrix(matrix.path, piece[0], piece[1][0] if bias is not None else None)
            for piece in pieces
        ]

    if width % count == 0:
        size = width // count
        yield (
            "one after the other",
            made([list(p) for p in zip(*[t.chunk(count, 1) for t in both], strict=True)]),
        )
        if size % heads == 0 and heads > 1:
            hd = size // heads
            by_head = [t.reshape(len(t), heads, count, hd).permute(2, 0, 1, 3) for t in both]
            yield (
                "head by head",
                made([[t[i].reshape(len(t[i]), -1) for t in by_head] for i in range(count)]),
            )
            strided = [t.reshape(len(t), hd, count, heads).permute(2, 0, 3, 1) for t in both]
            yield (
                "number by number",
                made([[t[i].reshape(len(t[i]), -1) for t in strided] for i in range(count)]),
            )
    if count == 3 and queries and width > queries and (width - queries) % 2 == 0:
        narrow = (width - queries) // 2
        cut = [torch.split(t, [queries, narrow, narrow], 1) for t in both]
        yield (
            "queries, then narrow keys and values",
            made([list(p) for p in zip(*cut, strict=True)]),
        )


def candidates(
    weights: Mapping[str, Tensor],
    modules: Mapping[str, str],
    *,
    d_in: int,
    heads: Sequence[int],
    head_dim: int = 0,
    p: float = 0.0,
) -> list[Candidate]:
    """Every reading of a class's weights that its names and shapes allow, likely ones first.

    Args:
        weights: Parameter path -> value.
        modules: Module path -> class name.
        d_in: The width of the inputs.
        heads: Possible numbers of heads, likely ones first.
        head_dim: The width of a head, if the class was told.
        p: The dropout that the class was built with.
    """
    matrices = _matrices(weights, modules, d_in)
    norm, memory_norm = norms_around(weights, modules)
    found: list[Candidate] = []
    if not matrices:
        eye = torch.eye(d_in, dtype=torch.float64)
        return [Candidate(Weights(eye, eye, eye, p=p, norm=norm, label="no weights"))]
    counts = [count for count in heads if count > 0]
    for count in counts:
        wide = [_inside_heads(matrix, d_in, count) for matrix in matrices]
        for roles, order, named, label in _readings(wide, d_in, count, count * head_dim):
            for flip in (False, True):
                if flip and not any(m.square for group in roles.values() for m in group):
                    break
                part = {
                    r: _joined([m.flipped() if flip else m for m in g]) for r, g in roles.items()
                }
                part = {r: _with_bias(r, m, weights) for r, m in part.items()}
                weight = _assemble(part, count, norm, p, label)
                if weight is not None:
                    weight = replace(weight, memory_norm=memory_norm)
                    found += [
                        Candidate(replace(weight, qk_norm=norms, eps=eps), order, named)
                        for norms in norms_of_queries_and_keys(weights, modules)
                        for eps in ((1e-5, 1e-6, 1e-12) if norm is not None else (1e-5,))
                    ]
    return found


def _inside_heads(matrix: _Matrix, d_in: int, heads: int) -> _Matrix:
    """A projection inside each head, the same for all: one matrix with blocks on its diagonal."""
    narrow, width = matrix.value.shape
    if heads == 1 or narrow * heads != d_in or narrow != width or role_of(matrix.path) == "o":
        return matrix
    bias = None if matrix.bias is None else matrix.bias.repeat(heads)
    value = torch.kron(torch.eye(heads, dtype=matrix.value.dtype), matrix.value.contiguous())
    return replace(matrix, value=value, bias=bias, square=False)


def _with_bias(role: str, matrix: _Matrix, weights: Mapping[str, Tensor]) -> _Matrix:
    """A part of a fused matrix, with the bias that stands elsewhere under the part's name."""
    if matrix.bias is not None or role == "o":
        return matrix
    width = matrix.value.shape[1]
    named = [w.flatten() for n, w in weights.items() if "bias" in n and role_of(n) == role]
    if not named:  # nn.MultiheadAttention with kdim: three matrices, and one bias for all
        fused = [w.flatten() for n, w in weights.items() if "bias" in n and role_of(n) == "qkv"]
        named = [w.chunk(3)["qkv".index(role)] for w in fused if w.numel() == 3 * width]
    fits = len(named) == 1 and named[0].numel() == width
    return replace(matrix, bias=named[0]) if fits else matrix


def _assemble(
    part: dict[str, _Matrix],
    heads: int,
    norm: Around | None,
    p: float,
    label: str,
) -> Weights | None:
    q, k, v, o = part["q"], part["k"], part["v"], part.get("o")
    width = q.value.shape[1]
    count = q.heads or heads
    if width % count:
        return None
    head_dim = width // count
    kv_width = k.value.shape[1]
    if kv_width % head_dim and not k.heads:
        return None
    kv_heads = k.heads or max(kv_width // head_dim, 1)
    if kv_heads > count or count % kv_heads or v.value.shape[1] % kv_heads:
        return None
    out = None if o is None else o.value
    merged = v.value.shape[1] // kv_heads * count
    if (
        out is not None
        and out.shape[0] not in (merged, merged // count)
        and out.shape[1]
        in (
            merged,
            merged // count,
        )
    ):
        out = out.T
    if (
        o is not None
        and out is not None
        and role_of(o.path) != "o"
        and len(out) not in (merged, merged // count)
    ):
        o = out = None  # a table or a mask, which no name calls an output projection
    return Weights(
        q.value, k.value, v.value, out, q.bias, k.bias, v.bias, None if o is None else o.bias,
        heads=count, kv_heads=kv_heads, norm=norm, p=p, label=label,
    )  # fmt: skip


_Reading = tuple[dict[str, list[_Matrix]], str, bool, str]


def _readings(matrices: list[_Matrix], d_in: int, heads: int, queries: int) -> Iterator[_Reading]:
    groups: dict[str, list[_Matrix]] = {}
    for matrix in matrices:
        groups.setdefault(role_of(matrix.path), []).append(matrix)
    for role in ("q", "k", "v", "qkv", "kv"):
        if len({len(matrix.value) for matrix in groups.get(role, [])}) > 1:
            return  # one after the other, as in a product of two narrow ones: not side by side
    rest = groups.get("", [])
    out = groups.get("o") or rest[-1:]
    output = {"o": out[-1:]} if out else {}
    if all(role in groups for role in "qkv"):
        yield {**{r: groups[r] for r in "qkv"}, **output}, "", True, "by name"
        return
    if "qkv" in groups:
        yield from _fused(groups["qkv"], output, heads, queries, named=True)
        return
    if "q" in groups and "kv" in groups:
        for label, pieces in _parts(_joined(groups["kv"]), heads, 2):
            roles = {"q": groups["q"], "k": [pieces[0]], "v": [pieces[1]]}
            yield {**roles, **output}, "kv", True, label
            yield {**roles, "k": [pieces[1]], "v": [pieces[0]], **output}, "vk", True, label
        return
    indexed = _by_index(matrices)
    if indexed:
        yield indexed, "", True, "by number"
        return
    yield from _by_shape(matrices, groups, d_in, heads, queries)


def _fused(
    fused: list[_Matrix], output: dict[str, list[_Matrix]], heads: int, queries: int, *, named: bool
) -> Iterator[_Reading]:
    if len(fused) > 1:  # one fused matrix a head
        cut = [next(iter(_parts(m, 1, 3)))[1] for m in fused]
        for order in ORDERS:
            roles = {r: [pieces[order.index(r)] for pieces in cut] for r in "qkv"}
            yield {**roles, **output}, order, named, "fused, one a head"
        return
    readings = list(_parts(fused[0], heads, 3, queries))
    for order in ORDERS:
        for label, pieces in readings:
            roles = {r: [pieces[order.index(r)]] for r in "qkv"}
            yield {**roles, **output}, order, named, f"fused, {label}"


def _by_shape(
    matrices: list[_Matrix],
    groups: dict[str, list[_Matrix]],
    d_in: int,
    heads: int,
    queries: int,
) -> Iterator[_Reading]:
    """Names say nothing: the first three matrices that take the input, in any order."""
    taking = [m for m in matrices if m.value.shape[0] == d_in]
    fused = [m for m in taking if m.value.shape[1] % 3 == 0 or m.value.shape[1] > (queries or d_in)]
    if len(matrices) <= 2 and fused:
        output = {"o": [m for m in matrices if m is not fused[0]]}
        yield from _fused(fused[:1], output if output["o"] else {}, heads, queries, named=False)
        return
    taking = [m for m in matrices if d_in in m.value.shape and role_of(m.path) != "o"]
    alike = {re.sub(r"\d+", "#", m.path) for m in taking}
    if len(taking) == heads > 1 and len(alike) == 1 and len(fused) >= heads:
        output = {"o": [m for m in matrices if m not in taking][-1:]}
        yield from _fused(taking, output if output["o"] else {}, heads, queries, named=False)
    if len(taking) < 3:
        taking = [m for m in matrices if d_in in m.value.shape]
    if len(taking) < 3:
        return
    known = {m.path: role for role in "qkv" for m in groups.get(role, [])}
    first = taking[:3]
    rest = [m for m in matrices if m not in first]
    for order in itertools.permutations("qkv"):
        if any(known.get(m.path, r) != r for m, r in zip(first, order, strict=True)):
            continue
        roles = {r: [m] for m, r in zip(first, order, strict=True)}
        yield {**roles, **({"o": rest[-1:]} if rest else {})}, "", False, "by shape"
