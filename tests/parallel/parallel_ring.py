"""Clearhead's modules with PyTorch's ring attention. Needs CUDA; test_parallel.py runs it, or:

    python tests/parallel/parallel_ring.py

With two GPUs each rank has its own (NCCL); otherwise both ranks share one, and their messages go
through main memory (gloo).
"""

import copy
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

from clearhead import Mask, MultiHeadAttention, Rope
from clearhead.gpt2 import GPT2
from clearhead.parallel import context_parallel

RANKS = 2


def worker(rank: int, meeting: str) -> None:
    alone = torch.cuda.device_count() >= RANKS
    torch.cuda.set_device(rank if alone else 0)
    dist.init_process_group(
        "nccl" if alone else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=RANKS,
    )
    if not alone:
        through_main_memory()
    mesh = init_device_mesh("cuda", (RANKS,))
    ring, gathered, auto = (context_parallel(mesh, how=how) for how in ("ring", "gather", "auto"))
    # A call with a mask gathers, even in a block where other calls use the ring.
    padding = Mask.padding(torch.tensor([512, 300], device="cuda"))
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 2e-2)):
        torch.manual_seed(0)
        attention = MultiHeadAttention(32, 64, 512, 0.0, 4, qkv_bias=True, rope=Rope())
        attention = attention.to("cuda", dtype)
        x = torch.randn(2, 512, 32).to("cuda", dtype)
        compare(f"attention, ring, {dtype}", attention, x, ring, tolerance)
        compare(f"attention, gather, {dtype}", attention, x, gathered, tolerance)
        compare(f"attention, auto, padded, {dtype}", attention, x, auto, tolerance, padding)
    config = {"vocab_size": 97, "context_length": 512, "d_model": 64, "num_heads": 4}
    config |= {"num_layers": 2, "dropout": 0.0, "qkv_bias": True}
    model = GPT2(config).cuda()
    ids = torch.randint(97, (2, 512), device="cuda")
    compare("GPT-2, auto", model, ids, auto, 2e-6)
    model.train().checkpointing = True
    compare("GPT-2, auto, checkpointing", model, ids, auto, 2e-6)
    dist.destroy_process_group()


def through_main_memory() -> None:
    """Send messages of DTensor and the ring as CPU tensors: gloo crashes on CUDA tensors."""

    def copying(function):
        def call(x, *args, **options):
            found = collectives.wait_tensor(function(x.cpu(), *args, **options))
            return found.to(x.device)

        return call

    for name in (
        "all_gather_tensor",
        "all_gather_single",
        "all_reduce",
        "permute_tensor",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
    ):
        if hasattr(collectives, name):
            setattr(collectives, name, copying(getattr(collectives, name)))


def compare(what, plain, x, split, tolerance, mask=None) -> None:
    """Check that output and weight gradients equal those of one process."""
    options = {} if mask is None else {"mask": mask}
    local = copy.deepcopy(plain)
    wanted = plain(x, **options)
    factors = torch.randn_like(wanted)
    plain.zero_grad()
    (wanted * factors).sum().backward()
    with split:
        output = local(split.shard(x), **options)
        (output * split.shard(factors)).sum().backward()
    gaps = [distance(split.gather(output), wanted, wanted)]
    largest = max((p.grad for p in plain.parameters()), key=lambda grad: float(grad.abs().max()))
    for name, parameter in local.named_parameters():
        total = parameter.grad.float()
        dist.all_reduce(total)
        gaps.append(distance(total, plain.get_parameter(name).grad, largest))
    if dist.get_rank() == 0:
        print(f"{what}: output {gaps[0]:.1e}, gradients {max(gaps[1:]):.1e}", flush=True)
    assert max(gaps) <= tolerance, (what, gaps)


@torch.no_grad()
def distance(ours: torch.Tensor, wanted: torch.Tensor, scale: torch.Tensor) -> float:
    """The largest difference, relative to the largest value of `scale`."""
    return float((ours.float() - wanted.float()).abs().max() / scale.float().abs().max())


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("PyTorch's ring attention needs CUDA, but no GPU is available.")
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(worker, (folder + "/meeting",), nprocs=RANKS, start_method="spawn")


if __name__ == "__main__":
    main()
