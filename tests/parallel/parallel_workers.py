"""The checks that the processes of test_parallel.py run; they are started once for all checks.

Each check is a function of the mesh and runs on every rank. It compares a plan with a single
process, in float64.
"""

import copy
import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from clearhead import Mask, MultiHeadAttention, Rope, watch
from clearhead.gpt2 import GPT2, TransformerBlock
from clearhead.lab.grammar_training import GrammarSettings, GrammarTask
from clearhead.parallel import (
    context_parallel,
    data_parallel,
    load_checkpoint,
    save_checkpoint,
    tensor_parallel,
)
from clearhead.training import distributed

CHECKS: dict[str, Callable[[DeviceMesh], None]] = {}
CONFIG = {
    "vocab_size": 31,  # no number of ranks divides it
    "context_length": 24,
    "d_model": 24,
    "num_heads": 4,
    "num_layers": 2,
    "dropout": 0.0,
    "qkv_bias": True,
}


def check(function: Callable[[DeviceMesh], None]) -> Callable[[DeviceMesh], None]:
    CHECKS[function.__name__] = function
    return function


def main(rank: int, world: int, names: list[str], folder: str) -> None:
    """Run the checks in order; write one file per check and rank with the result."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (world,))
    for name in names:
        torch.manual_seed(0)
        try:
            CHECKS[name](mesh)
        except BaseException:
            Path(folder, f"{name}.{rank}.failed").write_text(traceback.format_exc())
            raise
        Path(folder, f"{name}.{rank}.passed").touch()
    dist.destroy_process_group()


# Comparing.


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def scatter_weights(module: nn.Module) -> nn.Module:
    """Give every parameter distinct random values, in float64."""
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def gradients(module: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        found[name.removeprefix("module.")] = whole(parameter.grad)
    return found


def state(module: nn.Module) -> dict[str, Tensor]:
    inner = module.module if hasattr(module, "module") else module
    return get_model_state_dict(inner, options=StateDictOptions(full_state_dict=True))


def same_function_and_training(
    plain: nn.Module, split: nn.Module, x: Tensor, my_part: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Forward, gradients and two optimiser steps agree; `my_part` selects a rank's sequences."""
    part = my_part or (lambda tensor: tensor)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.03) for m in (plain, split)]
    factors = torch.randn_like(plain(x).detach())
    for _ in range(2):
        wanted = plain(x)
        torch.testing.assert_close(split(part(x)), part(wanted))
        (wanted * factors).mean().backward()
        (split(part(x)) * part(factors)).mean().backward()
        torch.testing.assert_close(gradients(split), gradients(plain))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(state(split), plain.state_dict())


def attention(**options) -> MultiHeadAttention:
    return scatter_weights(MultiHeadAttention(10, 48, 24, 0.0, 8, True, **options))


# tensor_parallel.


@check
def tensor_attention(mesh):
    for options in ({}, {"num_kv_heads": 4, "rope": Rope(), "qk_norm": True, "window": 5}):
        plain = attention(**options)
        split = tensor_parallel(copy.deepcopy(plain), mesh)
        assert split.W_query.weight.to_local().shape[0] == 48 // mesh.size()
        same_function_and_training(plain, split, torch.randn(3, 7, 10, dtype=torch.float64))


@check
def tensor_block_and_gpt2(mesh):
    ids = torch.randint(31, (3, 7))
    for module, x in (
        (TransformerBlock(CONFIG), torch.randn(3, 7, 24, dtype=torch.float64)),
        (GPT2(CONFIG), ids),
        (GPT2(CONFIG, rope=Rope(), tied=False), ids),
    ):
        plain = scatter_weights(module)
        split = tensor_parallel(copy.deepcopy(plain), mesh)
        same_function_and_training(plain, split, x)


