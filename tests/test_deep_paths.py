"""The deeper paths that the docs of the first edition show keep working."""

import importlib

import pytest

# `torchrun -m clearhead.lab.train` is tested with the training that it starts.
SHOWN = {
    "clearhead.checker.diagnose": ["check_source"],
    "clearhead.configs": ["find_config"],
    "clearhead.costs": ["flops", "parameters"],
    "clearhead.kernels": ["attend"],
    "clearhead.lab": ["load"],
    "clearhead.ladder": ["MultiHeadAttention", "simplified_attention"],
    "clearhead.parallel": ["context_parallel", "tensor_parallel"],
}


@pytest.mark.parametrize("path", SHOWN)
def test_shown_in_the_docs(path):
    module = importlib.import_module(path)
    assert [name for name in SHOWN[path] if not hasattr(module, name)] == []
