"""The six steps of attention, computed in plain PyTorch and recorded one by one.

The steps have the same numbers in every form of attention, so that forms can be compared. A form
shows only the steps it has:

    1 PROJECT      queries, keys, values
    2 SPLIT        queries_split, keys_split, values_split
    3 TRANSPOSE    queries_heads, keys_heads, values_heads
       3a NORM     queries_normed, keys_normed           (qk_norm only)
       3b ROTATE   queries_rotated, keys_rotated         (rope only)
       3c REPEAT   keys_repeated, values_repeated        (fewer key heads than query heads only)
    4 ATTENTION    4a attn_scores, 4b masked_scores, 4c scaled_scores and attn_weights,
                   4d context_heads (context_vec where there is one head)
    5 CONCAT       context_vec
    6 PROJECT      output

The wrapper's step 1 computes queries_heads, keys_heads and values_heads at once. No code is shared
with the modules being traced: a trace is evidence because two computations agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor, nn

from clearhead import attention, drawing, ladder
from clearhead.masks import Mask

Dims = tuple[tuple[str, int], ...]
Attention = nn.Module | Callable[[Tensor], Tensor]

_LINEARS = ("W_query", "W_key", "W_value", "out_proj")
_PAPER_LINEARS = ("W_q", "W_k", "W_v", "W_o")
_OPERANDS = ("queries", "keys", "values")

# The steps of full multi-head attention; other forms skip some of them.
USUAL_STEPS = {
    "1": "PROJECT",
    "2": "SPLIT",
    "3": "TRANSPOSE",
    "4a": "scores",
    "4b": "mask",
    "4c": "softmax",
    "4d": "weighted sum",
    "5": "CONCAT",
    "6": "PROJECT",
}


def show_dims(dims: Dims) -> str:
    """Named dimensions as people write them.

    Examples:
        >>> show_dims((("batch", 1), ("tokens", 6), ("d_in", 8)))
        '(batch=1, tokens=6, d_in=8)'
    """
    return "(" + ", ".join(f"{name}={size}" for name, size in dims) + ")"


@dataclass(frozen=True)
class Step(drawing.Drawn):
    """One step of a forward pass.

    Attributes:
        number: "1" to "6", with a letter for the parts of step 4 and the extras after step 3.
        title: The name of the step, such as "SPLIT" or "ATTENTION: softmax".
        operation: The PyTorch operation, abbreviated.
        formula: The same in mathematics.
        before: Named dimensions of the input (of the first one, if there are several).
        dims: Named dimensions of each output tensor, by the tensor's name.
        tensors: The output tensors, by name.
        code: PyTorch lines that compute these tensors. They use `torch`, `module`, `x`, `mask`,
            `context` and the names of earlier steps.
        note: What the step is for, where operation and formula do not say it.
    """

    number: str
    title: str
    operation: str
    formula: str
    before: Dims
    dims: dict[str, Dims]
    tensors: dict[str, Tensor] = field(repr=False)
    code: str = field(repr=False)
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Everything but the tensors, as plain data."""
        return {
            "number": self.number,
            "title": self.title,
            "operation": self.operation,
            "formula": self.formula,
            "before": [list(dim) for dim in self.before],
            "dims": {name: [list(dim) for dim in dims] for name, dims in self.dims.items()},
            "code": self.code,
            "note": self.note,
        }

    @property
    def after(self) -> Dims:
        """Named dimensions of the first output tensor."""
        return next(iter(self.dims.values()))

    def __rich__(self) -> RenderableType:
        return self.draw()

    def draw(self, *, head: int | None = None) -> RenderableType:
        """Title, operation, formula, shapes, and the first few numbers.

        Args:
            head: The head whose numbers are shown, where the tensors have heads. By default, the
                first numbers of each tensor.
        """
        facts = [
            ("operation", self.operation),
            ("formula", self.formula),
            ("shape", show_dims(self.before)),
            ("", f"-> {show_dims(self.after)}"),
        ]
        lines = Text("\n").join(
            Text.assemble((f"{name:<11}", "dim"), drawing.visible(fact)) for name, fact in facts
        )
        rows = 3 if len(self.tensors) == 1 else 2
        numbers, heading = [], f"{self.number} {self.title}"
        for name, tensor in self.tensors.items():
            axes = [dim for dim, _ in self.dims[name]]
            at = {} if head is None or "heads" not in axes else {axes.index("heads"): head}
            numbers.append(drawing.excerpt(name, tensor, rows=rows, at=at))
            if at:
                heading = f"{self.number} {self.title}, head {head}"
        note = [Text(self.note)] if self.note else []
        return Group(
            Text(heading, style="bold"),
            drawing.Indent(Group(*note, lines, Text("\n".join(numbers)))),
        )


