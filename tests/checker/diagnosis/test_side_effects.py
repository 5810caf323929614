"""Side effects of a call, classes that are not attention, and unusual names and arguments."""

# ruff: noqa: E501 - submissions have long lines, and the edits must match them

import pytest
from in_process_check import Here, check, check_file, ids
from planted_mistakes import BOOK, HEAD, MINIMAL, edited

from clearhead.checker.diagnosis.class_check import check_class
from clearhead.checker.report import Report
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.class_choice import choose, choose_unnamed, left_out

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn


def judged(source: str) -> list[Report]:
    session = Here(source)
    classes = session.classes()
    assert not isinstance(classes, Failure)
    chosen = choose(classes, source) or choose_unnamed(classes, source)
    return left_out([check_class(session, info, source, "file.py") for info in chosen])


_FORWARD, _BODY = "    def forward(self, x):\n        B, T, D = x.shape\n", "        y = a @ v\n"
_WITH_POSITIONS = edited(
    MINIMAL,
    [(_FORWARD, "    def forward(self, x, pos=None):\n        B, T, D = x.shape\n        w = x\n        if pos is not None:\n            w = w + pos\n"),
     ("self.W_q(x)", "self.W_q(w)"), ("self.W_k(x)", "self.W_k(w)")],
)  # fmt: skip

_SHARED_BIAS = edited(
    MINIMAL,
    [(_FORWARD, "    def forward(self, x, bias=0.0):\n        B, T, D = x.shape\n"),
     ("        s = q @ k", "        s = bias + q @ k")],
)  # fmt: skip


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (edited(_SHARED_BIAS, [("        s = bias + q @ k", "        s = bias\n        s += q @ k")]), {"changes-its-input"}),
        (edited(_WITH_POSITIONS, [("w = w + pos", "w += pos")]), {"changes-its-input"}),
        (edited(MINIMAL, [(_FORWARD, f"{_FORWARD}        x = x * 1.0\n        x *= 0.5\n        x *= 2\n")]), set()),
        (edited(MINIMAL, [(_FORWARD, f"{_FORWARD}        x.mul_(0.5)\n        x = x * 2\n")]), {"changes-its-input"}),
    ],
    ids=["a bias in place", "positions in place", "a copy in place", "always in place"],
)  # fmt: skip
def test_the_callers_tensor_must_stay_as_it_is(source: str, expected: set[str]) -> None:
    report = check(source)
    assert {f.id for f in report.findings if f.severity == "wrong"} == expected, report


_DEVICE = "torch.ones(T, T, device=x.device)"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("torch.ones(T, T)", {"made-on-cpu"}),
        ("torch.ones(T, T).to(x.device)", set()),
        ("x.new_ones(T, T)", set()),
        ("(torch.tensor(1.0) + torch.ones(T, T, device=x.device))", set()),
    ],
)
def test_a_tensor_made_on_the_cpu_meets_one_that_is_not(mask: str, expected: set[str]) -> None:
    report = check(edited(MINIMAL, [(_DEVICE, mask)]))
    assert ids(report) == expected, report
    for found in report.findings:
        assert found.line == 24
        assert "masked_fill fails in line 25" in found.evidence


_BIAS = (
    HEAD
    + """\
from functools import lru_cache


class BiasedAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.hd = n_heads, d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.table = nn.Embedding(600, n_heads)

    @lru_cache(maxsize=None)
    def distances(self, n):
        place = torch.arange(n, device=self.table.weight.device)
        return place[:, None] - place + 300

    def bias(self, n):
        return self.table(self.distances(n)).permute(2, 0, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, self.hd)).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(self.hd) + self.bias(x.shape[1])
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
)


def test_what_depends_on_weights_must_not_be_kept() -> None:
    assert check(_BIAS).verdict == "correct"
    report = check(
        edited(_BIAS, [("    def bias(", "    @lru_cache(maxsize=None)\n    def bias(")])
    )
    assert (report.verdict, ids(report)) == ("wrong", {"keeps-its-graph"}), report


_GAINS = edited(
    MINIMAL,
    [("self.drop = nn.Dropout(p)", "self.drop = nn.Dropout(p)\n        self.gain = nn.Parameter(torch.ones(1))"),
     (_BODY, f"{_BODY}        y = y * self.gain\n")],
)  # fmt: skip


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ("self.gain", set()),
        ("float(self.gain)", {"never-learns"}),
        ("math.exp(math.log(abs(self.gain)))", {"never-learns"}),
    ],
)
def test_a_weight_that_becomes_a_plain_number_never_learns(gain: str, expected: set[str]) -> None:
    report = check(edited(_GAINS, [("y * self.gain", f"y * {gain}")]))
    assert expected <= ids(report), report
    assert ("never-learns" in ids(report)) == bool(expected)


_LISTS = (
    HEAD
    + """\
class Attention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.d_k = d_model // n_heads
        self.q, self.k, self.v = (
            nn.ModuleList(nn.Linear(d_model, self.d_k) for _ in range(n_heads)) for _ in range(3)
        )
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x):
        heads = []
        for i, query in enumerate(self.q):
            s = query(x) @ self.k[i](x).mT / math.sqrt(self.d_k)
            heads.append(s.softmax(-1) @ self.v[i](x))
        return self.o(torch.cat(heads, -1))
