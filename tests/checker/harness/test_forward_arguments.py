"""Classes whose input is not one sequence of embeddings: NumPy arrays, masks, images."""

# ruff: noqa: E501 - submissions have long lines, and the edits must match them

import pytest
from in_process_check import Here, check, ids
from planted_mistakes import HEAD, edited

from clearhead.checker.source.wrapped_functions import wrapped

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn

# Two styles: three-dimensional arrays as attributes, and matrices in a dictionary.
_ARRAYS = """\
import numpy as np


class ArrayAttention:
    def __init__(self, dim, n_heads, seed=0):
        rng = np.random.default_rng(seed)
        self.hd = dim // n_heads
        self.wq, self.wk, self.wv = (rng.normal(size=(dim, n_heads, self.hd)) for _ in range(3))
        self.wo = rng.normal(size=(n_heads, self.hd, dim))

    def __call__(self, x):
        q, k, v = (np.einsum("btc,chd->bhtd", x, w) for w in (self.wq, self.wk, self.wv))
        s = q @ k.swapaxes(-1, -2) / np.sqrt(self.hd)
        s = np.where(np.tri(x.shape[1], dtype=bool), s, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        y = e / e.sum(-1, keepdims=True) @ v
        return np.einsum("bhtd,hdc->btc", y, self.wo)
"""
_DICTIONARY = """\
import numpy as np


class SelfAttention:
    def __init__(self, d_model, d_k):
        make = lambda: (0.1 * np.random.randn(d_model, d_k)).astype(np.float32)
        self.params = {"W_q": make(), "W_k": make(), "W_v": make()}
        self.mask = np.triu(np.full((64, 64), -1e30), 1)
        self.d_k = d_k

    def forward(self, x):
        q, k, v = (x @ self.params[name] for name in ("W_q", "W_k", "W_v"))
        scores = q @ k.swapaxes(-1, -2) / self.d_k ** 0.5 + self.mask[: x.shape[1], : x.shape[1]]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ v, weights
"""
# Without weights, as a function and as a class.
_FUNCTION = """\
import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def attention(Q, K, V, mask=None):
    scores = Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ V
"""
_CALLED = """

class Attention:
    def __call__(self, q, k, v):
        return attention(q, k, v)
"""


@pytest.mark.parametrize(
    "source",
    [
        _FUNCTION,
        f"{_FUNCTION}{_CALLED}".replace("def attention", "def mix").replace(
            "return attention", "return mix"
        ),
    ],
)
def test_numpy_without_weights_is_judged(source: str) -> None:
    """It must get arrays: `max` of a torch tensor returns two results."""
    for text, verdict, found in (
        (source, "correct", set()),
        (
            edited(source, [("softmax(scores)", "softmax(scores, axis=-2)")]),
            "wrong",
            {"softmax-over-queries"},
        ),
    ):
        report = check("\n\n".join([text, *(one.text for one in wrapped(text))]))
        assert (report.verdict, ids(report)) == (verdict, found), report


@pytest.mark.parametrize("source", [_ARRAYS, _DICTIONARY])
def test_numpy_is_judged(source: str) -> None:
    """An array is an output like a tensor."""
    report = check(source)
    assert (report.verdict, report.findings) == ("correct", ()), report
    assert report.form.causal == "yes"


@pytest.mark.parametrize(
    ("source", "edit", "id"),
    [
        (_ARRAYS, ("s, -np.inf)", "s, 0.0)"), "mask-fill-not-inf"),
        (_DICTIONARY, ("weights.sum(axis=-1, keepdims=True)", "weights.sum(axis=-2, keepdims=True)"), "softmax-over-queries"),
    ],
)  # fmt: skip
def test_mistakes_in_numpy_are_named(source: str, edit: tuple[str, str], id: str) -> None:
    source = edited(source, [edit])
    if id == "softmax-over-queries":  # the maximum may stay that of a row
        source = edited(source, [("scores.max(-1, keepdims=True)", "scores.max()")])
    report = check(source)
    assert (report.verdict, ids(report)) == ("wrong", {id}), report


def test_arrays_are_the_parameters_of_a_plain_object() -> None:
    """The arrays of an nn.Module are not parameters."""
    both = f"{_DICTIONARY}\n\nimport torch\n\n\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.table = np.ones(3)\n"
    with Here(both) as session:
        built = session.build("SelfAttention", [], {"d_model": 6, "d_k": 4})
        assert built.arrays
        assert built.parameters == {
            "params['W_q']": (6, 4), "params['W_k']": (6, 4), "params['W_v']": (6, 4), "mask": (64, 64),
        }  # fmt: skip
        assert session.build("M", [], {}).parameters == {}