def operands(names: Iterable[str]) -> dict[str, str]:
    """The names of the tensors that meet in step 4, by role: the last form that each took.

    Examples:
        >>> operands(["x", "queries", "keys", "values", "queries_heads", "attn_weights"])
        {'queries': 'queries_heads', 'keys': 'keys', 'values': 'values'}
    """
    last = dict.fromkeys(_OPERANDS, "x")
    for name in names:
        role = name.partition("_")[0]
        if role in last:
            last[role] = name
    return last


@dataclass(frozen=True)
class Hidden:
    """Which keys are hidden from which queries.

    Attributes:
        where: True where a query may not attend to a key, (.., queries, keys); None without a mask.
        code: The PyTorch line that computes `hidden`.
        note: A problem of the mask: some queries may attend to nothing. None if there is none.
    """

    where: Tensor | None = None
    code: str = ""
    note: str | None = None


def hidden_keys(module: Attention, x: Tensor, source: Tensor, mask: Mask | Tensor | None) -> Hidden:
    """What a form of attention hides: its own causality and window, and the user's mask.

    Args:
        module: The form.
        x: Its input.
        source: Where keys and values come from; usually `x`.
        mask: The user's mask, for the forms that take one.

    Raises:
        ValueError: The paper's form would give NaN because some queries may attend to nothing.
    """
    if module is ladder.simplified_attention or isinstance(module, ladder.SelfAttention):
        return Hidden()
    if isinstance(module, attention.MultiHeadAttention):
        assert not isinstance(mask, Tensor)
        combined = module.mask_for(mask)
        if combined is None:
            return Hidden()
        queries, keys = x.shape[1], source.shape[1]
        visible = combined.dense(queries, keys, x.device)
        problem = Mask.custom(visible.cpu()).problem(queries, keys)
        code = f"hidden = ~module.mask_for(mask).dense({queries}, {keys})"
        return Hidden(~visible, code, None if problem is None else f"mask: {problem}")
    size = x.shape[-2]
    if not isinstance(module, ladder.EncoderAttention):  # the causal forms of the ladder
        future = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(diagonal=1)
        code = "hidden = torch.ones_like(attn_scores, dtype=torch.bool).triu(diagonal=1)"
        return Hidden(future, code)
    if mask is None:
        return Hidden()
    if isinstance(mask, Mask):
        visible, code = mask.dense(size, size, x.device), f"hidden = ~mask.dense({size}, {size})"
    else:  # the paper's masks: 0 or False means hidden
        visible = (mask != 0).expand(x.shape[0], module.num_heads, size, size)
        code = "hidden = mask == 0"
    problem = Mask.custom(visible.cpu()).problem(size, size)
    if problem is not None:
        raise ValueError(
            f"mask: {problem}\n  EncoderAttention gives NaN for such queries; "
            "clearhead.MultiHeadAttention gives zeros."
        )
    return Hidden(~visible, code)


def compute_steps(module: Attention, x: Tensor, source: Tensor, hidden: Hidden) -> list[Step]:
    """Compute the steps of a forward pass in eval mode.

    Args:
        module: A form of the ladder, the fast module, or the function `simplified_attention`.
        x: The input.
        source: Where keys and values come from; usually `x`.
        hidden: What the mask hides.
    """
    made = _Computation(module, x, source, hidden)
    if module is ladder.simplified_attention:
        made.attend(scaled_by="")
    elif isinstance(module, ladder.SelfAttention | ladder.CausalAttention):
        made.project()
        made.attend(scaled_by="d_out")
    elif isinstance(module, ladder.MultiHeadAttentionWrapper):
        made.project_each_head()
        made.attend(scaled_by="head_dim")
        made.join_heads()
    else:
        made.project()
        made.split()
        made.transpose()
        if isinstance(module, attention.MultiHeadAttention):
            made.norm()
            made.rotate()
            made.repeat()
        made.attend(scaled_by="head_dim")
        made.concat()
        made.project_output()
    return made.steps