"""
)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("self.v[i]", "self.v[0]", {"heads-share-weights"}),
        ("self.k[i]", "self.k[-1]", {"heads-share-weights"}),
        ("self.k[i]", "self.k[i]", set()),
    ],
)
def test_an_index_that_stays_the_same_for_all_heads(old: str, new: str, expected: set[str]) -> None:
    """Heads whose weights have no effect are wrong; a remark is not enough."""
    report = check(edited(_LISTS, [(old, new)]))
    assert ids(report) == expected, report


def test_a_weight_that_is_frozen_is_no_mistake() -> None:
    frozen = "self.gain = nn.Parameter(torch.ones(1), requires_grad=False)"
    source = edited(_GAINS, [("self.gain = nn.Parameter(torch.ones(1))", frozen)])
    assert "never-learns" not in ids(check(source))


_WRAPPED = edited(
    BOOK,
    [("class MultiHeadAttention(nn.Module):", "class Inner(nn.Module):"),
     ("context_length, dropout, num_heads, qkv_bias=False", "context_length, num_heads, dropout=0.0, qkv_bias=False")],
) + """

class OuterAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, num_heads, qkv_bias=False, dropout=0.0):
        super().__init__()
        self.inner = Inner(d_in, d_out, context_length, num_heads, dropout, qkv_bias)

    def forward(self, x):
        return self.inner(x)
"""  # fmt: skip


def test_dropout_and_bias_change_places() -> None:
    assert check(_WRAPPED).verdict == "correct"
    crossed = edited(_WRAPPED, [("num_heads, dropout, qkv_bias)", "num_heads, qkv_bias, dropout)")])
    report = check(crossed)
    assert (report.verdict, ids(report)) == ("wrong", {"arguments-crossed"}), report


@pytest.mark.parametrize(
    "equation", ['"bhij,bhid->bhid "', '"b h i j, b h i d -> b h i d".replace(" ", "")']
)
def test_an_einsum_that_sums_the_weights_up(equation: str) -> None:
    report = check(edited(MINIMAL, [("a @ v", f"torch.einsum({equation}, a, v)")]))
    assert (report.verdict, ids(report)) == ("wrong", {"values-not-mixed"}), report


_IN_PIECES = (
    HEAD
    + """\
class ChunkAttention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x, key_padding_mask=None):
        q, k, v = self.q(x) / x.shape[-1] ** 0.5, self.k(x), self.v(x)
        m = x.new_full((*x.shape[:2], 1), -torch.inf)
        z, y = torch.zeros_like(m), torch.zeros_like(v)
        for j in range(0, x.shape[1], 64):
            s = q @ k[:, j : j + 64].mT
            if key_padding_mask is not None:
                s = s.masked_fill(key_padding_mask[:, None, j : j + 64], -torch.inf)
            new = torch.maximum(m, s.amax(-1, keepdim=True)).clamp_min(-1e30)
            e, old = (s - new).exp(), (m - new).exp()
            z, y, m = z * old + e.sum(-1, keepdim=True), y * old + e @ v[:, j : j + 64], new
        return y / z
"""
)


def test_much_padding_at_the_start() -> None:
    assert check(_IN_PIECES).verdict == "correct"
    report = check(edited(_IN_PIECES, [(".clamp_min(-1e30)", "")]))
    assert (report.verdict, ids(report)) == ("wrong", {"padding-gives-nan"}), report


_NORM = """

class HeadNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain
"""
_GATES = """

