"""Other layouts of attention: functions, channels first, windows of pixels, blocks of tokens."""

from pathlib import Path

import pytest
import torch
from in_process_check import check, ids
from planted_mistakes import HEAD, edited

from clearhead.checker.harness import axis_orders as axes
from clearhead.checker.report import Report
from clearhead.checker.source.wrapped_functions import wrapped

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn


FUNCTION = """\
import torch


def self_attention(x, W_q, W_k, W_v, W_o, b_o, num_heads, mask=None):
    b, n, d = x.shape
    q, k, v = ((x @ w).view(b, n, num_heads, -1).transpose(1, 2) for w in (W_q, W_k, W_v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        s = s.masked_fill(mask == 0, -torch.inf)
    y = (s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
    return y @ W_o + b_o
"""
MIXING = """\
import torch


def attend(query, key, value, is_causal=False, dropout=0.1, block=None):
    scores = torch.einsum("bnhd,bmhd->bhnm", query, key) / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
    share = torch.nn.functional.dropout(scores.softmax(-1), dropout)
    return torch.einsum("bhnm,bmhd->bnhd", share, value)
"""


def check_function(source: str) -> Report:
    (one,) = wrapped(source)
    return check(f"{source}\n\n{one.text}")


@pytest.mark.parametrize("source", [FUNCTION, MIXING], ids=["with weights", "without"])
def test_a_function_is_checked_inside_a_class(source):
    report = check_function(source)
    assert (report.verdict, ids(report)) == ("correct", set())


@pytest.mark.parametrize(
    ("source", "old", "new", "id"),
    [
        (FUNCTION, " / q.shape[-1] ** 0.5", "", "missing-scale"),
        (FUNCTION, "for w in (W_q, W_k, W_v)", "for w in (W_q, W_k, W_k)", "value-from-keys"),
        (MIXING, "triu(1)", "triu(2)", "mask-off-by-one"),
        (MIXING, "softmax(-1)", "softmax(-2)", "softmax-over-queries"),
    ],
)
def test_a_function_with_a_mistake_is_named(source, old, new, id):
    report = check_function(edited(source, [(old, new)]))
    assert (report.verdict, ids(report)) == ("wrong", {id})


def test_a_function_that_says_too_little_is_left_alone():
    assert wrapped("def attention(q, k, v, colour):\n    return v") == []
    assert wrapped("def attention_scores(q, k):\n    return q @ k.mT") == []
    assert wrapped("def attention(q, k, v):\n    return v (") == []
    (one,) = wrapped("x = 1\n\ndef mha(q, k, v, /, *, scale=None):\n    return v")
    assert (one.name, one.line, one.end_line) == ("mha", 3, 4)
    assert "return mha(q, k, v)" in one.text


NO_KEEPDIM = """\
import torch


def attention(x, Wq, Wk, Wv):
    s = (x @ Wq) @ (x @ Wk).T / Wq.shape[1] ** 0.5
    e = torch.exp(s)
    return e / e.sum(-1) @ (x @ Wv)
"""


def test_a_sum_without_keepdim_is_named():
    report = check_function(NO_KEEPDIM)
    assert ids(report) == {"softmax-no-keepdim"}
    assert check_function(edited(NO_KEEPDIM, [("sum(-1)", "sum(-1, keepdim=True)")])).findings == ()


PIXELS = (
    HEAD
    + """\
class PixelAttention(nn.Module):
    def __init__(self, ch, heads, groups=5):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(groups, ch)
        self.qkv = nn.Conv2d(ch, 3 * ch, 1)
        self.proj = nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        a = (q.mT @ k / (c // self.heads) ** 0.5).softmax(-1)
        return x + self.proj((v @ a.mT).reshape(b, c, h, w))
"""
)
FRAMES = (
    HEAD
    + """\
class FrameAttention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Conv1d(channels, channels, 1) for _ in range(4))

    def forward(self, x):
        b, c, t = x.shape
        q, k, v = (f(x).view(b, self.heads, -1, t) for f in (self.q, self.k, self.v))
        a = torch.einsum("bhct,bhcs->bhts", q, k) / (c // self.heads) ** 0.5
        return self.o(torch.einsum("bhts,bhcs->bhct", a.softmax(-1), v).reshape(b, c, t))
"""
)


