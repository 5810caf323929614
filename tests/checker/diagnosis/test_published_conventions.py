"""Conventions of published code that must neither stop the checker nor raise a false alarm."""

import pytest
from in_process_check import check, ids

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


@pytest.mark.parametrize(
    ("name", "severity"), [("pad_mask", "edge"), ("key_padding_mask", "wrong")]
)
def test_a_name_that_both_meanings_have_is_a_question(name: str, severity: str) -> None:
    source = attention(
        "dim, heads",
        f"x, {name}=None",
        f"hide = None if {name} is None else ~{name}[:, None, None, :].bool()",
        "attend(q, k, v, hide)",
    )
    (found,) = check(source).findings
    assert (found.id, found.severity) == ("padding-inverted", severity)


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


SPLIT = """
    def split(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def mixed(self, q, k, v, weights=None):
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) if weights is None else weights
        return (weights @ v).transpose(1, 2).flatten(2)
"""
INIT = """
    def __init__(self, dim, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
"""

NON_CAUSAL = f"""
class NonCausalSelfAttention(nn.Module):{INIT}{SPLIT}
    def forward(self, x):
        return self.o(self.mixed(*(self.split(f(x)) for f in (self.q, self.k, self.v))))
"""
INVERTED_BY_A_FLAG = f"""
class SlotAttention(nn.Module):{INIT}{SPLIT}
    def forward(self, x, inverted=False):
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-2 if inverted else -1)
        return self.o(self.mixed(q, k, v, weights / weights.sum(-1, keepdim=True)))
"""
DROPOUT_BY_A_FLAG = f"""
class MatchingAttention(nn.Module):
    def __init__(self, dim, heads=4, use_dropout=False, dropout=0.1):
        super().__init__()
        self.h, self.use_dropout, self.drop = heads, use_dropout, nn.Dropout(dropout)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
{SPLIT}
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        if self.use_dropout:
            weights = self.drop(weights)
        return self.o(self.mixed(q, k, v, weights))
"""
TABLE_KEPT_IN_EVALUATION = f"""
class TableAttention(nn.Module):
    def __init__(self, dim, heads=4, max_len=100):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.table = nn.Parameter(torch.randn(heads, max_len))
{SPLIT}
    @torch.no_grad()
    def train(self, mode=True):
        super().train(mode)
        self.kept = None if mode else self.table * 1
        return self

    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        i = torch.arange(x.shape[1])
        table = self.table if self.training else self.kept
        scores = q @ k.mT / q.shape[-1] ** 0.5 + table[:, (i[:, None] - i).abs()]
        return self.o(self.mixed(q, k, v, scores.softmax(-1)))
"""
FIXED_LENGTH = f"""
class ExampleAttention(nn.Module):
    def __init__(self, dim, example_length, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        future = torch.ones(example_length, example_length).triu(1)
        self.register_buffer("mask", future * -1e9)
{SPLIT}
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.mask
        return self.o(self.mixed(q, k, v, scores.softmax(-1)))
"""
MASK_OF_QUERIES = f"""
class CrossAttention(nn.Module):{INIT}{SPLIT}
    def forward(self, x, context, mask=None, context_mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(context)), self.split(self.v(context))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if context_mask is not None:
            scores = scores.masked_fill(~context_mask[:, None, None], -1e4)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :, None], -1e4)
        return self.o(self.mixed(q, k, v, scores.softmax(-1)))
"""
NEIGHBOURS_BESIDE = f"""
class LocalValueAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.h, self.local = heads, nn.Conv1d(dim, dim, 3, padding=1, groups=dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
{SPLIT}
    def forward(self, x):
        q, k, v = (f(x) for f in (self.q, self.k, self.v))
        local = self.local(v.mT).mT
        return self.o(self.mixed(*map(self.split, (q, k, v))) + local)
"""
RECTIFIED = f"""
class InteractingAttention(nn.Module):{INIT}{SPLIT}
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        return torch.relu(self.mixed(q, k, v) + self.o(x))
"""
IN_TWO_AXES = """
class GlobalAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear_in = nn.Linear(dim, dim, bias=False)
        self.linear_out = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, query, context):
        batch, queries, _ = query.shape
        scores = torch.bmm(self.linear_in(query), context.mT)
        weights = torch.softmax(scores.view(batch * queries, -1), dim=1)
        mix = torch.bmm(weights.view(batch, queries, -1), context)
        return torch.tanh(self.linear_out(torch.cat([mix, query], -1)))
"""