class HeadGates(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a, self.b = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        return self.a(x).softmax(-1) * self.b(x)
"""


def test_a_norm_is_left_out_and_alone_it_is_no_verdict() -> None:
    (report,) = judged(MINIMAL + _NORM)
    assert (report.cls, report.verdict) == ("Attn", "correct")
    (report,) = judged(HEAD + _NORM)
    assert (report.cls, report.verdict) == ("HeadNorm", "unsure")


@pytest.mark.parametrize(("name", "verdict"), [("PolicyHead", "unsure"), ("Attention", "wrong")])
def test_a_class_in_which_no_token_sees_another(name: str, verdict: str) -> None:
    layer = f"class {name}(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n        self.net = nn.Linear(dim, dim)\n\n    def forward(self, x):\n        return self.net(x)\n"
    (report,) = judged(HEAD + layer)
    assert report.verdict == verdict
    assert verdict == "unsure" or "no token sees another" in report.findings[0].evidence


def test_gates_are_not_called_wrong() -> None:
    assert [r.verdict for r in judged(HEAD + _GATES)] == ["unsure"]


_FUNCTION = """import numpy as np


def weich(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def mischen(x, gewichte, n_heads):
    q, k, v = x @ gewichte["Wq"], x @ gewichte["Wk"], x @ gewichte["Wv"]
    parts = []
    for a, b, c in zip(*(np.split(t, n_heads, axis=1) for t in (q, k, v))):
        parts.append(weich(a @ b.T / np.sqrt(a.shape[1])) @ c)
    return np.concatenate(parts, axis=1) @ gewichte["Wo"]
"""


def test_a_function_that_no_name_calls_attention() -> None:
    """Its weights come in one argument."""
    (report,) = check_file(_FUNCTION, "file.py")
    assert report.verdict == "correct", report
    (report,) = check_file(_FUNCTION.replace("/ np.sqrt(a.shape[1])", ""), "file.py")
    assert (report.cls, ids(report)) == ("mischen", {"missing-scale"}), report


_PACKED = (
    HEAD
    + """\
class PackedAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, cu_seqlens):
        place = torch.arange(len(x), device=x.device)
        text = torch.searchsorted(cu_seqlens[1:].contiguous().long(), place, right=True)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(1, 2, 0, 3)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=text[:, None] == text)
        return self.out(y.transpose(0, 1).flatten(1))
"""
)


def test_texts_in_one_row() -> None:
    assert check(_PACKED).verdict == "correct"
    assert check(edited(_PACKED, [(", right=True", "")])).verdict == "wrong"


_ROWS = (
    HEAD
    + """\
class RowsAttention(nn.Module):
    '''Causal; a long prompt may come in several pieces.'''

    def __init__(self, dim, n_heads):
        super().__init__()
        self.h, self.hd = n_heads, dim // n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        for name in ("cache_k", "cache_v"):
            self.register_buffer(name, torch.zeros(4, n_heads, 512, self.hd), persistent=False)
        angles = torch.outer(torch.arange(512.0), 10000 ** (-torch.arange(0, self.hd, 2) / self.hd))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def turn(self, x, start):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.turns[start : start + x.shape[2]]).flatten(-2)

    def forward(self, x, start_pos=None):
        B, T, _ = x.shape
        start = start_pos or 0
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, self.hd)).permute(2, 0, 3, 1, 4)
        q, k = self.turn(q, start), self.turn(k, start)
        if start_pos is not None:
            self.cache_k[:B, :, start : start + T], self.cache_v[:B, :, start : start + T] = k, v
            k, v = self.cache_k[:B, :, : start + T], self.cache_v[:B, :, : start + T]
        see = torch.ones(T, start + T, dtype=torch.bool, device=x.device).tril(start)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see)
        return self.out(y.transpose(1, 2).flatten(2))
"""
)


def test_a_cache_that_is_asked_by_the_place_alone() -> None:
    assert check(_ROWS).verdict == "correct"
    report = check(edited(_ROWS, [(".tril(start)", ".tril(0)")]))
    assert (report.verdict, ids(report)) == ("wrong", {"cached-mask-misaligned"}), report
    every = edited(_ROWS, [(".tril(start)", ".tril(start if T == 1 else 0)")])
    one = edited(every, [("a long prompt may come in several pieces", "token by token")])
    assert check(one).verdict == "correct"
