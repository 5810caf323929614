"""No false alarms on the attention of widely used packages."""

import importlib
import importlib.util
import warnings

import pytest
from in_process_check import check_all

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


FACE = """\
from torch import nn
from transformers import BertConfig, GPT2Config
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention


class OfGPT2(nn.Module):
    def __init__(self, n_embd, n_head, n_positions):
        super().__init__()
        config = GPT2Config(n_embd=n_embd, n_head=n_head, n_positions=n_positions)
        config._attn_implementation = "sdpa"
        self.attn = GPT2Attention(config)

    def forward(self, x):
        return self.attn(x)[0]


class OfBert(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        config = BertConfig(hidden_size=hidden_size, num_attention_heads=num_heads)
        config._attn_implementation = "sdpa"
        self.attn = BertSelfAttention(config)

    def forward(self, x):
        return self.attn(x)[0]
"""
LUCID = """\
from torch import nn
from x_transformers.x_transformers import Attention


class XAttention(nn.Module):
    def __init__(self, dim, heads, dim_head, causal=True):
        super().__init__()
        self.attn = Attention(dim=dim, heads=heads, dim_head=dim_head, causal=causal)

    def forward(self, x):
        return self.attn(x)
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("source", "name"), [(FACE, "OfGPT2"), (FACE, "OfBert"), (LUCID, None)])
def test_wrappers_around_a_package(source: str, name: str | None) -> None:
    (report,) = check_all(source, name)
    assert_clean(report)


def test_timm() -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    reports = check_source(TIMM, "timm_attention.py")
    assert [report.cls for report in reports] == ["VisionAttention", "NormedAttention"]
    for report in reports:
        assert_clean(report)
        assert str(report.form).startswith("3 heads of size 5, not causal")


# Module, class, what the form must say. The batched cache takes an offset per sequence: it needs an
# adapter, and is not here.
QUICK = [
    ("ch03", "SelfAttention_v2", "1 head"),
    ("ch03", "MultiHeadAttention", "3 heads"),
    ("kv_cache.gpt2", "MultiHeadAttention", "3 heads"),
    ("llama3", "GroupedQueryAttentionFast", "2 key and value heads, causal, rotary"),
]
SLOW = [
    ("ch03", "SelfAttention_v1", "1 head"),
    ("ch03", "CausalAttention", "1 head"),
    ("ch03", "MultiHeadAttentionWrapper", "3 heads"),
    ("ch03", "PyTorchMultiHeadAttention", "3 heads"),
    ("llama3", "GroupedQueryAttention", "2 key and value heads, causal, takes a mask, rotary"),
    ("qwen3", "GroupedQueryAttention", "2 key and value heads, causal, takes a mask, rotary"),
    ("kv_cache.llama3", "GroupedQueryAttention", "rotary positions"),
    ("kv_cache.llama3", "GroupedQueryAttentionFast", "rotary positions"),
    ("kv_cache.qwen3", "GroupedQueryAttention", "rotary positions"),
]
BOOK = [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)]


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


@pytest.mark.parametrize(
    ("width", "heads", "kv_heads"),
    [(24, 4, 2), pytest.param(32, 2, 2, marks=pytest.mark.slow)],
)
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
