"""Conventions of published code that must neither stop the checker nor raise a false alarm."""

import pytest
from in_process_check import check, check_file, ids

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn


def attend(q, k, v, hide=None):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if hide is not None:
        scores = scores.masked_fill(hide, float("-inf"))
    return scores.softmax(-1) @ v
"""


def attention(init: str, forward: str, before: str = "", how: str = "attend(q, k, v)") -> str:
    """A class: `init` follows its layers, `before` stands between the projections and `how`."""
    arguments, _, body = init.partition(": ")
    return (
        HEAD
        + f"""

class Attention(nn.Module):
    def __init__(self, {arguments}):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        {body or "pass"}

    def forward(self, {forward}):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        {before or "pass"}
        return self.out({how}.transpose(1, 2).reshape(b, n, d))
"""
    )


PARTLY = """

def turn(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class PartlyTurnedAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.hd = config.hidden_size // self.heads
        self.turned = int(self.hd * config.rotary_pct)
        speeds = 10000 ** -(torch.arange(0, self.turned, 2) / self.turned)
        angles = torch.outer(torch.arange(config.max_position_embeddings), speeds).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        cos, sin = self.cos[:n], self.sin[:n]
        q, k = (torch.cat((turn(t[..., :self.turned], cos, sin), t[..., self.turned:]), -1)
                for t in (q, k))
        return self.out(attend(q, k, v).transpose(1, 2).reshape(b, n, d))


class Config:
    rotary_pct = 0.25
"""


def test_a_part_of_each_head_is_rotated() -> None:
    report = check(HEAD + PARTLY)
    assert (report.verdict, ids(report)) == ("correct", set()), report
    unscaled = (HEAD + PARTLY).replace(" / q.shape[-1] ** 0.5", "")
    assert ids(check(unscaled)) == {"missing-scale"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("# pad_mask: (b, n), True 表示真实的词, False 表示填充", set()),
        ("# pad_mask: True beim Wort, sonst False", set()),
        ("# pad_mask: True = padding", {"padding-inverted"}),
        ("# pad_mask: (b, n) bool, True at <pad>", {"padding-inverted"}),
        ("# the padding is hidden", {"padding-inverted"}),
    ],
)
def test_what_is_said_of_a_mask_counts_before_its_name(said: str, found: set[str]) -> None:
    source = attention(
        "dim, heads",
        "x, pad_mask=None",
        f"{said}\n        hide = None if pad_mask is None else ~pad_mask[:, None, None, :].bool()",
        "attend(q, k, v, hide)",
    )
    assert ids(check(source)) == found


def test_new_axes_tell_the_rank_of_a_mask() -> None:
    """A mask of another rank would be broadcast to six axes without an error."""
    source = attention(
        "dim, heads",
        "x, attention_mask",
        "hidden = torch.zeros_like(attention_mask, dtype=x.dtype).masked_fill(\n"
        "            ~attention_mask.bool(), -torch.inf)\n"
        "        scores = q @ k.mT / q.shape[-1] ** 0.5 + hidden[:, None, None, :]\n"
        "        keep = attention_mask.bool()[:, None, None, :]",
        "(scores.softmax(-1) @ v)",
    )
    report = check(source.replace(".reshape(b, n, d)", ".contiguous().view(b, n, -1)"))
    assert (report.verdict, ids(report)) == ("correct", set()), report


def test_a_layer_that_only_a_flag_builds() -> None:
    source = attention(
        "dim, heads, table=False: self.table = nn.Embedding(64, heads) if table else None",
        "x",
        "places = torch.arange(n, device=x.device)\n"
        "        places = places[None] - places[:, None] + 32\n"
        "        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.table(places).permute(2, 0, 1)",
        "(scores.softmax(-1) @ v)",
    )
    made = "self.table = nn.Embedding(64, heads)"
    report = check(source.replace(f"{made} if table else None", f"if table: {made}"))
    assert (report.verdict, ids(report)) == ("correct", set()), report


@pytest.mark.parametrize("name", ["size", "x_size", "feat_size"])
def test_a_size_that_only_other_settings_need(name: str) -> None:
    report = check(attention("dim, heads", f"x, {name}"))
    assert (report.verdict, ids(report)) == ("correct", set()), report


WINDOWS = """

class WindowAttention(nn.Module):
    def __init__(self, dim, heads, ws=2):
        super().__init__()
        self.heads, self.ws = heads, ws
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, size):
        b, n, c = x.shape
        h, w = size
        x = x.view(b, h, w, c)
        x = F.pad(x, (0, 0, 0, -w % self.ws, 0, -h % self.ws))
        rows, columns = x.shape[1] // self.ws, x.shape[2] // self.ws
        x = x.reshape(b, rows, self.ws, columns, self.ws, c).transpose(2, 3)
        q, k, v = self.qkv(x).view(b, rows * columns, self.ws ** 2, 3, self.heads, -1).permute(
            3, 0, 1, 4, 2, 5)
        x = attend(q, k, v).transpose(2, 3).reshape(b, rows, columns, self.ws, self.ws, c)
        x = x.transpose(2, 3).reshape(b, rows * self.ws, columns * self.ws, c)
        return self.out(x[:, :h, :w].reshape(b, n, c))