@pytest.mark.parametrize(
    ("source", "remarks"),
    [
        (NON_CAUSAL, set()),
        (INVERTED_BY_A_FLAG, {"softmax-over-queries"}),
        (DROPOUT_BY_A_FLAG, set()),
        (TABLE_KEPT_IN_EVALUATION, set()),
        (FIXED_LENGTH, set()),
        (MASK_OF_QUERIES, set()),
        (NEIGHBOURS_BESIDE, set()),
        (RECTIFIED, set()),
        (IN_TWO_AXES, {"missing-scale"}),  # as Luong's attention
    ],
)
def test_what_published_code_does_is_no_mistake(source, remarks):
    report = check("import torch\nfrom torch import nn\n" + source)
    assert report.verdict == "correct", report
    assert {f.id for f in report.findings} - {"mask-fill-overflows-half"} == remarks
    assert {f.severity for f in report.findings} <= {"edge"}


def test_attention_of_a_class_token_is_not_judged():
    source = NON_CAUSAL.replace("NonCausalSelf", "Class").replace(
        "return self.o(self.mixed(*(self.split(f(x)) for f in (self.q, self.k, self.v))))",
        "q, k, v = self.q(x[:, :1]), self.k(x), self.v(x)\n"
        "        first = self.o(self.mixed(*map(self.split, (q, k, v))))\n"
        "        return torch.cat([first, x[:, 1:]], 1)",
    )
    report = check("import torch\nfrom torch import nn\n" + source)
    assert report.verdict == "unsure"
    assert "class token" in report.findings[0].evidence


def test_keys_and_values_that_may_come_from_elsewhere_are_tried():
    source = NON_CAUSAL.replace("NonCausalSelf", "").replace(
        "forward(self, x):",
        "forward(self, x, context=None):\n        y = x if context is None else context",
    )
    right = source.replace(
        "f(x)) for f in (self.q, self.k, self.v)",
        "f(z)) for f, z in ((self.q, x), (self.k, y), (self.v, y))",
    )
    wrong = right.replace("(self.q, x)", "(self.q, y)")
    head = "import torch\nfrom torch import nn\n"
    assert check(head + right).verdict == "correct"
    report = check(head + wrong)
    assert [f.id for f in report.findings] == ["input-ignored"], report
    assert report.findings[0].evidence.startswith("With context given: ")


TURN = """

def turn(angles, t):
    half = t.shape[-1] // 2
    return t * angles.cos() + torch.cat((-t[..., half:], t[..., :half]), dim=-1) * angles.sin()
"""
PAIRS = """

def turn(angles, t):
    other = torch.stack((-t[..., 1::2], t[..., ::2]), dim=-1).flatten(-2)
    return t * angles.cos() + other * angles.sin()
"""


@pytest.mark.parametrize("function", [TURN, PAIRS])
def test_angles_may_come_as_one_tensor(function: str) -> None:
    turned = "q, k = (*(turn(rotary_pos_emb[..., :n, :], t) for t in (q, k)),)"
    source = attention("dim, heads", "x, rotary_pos_emb=None", turned) + function
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set()), report
    assert "rotary-on-one-side" in ids(
        check(source.replace("for t in (q, k)),", "for t in (q,)), k"))
    )


def test_values_that_one_expression_rotates_are_a_question() -> None:
    together = "q, k, v = map(lambda t: rotary(rotary_emb, t), (q, k, v))"
    function = TURN.replace("def turn", "def rotary")
    report = check(attention("dim, heads", "x, rotary_emb", together) + function)
    assert (report.verdict, ids(report)) == ("unsure", {"rotary-on-values"}), report
    apart = "q, k = rotary(rotary_emb, q), rotary(rotary_emb, k); v = rotary(rotary_emb, v)"
    report = check(attention("dim, heads", "x, rotary_emb", apart) + function)
    assert (report.verdict, ids(report)) == ("wrong", {"rotary-on-values"}), report


def test_a_score_of_zero_beside_the_others_is_a_question() -> None:
    before = (
        "e = (q @ k.mT / q.shape[-1] ** 0.5).exp(); weights = e / (1 + e.sum(-1, keepdim=True))"
    )
    report = check(attention("dim, heads", "x", before, "(weights @ v)"))
    assert (report.verdict, ids(report)) == ("unsure", {"unsure"}), report
    wrong = before.replace("1 + e.sum(-1, keepdim=True)", "e.sum(-2, keepdim=True)")
    assert check(attention("dim, heads", "x", wrong, "(weights @ v)")).verdict == "wrong"


def test_a_mask_for_each_sentence_is_not_ignored() -> None:
    before = """if alone is not None and not (~alone).all():
            v = v.masked_fill(alone.view(b, 1, 1, 1), 0.0)"""
    report = check(
        attention("dim, heads", "x, alone_mask=None", before.replace("alone", "alone_mask"))
    )
    assert "mask-ignored" not in ids(report), report


def test_weights_of_spectral_norm_are_registered() -> None:
    init = "dim, heads: self.out = nn.utils.spectral_norm(self.out)"
    assert "heads-in-python-list" not in ids(check(attention(init, "x")))


def test_a_relu_after_the_heads_does_not_hide_a_mistake():
    unscaled = RECTIFIED.replace(" / q.shape[-1] ** 0.5", "")
    assert ids(check("import torch\nfrom torch import nn\n" + unscaled)) == {"missing-scale"}


