"""Computation: the steps of each form of attention, computed and written down in order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead import attention, ladder
from clearhead.explainer.shared_steps import (
    LINEARS,
    PAPER_LINEARS,
    SharedSteps,
    input_dims,
    projection_formula,
)


class Computation(SharedSteps):
    """The steps of one forward pass, in the making."""

    def simplified(self, x: Tensor) -> None:
        """Rung 1: step 4 alone."""
        self._dims["x"] = input_dims(x)
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
            projection_formula(heads[0].W_query.bias is not None) + ", in each head",
            input_dims(x),
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


def _d_in(module: nn.Module) -> str:
    return "d_model" if isinstance(module, ladder.EncoderAttention) else "d_in"
