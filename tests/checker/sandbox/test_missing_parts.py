"""Classes copied out of a package: the other modules are missing, its conventions remain."""

import pytest
from in_process_check import check, check_file, ids

REGISTRY = """
import torch
from torch import nn
from ...modeling_utils import ALL_FUNCTIONS
from ...processing import Cache, Kwargs, Unpack, kernelized, use_kernel
from .configuration import TinyConfig


@use_kernel("rotary")
def turn(q, k, cos, sin):
    def half(x):
        one, two = x.chunk(2, dim=-1)
        return torch.cat((-two, one), dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + half(q) * sin, k * cos + half(k) * sin


def eager(module, q, k, v, mask, scaling, **kwargs: Unpack[Kwargs]):
    scores = q @ k.transpose(-1, -2) * scaling
    scores = scores if mask is None else scores + mask
    weights = nn.functional.dropout(scores.softmax(-1), module.dropout, module.training)
    return (weights @ v).transpose(1, 2)


@kernelized(turn)
class TinyAttention(nn.Module):
    def __init__(self, config: TinyConfig, layer: int):
        super().__init__()
        self.config = config
        self.hd = config.hidden_size // config.num_attention_heads
        self.scaling = config.query_scalar ** -0.5
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, position_embeddings, attention_mask: torch.Tensor | None,
                past: Cache | None = None, **kwargs: Unpack[Kwargs]):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, -1, self.hd).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.config.clip_qkv is not None:
            q.clamp_(-self.config.clip_qkv, self.config.clip_qkv)
        q, k = turn(q, k, *position_embeddings)
        attend = eager
        if self.config._attn_implementation != "eager":
            attend = ALL_FUNCTIONS[self.config._attn_implementation]
        attend = ALL_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        return self.o_proj(attend(self, q, k, v, attention_mask, self.scaling).reshape(b, n, d))
"""

WRAPPERS = """
import torch
from torch import nn
from .parts import FairDropout, RowParallelLinear, gpu_is_there, quant_noise
from .parts import fast_attention, rearrange


class WrappedAttention(nn.Module):
    def __init__(self, dim, heads, dropout=0.0, init="", self_attention=False, cross=False):
        super().__init__()
        assert self_attention ^ cross, "one of both"
        self.heads = heads
        self.qkv = quant_noise(nn.Linear(dim, 3 * dim), 0.1, 8)
        self.out = RowParallelLinear(dim, dim, bias=False, gather_output=False)
        self.drop = FairDropout(dropout, module_name="attention")

    def forward(self, x):
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads)
                   for t in self.qkv(x).chunk(3, dim=-1))
        if gpu_is_there():
            return fast_attention(q, k, v)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return self.out(rearrange(self.drop(scores.softmax(-1)) @ v, "b h n d -> b n (h d)"))
"""

STARRED = """
from .imports import *


class StarAttention(Module):
    def __init__(self, dim, heads):
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = F.softmax(torch.matmul(q, k.transpose(-1, -2)) / np.sqrt(q.shape[-1]), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))
"""


HELPERS = """
import torch
from torch import nn
from .common import checkpoint, conv_nd, exists, default, get_logger, normalization, zero_module

log = get_logger(__name__)


class WaveAttention(nn.Module):
    def __init__(self, channels, heads, unit=None):
        super().__init__()
        log.warning_once("built")
        self.heads, self.scale = heads, default(unit, channels // heads) ** -0.5
        self.norm = normalization(channels)
        self.qkv = conv_nd(1, channels, 3 * channels, 1)
        self.out = zero_module(conv_nd(1, channels, channels, 1))

    def forward(self, x):
        return checkpoint(self._forward, (x,), self.parameters(), True)

    def _forward(self, x):
        b, c, *_ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3 * self.heads, -1, x.shape[-1]).chunk(3, dim=1)
        weights = (q.transpose(-1, -2) @ k * self.scale).softmax(-1)
        return x + self.out((v @ weights.transpose(-1, -2)).reshape(b, c, -1))
"""

