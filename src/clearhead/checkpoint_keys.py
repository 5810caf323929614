"""Names of attention weights in checkpoints: the book's, packed, nn.MultiheadAttention's, GPT-2's.

separate       W_query.weight, W_key.weight, W_value.weight    ladder, the book, packed=False
qkv            qkv.weight                                      packed=True
in_proj        in_proj_weight                                  torch.nn.MultiheadAttention
c_attn         c_attn.weight, transposed; c_proj is out_proj   GPT-2's Conv1D
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SEPARATE = ("W_query", "W_key", "W_value")
# The name of all three together, and whether matrices are stored transposed.
_TOGETHER = {"qkv.": False, "in_proj_": False, "c_attn.": True}


def rename(state: dict[str, Any], prefix: str, widths: Sequence[int], *, packed: bool) -> None:
    """Rename the attention weights below a prefix, in place.

    What is not recognised, or does not have the expected shape, is left for `load_state_dict` to
    report.

    Args:
        state: The state dict.
        prefix: What precedes the module's keys.
        widths: The widths of queries, keys and values.
        packed: Whether the keys become `qkv.*`, or W_query, W_key and W_value.
    """
    for kind in ("weight", "bias"):
        for name, transposed in _TOGETHER.items():
            found = state.get(f"{prefix}{name}{kind}")
            if not isinstance(found, Tensor) or (packed and name == "qkv."):
                continue
            if transposed and found.ndim == 2:
                found = found.t()
            if found.shape[:1] != (sum(widths),):
                continue
            del state[f"{prefix}{name}{kind}"]
            if packed:
                state[f"{prefix}qkv.{kind}"] = found
            else:
                # Copied: with assign=True, the parameters would share their memory.
                parts = zip(_SEPARATE, torch.split(found, list(widths)), strict=True)
                state.update({f"{prefix}{part}.{kind}": tensor.clone() for part, tensor in parts})
        separate = [f"{prefix}{name}.{kind}" for name in _SEPARATE]
        if packed and all(isinstance(state.get(key), Tensor) for key in separate):
            state[f"{prefix}qkv.{kind}"] = torch.cat([state.pop(key) for key in separate])
        output = state.pop(f"{prefix}c_proj.{kind}", None)
        if isinstance(output, Tensor):
            state[f"{prefix}out_proj.{kind}"] = output.t() if output.ndim == 2 else output
