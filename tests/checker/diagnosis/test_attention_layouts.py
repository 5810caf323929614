"""Other layouts of attention: functions, channels first, windows of pixels, blocks of tokens."""

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


def test_channels_may_come_first():
    report = check(PIXELS)
    assert (report.verdict, ids(report)) == ("correct", set())


@pytest.mark.parametrize(
    ("old", "new", "id"),
    [
        ("(v @ a.mT)", "(v @ a)", "weights-transposed"),
        ("(v @ a.mT).reshape", "(a @ v.mT).reshape", "merge-without-transpose"),
        ("view(b, 3, self.heads, c // self.heads, h * w).unbind(1)",
         "view(b, h * w, -1).mT.chunk(3, 1)", "split-without-transpose"),
    ],
)  # fmt: skip
def test_mistakes_with_channels_first_are_named(old, new, id):
    report = check(edited(PIXELS, [(old, new)]))
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
    # The heads of the gathered table stay last.
    report = check(edited(WINDOWED, [(".permute(2, 0, 1)", ".reshape(-1).view(self.h, n, n)")]))
    assert (report.verdict, ids(report)) == ("wrong", {"unexplained"})
    assert "without moving their axis" in report.findings[0].evidence


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
    ],
)
def test_learned_queries(old, new, expected):
    """The output rows belong to queries that are parameters, which is not a mistake."""
    report = check(edited(POOLED, [(old, new)]))
    assert (report.verdict, ids(report)) == ("wrong" if expected else "correct", expected), report


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
        (" / q.shape[1] ** 0.5", "", {"missing-scale"}),
    ],
)
def test_heads_of_one_number_tell_no_scale(old, new, expected):
    """14 channels give a head_dim of 1, where any power of it is 1: other widths show the scale."""
    report = check(edited(EIGHTH, [(old, new)]))
    assert ids(report) == expected
    assert "breaks-with-size" not in ids(report)
    assert report.form.head_dim > 1


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


PACKED = (
    HEAD
    + """\
class QKVAttention(nn.Module):
    def __init__(self, n_heads):
        super().__init__()
        self.n_heads = n_heads

    def forward(self, qkv):
        bs, width, length = qkv.shape
        assert width % (3 * self.n_heads) == 0
        ch = width // (3 * self.n_heads)
        q, k, v = qkv.reshape(bs * self.n_heads, ch * 3, length).split(ch, dim=1)
        weights = torch.einsum("bct,bcs->bts", q * ch**-0.25, k * ch**-0.25).softmax(-1)
        return torch.einsum("bts,bcs->bct", weights, v).reshape(bs, -1, length)
"""
)


def test_queries_keys_and_values_may_come_in_one_tensor():
    report = check(PACKED)
    assert (report.verdict, report.form.heads) == ("correct", 3), report
    assert ids(check(PACKED.replace("k * ch**-0.25", "k"))) == {"wrong-scale"}


REDUCED = (
    HEAD
    + """\
class Attention(nn.Module):
    def __init__(self, dim, num_heads, sr_ratio=2):
        super().__init__()
        self.num_heads, self.sr_ratio = num_heads, sr_ratio
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.sr, self.norm = nn.Conv2d(dim, dim, sr_ratio, sr_ratio), nn.LayerNorm(dim)

    def forward(self, x, H, W):
        B, N, C = x.shape
        q = self.q(x).view(B, N, self.num_heads, -1).transpose(1, 2)
        fewer = self.norm(self.sr(x.mT.reshape(B, C, H, W)).flatten(2).mT)
        kv = self.kv(fewer).view(B, -1, 2, self.num_heads, C // self.num_heads)
        k, v = kv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))
"""
)


def test_keys_may_be_means_of_several_tokens():
    report = check(REDUCED)
    assert (report.verdict, ids(report)) == ("correct", set()), report
    assert ids(check(REDUCED.replace(" * q.shape[-1] ** -0.5", ""))) == {"missing-scale"}
    assert ids(check(REDUCED.replace(".softmax(-1)", ".softmax(-2)"))) == {"softmax-over-queries"}