@check
def tensor_caches_and_left_padding(mesh):
    """Caches hold this rank's heads; decoding token by token equals one pass."""
    plain = scatter_weights(GPT2(CONFIG)).eval()
    split = tensor_parallel(copy.deepcopy(plain), mesh)
    ids, lengths = torch.randint(31, (2, 7)), torch.tensor([7, 4])
    caches = split.new_caches(2)
    assert caches[0].keys.shape[1] == 4 // mesh.size()
    wanted = plain(ids)
    for n in range(7):
        torch.testing.assert_close(split(ids[:, n : n + 1], caches=caches), wanted[:, n : n + 1])
    padded = plain(ids, lengths=lengths)
    torch.testing.assert_close(split(ids, lengths=lengths)[1, 3:], padded[1, 3:])


@check
def tensor_dropout(mesh):
    """Ranks seeded differently drop the same elements; otherwise they would diverge silently."""
    torch.manual_seed(7)
    model = scatter_weights(GPT2({**CONFIG, "dropout": 0.5})).train()
    torch.manual_seed(dist.get_rank())
    split = tensor_parallel(model, mesh)
    # Not the logits, which are gathered and therefore always equal.
    hidden = split.hidden(torch.arange(14).view(2, 7)).detach()
    everyone = [torch.empty_like(hidden) for _ in range(mesh.size())]
    dist.all_gather(everyone, hidden)
    for other in everyone:
        torch.testing.assert_close(other, hidden, atol=0, rtol=0)


@check
def tensor_maps(mesh):
    """Each rank holds the maps of its heads; their statistics are those of one process."""
    plain = attention(num_kv_heads=4)
    split = tensor_parallel(copy.deepcopy(plain), mesh)
    x = torch.randn(2, 11, 10, dtype=torch.float64)
    asked = {"entropy": True, "received": True, "thumbnail": (3, 4), "previous": True, "top": 2}
    wanted = plain.with_map(x)[1].summary(**asked)
    mine = split.with_map(x)[1]
    heads = 8 // mesh.size()
    rows = slice(dist.get_rank() * heads, (dist.get_rank() + 1) * heads)
    found = mine.summary(**asked)
    for name in ("entropy", "received", "thumbnail", "previous"):
        theirs = getattr(wanted, name)[:, rows]
        torch.testing.assert_close(getattr(found, name), theirs, equal_nan=True)
    torch.testing.assert_close(found.top.weights, wanted.top.weights[:, rows])
    assert torch.equal(found.top.keys, wanted.top.keys[:, rows])
    with watch(split) as seen:
        split(x)
    torch.testing.assert_close(seen["MultiHeadAttention"].entropy(), wanted.entropy[:, rows])


@check
def tensor_errors(mesh):
    ranks = mesh.size()
    message = (
        rf"num_kv_heads \(3\) must be divisible by the number of ranks \({ranks}\)\.\n.*1 or 3"
    )
    with pytest.raises(ValueError, match=message):
        tensor_parallel(MultiHeadAttention(10, 48, 24, 0.0, 12, num_kv_heads=3), mesh)
    with pytest.raises(ValueError, match=r"blocks\.0\.attention: num_kv_heads \(5\) must be"):
        tensor_parallel(GPT2({**CONFIG, "d_model": 25, "num_heads": 5}), mesh)
    with pytest.raises(TypeError, match="a TransformerBlock or a GPT2, got Linear"):
        tensor_parallel(nn.Linear(2, 2), mesh)
    twice = tensor_parallel(MultiHeadAttention(10, 48, 24, 0.0, 8), mesh)
    with pytest.raises(ValueError, match="are already split"):
        tensor_parallel(twice, mesh)
    grid = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("data", "heads"))
    with pytest.raises(ValueError, match=re.escape('one of its axes: mesh["heads"].')):
        tensor_parallel(attention(), grid)


# context_parallel.