# An input that is narrower than the model, and masks that are required.
_MARKED = (
    HEAD
    + """\
class MarkedAttention(nn.Module):
    def __init__(self, obs_dim, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(obs_dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def forward(self, obs, visible):
        q, k, v = (f(obs).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s.masked_fill(~visible[:, None, None, :], -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
)
_PADDING_MARKED = edited(_MARKED, [("~visible[", "filler["), ("visible", "filler"), ("-torch.inf", "torch.finfo(s.dtype).min")])  # fmt: skip


@pytest.mark.parametrize("source", [_MARKED, _PADDING_MARKED])
def test_marks_that_must_be_given(source: str) -> None:
    report = check(source)
    assert (report.verdict, report.findings) == ("correct", ()), report
    report = check(edited(source, [(" / q.shape[-1] ** 0.5", "")]))
    assert (report.verdict, ids(report)) == ("wrong", {"missing-scale"}), report


def test_marks_along_the_wrong_axis_are_named() -> None:
    source = edited(_PADDING_MARKED, [("[:, None, None, :]", "[:, None, :, None]")])
    assert ids(check(source)) == {"padding-on-queries"}


# PyTorch's module attends to an input of another width.
_PROMPTED = (
    HEAD
    + """\
class PromptAttention(nn.Module):
    \"""latents: (B, L, dim)
    prompt: (B, S, prompt_dim)
    seen: (B, S), 1 = token, 0 = padding
    \"""

    def __init__(self, dim, prompt_dim, heads):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, kdim=prompt_dim, vdim=prompt_dim, batch_first=True)

    def forward(self, latents, prompt, seen=None):
        if seen is not None:
            seen = ~seen.bool()
        return latents + self.attn(self.norm(latents), prompt, prompt, key_padding_mask=seen)[0]
"""
)


def test_a_mask_is_held_against_what_the_source_says() -> None:
    report = check(_PROMPTED)
    assert (report.verdict, report.findings) == ("correct", ()), report
    inverted = edited(_PROMPTED, [("~seen.bool()", "seen.bool()")])
    report = check(inverted)
    assert (report.verdict, ids(report)) == ("wrong", {"padding-inverted"}), report
    said = edited(inverted, [("1 = token, 0 = padding", "True = padding")])
    assert check(said).findings == ()
    silent = edited(inverted, [("1 = token, 0 = padding", "of the prompt")])
    assert check(silent).findings == ()


# An image that attends to a text; each has its own norm.
_READING = (
    HEAD
    + """\
class PictureReadsAttention(nn.Module):
    def __init__(self, channels, ctx_dim, head_dim=32):
        super().__init__()
        self.heads = channels // head_dim
        self.norm, self.norm_ctx = nn.GroupNorm(1, channels), nn.LayerNorm(ctx_dim)
        self.q, self.out = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.kv = nn.Linear(ctx_dim, 2 * channels)

    def forward(self, x, ctx):
        q = self.q(self.norm(x)).flatten(2).unflatten(1, (self.heads, -1))
        k, v = self.kv(self.norm_ctx(ctx)).mT.unflatten(1, (2 * self.heads, -1)).chunk(2, 1)
        weights = (q.mT @ k * q.shape[2] ** -0.5).softmax(-1)
        return x + self.out((v @ weights.mT).flatten(1, 2).view_as(x))
"""
)


# A table of offsets in a square window of pixels.
@pytest.mark.parametrize(
    ("source", "edit", "id"),
    [
        (_READING, ("q.shape[2] ** -0.5", "q.shape[1] ** -0.5"), "wrong-scale"),
    ],
)
def test_pictures(source: str, edit: tuple[str, str], id: str) -> None:
    report = check(source)
    assert (report.verdict, report.findings) == ("correct", ()), report
    report = check(edited(source, [edit]))
    assert (report.verdict, ids(report)) == ("wrong", {id}), report


def test_one_tensor_for_three_projections_of_a_head() -> None:
    """Its bias has three axes, but is not an output projection."""
    source = (
        HEAD
        + """\
class Head(nn.Module):
    def __init__(self, d_in, d_head):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, d_in, d_head))
        self.b = nn.Parameter(torch.zeros(3, 1, d_head))

    def forward(self, x):
        q, k, v = torch.einsum("btc,ncd->nbtd", x, self.w) + self.b[:, None]
        return (q @ k.mT * k.size(-1) ** -0.5).softmax(-1) @ v


class Several(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.heads = nn.ModuleList(Head(d_in, d_out // num_heads) for _ in range(num_heads))
        self.mix = nn.Linear(d_out, d_out)

    def forward(self, x):
        return self.mix(torch.cat([head(x) for head in self.heads], dim=-1))
"""
    )
    several = edited(source, [("class Head", "class One"), ("Head(d_in", "One(d_in"), ("class Several", "class SeveralHeads")])  # fmt: skip
    report = check(several)
    assert (report.verdict, report.findings) == ("correct", ()), report
    assert (report.form.heads, report.form.head_dim) == (3, 5)
    report = check(edited(several, [("k.size(-1) ** -0.5", "1.0")]))
    assert ids(report) == {"missing-scale"}