def test_a_softmax_of_keys_alone_is_no_attention_over_everything():
    linear = edited(MIXED, [("(q @ k.mT / 3).softmax(-1) @ v", "q @ (k.softmax(-2).mT @ v)")])
    assert check(linear).verdict == "unsure"


MIXED = (
    HEAD
    + """\
class LinearAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Conv2d(dim, 3 * dim, 1), nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).flatten(2).mT.chunk(3, -1)
        return self.out(((q @ k.mT / 3).softmax(-1) @ v).mT.reshape(b, c, h, w))
"""
)


LISTED = (
    HEAD
    + """\
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.wq, self.wk, self.wv, self.fc = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, inputs, mask, zero_pad):
        q, k, v = inputs
        q, k, v = (w(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
                   for w, x in zip((self.wq, self.wk, self.wv), (q, k, v)))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(mask == 0, -torch.inf)
        weights = scores.softmax(-1)
        if zero_pad:
            weights = torch.cat([torch.zeros_like(weights[:, :, :1]), weights[:, :, 1:]], 2)
        return self.fc((weights.type(torch.DoubleTensor).type_as(v) @ v).transpose(1, 2).flatten(2))
"""
)


@pytest.mark.parametrize("way", ["q, k, v = inputs", "q, k, v = inputs[0], inputs[1], inputs[2]"])
def test_inputs_in_a_list_and_a_flag_that_is_named_like_a_mask(way):
    report = check(LISTED.replace("q, k, v = inputs", way))
    assert (report.verdict, ids(report)) == ("correct", set()), report
    assert "inputs = [q, k, v]" in report.how
    assert "zero_pad=False" in report.how


CLASS_TOKEN = (
    HEAD
    + """\
class ClassAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q(x[:, :1]), self.k(x), self.v(x)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))
"""
)
MEDIA = (
    HEAD
    + """\
class PerceiverAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.to_q, self.to_kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, latents):
        b, m, n, d = latents.shape
        k, v = self.to_kv(torch.cat([x, latents], -2)).chunk(2, -1)
        q = self.to_q(latents)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(2, 3) for t in (q, k, v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.to_out((weights @ v).transpose(2, 3).flatten(3))
"""
)


@pytest.mark.parametrize("source", [CLASS_TOKEN, MEDIA], ids=["class token", "latents"])
def test_queries_of_other_tokens_than_the_keys(source):
    report = check(source)
    assert (report.verdict, report.form.heads) == ("correct", 3), report
    assert ids(check(source.replace(" / q.shape[-1] ** 0.5", ""))) == {"missing-scale"}


SPLIT = (
    HEAD
    + """\
class CrossAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        queries, context = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
        q, k, v = self.q(queries), self.k(context), self.v(context)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return torch.cat([self.proj((weights @ v).transpose(1, 2).flatten(2)), context], 1)
"""
)


def test_what_surrounds_a_right_attention_is_no_reason_to_call_it_wrong():
    assert check(SPLIT).verdict != "wrong"
    assert ids(check(SPLIT.replace(" / q.shape[-1] ** 0.5", ""))) == {"missing-scale"}


def test_a_class_without_a_softmax_is_not_called_wrong():
    source = (
        HEAD
        + """\
class Attention(nn.Module):
    def __init__(self, query_dim, annot_dim, hidden_dim):
        super().__init__()
        self.query = nn.Linear(query_dim, hidden_dim)
        self.annot = nn.Linear(annot_dim, hidden_dim)
        self.v = nn.Linear(hidden_dim, 1)

    def forward(self, annots, query):
        if query.dim() == 2:
            query = query.unsqueeze(1)
        return self.v(torch.tanh(self.query(query) + self.annot(annots))).squeeze(-1)
"""
    )
    assert check(source).verdict in ("unsure", "error")