class _Computation:
    """The steps computed so far; each method computes one step and records it."""

    def __init__(self, module: Any, x: Tensor, source: Tensor, hidden: Hidden) -> None:
        self.module = module
        self.steps: list[Step] = []
        self.hidden = hidden
        paper = isinstance(module, ladder.EncoderAttention)
        self.linears = _PAPER_LINEARS if paper else _LINEARS
        self.d_out = "d_model" if paper else "d_out"
        self.source = "x" if source is x else "context"
        self.tensors = {"x": x, "context": source}
        lead = ("batch",) * (x.ndim - 2)
        names = (*lead, "tokens", "d_model" if paper else "d_in")
        self.dims: dict[str, Dims] = {"x": tuple(zip(names, x.shape, strict=True))}

    def add(
        self,
        number: str,
        title: str,
        operation: str,
        formula: str,
        before: str,
        made: Mapping[str, tuple[Tensor, Sequence[str]]],
        code: Sequence[str],
        note: str = "",
    ) -> None:
        """Record a `Step`; `made` has each output tensor with the names of its dimensions."""
        tensors = {name: tensor.detach() for name, (tensor, _) in made.items()}
        dims = {
            name: tuple(zip(names, tensor.shape, strict=True))
            for name, (tensor, names) in made.items()
        }
        self.steps.append(
            Step(
                number,
                title,
                operation,
                formula,
                self.dims[before],
                dims,
                tensors,
                "\n".join(code),
                note,
            )
        )
        self.tensors |= tensors
        self.dims |= dims

    def operand(self, role: str) -> tuple[str, Tensor, list[str]]:
        """Queries, keys or values in their last form: name, tensor, names of the dimensions."""
        name = operands(self.tensors)[role]
        return name, self.tensors[name], [dim for dim, _ in self.dims[name]]

    # Step 1.

    def project(self) -> None:
        """Queries, keys and values: one linear layer each."""
        kv_heads = getattr(self.module, "num_kv_heads", None)
        grouped = kv_heads is not None and kv_heads != self.module.num_heads
        if getattr(self.module, "packed", False):
            self._project_packed(grouped)
            return
        sources = ("x", self.source, self.source)
        made, code, calls = {}, [], []
        for role, linear, source in zip(_OPERANDS, self.linears, sources, strict=False):
            tensor = getattr(self.module, linear)(self.tensors[source])
            tokens = "tokens" if source == "x" else "context_tokens"
            width = "kv_heads*head_dim" if grouped and role != "queries" else self.d_out
            made[role] = (tensor, ("batch", tokens, width)[-tensor.ndim :])
            calls.append(f"{linear}({source})")
            code.append(f"{role} = module.{calls[-1]}")
        bias = getattr(self.module, self.linears[0]).bias is not None
        self.add("1", "PROJECT", ", ".join(calls), self._projection(bias), "x", made, code)

    def _project_packed(self, grouped: bool) -> None:
        """Queries, keys and values side by side: one linear layer for all three."""
        d_kv = self.module.num_kv_heads * self.module.head_dim
        widths = [self.module.d_out, d_kv, d_kv]
        parts = self.module.qkv(self.tensors["x"]).split(widths, dim=-1)
        d_kv_name = "kv_heads*head_dim" if grouped else self.d_out
        names = (self.d_out, d_kv_name, d_kv_name)
        made = {
            role: (part, ("batch", "tokens", name))
            for role, part, name in zip(_OPERANDS, parts, names, strict=True)
        }
        end = " + bias" if self.module.qkv.bias is not None else ""
        code = [f"queries, keys, values = module.qkv(x).split({widths}, dim=-1)"]
        self.add("1", "PROJECT", "qkv(x).split", f"[Q K V] = x qkvᵀ{end}", "x", made, code)

    def project_each_head(self) -> None:
        """Each head of the wrapper has its own projections; the results are stacked."""
        made, code = {}, []
        for role, linear in zip(_OPERANDS, self.linears, strict=False):
            each = [getattr(head, linear)(self.tensors["x"]) for head in self.module.heads]
            name = f"{role}_heads"
            made[name] = (torch.stack(each, dim=1), ("batch", "heads", "tokens", "head_dim"))
            code.append(f"{name} = torch.stack([head.{linear}(x) for head in module.heads], dim=1)")
        formula = self._projection(self.module.heads[0].W_query.bias is not None)
        operation = "W_query(x), W_key(x), W_value(x) of each head, stacked"
        self.add("1", "PROJECT", operation, f"{formula}, in each head", "x", made, code)

    def _projection(self, bias: bool) -> str:
        """Step 1 in mathematics."""
        end = " + bias" if bias else ""
        sources = ("x", self.source, self.source)
        return ", ".join(
            f"{letter} = {source} {linear}ᵀ{end}"
            for letter, source, linear in zip("QKV", sources, self.linears, strict=False)
        )

    # Steps 2 and 3.

    def split(self) -> None:
        """Each vector becomes one short vector per head."""
        heads, head_dim = self.module.num_heads, self.module.head_dim
        made, code = {}, []
        for role in _OPERANDS:
            name, tensor, (batch, tokens, width) = self.operand(role)
            view = tensor.view(*tensor.shape[:2], -1, head_dim)
            axis = "kv_heads" if width.startswith("kv_heads") else "heads"
            made[f"{name}_split"] = (view, (batch, tokens, axis, "head_dim"))
            code.append(f"{name}_split = {name}.view{tuple(view.shape)}")
        shape = tuple(made["queries_split"][0].shape)
        formula = f"{self.d_out} = heads × head_dim: {heads * head_dim} = {heads} × {head_dim}"
        self.add("2", "SPLIT", f".view{shape}", formula, "queries", made, code)

    def transpose(self) -> None:
        """Heads before tokens, so that each head has its own table."""
        made, code = {}, []
        for role in _OPERANDS:
            name, tensor, (batch, tokens, heads, head_dim) = self.operand(role)
            made[f"{role}_heads"] = (tensor.transpose(1, 2), (batch, heads, tokens, head_dim))
            code.append(f"{role}_heads = {name}.transpose(1, 2)")
        formula = "every head gets all tokens: axes 1 and 2 are swapped"
        self.add("3", "TRANSPOSE", ".transpose(1, 2)", formula, "queries_split", made, code)

    def norm(self) -> None:
        """Step 3a, with `qk_norm`."""
        if not self.module.qk_norm:
            return
        made, code, calls = {}, [], []
        for role, norm in (("queries", "q_norm"), ("keys", "k_norm")):
            name, tensor, dims = self.operand(role)
            made[f"{role}_normed"] = (getattr(self.module, norm)(tensor), dims)
            calls.append(f"{norm}({name})")
            code.append(f"{role}_normed = module.{calls[-1]}")
        formula = "each vector is divided by its root mean square, then scaled by learned numbers"
        before = self.operand("queries")[0]
        self.add("3a", "NORM", ", ".join(calls), formula, before, made, code)

    def rotate(self) -> None:
        """Step 3b, with `rope`."""
        if self.module.rope is None:
            return
        made, code = {}, []
        for role in ("queries", "keys"):
            name, tensor, dims = self.operand(role)
            count = tensor.shape[2]
            positions = torch.arange(count, device=tensor.device)
            made[f"{role}_rotated"] = (self.module.rope.rotate(tensor, positions), dims)
            code.append(f"{role}_rotated = module.rope.rotate({name}, torch.arange({count}))")
        size, base = self.module.head_dim, f"{self.module.rope.base:g}"
        formula = "(a, b) -> (a cos θ - b sin θ, b cos θ + a sin θ)"
        note = (
            f"Numbers i and i + {size // 2} of each query and key form a pair (a, b), which is "
            f"rotated by the angle θ = position × {base}^(-2i / {size}). Rotating a query and a "
            "key by the same angle leaves their score unchanged, so scores depend on the distance "
            "between two tokens, not on where they are."
        )
        before = self.operand("queries")[0]
        self.add("3b", "ROTATE", "rope.rotate(.., positions)", formula, before, made, code, note)

    def repeat(self) -> None:
        """Step 3c, with fewer key heads than query heads."""
        heads, kv_heads = self.module.num_heads, self.module.num_kv_heads
        times = heads // kv_heads
        if times == 1:
            return
        made, code = {}, []
        for role in ("keys", "values"):
            name, tensor, (batch, _, tokens, head_dim) = self.operand(role)
            repeated = tensor.repeat_interleave(times, dim=1)
            made[f"{role}_repeated"] = (repeated, (batch, "heads", tokens, head_dim))
            code.append(f"{role}_repeated = {name}.repeat_interleave({times}, dim=1)")
        operation = f".repeat_interleave({times}, dim=1)"
        formula = f"{times} query heads share each key head: {kv_heads} × {times} = {heads}"
        self.add("3c", "REPEAT", operation, formula, self.operand("keys")[0], made, code)

    # Step 4.

    def attend(self, *, scaled_by: str) -> None:
        """Scores, mask, softmax, weighted sum.

        Args:
            scaled_by: The name of the size whose root divides the scores; "" for no scaling.
        """
        q_name, q, q_dims = self.operand("queries")
        k_name, k, k_dims = self.operand("keys")
        v_name, v, v_dims = self.operand("values")
        lead = ("batch", "heads")[: q.ndim - 2]
        square = (*lead, q_dims[-2], k_dims[-2])

        operation = f"{q_name} @ {k_name}.transpose({q.ndim - 2}, {q.ndim - 1})"
        formula = "scores = x xᵀ" if k_name == "x" else "scores = Q Kᵀ"
        scores = q @ k.transpose(-2, -1)
        made = {"attn_scores": (scores, square)}
        code = [f"attn_scores = {operation}"]
        self.add("4a", "ATTENTION: scores", operation, formula, q_name, made, code)

        name = "attn_scores"
        if self.hidden.where is not None:
            scores = scores.masked_fill(self.hidden.where, -torch.inf)
            operation = "attn_scores.masked_fill(hidden, -torch.inf)"
            formula = "a hidden score becomes -inf, so that its weight becomes 0"
            made = {"masked_scores": (scores, square)}
            code = [self.hidden.code, f"masked_scores = {operation}"]
            self.add("4b", "ATTENTION: mask", operation, formula, name, made, code)
            name = "masked_scores"

        operation, formula = f"torch.softmax({name}, dim=-1)", "weights = softmax(scores)"
        made, code, last = {}, [], name
        if scaled_by:
            size = k.shape[-1]
            scores = scores / size**0.5
            operation = f"torch.softmax({name} / {size}**0.5, dim=-1)"
            formula = f"weights = softmax(scores / √{scaled_by}), √{size} = {size**0.5:.4g}"
            made["scaled_scores"], last = (scores, square), "scaled_scores"
            code.append(f"scaled_scores = {name} / {size}**0.5")
        weights = torch.softmax(scores, dim=-1)
        code.append(f"attn_weights = torch.softmax({last}, dim=-1)")
        if self.hidden.note is not None:
            weights = weights.nan_to_num(0.0)
            code.append("attn_weights = attn_weights.nan_to_num(0.0)  # no visible key: zeros")
        made["attn_weights"] = (weights, square)
        self.add("4c", "ATTENTION: softmax", operation, formula, name, made, code)

        operation = f"attn_weights @ {v_name}"
        formula = "context = weights x" if v_name == "x" else "context = weights V"
        name = "context_heads" if q.ndim == 4 else "context_vec"
        made = {name: (weights @ v, (*lead, q_dims[-2], v_dims[-1]))}
        code = [f"{name} = {operation}"]
        self.add("4d", "ATTENTION: weighted sum", operation, formula, "attn_weights", made, code)

    # Steps 5 and 6.

    def join_heads(self) -> None:
        """The wrapper's step 5: the heads side by side."""
        heads = self.tensors["context_heads"].unbind(1)
        merged = torch.cat(list(heads), dim=-1)
        count, width = len(heads), heads[0].shape[-1]
        self.add(
            "5",
            "CONCAT",
            "torch.cat(.., dim=-1)",
            f"heads × head_dim = {count} × {width} = {merged.shape[-1]}",
            "context_heads",
            {"context_vec": (merged, ("batch", "tokens", "heads*head_dim"))},
            ["context_vec = torch.cat(list(context_heads.unbind(1)), dim=-1)"],
        )

    def concat(self) -> None:
        """Step 3 and step 2 undone: the heads side by side again."""
        context = self.tensors["context_heads"]
        batch, heads, tokens, head_dim = context.shape
        width = heads * head_dim
        operation = f".transpose(1, 2).contiguous().view({batch}, {tokens}, {width})"
        merged = context.transpose(1, 2).contiguous().view(batch, tokens, width)
        self.add(
            "5",
            "CONCAT",
            operation,
            f"heads × head_dim = {self.d_out}: {heads} × {head_dim} = {width}",
            "context_heads",
            {"context_vec": (merged, ("batch", "tokens", self.d_out))},
            [f"context_vec = context_heads{operation}"],
        )

    def project_output(self) -> None:
        """The last linear layer, which mixes the heads."""
        linear = self.linears[3]
        operation = f"{linear}(context_vec)"
        output = getattr(self.module, linear)(self.tensors["context_vec"])
        self.add(
            "6",
            "PROJECT",
            operation,
            f"output = context_vec {linear}ᵀ + bias",
            "context_vec",
            {"output": (output, ("batch", "tokens", self.d_out))},
            [f"output = module.{operation}"],
        )