FUSED = """
import torch
from torch import nn
from flash_attn import flash_attn_func
from xformers.ops import memory_efficient_attention
from .rope import apply_rotary_emb


class FusedAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, flash=False):
        super().__init__()
        self.hd, self.flash, self.copies = dim // n_heads, flash, n_heads // n_kv_heads
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * n_kv_heads * self.hd)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, freqs_cis):
        q, k, v = self.q(x), *self.kv(x).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (-1, self.hd)) for t in (q, k, v))
        q, k = apply_rotary_emb(q, k, freqs_cis=freqs_cis)
        if self.flash:
            return self.out(flash_attn_func(q, k, v).flatten(2))
        k, v = (t.repeat_interleave(self.copies, dim=2) for t in (k, v))
        return self.out(memory_efficient_attention(q * 1, k, v).flatten(2))
"""


def test_rotary_positions_that_are_missing_are_left_out_and_that_is_said() -> None:
    (report,) = check_file(FUSED, "file.py")
    assert report.verdict == "correct", report
    assert any("apply_rotary_emb is missing" in note for note in report.notes)


def test_a_function_that_is_missing_is_named() -> None:
    source = WRAPPERS.replace("if gpu_is_there():", "if x is not None:")
    report = check(source)
    assert report.verdict == "error"
    assert "'fast_attention' comes from 'parts', which is not installed" in str(report.findings[0])


@pytest.mark.parametrize(
    ("source", "old"),
    [
        (REGISTRY, " * scaling"),
        (WRAPPERS, " / q.shape[-1] ** 0.5"),
        (STARRED, " / np.sqrt(q.shape[-1])"),
        (HELPERS, " * self.scale"),
    ],
)
def test_what_is_missing_is_stood_in_for(source: str, old: str) -> None:
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set()), report
    assert "missing-scale" in ids(check(source.replace(old, "")))


HABITS = """
import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        eps = 1e-5 if x.dtype == torch.float32 else 1e-2
        x = x - x.mean(-1, keepdim=True)
        return x * (x.var(-1, unbiased=False, keepdim=True) + eps).rsqrt() * self.g


class SideAttention(nn.Module):
    def __init__(self, dim, heads, mode, reduction_ratio):
        super().__init__()
        assert mode in ("plain", "fancy")
        self.heads = heads
        self.norm = Norm(dim)
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim // reduction_ratio, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, y=None, shrink=None):
        if y is None:
            raise ValueError("y must be given")
        if shrink is not None:
            y = shrink(y)
        q, k, v = self.q(self.norm(x)), *self.kv(y).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))
"""


def test_arguments_that_a_class_insists_on() -> None:
    report = check(HABITS)
    assert (report.verdict, ids(report)) == ("correct", set()), report


def test_weights_that_stay_in_float32_fail_in_double_only() -> None:
    source = HABITS.replace(".softmax(-1)", ".softmax(-1, dtype=torch.float32)")
    report = check(source.replace("y=None", "y"))
    assert (report.verdict, ids(report)) == ("correct", {"one-dtype-only"}), report


TURNED = '''
import torch
from torch import nn


class ScaledAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor((d_model // n_heads) ** -0.5), requires_grad=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, q, k, v):
        """q (b, h, n, d), k (b, h, d, n), v (b, h, n, d)"""
        return self.drop((torch.matmul(q, k) * self.scale).softmax(-1)) @ v
'''

SHARED = """
import torch
from torch import nn


class ReadableAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, self.hd)
        self.out = nn.Linear(self.hd, dim)

    def forward(self, x):
        q, k = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k))
        weights = (q @ k.transpose(-1, -2) * self.hd ** -0.5).softmax(-1)
        return self.out((weights @ self.v(x).unsqueeze(1)).mean(1))
"""


@pytest.mark.parametrize("source", [TURNED, SHARED])
def test_forms_of_published_code(source: str) -> None:
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set()), report


def test_averaged_heads_with_values_of_their_own_are_a_mistake() -> None:
    own = SHARED.replace("nn.Linear(dim, self.hd)\n", "nn.Linear(dim, dim)\n")
    own = own.replace("self.v(x).unsqueeze(1)",
                      "self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)")  # fmt: skip
    assert ids(check(own)) == {"heads-summed"}