STATED = (
    HEAD
    + """\
class CrossAttention(nn.Module):
    '''Attends to a context.

    context_mask: (B, T) int64, 1=real token, 0=pad.
    '''

    def __init__(self, ma_dim=256, head_dim=32, n_heads=8, embed_dim=64):
        super().__init__()
        self.h, self.scale = n_heads, head_dim**-0.5
        self.q, self.k, self.v = (nn.Linear(embed_dim, ma_dim) for _ in range(3))
        self.out = nn.Linear(ma_dim, embed_dim)

    def forward(self, x, context, context_mask):
        q, k, v = self.q(x), self.k(context), self.v(context)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(context_mask[:, None, None] == 0, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
)


def test_a_required_mask_of_tokens_means_what_the_source_says():
    """The width of all heads has a name that says nothing; its default is 8 heads of 32."""
    report = check(STATED)
    assert (report.verdict, report.form.head_dim) == ("correct", 5), report
    report = check(STATED.replace("== 0", "== 1"))
    assert (report.verdict, ids(report)) == ("wrong", {"padding-inverted"})


SHIFTED = (
    HEAD
    + """\
class RelativeMemoryAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.dim = heads, dim
        self.q, self.k, self.v, self.r, self.o = (nn.Linear(dim, dim) for _ in range(5))

    def split(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, inputs, memory=None):
        # inputs: (T, B, D)
        x = inputs.transpose(0, 1)
        seen = x if memory is None else torch.cat([memory.detach().transpose(0, 1), x], 1)
        q, k, v = self.split(self.q(x)), self.split(self.k(seen)), self.split(self.v(seen))
        b, h, t, _ = q.shape
        s = k.shape[2]
        speeds = 1.0 / 10000 ** (torch.arange(0.0, self.dim, 2.0) / self.dim)
        angles = torch.arange(s - 1, -1, -1.0)[:, None] * speeds
        places = self.split(self.r(torch.cat([angles.sin(), angles.cos()], -1).to(x)[None]))
        far = torch.cat([q.new_zeros(b, h, t, 1), q @ places.mT], -1).view(b, h, s + 1, t)
        scores = (q @ k.mT + far[:, :, 1:].view(b, h, t, s)) / q.shape[-1] ** 0.5
        hidden = torch.ones(t, s).triu(1 + s - t).bool()
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2)).transpose(0, 1)
"""
)


def test_scores_that_are_shifted_are_no_tokens_that_are_split():
    report = check(SHIFTED)
    assert (report.verdict, ids(report)) == ("correct", {"made-on-cpu"}), report


LATENT = (
    HEAD
    + """\
class LatentAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.h, self.head_dim, self.turned = n_heads, 6, 2
        self.q, self.up = nn.Linear(dim, n_heads * 6), nn.Linear(dim, n_heads * 4, bias=False)
        self.rest, self.v = nn.Linear(dim, 2), nn.Linear(dim, dim)
        self.o = nn.Linear(n_heads * dim, dim)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        up = self.up.weight.unflatten(0, (self.h, -1))
        inside = torch.einsum("bhnd,hdw->bhnw", q[..., :4], up)
        scores = inside @ x[:, None].mT + q[..., 4:] @ self.rest(x)[:, None].mT
        weights = (scores * self.head_dim**-0.5).softmax(-1)
        return self.o((weights @ self.v(x)[:, None]).transpose(1, 2).flatten(2))
"""
)


def test_keys_that_are_not_expanded_have_the_scale_of_their_heads():
    report = check(LATENT)
    assert (report.verdict, [found.severity for found in report.findings]) == ("correct", ["edge"])
    assert "right for heads of self.head_dim" in report.findings[0].evidence
    assert check(LATENT.replace("self.head_dim**-0.5", "7**-0.5")).verdict == "wrong"


COLUMNS = (
    HEAD
    + """\
class ColumnAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, m, mask=None):
        m = m.transpose(0, 1)
        b, n, _ = m.shape
        q, k, v = self.q(m), self.k(m), self.v(m)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + 1e9 * (mask.transpose(0, 1).float() - 1)[:, None, None]
        out = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out.transpose(0, 1)
"""
)


def test_tokens_that_are_moved_to_the_front_on_purpose_are_a_question():
    report = check(COLUMNS)
    assert report.verdict == "correct", report
    assert {found.severity for found in report.findings} <= {"edge"}
