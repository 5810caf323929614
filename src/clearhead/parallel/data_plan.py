"""Sequences over ranks: each rank trains on its share of the batch, and gradients are averaged."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from clearhead.gpt2 import TransformerBlock
from clearhead.parallel.tensor_plan import check_mesh


def data_parallel(module: nn.Module, mesh: DeviceMesh, *, shard: bool = True) -> nn.Module:
    """Average the gradients of all ranks; with `shard`, split weights and optimiser too.

    Make the optimiser afterwards, from the parameters of what comes back. With `shard` each rank
    keeps 1 / ranks of every weight (FSDP2), and a block's weights come together while it runs;
    without it each rank keeps all (DDP), which is quicker where a model is small.

    Args:
        module: Any module, with equal weights on all ranks. Its `TransformerBlock`s are the units
            that come together. It may have been through `tensor_parallel` on another axis.
        mesh: One axis of ranks, such as `init_device_mesh("cuda", (8,))`.
        shard: Whether to split the weights.

    Returns:
        With `shard` the module itself, else a `DistributedDataParallel` around it.
    """
    check_mesh(mesh, "data_parallel")
    if not shard:
        return DistributedDataParallel(module, process_group=mesh.get_group())
    for part in list(module.modules()):
        if isinstance(part, TransformerBlock) and part is not module:
            fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module