def context_equals_one_process(split, plain: nn.Module, x: Tensor, **options) -> None:
    """Output and gradients; those of the weights are sums over the ranks."""
    local = copy.deepcopy(plain)
    leaf = x.clone().requires_grad_() if x.is_floating_point() else x
    wanted = plain(leaf, **options)
    factors = torch.randn_like(wanted)
    (wanted * factors).sum().backward()
    mine = split.shard(x)
    mine = mine.requires_grad_() if x.is_floating_point() else mine
    with split:
        output = local(mine, **options)
        (output * split.shard(factors)).sum().backward()
    torch.testing.assert_close(split.gather(output), wanted)
    if x.is_floating_point():
        torch.testing.assert_close(split.gather(mine.grad), leaf.grad)
    for name, parameter in local.named_parameters():
        total = parameter.grad.clone()
        dist.all_reduce(total, group=split.mesh.get_group())
        expected = plain.get_parameter(name).grad
        torch.testing.assert_close(total, expected, msg=lambda m, name=name: f"{name}: {m}")


@check
def context_attention(mesh):
    ranks = mesh.size()
    tokens = 4 * ranks
    x = torch.randn(2, tokens, 10, dtype=torch.float64)
    per_head = torch.rand(2, 8, tokens, tokens) > 0.4
    kinds = {
        "causal": ({}, None),
        "rotary, grouped": ({"rope": Rope(), "num_kv_heads": 4, "qk_norm": True}, None),
        "window": ({"window": 5}, None),
        "both directions": ({"causal": False}, None),
        "window in both directions": ({"causal": False, "window": 3}, None),
        "right padding": ({}, Mask.padding([tokens, 5])),
        "left padding": ({"window": 6}, Mask.padding([3, tokens], side="left")),
        "padding without causality": ({"causal": False}, Mask.padding([tokens, 5])),
        "any mask": ({"causal": False}, Mask.custom(per_head)),
        "any mask, causal": ({}, Mask.custom(per_head)),
    }
    for kind, (options, mask) in kinds.items():
        for balanced in (True, False):
            split = context_parallel(mesh, balanced=balanced)
            try:
                context_equals_one_process(split, attention(**options), x, mask=mask)
            except AssertionError as error:
                raise AssertionError(f"{kind}, balanced={balanced}") from error


@check
def context_gpt2(mesh):
    ids = torch.randint(31, (2, 24))
    for options in ({}, {"rope": Rope()}):
        plain = scatter_weights(GPT2(CONFIG, **options))
        context_equals_one_process(context_parallel(mesh), plain, ids)
        plain.zero_grad()
        plain.checkpointing = True  # the backward pass computes attention again, over all ranks
        context_equals_one_process(context_parallel(mesh), plain.train(), ids)


@check
def context_compiled(mesh):
    """A compiled graph hides its attention, so the model runs uncompiled in the block."""
    plain = scatter_weights(GPT2(CONFIG, rope=Rope())).eval()
    compiled = torch.compile(plain, backend="eager")
    ids = torch.randint(31, (2, 24))
    split = context_parallel(mesh)
    with torch.no_grad():
        compiled(split.shard(ids))
        with split:
            output = compiled(split.shard(ids))
    torch.testing.assert_close(split.gather(output), plain(ids))


