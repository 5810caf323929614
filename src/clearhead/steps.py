"""The six steps of attention, computed in plain PyTorch and written down one by one.

The steps are numbered the same for every form, so that they can be compared; a form shows only
those it has:

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

The wrapper's step 1 gives queries_heads, keys_heads and values_heads at once. No code is shared
with the modules that are followed: that two computations agree is what a trace shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor, nn

from clearhead import attention, drawing, ladder
from clearhead.masks import Mask

Dims = tuple[tuple[str, int], ...]
Made = Mapping[str, tuple[Tensor, tuple[str, ...]]]

LINEARS = ("W_query", "W_key", "W_value", "out_proj")
PAPER_LINEARS = ("W_q", "W_k", "W_v", "W_o")


def show_dims(dims: Dims) -> str:
    """Named dimensions as people write them.

    >>> show_dims((("batch", 1), ("tokens", 6), ("d_in", 8)))
    '(batch=1, tokens=6, d_in=8)'
    """
    return "(" + ", ".join(f"{name}={size}" for name, size in dims) + ")"


@dataclass(frozen=True)
class Step:
    """One step of a forward pass.

    Attributes:
        number: "1" to "6", with a letter for the parts of step 4 and the extras after step 3.
        title: What the step is called, such as "SPLIT" or "ATTENTION: softmax".
        operation: The PyTorch that does it, in short.
        formula: The same in mathematics.
        before: Named dimensions of what goes in (of the first tensor, where several do).
        dims: Named dimensions of each tensor that comes out, by the tensor's name.
        tensors: What comes out, by name.
        code: PyTorch lines that give these tensors. They use `torch`, `module`, `x`, `mask`,
            `context` and the names of earlier steps.
    """

    number: str
    title: str
    operation: str
    formula: str
    before: Dims
    dims: dict[str, Dims]
    tensors: dict[str, Tensor] = field(repr=False)
    code: str = field(repr=False)

    @property
    def after(self) -> Dims:
        """Named dimensions of the first tensor that comes out."""
        return next(iter(self.dims.values()))

    def __rich__(self) -> RenderableType:
        """Title, operation, formula, shapes, and the first few numbers."""
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
        numbers = "\n".join(
            drawing.excerpt(name, tensor, rows=rows) for name, tensor in self.tensors.items()
        )
        return Group(
            Text(f"{self.number} {self.title}", style="bold"),
            drawing.Indent(Group(lines, Text(numbers))),
        )


class Path:
    """The steps of one forward pass, in the making."""

    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.hidden: Tensor | None = None
        self._hidden_code = ""
        self._dims: dict[str, Dims] = {}
        self._some_see_nothing = False

    def add(
        self,
        number: str,
        title: str,
        operation: str,
        formula: str,
        before: Dims,
        made: Made,
        code: Sequence[str],
    ) -> None:
        """Add a step; `made` has each new tensor with the names of its dimensions."""
        tensors = {name: tensor.detach() for name, (tensor, _) in made.items()}
        dims = {
            name: tuple(zip(names, tensor.shape, strict=True))
            for name, (tensor, names) in made.items()
        }
        self._dims |= dims
        lines = "\n".join(code)
        self.steps.append(Step(number, title, operation, formula, before, dims, tensors, lines))

    # Masks.

    def hide_future(self, x: Tensor) -> None:
        """What the causal forms of the ladder hide."""
        size = x.shape[-2]
        self.hidden = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(diagonal=1)
        self._hidden_code = (
            "hidden = torch.ones_like(attn_scores, dtype=torch.bool).triu(diagonal=1)"
        )

    def hide(self, mask: Mask | None, x: Tensor) -> None:
        """What the fast module hides: its own causality and window, and the user's mask."""
        if mask is None:
            return
        queries, keys = x.shape[1], self.source.shape[1]
        visible = mask.dense(queries, keys, x.device)
        self.hidden = ~visible
        self._hidden_code = f"hidden = ~module.mask_for(mask).dense({queries}, {keys})"
        problem = Mask.custom(visible.cpu()).problem(queries, keys)
        if problem is not None:
            self._some_see_nothing = True
            self.notes.append(f"mask: {problem}")

    def hide_encoder(
        self, module: ladder.EncoderAttention, x: Tensor, mask: Mask | Tensor | None
    ) -> None:
        """What a mask from outside hides in the paper's form; 0 or False means hidden."""
        if mask is None:
            return
        size = x.shape[1]
        if isinstance(mask, Mask):
            visible = mask.dense(size, size, x.device)
            self._hidden_code = f"hidden = ~mask.dense({size}, {size})"
        else:
            visible = (mask != 0).expand(x.shape[0], module.num_heads, size, size)
            self._hidden_code = "hidden = mask == 0"
        problem = Mask.custom(visible.cpu()).problem(size, size)
        if problem is not None:
            raise ValueError(
                f"mask: {problem}\n  EncoderAttention gives NaN for such queries; "
                "clearhead.MultiHeadAttention gives zeros."
            )
        self.hidden = ~visible

    # The forms.

    def simplified(self, x: Tensor) -> None:
        """Rung 1: step 4 alone."""
        self._dims["x"] = _input_dims(x)
        self._attend(("x", x), ("x", x), ("x", x), width="")

    def one_head(self, module: ladder.SelfAttention | ladder.CausalAttention, x: Tensor) -> None:
        """Rungs 2 and 3: steps 1 and 4."""
        lead = ("batch",) * (x.ndim - 2)
        made = {
            name: (linear(x), (*lead, "tokens", "d_out"))
            for name, linear in (
                ("queries", module.W_query),
                ("keys", module.W_key),
                ("values", module.W_value),
            )
        }
        self._project(LINEARS, made, x, bias=module.W_query.bias is not None)
        queries, keys, values = ((name, tensor) for name, (tensor, _) in made.items())
        self._attend(queries, keys, values, width="d_out")

    def wrapper(self, module: ladder.MultiHeadAttentionWrapper, x: Tensor) -> None:
        """Rung 3½: steps 1, 4 and 5."""
        heads = [head for head in module.heads if isinstance(head, ladder.CausalAttention)]
        made, code = {}, []
        for name, linear in zip(("queries", "keys", "values"), LINEARS, strict=False):
            each = torch.stack([getattr(head, linear)(x) for head in heads], dim=1)
            made[f"{name}_heads"] = (each, ("batch", "heads", "tokens", "head_dim"))
            code.append(
                f"{name}_heads = torch.stack([head.{linear}(x) for head in module.heads], dim=1)"
            )
        self.add(
            "1",
            "PROJECT",
            "W_query(x), W_key(x), W_value(x) of each head, stacked",
            _projection_formula(heads[0].W_query.bias is not None) + ", in each head",
            _input_dims(x),
            made,
            code,
        )
        queries, keys, values = ((name, tensor) for name, (tensor, _) in made.items())
        context = self._attend(queries, keys, values, width="head_dim")
        merged = torch.cat(list(context.unbind(1)), dim=-1)
        self.add(
            "5",
            "CONCAT",
            "torch.cat(.., dim=-1)",
            f"heads × head_dim = {len(heads)} × {heads[0].d_out} = {merged.shape[-1]}",
            self._dims["context_heads"],
            {"context_vec": (merged, ("batch", "tokens", "heads*head_dim"))},
            ["context_vec = torch.cat(list(context_heads.unbind(1)), dim=-1)"],
        )

    def multi_head(
        self,
        module: ladder.MultiHeadAttention | ladder.EncoderAttention | attention.MultiHeadAttention,
        x: Tensor,
        linears: tuple[str, str, str, str],
    ) -> None:
        """Rung 4, its paper form and the fast module: all six steps."""
        heads, head_dim = module.num_heads, module.head_dim
        kv_heads = getattr(module, "num_kv_heads", heads)
        d_out = "d_model" if linears is PAPER_LINEARS else "d_out"
        grouped = kv_heads != heads
        source = "x" if self.source is x else "context"
        token_names = {
            "queries": "tokens",
            "keys": self._keys_axis(x),
            "values": self._keys_axis(x),
        }
        head_names = {
            name: "kv_heads" if grouped and name != "queries" else "heads" for name in token_names
        }

        made = {}
        for name, linear in zip(token_names, linears, strict=False):
            tensor = getattr(module, linear)(x if name == "queries" else self.source)
            width = "kv_heads*head_dim" if head_names[name] == "kv_heads" else d_out
            made[name] = (tensor, ("batch", token_names[name], width))
        bias = getattr(module, linears[0]).bias is not None
        self._project(linears, made, x, bias=bias, source=source, d_in=_d_in(module))

        split = {}
        views = []
        for name, (tensor, _) in made.items():
            view = tensor.view(*tensor.shape[:2], -1, head_dim)
            split[f"{name}_split"] = (
                view,
                ("batch", token_names[name], head_names[name], "head_dim"),
            )
            views.append(f"{name}_split = {name}.view{tuple(view.shape)}")
        first = split["queries_split"][0]
        self.add(
            "2",
            "SPLIT",
            f".view{tuple(first.shape)}",
            f"{d_out} = heads × head_dim: {heads * head_dim} = {heads} × {head_dim}",
            self._dims["queries"],
            split,
            views,
        )

        across = {
            name.replace("split", "heads"): (
                tensor.transpose(1, 2),
                (dims[0], dims[2], dims[1], dims[3]),
            )
            for name, (tensor, dims) in split.items()
        }
        self.add(
            "3",
            "TRANSPOSE",
            ".transpose(1, 2)",
            "every head gets all tokens: axes 1 and 2 change places",
            self._dims["queries_split"],
            across,
            [f"{name} = {name.replace('heads', 'split')}.transpose(1, 2)" for name in across],
        )
        now = {name.split("_")[0]: (name, tensor) for name, (tensor, _) in across.items()}
        dims: dict[str, tuple[str, ...]] = {
            name.split("_")[0]: names for name, (_, names) in across.items()
        }
        if isinstance(module, attention.MultiHeadAttention):
            self._fast_extras(module, now, dims)

        context = self._attend(now["queries"], now["keys"], now["values"], width="head_dim")
        batch, tokens = context.shape[0], context.shape[2]
        merged = context.transpose(1, 2).contiguous().view(batch, tokens, heads * head_dim)
        size = f"({batch}, {tokens}, {heads * head_dim})"
        self.add(
            "5",
            "CONCAT",
            f".transpose(1, 2).contiguous().view{size}",
            f"heads × head_dim = {d_out}: {heads} × {head_dim} = {heads * head_dim}",
            self._dims["context_heads"],
            {"context_vec": (merged, ("batch", "tokens", d_out))},
            [f"context_vec = context_heads.transpose(1, 2).contiguous().view{size}"],
        )
        last = linears[3]
        self.add(
            "6",
            "PROJECT",
            f"{last}(context_vec)",
            f"output = context_vec {last}ᵀ + bias",
            self._dims["context_vec"],
            {"output": (getattr(module, last)(merged), ("batch", "tokens", d_out))},
            [f"output = module.{last}(context_vec)"],
        )

    # What the forms share.

    def _project(
        self,
        linears: Sequence[str],
        made: Made,
        x: Tensor,
        *,
        bias: bool,
        source: str = "x",
        d_in: str = "d_in",
    ) -> None:
        q, k, v = linears[:3]
        self.add(
            "1",
            "PROJECT",
            f"{q}(x), {k}({source}), {v}({source})",
            _projection_formula(bias, linears, source),
            _input_dims(x, d_in),
            made,
            [
                f"queries = module.{q}(x)",
                f"keys = module.{k}({source})",
                f"values = module.{v}({source})",
            ],
        )

    def _fast_extras(
        self,
        module: attention.MultiHeadAttention,
        now: dict[str, tuple[str, Tensor]],
        dims: dict[str, tuple[str, ...]],
    ) -> None:
        """Steps 3a to 3c, where the module has them; `now` is brought up to date."""
        if module.qk_norm:
            (q_name, q), (k_name, k) = now["queries"], now["keys"]
            before = self._dims[q_name]
            now["queries"] = ("queries_normed", module.q_norm(q))
            now["keys"] = ("keys_normed", module.k_norm(k))
            self.add(
                "3a",
                "NORM",
                f"q_norm({q_name}), k_norm({k_name})",
                "each vector is divided by its root mean square, then scaled by learned numbers",
                before,
                {now[which][0]: (now[which][1], dims[which]) for which in ("queries", "keys")},
                [
                    f"queries_normed = module.q_norm({q_name})",
                    f"keys_normed = module.k_norm({k_name})",
                ],
            )
        if module.rope is not None:
            before = self._dims[now["queries"][0]]
            code = []
            for which in ("queries", "keys"):
                name, tensor = now[which]
                positions = torch.arange(tensor.shape[2], device=tensor.device)
                now[which] = (f"{which}_rotated", module.rope.rotate(tensor, positions))
                code.append(
                    f"{which}_rotated = module.rope.rotate({name}, torch.arange({tensor.shape[2]}))"
                )
            self.add(
                "3b",
                "ROTATE",
                "rope.rotate(.., positions)",
                "pairs of numbers are turned by position × base^(-2i / head_dim)",
                before,
                {now[which][0]: (now[which][1], dims[which]) for which in ("queries", "keys")},
                code,
            )
        times = module.num_heads // module.num_kv_heads
        if times > 1:
            before = self._dims[now["keys"][0]]
            code = []
            for which in ("keys", "values"):
                name, tensor = now[which]
                now[which] = (f"{which}_repeated", tensor.repeat_interleave(times, dim=1))
                dims[which] = ("batch", "heads", *dims[which][2:])
                code.append(f"{which}_repeated = {name}.repeat_interleave({times}, dim=1)")
            self.add(
                "3c",
                "REPEAT",
                f".repeat_interleave({times}, dim=1)",
                f"{times} query heads share each key head: "
                f"{module.num_kv_heads} × {times} = {module.num_heads}",
                before,
                {now[which][0]: (now[which][1], dims[which]) for which in ("keys", "values")},
                code,
            )

    def _keys_axis(self, x: Tensor) -> str:
        return "tokens" if self.source is x else "context_tokens"

    def _attend(
        self,
        queries: tuple[str, Tensor],
        keys: tuple[str, Tensor],
        values: tuple[str, Tensor],
        *,
        width: str,
    ) -> Tensor:
        """Step 4. `width` names the size whose root divides the scores; "" for no scaling."""
        (q_name, q), (k_name, k), (v_name, v) = queries, keys, values
        many = q.ndim == 4
        lead = ("batch", "heads")[: q.ndim - 2]
        q_dims, k_dims, v_dims = (self._dims[name] for name in (q_name, k_name, v_name))
        square = (*lead, q_dims[-2][0], k_dims[-2][0])

        last = f".transpose({q.ndim - 2}, {q.ndim - 1})"
        scores = q @ k.transpose(-2, -1)
        self.add(
            "4a",
            "ATTENTION: scores",
            f"{q_name} @ {k_name}{last}",
            "scores = x xᵀ" if k_name == "x" else "scores = Q Kᵀ",
            q_dims,
            {"attn_scores": (scores, square)},
            [f"attn_scores = {q_name} @ {k_name}{last}"],
        )
        name = "attn_scores"
        if self.hidden is not None:
            scores = scores.masked_fill(self.hidden, -torch.inf)
            self.add(
                "4b",
                "ATTENTION: mask",
                "attn_scores.masked_fill(hidden, -torch.inf)",
                "a hidden score becomes -inf, so that its weight becomes 0",
                self._dims[name],
                {"masked_scores": (scores, square)},
                [self._hidden_code, "masked_scores = attn_scores.masked_fill(hidden, -torch.inf)"],
            )
            name = "masked_scores"
        made, code = {}, []
        before, scaled_name, formula = self._dims[name], name, "weights = softmax(scores)"
        if width:
            size = k.shape[-1]
            scores = scores / size**0.5
            made["scaled_scores"] = (scores, square)
            code.append(f"scaled_scores = {name} / {size}**0.5")
            scaled_name = "scaled_scores"
            formula = f"weights = softmax(scores / √{width}), √{size} = {size**0.5:.4g}"
        weights = torch.softmax(scores, dim=-1)
        code.append(f"attn_weights = torch.softmax({scaled_name}, dim=-1)")
        if self._some_see_nothing:
            weights = weights.nan_to_num(0.0)
            code.append("attn_weights = attn_weights.nan_to_num(0.0)  # nothing to see gives zeros")
        made["attn_weights"] = (weights, square)
        scale = f" / {k.shape[-1]}**0.5" if width else ""
        self.add(
            "4c",
            "ATTENTION: softmax",
            f"torch.softmax({name}{scale}, dim=-1)",
            formula,
            before,
            made,
            code,
        )
        context = weights @ v
        made_name = "context_heads" if many else "context_vec"
        self.add(
            "4d",
            "ATTENTION: weighted sum",
            f"attn_weights @ {v_name}",
            "context = weights x" if v_name == "x" else "context = weights V",
            self._dims["attn_weights"],
            {made_name: (context, (*lead, q_dims[-2][0], v_dims[-1][0]))},
            [f"{made_name} = attn_weights @ {v_name}"],
        )
        return context


def _projection_formula(bias: bool, linears: Sequence[str] = LINEARS, source: str = "x") -> str:
    end = " + bias" if bias else ""
    sources = ("x", source, source)
    return ", ".join(
        f"{letter} = {name} {linear}ᵀ{end}"
        for letter, name, linear in zip("QKV", sources, linears, strict=False)
    )


def _d_in(module: nn.Module) -> str:
    return "d_model" if isinstance(module, ladder.EncoderAttention) else "d_in"


def _input_dims(x: Tensor, d_in: str = "d_in") -> Dims:
    names = ("batch",) * (x.ndim - 2) + ("tokens", d_in)
    return tuple(zip(names, x.shape, strict=True))