LEFT_OUT = """
import torch
from torch import nn
from einops import rearrange
from .absent import {imports}


class PartAttention(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.hd = heads, dim_head
        self.qkv = nn.Linear(dim, 3 * heads * dim_head)
        self.out = nn.Linear(heads * dim_head, dim)
        {init}

    def forward(self, x{angles}):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        {forward}
        weights = (q @ k.mT * self.hd ** -0.5).softmax(-1)
        return self.out(rearrange(weights @ v, "b h n d -> b n (h d)"))
"""
IDLE = {"init": "pass", "forward": "pass", "angles": ""}
MANY = LEFT_OUT.replace(
    'q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))',
    'q, k, v = rearrange_many((q, k, v), "b n (h d) -> b h n d", h=self.heads)',
)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (MANY, {"imports": "rearrange_many"}),
        (LEFT_OUT, {"imports": "tracker", "forward": "tracker.debug('queries', q)"}),
        (LEFT_OUT, {"imports": "parallel", "init": "dim // parallel.get_group_world_size()"}),
        (
            LEFT_OUT.replace("weights = (q @ k.mT * self.hd ** -0.5).softmax(-1)", "pass")
            .replace("weights @ v", "self.attend(q, k, v, mask=None)"),
            {"imports": "_sdpa_or_other", "init": "self.attend = _sdpa_or_other()"},
        ),
    ],
)  # fmt: skip
def test_usual_helpers_of_missing_modules(source: str, parts: dict[str, str]) -> None:
    report = check(source.format(**IDLE | parts))
    assert (report.verdict, ids(report)) == ("correct", set()), report


def test_a_logarithm_that_is_missing_computes() -> None:
    report = check(LEFT_OUT.format(**IDLE | {"imports": "log", "forward": "q = log(q)"}))
    assert "'log' comes from 'absent', which is not installed" in str(report.findings[0])


@pytest.mark.parametrize(
    "forward",
    [
        "q, k = (self.turn.rotate_queries_or_keys(t) for t in (q, k))",
        "q, k = self.turn(q, k)",
    ],
)
def test_a_missing_layer_for_rotary_positions_leaves_queries_and_keys(forward: str) -> None:
    init = "self.turn = RotaryEmbedding(dim_head)"
    parts = {"imports": "RotaryEmbedding", "init": init, "forward": forward}
    (report,) = check_file(LEFT_OUT.format(**IDLE | parts), "file.py")
    assert (report.verdict, report.findings) == ("correct", ()), report
    assert "RotaryEmbedding is missing: rotary positions were left out." in report.notes


def test_a_missing_table_of_angles_is_not_made_up() -> None:
    parts = {"imports": "RotaryEmbedding", "init": "self.turn = RotaryEmbedding(dim_head)"}
    report = check(LEFT_OUT.format(**IDLE | parts | {"forward": "cos, sin = self.turn(v)"}))
    assert report.verdict == "error"


def test_angles_may_come_before_what_a_missing_function_turns() -> None:
    parts = {"imports": "apply_rotary_emb", "angles": ", rotary_pos_emb"}
    forward = "q, k = (apply_rotary_emb(rotary_pos_emb[:, :], t) for t in (q, k))"
    source = LEFT_OUT.format(**IDLE | parts | {"forward": forward})
    (report,) = check_file(source, "file.py")
    assert (report.verdict, report.findings) == ("correct", ()), report


def test_a_star_is_no_name_that_is_missing() -> None:
    (report,) = check_file(f"import nowhere\n{STARRED}", "file.py")
    assert report.verdict == "correct", report


def test_constants_at_the_top_are_made_on_the_cpu():
    source = """
import torch
from torch import nn

look_back = torch.ones(64, 64, device="cuda").tril().cuda()

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        seen = look_back[: x.shape[1], : x.shape[1]] > 0
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ self.v(x)
"""
    (report,) = check_file(source)
    assert (report.verdict, report.notes) == ("correct", ())