@pytest.mark.parametrize("source", [PIXELS, FRAMES], ids=["pixels", "frames"])
def test_channels_may_come_first(source):
    report = check(source)
    assert (report.verdict, ids(report)) == ("correct", set())


@pytest.mark.parametrize(
    ("source", "old", "new", "id"),
    [
        (PIXELS, "(v @ a.mT)", "(v @ a)", "weights-transposed"),
        (PIXELS, "(v @ a.mT).reshape", "(a @ v.mT).reshape", "merge-without-transpose"),
        (PIXELS, " / (c // self.heads) ** 0.5", "", "missing-scale"),
        (PIXELS, "view(b, 3, self.heads, c // self.heads, h * w).unbind(1)",
         "view(b, h * w, -1).mT.chunk(3, 1)", "split-without-transpose"),
        (FRAMES, "self.heads, -1, t)", "self.heads, t, -1).mT", "split-without-transpose"),
        (FRAMES, "softmax(-1)", "softmax(-2)", "softmax-over-queries"),
    ],
)  # fmt: skip
def test_mistakes_with_channels_first_are_named(source, old, new, id):
    report = check(edited(source, [(old, new)]))
    assert report.verdict == "wrong"
    assert id in ids(report)


@pytest.mark.parametrize("order", ["batch", "first", "channels", "picture", "heads", "spread"])
def test_axes_go_there_and_back(order):
    x = torch.randn(2, 12, 5)
    there = axes.given(x, order)
    assert there.is_contiguous()
    torch.testing.assert_close(axes.taken(there, order), x)
    shapes = {"first": (12, 2, 5), "channels": (2, 5, 12), "picture": (2, 5, 3, 4)}
    assert order not in shapes or there.shape == shapes[order]


WINDOWED = (
    HEAD
    + """\
class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.h = num_heads
        high, wide = window_size
        self.bias = nn.Parameter(torch.zeros((2 * high - 1) * (2 * wide - 1), num_heads))
        y = torch.arange(high).repeat_interleave(wide)
        x = torch.arange(wide).repeat(high)
        index = (y[:, None] - y + high - 1) * (2 * wide - 1) + x[:, None] - x + wide - 1
        self.register_buffer("index", index)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, c // self.h).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * (c // self.h) ** -0.5 + self.bias[self.index].permute(2, 0, 1)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))
"""
)


def test_a_window_of_pixels_is_built_and_its_table_judged():
    assert check(WINDOWED).verdict == "correct"
    report = check(edited(WINDOWED, [("* (2 * wide - 1) + x", "* (2 * high - 1) + x")]))
    assert ids(report) == {"unexplained"}
    assert "only 27 of them are used" in report.findings[0].evidence


BLOCKS = (
    HEAD
    + """\
class BlockAttention(nn.Module):
    '''Causal attention inside blocks of the text.'''

    def __init__(self, dim, heads, block):
        super().__init__()
        self.heads, self.block = heads, block
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        split = (b, n // self.block, self.block, self.heads, d // self.heads)
        q, k, v = (t.view(split).transpose(2, 3) for t in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / (d // self.heads) ** 0.5
        local = torch.ones(self.block, self.block, dtype=torch.bool, device=x.device)
        s = s.masked_fill(~local.tril(), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(2, 3).reshape(b, n, d))
"""
)


def test_blocks_of_a_text_get_whole_blocks():
    report = check(BLOCKS)
    assert (report.verdict, ids(report)) == ("unsure", {"unsure"})  # built, but not understood
    report = check(edited(BLOCKS, [("local.tril()", "local")]))
    assert (report.verdict, ids(report)) == ("wrong", {"unexplained"})


POOLED = (
    HEAD
    + """\
class PooledAttention(nn.Module):
    def __init__(self, dim, slots=4):
        super().__init__()
        self.slots = nn.Parameter(torch.zeros(slots, dim))
        self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        s = self.slots @ self.k(x).mT / x.shape[-1] ** 0.5
        return s.softmax(-1) @ self.v(x)
"""
)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("slots=4", "slots=4", set()),
        (" / x.shape[-1] ** 0.5", "", {"missing-scale"}),
        ("softmax(-1)", "softmax(-2)", {"softmax-over-queries"}),
        ("self.v(x)\n", "self.k(x)\n", {"value-from-keys"}),
    ],
)
def test_learned_queries(old, new, expected):
    """The output rows belong to queries that are parameters, which is not a mistake."""
    report = check(edited(POOLED, [(old, new)]))
    assert (report.verdict, ids(report)) == ("wrong" if expected else "correct", expected), report


