"""Each private PyTorch name works here, and without it the documented fallback does."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor.experimental import _attention
from torch.utils.flop_counter import FlopCounterMode

from clearhead import GPT2, AttentionMap, Mask, MultiHeadAttention, torch_internals
from clearhead.kernels import attend, attend_with_lse, sdpa

MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "window": Mask.causal() & Mask.window(3),
    "padding": Mask.causal() & Mask.padding([0, 5]),
}


class Without:
    """A part of torch without some of its names."""

    def __init__(self, part, *names):
        self._part, self._names = part, names

    def __getattr__(self, name):
        if name in self._names:
            raise AttributeError(name)
        return getattr(self._part, name)


@pytest.fixture
def no_cpu_kernels(monkeypatch):
    names = [f"_scaled_dot_product_flash_attention_for_cpu{part}" for part in ("", "_backward")]
    monkeypatch.setattr(torch.ops, "aten", Without(torch.ops.aten, *names))
    assert torch_internals.cpu_flash_attention() is None
    assert torch_internals.cpu_flash_attention_backward() is None


def random_qkv():
    return [torch.randn(2, heads, 7, 11, dtype=torch.float64) for heads in (6, 3, 3)]


def run(kernel, q, k, v, mask):
    """The context, and the gradients of a random function of it."""
    q, k, v = (t.detach().clone().requires_grad_() for t in (q, k, v))
    context = attend(q, k, v, mask, kernel=kernel)
    direction = torch.randn(context.shape, generator=torch.Generator().manual_seed(5))
    (context * direction.to(context.dtype)).sum().backward()
    return context.detach(), q.grad, k.grad, v.grad


def test_the_cpu_kernels_are_found():
    q, k, v = random_qkv()
    context, lse = attend_with_lse(q, k, v, Mask.causal(), kernel="sdpa")
    torch.testing.assert_close(context, attend(q, k, v, Mask.causal(), kernel="eager"))
    scores = q @ k.repeat_interleave(2, 1).transpose(-2, -1) / 11**0.5
    hidden = ~Mask.causal().dense(7)
    torch.testing.assert_close(lse, scores.masked_fill(hidden, -torch.inf).logsumexp(-1))
    assert torch_internals.cpu_flash_attention_backward() is not None


@pytest.mark.parametrize("name", MASKS)
def test_blocked_without_the_cpu_kernels(name, no_cpu_kernels):
    q, k, v = random_qkv()
    expected = run("eager", q, k, v, MASKS[name])
    torch.testing.assert_close(run("blocked", q, k, v, MASKS[name]), expected)


def test_maps_without_the_cpu_kernels(no_cpu_kernels):
    q, k, v = random_qkv()
    assert attend_with_lse(q, k, v, Mask.causal(), kernel="sdpa")[1] is None
    module = MultiHeadAttention(5, 6, 13, 0.0, 2).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    output, weights = module.with_map(x)
    queries, keys, values, mask = module.project(x)
    torch.testing.assert_close(output, module(x))
    torch.testing.assert_close(weights.dense(), AttentionMap(queries, keys, mask).dense())
    torch.testing.assert_close(
        weights.dense() @ values, attend(queries, keys, values, mask, kernel="eager")
    )


def test_versions_count_changes():
    x = torch.zeros(3)
    before = torch_internals.version(x)
    x.add_(1)
    assert torch_internals.version(x) > before
    with torch.inference_mode():
        assert torch_internals.version(torch.zeros(3)) is None
    assert torch_internals.version(Without(x, "_version")) is None


def test_masks_with_tensors_are_not_kept_without_versions(monkeypatch):
    monkeypatch.setattr(sdpa, "_may_keep", lambda q: True)
    monkeypatch.setattr(sdpa, "_kept", {})
    monkeypatch.setattr(torch_internals, "version", lambda tensor: None)
    q, k, v = random_qkv()
    real = torch.tensor([2, 5])
    mask = Mask.causal() & Mask.padding(real)
    for _ in range(2):
        expected = attend(q, k, v, mask, kernel="eager")
        torch.testing.assert_close(attend(q, k, v, mask, kernel="sdpa"), expected)
        real.add_(1)
    assert not sdpa._kept
    attend(q, k, v, Mask.causal() & Mask.window(3), kernel="sdpa")
    assert len(sdpa._kept) == 1


@pytest.fixture
def tiny():
    config = {"vocab_size": 11, "context_length": 7, "d_model": 4, "num_heads": 2}
    return GPT2({**config, "num_layers": 1, "dropout": 0.0, "qkv_bias": True}).eval()


def test_hooks_are_found(tiny):
    for register in (tiny.register_forward_hook, tiny.register_forward_pre_hook):
        handle = register(lambda *_: None)
        assert torch_internals.has_hooks(tiny)
        handle.remove()
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        handle = register(lambda *_: None)
        try:
            assert torch_internals.has_hooks(tiny)
        finally:
            handle.remove()
    assert not torch_internals.has_hooks(tiny)


@pytest.mark.parametrize("name", ["_global_forward_hooks", "_global_forward_pre_hooks"])
def test_modules_are_called_where_hooks_cannot_be_found(tiny, monkeypatch, name):
    expected = tiny.generate(torch.tensor([[1, 2]]), 4)
    monkeypatch.setattr(nn.modules, "module", Without(nn.modules.module, name))
    assert torch_internals.has_hooks(tiny)
    assert torch.equal(tiny.generate(torch.tensor([[1, 2]]), 4), expected)


def test_dispatch_modes_are_found(monkeypatch):
    assert not torch_internals.in_dispatch_mode()
    with FlopCounterMode(display=False):
        assert torch_internals.in_dispatch_mode()
    monkeypatch.setattr(torch, "_C", Without(torch._C, "_len_torch_dispatch_stack"))
    assert not torch_internals.in_dispatch_mode()


def test_ring_rotation(monkeypatch):
    called = []
    monkeypatch.setattr(_attention, "set_rotate_method", called.append)
    with torch_internals.ring_rotation("alltoall"):
        assert called == ["alltoall"]
    assert called == ["alltoall", "allgather"]
    monkeypatch.delattr(_attention, "set_rotate_method")
    with torch_internals.ring_rotation("alltoall"):
        assert len(called) == 2


def test_in_backward(monkeypatch):
    x = torch.ones(1, requires_grad=True)
    found = []
    y = x * 2
    y.register_hook(lambda _: found.append(torch_internals.in_backward()))
    assert not torch_internals.in_backward()
    y.backward()
    assert found == [True]
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    assert not torch_internals.in_backward()


def test_compiled_modules():
    plain, in_place = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    in_place.compile(backend="eager")
    wrapped = torch.compile(plain, backend="eager")
    found = [torch_internals.is_compiled(module) for module in (plain, in_place, wrapped)]
    assert found == [False, True, True]
    assert torch_internals.uncompiled_module(wrapped) is plain
    assert torch_internals.uncompiled_module(plain) is plain
    assert torch_internals.is_compiler_loaded()
