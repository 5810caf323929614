"""One query followed through all steps, as one would compute it on paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from clearhead import drawing
from clearhead.explainer.steps import Step, operands
from clearhead.explainer.tracing import Trace


def find_query(tokens: Sequence[str], word: str) -> tuple[int, str | None]:
    """The token that a word, WORD:2 or a number refers to, and a remark if it is ambiguous.

    Raises:
        ValueError: There is no such token.

    Examples:
        >>> find_query(["the", "cat", "sat", "on", "the", "mat"], "the:2")
        (4, None)
    """
    found = _positions(tokens, word)
    if found:
        remark = None
        if len(found) > 1:
            remark = (
                f"{drawing.visible(word)!r} is token {', '.join(map(str, found))}; this is token "
                f"{found[0]}. For the next one: --query {drawing.visible(word)}:2"
            )
        return found[0], remark
    stem, _, which = word.rpartition(":")
    found = _positions(tokens, stem) if which.isdecimal() else []
    if found and 1 <= int(which) <= len(found):
        return found[int(which) - 1], None
    if word.isdecimal() and int(word) < len(tokens):
        return int(word), None
    times = "once" if len(found) == 1 else f"{len(found)} times"
    problem = f"{stem!r} occurs {times}." if found else "there is no such token."
    listed = "  ".join(f"{i} {drawing.shorten(token, 20)}" for i, token in enumerate(tokens[:40]))
    more = f"  and {len(tokens) - 40} more" if len(tokens) > 40 else ""
    raise ValueError(
        f"--query {drawing.visible(word)}: {problem}\n  The tokens are: {listed}{more}"
    )


def _positions(tokens: Sequence[str], word: str) -> list[int]:
    """Where the word occurs: exactly, else without its spaces, else ignoring case."""
    for same in (str, str.strip, lambda text: text.strip().casefold()):
        found = [i for i, token in enumerate(tokens) if word and same(token) == same(word)]
        if found:
            return found
    return []


def draw_query(
    seen: Trace, index: int, *, limit: int = 16, heads: Sequence[int] | None = None
) -> RenderableType:
    """Each step of a trace, for one token of the first sequence.

    Args:
        seen: The trace.
        index: The token whose query is followed.
        limit: The largest number of keys to show.
        heads: The heads to show; all by default.
    """
    token = drawing.visible(seen.tokens[index])
    parts: list[RenderableType] = [
        Text(f'The query "{token}" (token {index}), step by step', style="bold"),
        Text(_vectors("x", seen.x, index)),
        Text(),
    ]
    for step in seen.steps:
        body = _draw_step(seen, step, index, limit, heads)
        title = Text.assemble((f"{step.number} {step.title}", "bold"), f"   {step.formula}")
        note = [drawing.Indent(Text(step.note))] if step.note else []
        parts += [title, *note, drawing.Indent(body), Text()]
    return Group(*parts)


def _draw_step(
    seen: Trace, step: Step, index: int, limit: int, heads: Sequence[int] | None
) -> RenderableType:
    if heads is None:
        heads = range(len(_of_heads(seen["attn_weights"])))
    match step.number:
        case "4a":
            return _dot_products(seen, index, limit, heads)
        case "4b":
            return _masked(seen, index, limit)
        case "4c":
            return _softmax(seen, index, limit, heads)
        case "4d":
            return _weighted_sum(seen, index, limit, heads)
        case "3":
            return Text("the same numbers; each head now has its own tokens × head_dim table")
        case "2":
            parts = step.tensors["queries_split"][0, index].tolist()
            lines = [
                f"queries_split[0, {index}, {head}] = {drawing.vector(parts[head])}"
                for head in heads
            ]
            return Text("\n".join([*lines, "keys and values in the same way"]))
    return Text(
        "\n".join(_vectors(name, part, index, heads) for name, part in step.tensors.items())
    )


def _vectors(name: str, tensor: Tensor, index: int, heads: Sequence[int] | None = None) -> str:
    """This token's vector in a tensor; one line per head."""
    lines = []
    for head, vectors in enumerate(_of_heads(tensor)):
        if tensor.ndim == 4 and heads is not None and head not in heads:
            continue
        position = {2: f"{index}", 3: f"0, {index}", 4: f"0, {head}, {index}"}[tensor.ndim]
        lines.append(f"{name}[{position}] = {drawing.vector(vectors[index].tolist())}")
    return "\n".join(lines)


def _of_heads(tensor: Tensor) -> Tensor:
    """The first sequence as (heads, tokens, width), whatever the form."""
    if tensor.ndim == 2:
        return tensor[None]
    return tensor[:1] if tensor.ndim == 3 else tensor[0]


