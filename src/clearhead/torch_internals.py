"""The only file that uses private PyTorch names.

Each name is wrapped in a function that looks it up when called, so importing Clearhead depends on
none of them. A PyTorch release may rename or remove any of them; each function then falls back as
its docstring describes, and `tests/test_torch_internals.py` removes each name to test that. All
were tested with PyTorch 2.11 and 2.13.

Names that are not here because a public function does the same: `torch.jit.is_tracing`,
`torch.overrides.has_torch_function` (is a TorchFunctionMode active?) and
`Tensor.untyped_storage` (is this a wrapper of `torch.func`? see `validation.is_wrapped`).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

# Where the functions live that rebuild a tensor: `torch.save` writes these names into files.
PICKLED_UTILS, PICKLED_TENSOR = "torch._utils", "torch._tensor"
PICKLED_LAYOUT = "torch.serialization._get_layout"


def cpu_flash_attention() -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The operator behind `scaled_dot_product_attention` on the CPU.

    Called directly, it also returns each row's log-sum-exp, which `AttentionMap` and the backward
    pass of `kernel="blocked"` need.

    Without it: None. `kernel="blocked"` then computes its blocks with matrix products (the same
    result, more slowly), and `kernel="sdpa"` returns no log-sum-exp, so maps compute it themselves.
    """
    return getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def cpu_flash_attention_backward() -> Callable[..., Any] | None:
    """The backward operator of `cpu_flash_attention`.

    Without it: None, and `kernel="blocked"` computes its gradients with matrix products.
    """
    return getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def version(tensor: Tensor) -> int | None:
    """The tensor's version counter, which every in-place change increments.

    `kernel="sdpa"` uses it to reuse a mask built for the previous layer only if its tensors have
    not changed since, and `watch` to notice that a recorded tensor was overwritten. Tensors created
    in inference mode have no counter.

    Without it, and for inference tensors: None. Masks that hold tensors are then built again for
    every call, and `watch` copies what it records.
    """
    if tensor.is_inference():
        return None
    return getattr(tensor, "_version", None)


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module runs forward hooks: its own, or those for all modules.

    Fast decoding of GPT-2 computes without calling the submodules, so it must not run if one of
    them has a hook.

    Without it: True. Decoding then calls the modules, which is correct with and without hooks.
    """
    hooks = [
        getattr(owner, name, None)
        for owner, name in (
            (module, "_forward_hooks"),
            (module, "_forward_pre_hooks"),
            (nn.modules.module, "_global_forward_hooks"),
            (nn.modules.module, "_global_forward_pre_hooks"),
        )
    ]
    return any(found is None or len(found) > 0 for found in hooks)


def in_dispatch_mode() -> bool:
    """Whether a TorchDispatchMode is active, such as `FlopCounterMode`.

    Fast decoding of GPT-2 replays graphs and writes into buffers, which such modes do not record.

    Without it: False. Fast decoding then runs, and the mode records other operators than those of
    the modules. The result is the same.
    """
    depth = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return depth is not None and depth() > 0


def in_backward() -> bool:
    """Whether the backward pass runs in this thread.

    A checkpointed forward pass is repeated there; `watch` does not record the repetition.

    Without it: False. `watch` then records such a call twice on the CPU.
    """
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def is_compiler_loaded() -> bool:
    """Whether `torch.compile` may have been used in this process.

    Importing the compiler takes a second, so `watch` does it only where there is something to stop.

    Without it: False, and compiled models record nothing while they are watched.
    """
    return "torch._dynamo" in sys.modules


def is_compiled(module: nn.Module) -> bool:
    """Whether the module is compiled: `torch.compile(module)` or `module.compile()`.

    Without it: False, and compiled models record nothing while they are watched.
    """
    inside = vars(module)  # getattr is slow on a module that lacks the name
    wrapped = "_orig_mod" in inside.get("_modules", ())
    return wrapped or inside.get("_compiled_call_impl") is not None


def uncompiled_module(module: nn.Module) -> nn.Module:
    """The module inside what `torch.compile(module)` returned, whose names have no prefix.

    Without it: the module itself.
    """
    return getattr(module, "_orig_mod", module)


@contextmanager
def ring_rotation(method: Literal["alltoall", "allgather"]) -> Iterator[None]:
    """How PyTorch's ring attention passes keys and values on, for the duration of a block.

    PyTorch's default, "allgather", gathers all blocks on every rank. "alltoall" sends one block at
    a time, which saves memory.

    Without it: PyTorch's default. The result is the same, but no memory is saved.
    """
    try:
        from torch.distributed.tensor.experimental._attention import set_rotate_method
    except ImportError:
        yield
        return
    set_rotate_method(method)
    try:
        yield
    finally:
        set_rotate_method("allgather")
