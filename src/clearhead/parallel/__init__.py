"""Plans for several processes, applied to a module from outside; the module itself is unchanged.

    tensor_parallel   each rank has some of the heads of every layer, and all tokens
    context_parallel  each rank has some of the tokens of one sequence, and all heads
    data_parallel     each rank has some of the sequences, and all or part of every weight

Built on `torch.distributed`: DTensor, ring attention, FSDP2, DDP and distributed checkpoints.
"""

from clearhead.parallel.context_plan import ContextParallel, context_parallel
from clearhead.parallel.data_plan import data_parallel
from clearhead.parallel.sharded_checkpoints import load_checkpoint, save_checkpoint
from clearhead.parallel.tensor_plan import tensor_parallel

__all__ = [
    "ContextParallel",
    "context_parallel",
    "data_parallel",
    "load_checkpoint",
    "save_checkpoint",
    "tensor_parallel",
]
