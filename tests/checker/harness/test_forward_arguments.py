"""Classes whose input is not one sequence of embeddings: NumPy arrays, masks, images."""

# ruff: noqa: E501 - submissions have long lines, and the edits must match them

import pytest
from in_process_check import Here, check, ids
from planted_mistakes import HEAD, edited

from clearhead.checker.source.wrapped_functions import wrapped

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn

# Matrices in a dictionary.
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


def test_numpy_is_judged() -> None:
    """An array is an output like a tensor."""
    report = check(_DICTIONARY)
    assert (report.verdict, report.findings) == ("correct", ()), report
    assert report.form.causal == "yes"


@pytest.mark.parametrize(
    ("old", "new", "id"),
    [
        ("-1e30", "-1.0", "mask-added-not-filled"),
        ("sum(axis=-1, keepdims", "sum(axis=-2, keepdims", "softmax-over-queries"),
    ],
)
def test_mistakes_in_numpy_are_named(old: str, new: str, id: str) -> None:
    source = edited(_DICTIONARY, [(old, new), ("scores.max(-1, keepdims=True)", "scores.max()")])
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


# An input that is narrower than the model, and a mask that is required.
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


def test_marks_that_must_be_given() -> None:
    report = check(_MARKED)
    assert (report.verdict, report.findings) == ("correct", ()), report
    report = check(edited(_MARKED, [(" / q.shape[-1] ** 0.5", "")]))
    assert (report.verdict, ids(report)) == ("wrong", {"missing-scale"}), report