"""


@pytest.mark.parametrize("ws", [2, 3])
def test_windows_of_a_grid_are_not_lost_tokens(ws: int) -> None:
    report = check(HEAD + WINDOWS.replace("ws=2", f"ws={ws}"))
    assert report.verdict != "wrong", report


def test_angles_around_the_heads_and_a_cache_that_must_be_given() -> None:
    source = attention(
        "dim, heads",
        "x, cos_sin, kv_cache",
        "cos, sin = (t.transpose(1, 2) for t in cos_sin)\n"
        "        q, k = (torch.cat((t.chunk(2, -1)[0] * cos - t.chunk(2, -1)[1] * sin, "
        "t.chunk(2, -1)[0] * sin + t.chunk(2, -1)[1] * cos), -1) for t in (q, k))\n"
        "        if kv_cache is not None:\n            k, v = kv_cache.append(k, v)",
    )
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set()), report


def test_angles_as_matrices() -> None:
    source = attention(
        "dim, heads",
        "x, pe",
        "q, k = ((pe @ t.unflatten(-1, (-1, 2, 1))).flatten(-3) for t in (q, k))",
    )
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set()), report


def test_masks_that_a_flag_turns_off_are_not_ignored() -> None:
    source = """
import torch
from torch import nn
from masks import TriangularMask


class FullAttention(nn.Module):
    def __init__(self, mask_flag=True, attention_dropout=0.1):
        super().__init__()
        self.mask_flag, self.drop = mask_flag, nn.Dropout(attention_dropout)

    def forward(self, queries, keys, values, attn_mask):
        scores = torch.einsum("blhe,bshe->bhls", queries, keys) / queries.shape[-1] ** 0.5
        if self.mask_flag:
            attn_mask = TriangularMask(scores) if attn_mask is None else attn_mask
            scores = scores.masked_fill(attn_mask.mask, float("-inf"))
        return torch.einsum("bhls,bshd->blhd", self.drop(scores.softmax(-1)), values)


layer = FullAttention(False)
"""
    (report,) = check_file(source, "file.py")
    assert (report.verdict, ids(report)) == ("correct", set()), report


CHANNELS = """

class ChannelAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 4, 1)
        return self.out(attend(q, k, v).permute(0, 3, 1, 2).reshape(b, n, c))
"""


def test_attention_over_channels_is_no_mistake_where_it_is_called_so() -> None:
    report = check(HEAD + CHANNELS)
    assert report.verdict == "unsure"
    assert "over channels" in report.findings[0].evidence
    assert check(HEAD + CHANNELS.replace("Channel", "Self")).verdict == "wrong"


def test_neighbours_are_fewer_at_the_edge() -> None:
    source = """
import torch.nn.functional as F
from torch import nn


class OutlookAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.v, self.attn, self.out = nn.Linear(dim, dim), nn.Linear(dim, 9), nn.Linear(dim, dim)

    def forward(self, x):
        B, H, W, C = x.shape
        v = F.unfold(self.v(x).permute(0, 3, 1, 2), 3, padding=1).view(B, C, 9, H * W)
        weights = self.attn(x).reshape(B, H * W, 9).softmax(-1)
        return self.out((v.permute(0, 3, 1, 2) @ weights[..., None])[..., 0]).view(B, H, W, C)
"""
    assert check(source).verdict != "wrong"


@pytest.mark.parametrize(
    "scores",
    [
        "scores = self.cfg.softcap * torch.tanh(scores / self.cfg.softcap)",
        "scores = scores + torch.zeros(n // self.cfg.num_parts, 1, 1, device=x.device).sum()",
    ],
)
def test_a_field_that_is_computed_with_is_a_number(scores: str) -> None:
    source = f"""
import torch
from torch import nn


class CappedAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.heads = cfg, cfg.n_heads
        self.qkv, self.out = nn.Linear(cfg.dim, 3 * cfg.dim), nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        {scores}
        if self.cfg.clip is not None:
            scores = scores.clamp(max=self.cfg.clip)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
"""
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set()), report


def test_a_norm_that_wants_float32() -> None:
    source = """
import torch
from torch import nn


class Norm32(nn.GroupNorm):
    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)


class WaveAttention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        assert channels % 8 == 0
        self.heads, self.norm = heads, Norm32(8, channels)
        self.qkv, self.out = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        b, c, *_ = x.shape
        x = x.reshape(b, c, -1)
        q, k, v = self.qkv(self.norm(x)).unflatten(1, (3 * self.heads, -1)).chunk(3, dim=1)
        weights = (q.mT @ k / (c // self.heads) ** 0.5).softmax(-1)
        return x + self.out((v @ weights.mT).reshape(b, c, -1))
"""
    report = check(source)
    assert report.verdict == "correct", report


def test_widths_under_unknown_names_are_equal_in_the_end() -> None:
    source = """
from torch import nn


class PairAttention(nn.Module):
    def __init__(self, c_q, c_k, c_v, c_own, no_heads):
        super().__init__()
        self.heads, self.width = no_heads, c_own
        self.q, self.k, self.v = (nn.Linear(c, c_own * no_heads) for c in (c_q, c_k, c_v))
        self.out = nn.Linear(c_own * no_heads, c_q)

    def forward(self, q_x, k_x, v_x):
        pairs = zip((self.q, self.k, self.v), (q_x, k_x, v_x), strict=True)
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, x in pairs)
        weights = (q @ k.mT / self.width ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))
"""
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set()), report


def test_angles_that_a_setting_switches_off() -> None:
    source = attention(
        "dim, heads, kind='absolute': self.kind = kind",
        "x, cos, sin",
        "if self.kind == 'rotary':\n"
        "            q, k = (t * cos + torch.cat((-t.chunk(2, -1)[1], t.chunk(2, -1)[0]), -1) "
        "* sin for t in (q, k))",
    )
    assert ids(check(source)) == set()


UNSCALED = """
from torch import nn


class BucketAttention(nn.Module):
    \"""As in T5, the scores have no scale.\"""

    def __init__(self, config, layer_idx=None):
        super().__init__()
        self.config, self.layer, self.heads = config, layer_idx, config.num_heads
        self.by_layer = config.scale_by_layer_idx
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)

    def forward(self, x, attention_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT
        if self.by_layer:
            scores = scores / float(self.layer + 1)
        if attention_mask is not None:
            scores = scores + attention_mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
"""


def test_an_added_mask_beside_scores_without_a_scale() -> None:
    report = check(UNSCALED)
    assert (report.verdict, ids(report)) == ("correct", {"missing-scale"}), report
    weak = UNSCALED.replace("+ attention_mask", "+ attention_mask.to(x.dtype).clamp(min=-1)")
    assert check(weak).verdict == "wrong"