@check
def context_maps(mesh):
    """Each rank holds the rows of its tokens; their statistics are those of one process."""
    model = scatter_weights(GPT2(CONFIG, rope=Rope()))
    ids = torch.randint(31, (2, 24))
    with watch(model) as seen:
        model(ids)
    asked = {"entropy": True, "received": True, "previous": True, "sink": 0, "top": 1}
    wanted = seen["blocks.1.attention"].summary(**asked)
    split = context_parallel(mesh, how="gather", balanced=False)
    with watch(model) as seen, split:
        model(split.shard(ids))
    mine = seen["blocks.1.attention"]
    rows = split.positions(24 // mesh.size())
    assert mine.shape == (2, 4, len(rows), int(rows[-1]) + 1)
    found = mine.summary(**asked)
    torch.testing.assert_close(found.entropy, wanted.entropy[:, :, rows])
    torch.testing.assert_close(found.sink, wanted.sink[:, :, rows])
    torch.testing.assert_close(found.previous, wanted.previous[:, :, rows], equal_nan=True)
    assert torch.equal(found.top.keys, wanted.top.keys[:, :, rows])
    received = F.pad(found.received, (0, 24 - found.received.shape[-1]))
    dist.all_reduce(received)  # what a key receives comes from the rows of all ranks
    torch.testing.assert_close(received, wanted.received)


@check
def context_order(mesh):
    """gather inverts shard, and positions are those of the shard."""
    x = torch.arange(8 * mesh.size())[None]
    for balanced in (True, False):
        split = context_parallel(mesh, balanced=balanced)
        mine = split.shard(x)
        assert torch.equal(split.positions(8), mine[0])
        assert torch.equal(split.gather(mine), x)
    first_and_last = context_parallel(mesh).shard(x)
    if dist.get_rank() == 0:
        assert first_and_last[0, [0, -1]].tolist() == [0, 8 * mesh.size() - 1]


@check
def context_errors(mesh):
    ranks = mesh.size()
    split = context_parallel(mesh)
    with pytest.raises(
        ValueError, match=rf"{2 * ranks + 1} tokens cannot be split into {2 * ranks}"
    ):
        split.shard(torch.zeros(1, 2 * ranks + 1))
    module, x = attention(), torch.randn(1, 4, 10, dtype=torch.float64)
    message = r"ring attention needs CUDA, got cpu\.\n  Use .*how=\"gather\""
    with pytest.raises(ValueError, match=message), context_parallel(mesh, how="ring"):
        module(x)
    with pytest.raises(ValueError, match="see this rank's tokens only"), split:
        module.with_map(x)
    blocked = attention(kernel="blocked")
    with pytest.raises(ValueError, match="see this rank's tokens only"), split:
        blocked.with_map(x)
    cache = module.new_cache(1)
    module(x, cache=cache)
    with pytest.raises(ValueError, match="Only self-attention without a cache"), split:
        module(x, cache=cache)
    with pytest.raises(ValueError, match="`lengths` and caches are not supported"), split:
        scatter_weights(GPT2(CONFIG))(torch.zeros(2, 4).long(), lengths=torch.tensor([4, 3]))
    with pytest.raises(ValueError, match='how must be "auto", "ring" or "gather", got \'rings\''):
        context_parallel(mesh, how="rings")
    with pytest.raises(ValueError, match="3 tokens on this rank cannot be two equal chunks"), split:
        module(x[:, :3])


@check
def context_reasons(mesh):
    """Each limit of PyTorch's ring attention is named; fake tensors stand in for CUDA."""
    split, causal = context_parallel(mesh), Mask.causal()
    with FakeTensorMode():
        q, few = (torch.empty(1, heads, 4, 6, device="cuda") for heads in (8, 4))
        exact = torch.empty(1, 8, 4, 6, device="cuda", dtype=torch.float64)
        assert split.why_not_ring(q, q, causal) is None
        assert "without another mask" in split.why_not_ring(q, q)
        assert "without another mask" in split.why_not_ring(q, q, causal & Mask.window(3))
        assert "not support dropout" in split.why_not_ring(q, q, causal, dropout=0.1)
        assert "as many key heads" in split.why_not_ring(q, few, causal)
        assert "float64" in split.why_not_ring(exact, exact, causal)
        unbalanced = context_parallel(mesh, balanced=False)
        assert "needs balanced=True" in unbalanced.why_not_ring(q, q, causal)


# data_parallel and checkpoints.


def my_rows(mesh: DeviceMesh) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.chunk(mesh.size())[mesh.get_local_rank()]


@check
def data_sharded(mesh):
    plain = scatter_weights(GPT2(CONFIG))
    split = data_parallel(copy.deepcopy(plain), mesh)
    weight = split.blocks[0].attention.W_query.weight
    assert weight.to_local().numel() == weight.numel() // mesh.size()
    same_function_and_training(plain, split, torch.randint(31, (8, 7)), my_rows(mesh))


@check
def data_replicated(mesh):
    plain = scatter_weights(GPT2(CONFIG, rope=Rope()))
    split = data_parallel(copy.deepcopy(plain), mesh, shard=False)
    same_function_and_training(plain, split, torch.randint(31, (8, 7)), my_rows(mesh))


@check
def data_sharded_from_meta(mesh):
    """A model too large for one rank is built without memory, split, and then loaded."""
    plain = scatter_weights(GPT2(CONFIG))
    with torch.device("meta"):
        empty = GPT2(CONFIG).double()
    split = data_parallel(empty, mesh)
    split.to_empty(device="cpu")
    set_model_state_dict(
        split,
        plain.state_dict() if dist.get_rank() == 0 else {},
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    same_function_and_training(plain, split, torch.randint(31, (8, 7)), my_rows(mesh))


@check
def checkpoints_between_plans(mesh):
    """Weights, optimiser and step, saved under one plan, load under another or none."""
    folder = [None]
    if dist.get_rank() == 0:
        folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    ids = torch.randint(31, (4, 7))
    start = scatter_weights(GPT2(CONFIG))

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> nn.Module:
        for _ in range(steps):
            model(ids).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.03)

    plain = copy.deepcopy(start)
    train(plain, adam(plain), 4)
    first = tensor_parallel(copy.deepcopy(start), mesh)
    optimizer = adam(first)
    train(first, optimizer, 3)
    for step in (1, 2, 3):
        save_checkpoint(folder[0], first, optimizer, step)
    assert sorted(p.name for p in Path(folder[0]).iterdir()) == ["step-00000002", "step-00000003"]
    dist.barrier()  # after all ranks have checked
    if dist.get_rank() == 0:
        Path(folder[0], "step-00000004.part").mkdir()  # a rank died while writing it
    dist.barrier()
    fresh = scatter_weights(GPT2(CONFIG))
    sharded = data_parallel(copy.deepcopy(fresh), mesh)
    copied = data_parallel(copy.deepcopy(fresh), mesh, shard=False)
    for other in (sharded, copied, copy.deepcopy(fresh), tensor_parallel(fresh, mesh)):
        optimizer = adam(other)
        assert load_checkpoint(folder[0], other, optimizer) == 3
        train(other, optimizer, 1)
        torch.testing.assert_close(state(other), plain.state_dict())
    assert load_checkpoint(folder[0] + "/none", other, optimizer) == 0


# Two plans at once, on four ranks.


@check
def tensor_and_data(mesh):
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plain = scatter_weights(GPT2(CONFIG))
    split = tensor_parallel(copy.deepcopy(plain), grid["tensor"])
    split = data_parallel(split, grid["data"])
    same_function_and_training(plain, split, torch.randint(31, (4, 7)), my_rows(grid["data"]))


@check
def tensor_and_context(mesh):
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("context", "tensor"))
    plain = scatter_weights(GPT2(CONFIG, rope=Rope()))
    model = tensor_parallel(copy.deepcopy(plain), grid["tensor"])
    ids = torch.randint(31, (2, 24))
    split = context_parallel(grid["context"])
    with split:
        logits = model(split.shard(ids))
    torch.testing.assert_close(split.gather(logits), plain(ids))


# Training the lab's model, with a rank that dies.

SETTINGS = GrammarSettings(
    steps=9,
    batch=12,
    tokens=7,
    rows=36,
    warmup=2,
    d_model=8,
    num_heads=2,
    num_layers=1,
    every=3,
    examples=2,
)


def training(
    rank: int, world: int, folder: str, dies_after: int | None, sleeps: bool, shard: bool
) -> None:
    """Train; rank 0 writes down the losses. The last rank dies or falls asleep where it is told."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-{world}-{dies_after}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=5 if sleeps else 60),
    )

    def on_step(done: int, loss: float) -> None:
        if rank == 0:
            with Path(folder, f"losses-{world}").open("a") as file:
                file.write(f"{done} {loss!r}\n")
        if rank == world - 1 and done == dies_after:
            if sleeps:
                time.sleep(30)  # longer than the others wait
                os._exit(4)
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        model = distributed.train(GrammarTask(SETTINGS), Path(folder), shard=shard, on_step=on_step)
    except distributed.LostRank as error:
        Path(folder, f"error-{rank}").write_text(str(error))
        os._exit(3)
    if rank == 0:
        torch.save(model.state_dict(), Path(folder, "trained.pt"))
    dist.destroy_process_group()
