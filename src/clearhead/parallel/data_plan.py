"""Data parallelism: each rank trains on part of the batch, and gradients are averaged."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from clearhead.gpt2 import TransformerBlock
from clearhead.parallel.tensor_plan import check_mesh


def data_parallel(module: nn.Module, mesh: DeviceMesh, *, shard: bool = True) -> nn.Module:
    """Average the gradients of all ranks; with `shard`, split weights and optimiser state too.

    Create the optimiser afterwards, from the parameters of the returned module. With `shard` each
    rank keeps 1 / ranks of every weight (FSDP2), and the weights of a block are gathered while it
    runs; without it each rank keeps all weights (DDP), which is faster for small models.

    Args:
        module: Any module, with equal weights on all ranks. Its `TransformerBlock`s are gathered
            one at a time. It may already be split by `tensor_parallel` on another axis.
        mesh: A one-dimensional mesh, such as `init_device_mesh("cuda", (8,))`.
        shard: Whether to split the weights.

    Returns:
        The module itself with `shard`, otherwise a `DistributedDataParallel` around it.
    """
    check_mesh(mesh, "data_parallel")
    if not shard:
        return DistributedDataParallel(module, process_group=mesh.get_group())
    for part in list(module.modules()):
        if isinstance(part, TransformerBlock) and part is not module:
            fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module
