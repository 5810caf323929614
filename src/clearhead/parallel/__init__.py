"""More than one process: plans that are applied from outside; the modules know nothing of them.

    tensor_parallel   each rank has some of the heads of every layer, and sees all tokens
    context_parallel  each rank has some of the tokens of one sequence, and all heads
    data_parallel     each rank has some of the sequences, and all or a part of every weight

All of it is `torch.distributed`: DTensor, ring attention, FSDP2, DDP and distributed checkpoints.
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
