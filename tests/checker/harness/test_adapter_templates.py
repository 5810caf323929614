"""The adapter that `check --write-adapter` writes runs unchanged for the usual forms of classes."""

from pathlib import Path

import pytest
from in_process_check import Here
from planted_mistakes import BOOK, NANO, STYLES, edited, planted

from clearhead.checker.diagnosis.class_check import check_class
from clearhead.checker.diagnosis.file_check import inner_text
from clearhead.checker.harness.adapter_templates import (
    Skeleton,
    adapter_for,
    adapter_for_function,
)
from clearhead.checker.report import Report
from clearhead.checker.sandbox.submission import ClassInfo, Failure
from clearhead.checker.source.wrapped_functions import likely_functions

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn

SUBMISSIONS = Path(__file__).parents[1] / "submissions"


class Classes(Here):
    """All classes of a file."""

    def all(self) -> tuple[ClassInfo, ...]:
        found = self.classes()
        assert not isinstance(found, Failure), found
        return found


def written(source: str, name: str = "") -> Skeleton:
    classes = Classes(source).all()
    return adapter_for(next(c for c in reversed(classes) if not name or c.name == name), source)


def judged(source: str, adapter: str) -> Report:
    """The report on the file with this adapter."""
    whole = f"{source}\n\n{adapter}\n"
    session = Classes(whole)
    adapted = max(session.all(), key=lambda info: info.line)
    assert adapted.name == "Adapted"
    text = inner_text(whole, session.all(), adapted)
    return check_class(session, adapted, whole, "file.py", given=True, text=text)


@pytest.mark.parametrize("style", STYLES)
def test_the_usual_styles_need_no_change(style: str) -> None:
    made = written(STYLES[style])
    assert not made.open, made.text
    report = judged(STYLES[style], made.text)
    assert report.verdict == "correct", f"{report}\n{made.text}"


@pytest.mark.parametrize(
    "name",
    [
        "03_config_fused",  # a dataclass, kept as self.cfg
        "07_single_unbatched",  # one head
        "14_functional_packed",  # causal=False by default
        "05_clones_qkv",  # query, key, value
        "25_rotary",
    ],
)
def test_submissions_need_no_change(name: str) -> None:
    source = (SUBMISSIONS / f"{name}.py").read_text(encoding="utf-8")
    made = written(source)
    assert not made.open, made.text
    report = judged(source, made.text)
    assert report.verdict == "correct", f"{report}\n{made.text}"


def test_a_mistake_is_found_through_the_adapter() -> None:
    source = planted("missing-scale", "book")
    report = judged(source, written(source).text)
    assert [finding.id for finding in report.findings] == ["missing-scale"]


def test_the_constructors_own_arguments_are_used() -> None:
    """The adapter calls the constructor with its real arguments."""
    text = written(BOOK).text
    assert "def __init__(self, d_in, d_out, context_length, dropout, num_heads):" in text
    assert "num_heads=num_heads" in text
    assert "context_length=context_length" in text
    assert "qkv_bias" not in text  # it has a default


LOOSE = """
from torch import nn


class Mine:
    def __init__(self, width, heads, colour, depth=3, *, layer_idx):
        self.q = nn.Linear(width, width)

    def forward(self, x, memory, start_pos, mood, attn_mask=None, **rest):
        return {"out": x, "mood": mood}
"""


FUNCTIONS = {
    "weights as arguments": """
import torch

def attention(x, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v
""",
    "queries, keys, values": """
import torch

def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return scores.softmax(-1) @ v
""",
}


@pytest.mark.parametrize("source", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_has_an_adapter_too(source: str) -> None:
    """A file without a class gets an adapter for its function."""
    (node,) = likely_functions(source)
    made = adapter_for_function(node, source)
    assert not made.open, made.text
    assert judged(source, made.text).verdict == "correct", made.text


def test_a_function_whose_arguments_say_nothing_is_marked() -> None:
    source = "def attention(x, thing):\n    return (x @ x.mT).softmax(-1) @ x * thing\n"
    made = adapter_for_function(likely_functions(source)[0], source)
    assert "            thing=None,  # change this: what is thing?" in made.text
    assert made.open


def test_an_adapter_for_numpy_is_judged_step_by_step() -> None:
    """NumPy has no gradients, so their absence is no mistake."""
    made = written(NUMPY)
    assert "torch" not in made.text
    report = judged(NUMPY, made.text)
    assert report.verdict == "correct", report
    assert "numpy has no gradients" in report.tested
    report = judged(NUMPY.replace("axis=-1", "axis=-2"), made.text)
    assert {finding.id for finding in report.findings} == {"softmax-over-queries"}


def test_numpy_behind_a_torch_adapter_has_no_detached_scores() -> None:
    report = judged(NUMPY, TORCH_AROUND_NUMPY)
    assert (report.verdict, report.findings) == ("correct", ())
    assert "against the formula" in report.tested
    assert "numpy has no gradients" in report.tested
    assert "gradients were not tested" in report.notes[-1]


NUMPY = """
import numpy as np

class Attention:
    def __init__(self, d_in, d_out):
        self.W_q, self.W_k, self.W_v = (np.random.randn(d_in, d_out) for _ in range(3))

    def forward(self, x):
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        s = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]))
        return s / s.sum(axis=-1, keepdims=True) @ v
"""
TORCH_AROUND_NUMPY = """
import torch
from torch import nn

class Adapted(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.inner = Attention(d_in, d_out)
        for name, array in vars(self.inner).items():
            setattr(self, name, nn.Parameter(torch.from_numpy(array)))

    def forward(self, x):
        for name in vars(self.inner):
            setattr(self.inner, name, getattr(self, name).detach().numpy())
        return torch.from_numpy(self.inner.forward(x.detach().numpy()))
"""


def test_what_names_do_not_tell_is_marked() -> None:
    made = written(LOOSE)
    assert made.open
    lines = [line.strip() for line in made.text.splitlines()]
    assert "colour=d_out,  # change this: what is colour?" in lines
    assert "layer_idx=0," in lines
    assert not any("depth" in line for line in lines)
    assert "None,  # change this: what is mood?" in lines
    assert "def forward(self, x, attn_mask=None):  # x: (batch, tokens, width)" in lines
    assert "return out" in lines
    assert "self.parts = nn.ModuleList(p for p in parts if isinstance(p, nn.Module))" in lines
    assert "out = self.inner.forward(" in lines
    compile(made.text, "adapter.py", "exec")


@pytest.mark.parametrize(
    "returned", ["mixed, weights", "(mixed, weights) if self.training else mixed"]
)
def test_of_several_results_the_first_is_taken(returned: str) -> None:
    made = written(edited(BOOK, [("return mixed", f"return {returned}")]))
    assert "        return out[0] if isinstance(out, tuple) else out\n" in made.text
    assert not made.open


def test_a_configuration_in_a_dictionary() -> None:
    source = NANO
    for field in ("n_embd", "n_head", "bias", "dropout", "block_size"):
        source = source.replace(f"config.{field}", f'config["{field}"]')
    made = written(source.replace("self.n_embd = ", 'self.mood, self.n_embd = config["mood"], '))
    assert '"n_embd": d_out' in made.text
    assert '"n_head": num_heads' in made.text
    assert '"mood": None' in made.text
    assert "# change this: what is mood?" in made.text
    compile(made.text, "adapter.py", "exec")
