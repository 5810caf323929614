"""No false alarms on the attention of widely used packages."""

import importlib
import importlib.util
import warnings

import pytest

from clearhead.checker.diagnosis.class_check import check_object
from clearhead.checker.diagnosis.file_check import check_source
from clearhead.checker.report import Report


def assert_clean(report: Report) -> None:
    assert report.verdict == "correct", report
    assert not report.findings, report


# timm imports torchvision, and torchvision does not load beside every build of torch. Its attention
# needs nothing of it but the name of one norm.
TIMM = """\
import importlib.util
import sys
import types

from torch import nn

for name in ("torchvision", "torchvision.ops", "torchvision.ops.misc", "timm"):
    if name == "timm":
        where = importlib.util.find_spec("timm").submodule_search_locations
    sys.modules[name] = types.ModuleType(name)
sys.modules["torchvision.ops.misc"].FrozenBatchNorm2d = nn.Identity
sys.modules["timm"].__path__ = where
from timm.layers.attention import Attention


class VisionAttention(nn.Module):
    def __init__(self, dim, num_heads, qkv_bias=False, attn_drop=0.0):
        super().__init__()
        self.attn = Attention(dim, num_heads=num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop)

    def forward(self, x, attn_mask=None):
        return self.attn(x, attn_mask=attn_mask)


class NormedAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.attn = Attention(dim, num_heads, qk_norm=True, norm_layer=nn.LayerNorm)

    def forward(self, x):
        return self.attn(x)
"""


def test_timm() -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    reports = check_source(TIMM, "timm_attention.py")
    assert [report.cls for report in reports] == ["VisionAttention", "NormedAttention"]
    for report in reports:
        assert_clean(report)
        assert str(report.form).startswith("3 heads of size 5, not causal")


SLOW = pytest.mark.slow  # as llama3 and kv_cache.qwen3, which run in `make test`

# Module, class, what the form must say. The batched cache takes an offset per sequence: it needs an
# adapter, and is not here.
BOOK = [
    ("ch03", "SelfAttention_v1", "1 head"),
    ("ch03", "SelfAttention_v2", "1 head"),
    ("ch03", "CausalAttention", "1 head"),
    ("ch03", "MultiHeadAttentionWrapper", "3 heads"),
    ("ch03", "MultiHeadAttention", "3 heads"),
    ("ch03", "PyTorchMultiHeadAttention", "3 heads"),
    ("kv_cache.gpt2", "MultiHeadAttention", "3 heads"),
    ("llama3", "GroupedQueryAttention", "2 key and value heads, causal, takes a mask, rotary"),
    ("llama3", "GroupedQueryAttentionFast", "2 key and value heads, causal, rotary"),
    ("qwen3", "GroupedQueryAttention", "2 key and value heads, causal, takes a mask, rotary"),
    pytest.param("kv_cache.llama3", "GroupedQueryAttention", "rotary positions", marks=SLOW),
    pytest.param("kv_cache.llama3", "GroupedQueryAttentionFast", "rotary positions", marks=SLOW),
    ("kv_cache.qwen3", "GroupedQueryAttention", "rotary positions"),
]


@pytest.mark.parametrize(("module", "name", "form"), BOOK)
def test_llms_from_scratch(module: str, name: str, form: str) -> None:
    if importlib.util.find_spec("llms_from_scratch") is None:
        pytest.skip("llms-from-scratch is not installed: it asks for tensorflow and jupyterlab")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = importlib.import_module(f"llms_from_scratch.{module}")
        report = check_object(getattr(found, name))
    assert_clean(report)
    assert form in str(report.form)


@pytest.mark.parametrize(("width", "heads", "kv_heads"), [(24, 4, 2), (32, 2, 2)])
def test_hugging_face_llama_with_rotary_positions(width: int, heads: int, kv_heads: int) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    config = LlamaConfig(hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads)
    config._attn_implementation = "sdpa"
    report = check_object(LlamaAttention(config, layer_idx=0))
    assert_clean(report)
    assert not report.notes
    assert (report.form.heads, report.form.head_dim) == (heads, width // heads)
    assert report.form.causal
    assert report.form.positions == "rotary positions"