BATCH_NORMED = f"""
class NormedAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.h, self.norm = heads, nn.BatchNorm1d(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
{SPLIT}
    def forward(self, x):
        out = self.o(self.mixed(*(self.split(f(x)) for f in (self.q, self.k, self.v))))
        return self.norm(out.mT).mT
"""


def test_other_statistics_in_training_are_no_mistake():
    report = check("import torch\nfrom torch import nn\n" + BATCH_NORMED)
    assert "training-differs" not in ids(report), report


STACKED = f"""
class DecoderAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.q2, self.k2, self.v2, self.o2 = (nn.Linear(dim, dim) for _ in range(4))
{SPLIT}
    def forward(self, x, memory):
        x = x + self.o(self.mixed(*(self.split(f(x)) for f in (self.q, self.k, self.v))))
        k, v = self.split(self.k2(memory)), self.split(self.v2(memory))
        return self.o2(self.mixed(self.split(self.q2(x)), k, v))
"""


def test_attention_that_reads_attention_is_not_read_as_one():
    """Nor does one of them, if it is right as a whole, clear the other."""
    last = "return self.o2(self.mixed(self.split(self.q2(x)), k, v))"
    assert last in STACKED
    unscaled = "q = self.split(self.q2(x))\n        "
    unscaled += "return self.o2(self.mixed(q, k, v, (q @ k.mT).softmax(-1)))"
    for source in (STACKED, STACKED.replace(last, unscaled)):
        report = check("import torch\nfrom torch import nn\n" + source)
        assert report.verdict == "unsure", report
        assert "one attention reads the output of another" in report.findings[0].evidence


def test_a_mask_behind_a_flag_of_a_dict_does_not_make_it_causal() -> None:
    source = """
import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, args):
        super().__init__()
        self.heads, most = args["n_head"], args["max_length"]
        self.qkv, self.out = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
        self.mask = None
        if most and args.get("mask", False):
            self.mask = torch.ones(most, most).triu(1).bool()

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.mask is not None:
            scores = scores.masked_fill(self.mask[:n, :n], -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
    report = check(source)
    assert (report.verdict, report.form.causal) == ("correct", "no"), report


def test_the_result_of_a_norm_that_is_never_used_is_found() -> None:
    source = """
import torch
from torch import nn

class AttentionBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        normed = self.norm(x)
        return self.attention(x, x, x)[0]
"""
    report = check(source)
    assert report.verdict == "wrong"
    assert [(f.id, f.line) for f in report.findings] == [("unexplained", 12)]
    assert check(source.replace("(x, x, x)", "(normed, normed, normed)")).verdict == "correct"


def test_masks_of_single_texts_must_reach_their_own_text() -> None:
    """repeat() puts the heads before the texts, and the scores have the texts first."""
    source = attention(
        "dim, heads",
        "x, mask=None",
        "hide = None if mask is None else mask.ORDER.reshape(-1, self.heads, *mask.shape[1:])",
        "attend(q, k, v, hide)",
    )
    right = check(source.replace("ORDER", "repeat_interleave(self.heads, 0)"))
    assert right.verdict == "correct", right
    wrong = check(source.replace("ORDER", "repeat(self.heads, 1, 1)"))
    assert ids(wrong) == {"padding-in-other-texts"}


def test_a_bias_from_features_of_pairs_is_passed_in() -> None:
    """With a norm on it, zeros do not stay zeros, but every pair of a head gets one number."""
    source = """
import torch
from torch import nn

class AttentionWithBias(nn.Module):
    def __init__(self, dim=24, dim_bias=16, heads=4):
        super().__init__()
        self.h, self.norm = heads, nn.LayerNorm(dim_bias)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.b = nn.Linear(dim_bias, heads)

    def forward(self, x, bias):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bqkh", q / q.shape[-1] ** 0.5, k)
        weights = (scores + self.b(self.norm(bias))).softmax(-2)
        return torch.einsum("bqkh,bkhd->bqhd", weights, v).flatten(2)
"""
    report = check(source)
    assert report.verdict == "correct", report
    assert "A bias that is passed in is added to the scores." in report.notes
    assert ids(check(source.replace("/ q.shape[-1] ** 0.5", ""))) == {"missing-scale"}


def test_two_outputs_have_weights_of_their_own() -> None:
    source = """
import torch
from torch import nn

class JointAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.text_q, self.text_k, self.text_v, self.text_o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, image, text):
        pairs = ((self.q, self.text_q), (self.k, self.text_k), (self.v, self.text_v))
        q, k, v = (torch.cat([a(image), b(text)], 1) for a, b in pairs)
        out = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        first, second = out.split([image.shape[1], text.shape[1]], 1)
        return self.o(first), self.text_o(second)
"""
    assert check(source).verdict != "wrong"
