"""Heads over ranks: every layer is split between the ranks, every rank sees all tokens.

    W_query, W_key, W_value, expand    by rows of the weight: each rank makes its own heads
    out_proj, project                  by columns: each rank's part of a sum, then one all-reduce
    the token vectors                  by words of the vocabulary; the head with them
    everything else                    the same on every rank

Two all-reduces a block and direction, as in Shoeybi et al., "Megatron-LM" (2019). The weights stay
under their names: a full state dict is that of one process.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from clearhead.attention import MultiHeadAttention
from clearhead.gpt2 import GPT2, FeedForward, TransformerBlock

Module = TypeVar("Module", bound=nn.Module)


def tensor_parallel(module: Module, mesh: DeviceMesh) -> Module:
    """Split the heads of a module between the ranks of a mesh, in place.

    Afterwards it takes the same input on every rank and gives the same output on every rank. What
    belongs to heads, such as maps and caches, holds this rank's heads: with 12 heads on 4 ranks,
    rank 1 has heads 3, 4 and 5.

    The whole state dict, on every rank:
    `get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))` of
    `torch.distributed.checkpoint.state_dict`.

    Args:
        module: A `MultiHeadAttention`, `TransformerBlock` or `GPT2`, with equal weights on all
            ranks. Rank 0's random numbers are given to all, so that dropout drops the same.
        mesh: One axis of ranks, such as `init_device_mesh("cuda", (8,))`.

    Returns:
        The module itself.

    Raises:
        TypeError: It is another kind of module.
        ValueError: The mesh has more than one axis, its ranks do not divide the heads, or the
            module has been split already.
    """
    if not isinstance(module, MultiHeadAttention | TransformerBlock | GPT2):
        raise TypeError(
            "tensor_parallel: expected a MultiHeadAttention, a TransformerBlock or a GPT2, got "
            f"{type(module).__name__}.\n"
            "  Another module that contains them? Call it for each of those inside."
        )
    check_mesh(mesh, "tensor_parallel")
    for name, part in module.named_modules():
        if isinstance(part, MultiHeadAttention):
            _check_heads(part, mesh.size(), f"{name}: " if name else "")
    _draw_alike(mesh)
    for part in list(module.modules()):
        if isinstance(part, MultiHeadAttention):
            _split_heads(part, mesh)
        elif isinstance(part, FeedForward):
            parallelize_module(
                part, mesh, {"expand": ColwiseParallel(), "project": RowwiseParallel()}
            )
        elif isinstance(part, GPT2):
            _split_words(part, mesh)
    for part in list(module.modules()):
        own = list(part.parameters(recurse=False))
        if own and not all(isinstance(parameter, DTensor) for parameter in own):
            # The same on every rank. torch's own types say that these functions give nothing.
            distribute_module(part, mesh, input_fn=_enter, output_fn=_leave)  # type: ignore[arg-type]
    return module


def check_mesh(mesh: DeviceMesh, who: str) -> None:
    """Raise ValueError unless the mesh has one axis."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        hint = f'mesh["{names[-1]}"]' if names else 'a mesh with names, then mesh["a name"]'
        raise ValueError(
            f"{who}: expected one axis of ranks, got a mesh of {tuple(mesh.shape)}.\n"
            f"  Give it one of them: {hint}."
        )


def _check_heads(part: MultiHeadAttention, ranks: int, place: str) -> None:
    if isinstance(part.W_query.weight, DTensor):
        raise ValueError(f"{place}the heads of this module have been split already.")
    for kind, heads in (("num_kv_heads", part.num_kv_heads), ("num_heads", part.num_heads)):
        if heads % ranks:
            fits = [str(n) for n in range(1, heads + 1) if heads % n == 0]
            raise ValueError(
                f"{place}{kind} ({heads}) must be divisible by the number of ranks ({ranks}).\n"
                f"  A head is never cut: use {' or '.join(fits[-4:])} ranks, and the others for "
                "data_parallel or context_parallel."
            )


def _split_heads(part: MultiHeadAttention, mesh: DeviceMesh) -> None:
    plan: dict[str, ParallelStyle] = {
        name: ColwiseParallel() for name in ("W_query", "W_key", "W_value")
    }
    plan["out_proj"] = RowwiseParallel()
    if part.qk_norm:  # one weight for all heads: (batch, heads, tokens, head_dim) split at heads
        plan["q_norm"] = SequenceParallel(sequence_dim=1, use_local_output=True)
        plan["k_norm"] = SequenceParallel(sequence_dim=1, use_local_output=True)
    parallelize_module(part, mesh, plan)
    part.num_heads //= mesh.size()  # what is left here; caches are made for so many
    part.num_kv_heads //= mesh.size()


def _split_words(model: GPT2, mesh: DeviceMesh) -> None:
    """The token vectors by words. The head reads the same matrix, and not through a module."""
    words = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model.embedding, mesh, {"token": words})
    if model.out_head is not None:
        weight = distribute_tensor(model.out_head.weight, mesh, [Shard(0)])
        model.out_head.weight = nn.Parameter(weight)
    model.head = partial(_head, model, mesh)  # type: ignore[method-assign]  # of this object only


def _head(model: GPT2, mesh: DeviceMesh, hidden: Tensor) -> Tensor:
    """`GPT2.head` with a weight that is split by words: each rank's words, then all together."""
    shared = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
    weight = model.embedding.token.weight if model.out_head is None else model.out_head.weight
    logits = F.linear(shared, weight)
    assert isinstance(logits, DTensor)
    return logits.full_tensor()


def _enter(_: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> tuple[Tensor, ...]:
    return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)


def _leave(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.to_local()


def _draw_alike(mesh: DeviceMesh) -> None:
    """Rank 0's random state for all: dropout outside the heads must be the same everywhere."""
    state = torch.get_rng_state().to(mesh.device_type)
    dist.broadcast(state, group=mesh.get_group(), group_src=0)
    torch.set_rng_state(state.cpu())
    if mesh.device_type == "cuda":
        state = torch.cuda.get_rng_state().cuda()
        dist.broadcast(state, group=mesh.get_group(), group_src=0)
        torch.cuda.set_rng_state(state.cpu())