@pytest.mark.parametrize(("mark", "expected"), [("~pad", set()), ("pad", {"padding-inverted"})])
def test_padding_that_learned_queries_must_not_read(mark, expected):
    hide = f"if pad is not None:\n            s = s.masked_fill(~({mark})[:, None], -1e9)"
    edits = [
        ("self, x)", "self, x, pad=None)"),
        ("        return s", f"        {hide}\n        return s"),
    ]
    source = edited(POOLED, edits)
    assert ids(check(source)) == expected


GAMMA = edited(
    PIXELS,
    [("self.norm = nn.GroupNorm(groups, ch)", "self.gamma = nn.Parameter(torch.zeros(1))"),
     ("self.qkv(self.norm(x))", "self.qkv(x)"), ("x + self.proj", "x + self.gamma * self.proj"),
     ("self.proj = nn.Conv2d(ch, ch, 1)", "self.proj = nn.Identity()")],
)  # fmt: skip


def test_a_learned_number_on_the_output_is_no_wrong_gain():
    report = check(GAMMA)
    assert (report.verdict, ids(report)) == ("correct", set())
    inside = edited(GAMMA, [("softmax(-1)", "softmax(-1) * 0.3")])
    assert "wrong-gain" in ids(check(inside))


EIGHTH = (
    HEAD
    + """\
class SelfAttn(nn.Module):
    def __init__(self, in_dim):
        super().__init__()
        self.query, self.key = nn.Conv2d(in_dim, in_dim // 8, 1), nn.Conv2d(in_dim, in_dim // 8, 1)
        self.value = nn.Conv2d(in_dim, in_dim, 1)

    def forward(self, x):
        q, k, v = (layer(x).flatten(2) for layer in (self.query, self.key, self.value))
        a = (q.mT @ k / q.shape[1] ** 0.5).softmax(-1)
        return (v @ a.mT).view(x.shape)
"""
)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("** 0.5", "** 0.5", set()),
        ("q.shape[1] ** 0.5", "q.shape[1]", {"scale-twice"}),
        (" / q.shape[1] ** 0.5", "", {"missing-scale"}),
    ],
)
def test_heads_of_one_number_tell_no_scale(old, new, expected):
    """14 channels give a head_dim of 1, where any power of it is 1: other widths show the scale."""
    report = check(edited(EIGHTH, [(old, new)]))
    assert ids(report) == expected
    assert "breaks-with-size" not in ids(report)
    assert report.form.head_dim > 1


GATE = (
    HEAD
    + """\
class GateAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x * self.conv(x).sigmoid()
"""
)


def test_a_gate_of_pixels_is_not_called_wrong():
    assert check(GATE).verdict == "unsure"


def test_a_promise_of_pieces_makes_a_cache_wrong_that_takes_single_tokens_only():
    source = (Path(__file__).parents[1] / "submissions" / "90_prompt_in_chunks.py").read_text()
    (finding,) = check(source).findings
    assert (finding.id, finding.severity) == ("cached-mask-misaligned", "wrong")
    silent = edited(source, [("The prompt may be fed in several chunks; pass", "Pass")])
    (finding,) = check(silent).findings
    assert (finding.id, finding.severity) == ("cached-mask-misaligned", "edge")


FIRST = (
    HEAD
    + """\
class FirstAttention(nn.Module):
    '''x: (T, B, C), pad: (B, T), True marks the padding.'''

    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.v, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, pad=None):
        T, B, C = x.shape
        q, k, v = (f(x).view(T, B * self.h, -1).transpose(0, 1) for f in (self.q, self.k, self.v))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if pad is not None:
            s = s.masked_fill(pad.repeat_interleave(self.h, 0)[:, None], -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(0, 1).reshape(T, B, C))
"""
)


def test_a_mask_that_reaches_other_texts_is_named():
    assert check(FIRST).findings == ()
    wrong = edited(FIRST, [("pad.repeat_interleave(self.h, 0)", "pad.repeat(self.h, 1)")])
    report = check(wrong)
    assert ids(report) == {"padding-in-other-texts"}
    assert wrong.splitlines()[(report.findings[0].line or 0) - 1].count("pad.repeat") == 1


