"""What the forms of attention share on their way: masks, projecting, attending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from clearhead import ladder
from clearhead.explainer.step import Dims, Step
from clearhead.masks import Mask

Made = Mapping[str, tuple[Tensor, tuple[str, ...]]]

LINEARS = ("W_query", "W_key", "W_value", "out_proj")
PAPER_LINEARS = ("W_q", "W_k", "W_v", "W_o")


class SharedSteps:
    """The steps written down so far, and those that more than one form has."""

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

    # Steps 1 and 4.

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
            projection_formula(bias, linears, source),
            input_dims(x, d_in),
            made,
            [
                f"queries = module.{q}(x)",
                f"keys = module.{k}({source})",
                f"values = module.{v}({source})",
            ],
        )

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


def projection_formula(bias: bool, linears: Sequence[str] = LINEARS, source: str = "x") -> str:
    """Step 1 in mathematics."""
    end = " + bias" if bias else ""
    sources = ("x", source, source)
    return ", ".join(
        f"{letter} = {name} {linear}ᵀ{end}"
        for letter, name, linear in zip("QKV", sources, linears, strict=False)
    )


def input_dims(x: Tensor, d_in: str = "d_in") -> Dims:
    """Named dimensions of what a form is given."""
    names = ("batch",) * (x.ndim - 2) + ("tokens", d_in)
    return tuple(zip(names, x.shape, strict=True))
