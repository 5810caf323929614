"""Weights in eight bits: the file of the shipped English model, read by Python and JavaScript.

It is a safetensors file with the names and shapes of `GPT2.state_dict()`. For each weight NAME that
is a matrix, it has two tensors, and weight[r, c] = NAME[r, c] × NAME.scale[r] in float32:

    NAME          int8     [rows, columns]     -127 to 127
    NAME.scale    float32  [rows]              the largest |weight| of the row, divided by 127

Every other parameter is float32, under its own name. All names, in a model with d = d_model:

    embedding.token.weight                     [vocab_size, d]; the output head is the same matrix
    embedding.position.weight                  [context_length, d]
    blocks.N.norm1.weight, .bias               [d]
    blocks.N.attention.W_query.weight, .bias   [d, d] and [d]: y = weight x + bias; so all linear
    blocks.N.attention.W_key.weight, .bias     layers. A head is a run of d / num_heads rows.
    blocks.N.attention.W_value.weight, .bias
    blocks.N.attention.out_proj.weight, .bias
    blocks.N.norm2.weight, .bias               [d]
    blocks.N.feed_forward.expand.weight, .bias   [4 d, d] and [4 d]
    blocks.N.feed_forward.project.weight, .bias  [d, 4 d] and [d]
    norm.weight, .bias                         [d]

The metadata has one entry, "config": JSON with the keys of `clearhead.configs.GPT2Config`. Float32
tensors come before int8 ones in the file, and the header ends at a multiple of 8 bytes, so that
JavaScript can put typed arrays over the bytes without copying.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from jaxtyping import Float, Int8
from safetensors.torch import save
from torch import Tensor

from clearhead.atomic_files import beside
from clearhead.configs import GPT2Config, read_config
from clearhead.gpt2.empty_model import without_numbers
from clearhead.gpt2.model import GPT2

SCALE = ".scale"
_CONFIG = "config"


def to_int8(
    weight: Float[Tensor, "rows columns"],
) -> tuple[Int8[Tensor, "rows columns"], Float[Tensor, " rows"]]:
    """A matrix as integers from -127 to 127, and the scale of each row.

    Examples:
        >>> to_int8(torch.tensor([[0.5, -1.0], [0.0, 0.0]]))[0].tolist()
        [[64, -127], [0, 0]]
    """
    scale = weight.float().abs().amax(1) / 127
    # A row of zeros has scale 0; any divisor gives zeros.
    steps = weight.float() / torch.where(scale > 0, scale, 1.0)[:, None]
    return steps.round().to(torch.int8), scale


def from_int8(
    steps: Int8[Tensor, "rows columns"], scale: Float[Tensor, " rows"]
) -> Float[Tensor, "rows columns"]:
    """The matrix in float32."""
    return steps.float() * scale[:, None]


def save_int8(file: Path, config: GPT2Config, state: Mapping[str, Tensor]) -> None:
    """Write the weights of a GPT-2 with a tied head, each matrix in eight bits.

    Args:
        file: The file to write.
        config: The sizes of the model.
        state: Its `state_dict()`, in any floating-point dtype.
    """
    tensors: dict[str, Tensor] = {}
    for name, weight in state.items():
        if weight.ndim == 2:
            tensors[name], tensors[name + SCALE] = to_int8(weight)
        else:
            tensors[name] = weight.float()
    with beside(file) as draft:
        draft.write_bytes(save(tensors, {_CONFIG: json.dumps(config)}))


def load_int8(file: Path) -> GPT2:
    """The model that `save_int8` wrote, in float32 and in eval mode.

    Raises:
        ValueError: The file is damaged, or has another format.
    """
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # not iterable
            config = read_config(json.loads((opened.metadata() or {})[_CONFIG]))
        model = without_numbers(lambda: GPT2(config))
        state = {
            name: from_int8(tensors[name], tensors[name + SCALE])
            if name + SCALE in tensors
            else tensors[name]
            for name in model.state_dict()
        }
        model.load_state_dict(state, assign=True)
    except (safetensors.SafetensorError, OSError, LookupError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{file}: not a complete file of weights in eight bits ({error}).\n"
            "  Install Clearhead again."
        ) from None
    return model.eval()