KERNELS = (
    HEAD
    + """\
class KernelAttention(nn.Module):
    def __init__(self, features, num_heads):
        super().__init__()
        shape = (features, num_heads, features // num_heads)
        for name in ("query", "key", "value"):
            setattr(self, f"{name}_kernel", nn.Parameter(torch.zeros(shape)))
            setattr(self, f"{name}_bias", nn.Parameter(torch.zeros(shape[1:])))
        self.out_kernel = nn.Parameter(torch.zeros(*shape[1:], features))
        self.out_bias = nn.Parameter(torch.zeros(features))

    def forward(self, inputs_q, inputs_kv=None):
        y = inputs_q if inputs_kv is None else inputs_kv
        q = torch.einsum("blf,fhd->bhld", inputs_q, self.query_kernel) + self.query_bias[:, None]
        k = torch.einsum("blf,fhd->bhld", y, self.key_kernel) + self.key_bias[:, None]
        v = torch.einsum("blf,fhd->bhld", y, self.value_kernel) + self.value_bias[:, None]
        s = q @ k.mT / q.shape[-1] ** 0.5
        return torch.einsum("bhld,hdf->blf", s.softmax(-1) @ v, self.out_kernel) + self.out_bias
"""
)


def test_kernels_with_biases_of_their_own_names_are_read():
    report = check(KERNELS)
    assert (report.verdict, ids(report)) == ("correct", set())
    missing = edited(KERNELS, [(" / q.shape[-1] ** 0.5", "")])
    assert ids(check(missing)) == {"missing-scale"}


_POOLED = (
    HEAD
    + '''
class PoolAttention(nn.Module):
    """Attention over the pixels of a feature map, with the mean as its query."""

    def __init__(self, spacial_dim, dim):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(spacial_dim**2 + 1, dim))
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        x = x.reshape(*x.shape[:2], -1).permute(0, 2, 1)
        x = torch.cat([x.mean(1, keepdim=True), x], 1) + self.positions
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))[:, 0]
'''
)


def test_a_way_to_call_it_that_was_only_guessed_is_no_false_alarm():
    report = check(_POOLED)
    assert report.verdict == "unsure", report
    assert "it may want other inputs" in report.findings[0].evidence


SCRAMBLED = (
    HEAD
    + """\
class AttentionBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.q, self.k = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.v, self.proj = nn.Linear(channels, channels), nn.Linear(channels, channels)

    def forward(self, x):
        b, c, h, w = x.shape
        t = x.flatten(2).transpose(1, 2)
        s = self.q(t) @ self.k(t).transpose(1, 2) / c**0.5
        return x + self.proj(s.softmax(-1) @ self.v(t)).transpose(1, 2).reshape(b, c, h, w)
"""
)


def test_a_view_that_scrambles_pixels_is_named_at_its_line():
    assert ids(check(SCRAMBLED)) == set()
    view = "x.reshape(b, h * w, c)"
    source = edited(SCRAMBLED, [("x.flatten(2).transpose(1, 2)", view)])
    (found,) = check(source).findings
    assert (found.id, view in source.splitlines()[found.line - 1]) == (
        "split-without-transpose",
        True,
    )


AXIAL = (
    HEAD
    + """\
class AxialAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.rows = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.columns = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        B, H, W, C = x.shape
        t = x.reshape(B * H, W, C)
        x = x + self.rows(t, t, t)[0].view(B, H, W, C)
        t = x.transpose(1, 2).reshape(B * W, H, C)
        return x + self.columns(t, t, t)[0].view(B, W, H, C).transpose(1, 2)
"""
)


def test_attention_along_two_axes_is_not_called_wrong():
    """Its rows may be permuted, and its columns, but not any pixels."""
    assert check(AXIAL).verdict != "wrong"


def test_numbers_below_zero_before_a_relu_are_used():
    """A row that a ReLU cuts off for these inputs is idle only if it is so when turned around."""
    source = edited(
        AXIAL,
        [
            ("dim, heads):", "dim, heads):\n        # pixels\n"),
            ("self.rows = ", "self.fc_o, self.rows = nn.Linear(dim, dim), "),
            ("return x +", "x = x + F.relu(self.fc_o(x.abs()))\n        return x +"),
        ],
    )
    assert check(source).verdict != "wrong"