def _operands(seen: Trace) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the first sequence, as they meet in step 4."""
    queries, keys, values = (_of_heads(seen[name]) for name in operands(seen.names).values())
    return queries, keys, values


def _hidden_row(seen: Trace, head: int, index: int) -> list[bool]:
    if seen.hidden is None:
        return [False] * len(seen.context_tokens)
    hidden = _of_heads(seen.hidden)
    row: list[bool] = hidden[min(head, len(hidden) - 1), index].tolist()
    return row


def _key_labels(seen: Trace, limit: int) -> list[str]:
    return [drawing.shorten(token, 12) for token in seen.context_tokens[:limit]]


def _rest(seen: Trace, limit: int) -> list[RenderableType]:
    left_out = len(seen.context_tokens) - limit
    return [Text(f"... and {left_out} more keys")] if left_out > 0 else []


def _dot_products(seen: Trace, index: int, limit: int, heads: Sequence[int]) -> RenderableType:
    queries, keys, _ = _operands(seen)
    scores = _of_heads(seen["attn_scores"])
    parts: list[RenderableType] = []
    for head in heads:
        query = queries[head, index].tolist()
        start = f"head {head}: " if len(queries) > 1 else ""
        parts.append(Text(f"{start}query {drawing.vector(query, limit=4)} with each key"))
        tables = []
        for terms in range(4, -1, -1):
            rows = []
            for j, label in enumerate(_key_labels(seen, limit)):
                score = drawing.number(scores[head, index, j].item())
                rows.append([label, _product(query, keys[head, j].tolist(), terms), score])
            tables.append(drawing.table(["key", "", "score"], rows))
        parts += [drawing.FirstThatFits(tables), *_rest(seen, limit)]
    return Group(*parts)


def _product(query: list[float], key: list[float], most: int) -> str:
    """The first terms of a dot product, followed by an equals sign; nothing without terms."""
    terms = [
        f"{drawing.number(a, 2)}×{drawing.number(b, 2)}" for a, b in zip(query, key, strict=True)
    ]
    return f"{' + '.join(terms[:most] + ['...'] * (len(terms) > most))} =" if most else ""


def _masked(seen: Trace, index: int, limit: int) -> RenderableType:
    hidden = _hidden_row(seen, 0, index)
    visible_keys = [t for t, off in zip(seen.context_tokens, hidden, strict=True) if not off]
    hidden_keys = [t for t, off in zip(seen.context_tokens, hidden, strict=True) if off]
    return Text(
        f"may attend to: {_list(visible_keys, limit)}\nhidden:        {_list(hidden_keys, limit)}"
    )


def _list(tokens: list[str], limit: int) -> str:
    if not tokens:
        return "nothing"
    shown = ", ".join(drawing.shorten(token, 12) for token in tokens[:limit])
    return shown + (f" and {len(tokens) - limit} more" if len(tokens) > limit else "")


def _softmax(seen: Trace, index: int, limit: int, heads: Sequence[int]) -> RenderableType:
    scaled = "scaled_scores" in seen.names
    scores = _of_heads(seen["attn_scores"])
    weights = _of_heads(seen["attn_weights"])
    width = _operands(seen)[1].shape[-1]
    parts: list[RenderableType] = []
    for head in heads:
        hidden = _hidden_row(seen, head, index)
        row = (scores[head, index] / (width**0.5 if scaled else 1)).tolist()
        top = max((s for s, off in zip(row, hidden, strict=True) if not off), default=0.0)
        # e^ of a large score is too large to print, and of a very negative one too small.
        shift = top if top > 20 or top < -3 else 0.0
        powers = [0.0 if off else math.exp(s - shift) for s, off in zip(row, hidden, strict=True)]
        rows = []
        for j, label in enumerate(_key_labels(seen, limit)):
            cells = [scores[head, index, j].item()]
            cells += [row[j]] if scaled else []
            cells += [powers[j], weights[head, index, j].item()]
            shown = [drawing.HIDDEN if hidden[j] else drawing.number(cell) for cell in cells]
            rows.append([label, *shown])
        total = [drawing.number(sum(powers)), drawing.number(sum(weights[head, index].tolist()))]
        rows.append(["sum", *[""] * (2 if scaled else 1), *total])
        name = "scaled" if scaled else "score"
        sign = "-" if shift > 0 else "+"
        power = f"e^({name} {sign} {abs(shift):.4g})" if shift else f"e^{name}"
        columns = ["score", *([f"÷ √{width} = scaled"] if scaled else []), power, "÷ sum = weight"]
        parts += [Text(f"head {head}")] if len(weights) > 1 else []
        # A narrow window drops the powers first, and keeps the weights.
        drop = [3, 2, 1] if scaled else [2, 1]
        parts += [drawing.FittingTable(["key", *columns], rows, drop=drop), *_rest(seen, limit)]
    return Group(*parts)


def _weighted_sum(seen: Trace, index: int, limit: int, heads: Sequence[int]) -> RenderableType:
    values = _operands(seen)[2]
    weights = _of_heads(seen["attn_weights"])
    context = weights @ values
    parts: list[RenderableType] = []
    for head in heads:
        hidden = _hidden_row(seen, head, index)
        tables = []
        for terms in range(4, 0, -1):
            rows = []
            for j, label in enumerate(_key_labels(seen, limit)):
                weight = drawing.number(weights[head, index, j].item())
                value = drawing.vector(values[head, j].tolist(), limit=terms)
                rows.append([label, drawing.HIDDEN if hidden[j] else f"{weight} × {value}"])
            total = drawing.vector(context[head, index].tolist(), limit=terms)
            rows.append(["sum", f"       = {total}"])
            tables.append(drawing.table(["key", "weight × value"], rows, left=2))
        parts += [Text(f"head {head}")] if len(weights) > 1 else []
        parts += [drawing.FirstThatFits(tables), *_rest(seen, limit)]
    return Group(*parts)
