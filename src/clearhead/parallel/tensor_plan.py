"""Tensor parallelism: every layer is split between the ranks, and every rank has all tokens.

    W_query, W_key, W_value, expand    by rows of the weight: each rank computes its own heads
    out_proj, project                  by columns: each rank computes a partial sum; one all-reduce
    token embedding, output head       by vocabulary
    everything else                    replicated

Two all-reduces per block and direction, as in Shoeybi et al., "Megatron-LM" (2019). Parameters keep
their names, so a full state dict is the same as that of one process.
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

    Afterwards every rank passes the same input and gets the same output. Maps and caches hold this
    rank's heads only: with 12 heads on 4 ranks, rank 1 has heads 3, 4 and 5.

    To get the full state dict on every rank, call
    `get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))` from
    `torch.distributed.checkpoint.state_dict`.

    Args:
        module: A `MultiHeadAttention`, `TransformerBlock` or `GPT2`, with equal weights on all
            ranks. All ranks get rank 0's random state, so that dropout is the same everywhere.
        mesh: A one-dimensional mesh, such as `init_device_mesh("cuda", (8,))`.

    Returns:
        The module itself.

    Raises:
        TypeError: The module is of a different class.
        ValueError: The mesh has more than one axis, the number of ranks does not divide the number
            of heads, or the module is already split.
    """
    if not isinstance(module, MultiHeadAttention | TransformerBlock | GPT2):
        raise TypeError(
            "tensor_parallel: expected a MultiHeadAttention, a TransformerBlock or a GPT2, got "
            f"{type(module).__name__}.\n"
            "  Does your module contain them? Call tensor_parallel on each of them."
        )
    check_mesh(mesh, "tensor_parallel")
    for name, part in module.named_modules():
        if isinstance(part, MultiHeadAttention):
            _check_heads(part, mesh.size(), f"{name}: " if name else "")
    _share_random_state(mesh)
    for part in list(module.modules()):
        if isinstance(part, MultiHeadAttention):
            _split_heads(part, mesh)
        elif isinstance(part, FeedForward):
            parallelize_module(
                part, mesh, {"expand": ColwiseParallel(), "project": RowwiseParallel()}
            )
        elif isinstance(part, GPT2):
            _split_vocabulary(part, mesh)
    for part in list(module.modules()):
        own = list(part.parameters(recurse=False))
        if own and not all(isinstance(parameter, DTensor) for parameter in own):
            # Replicated. torch's annotations say that these functions return nothing.
            distribute_module(part, mesh, input_fn=_enter, output_fn=_leave)  # type: ignore[arg-type]
    return module


def check_mesh(mesh: DeviceMesh, who: str) -> None:
    """Raise ValueError unless the mesh is one-dimensional."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        hint = f'mesh["{names[-1]}"]' if names else 'name the axes, then mesh["a name"]'
        raise ValueError(
            f"{who}: expected a one-dimensional mesh, got {tuple(mesh.shape)}.\n"
            f"  Pass one of its axes: {hint}."
        )


def _check_heads(part: MultiHeadAttention, ranks: int, prefix: str) -> None:
    if part.packed:
        raise ValueError(
            f"{prefix}a packed module cannot be split by heads: `qkv` holds those of all ranks.\n"
            "  Build it with packed=False and load this module's state_dict() into it."
        )
    if isinstance(part.W_query.weight, DTensor):
        raise ValueError(f"{prefix}the heads of this module are already split.")
    for kind, heads in (("num_kv_heads", part.num_kv_heads), ("num_heads", part.num_heads)):
        if heads % ranks:
            fits = [str(n) for n in range(1, heads + 1) if heads % n == 0]
            raise ValueError(
                f"{prefix}{kind} ({heads}) must be divisible by the number of ranks ({ranks}).\n"
                f"  Heads cannot be divided: use {' or '.join(fits[-4:])} ranks, and the others "
                "for data_parallel or context_parallel."
            )


def _split_heads(part: MultiHeadAttention, mesh: DeviceMesh) -> None:
    plan: dict[str, ParallelStyle] = {
        name: ColwiseParallel() for name in ("W_query", "W_key", "W_value")
    }
    plan["out_proj"] = RowwiseParallel()
    if part.qk_norm:  # one weight for all heads: split (batch, heads, tokens, head_dim) at heads
        plan["q_norm"] = SequenceParallel(sequence_dim=1, use_local_output=True)
        plan["k_norm"] = SequenceParallel(sequence_dim=1, use_local_output=True)
    parallelize_module(part, mesh, plan)
    part.num_heads //= mesh.size()  # the heads on this rank, for which caches are created
    part.num_kv_heads //= mesh.size()


def _split_vocabulary(model: GPT2, mesh: DeviceMesh) -> None:
    """Split the token embedding, and the head, which reads its matrix without calling a module."""
    by_vocabulary = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model.embedding, mesh, {"token": by_vocabulary})
    if model.out_head is not None:
        weight = distribute_tensor(model.out_head.weight, mesh, [Shard(0)])
        model.out_head.weight = nn.Parameter(weight)
    model.head = partial(_head, model, mesh)  # type: ignore[method-assign]  # this object only


def _head(model: GPT2, mesh: DeviceMesh, hidden: Tensor) -> Tensor:
    """`GPT2.head` with a weight split by vocabulary: logits per rank, then gathered."""
    shared = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
    logits = F.linear(shared, model.head_weight)
    assert isinstance(logits, DTensor)
    return logits.full_tensor()


def _enter(_: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> tuple[Tensor, ...]:
    return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)


def _leave(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.to_local()


def _share_random_state(mesh: DeviceMesh) -> None:
    """Copy rank 0's random state to all: dropout outside the heads must be equal everywhere."""
    state = torch.get_rng_state().to(mesh.device_type)
    dist.broadcast(state, group=mesh.get_group(), group_src=0)
    torch.set_rng_state(state.cpu())
    if mesh.device_type == "cuda":
        state = torch.cuda.get_rng_state().cuda()
        dist.broadcast(state, group=mesh.get_group(), group_src=0)
        torch.cuda.set_rng_state(state.cpu())
