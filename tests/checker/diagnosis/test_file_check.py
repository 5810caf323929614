"""What of a file is judged: classes, the functions beside them, and a name that was asked for."""

import pytest
from in_process_check import check_file

HEAD = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_in, d_out) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return MIXED
"""
PLAIN = "(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v"
FUNCTION = """

def attention(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(0) @ v
"""


def test_a_function_beside_a_class_is_judged_unless_the_class_uses_it():
    beside = HEAD.replace("MIXED", PLAIN) + FUNCTION
    first, second = check_file(beside)
    assert (first.cls, first.verdict) == ("Attention", "correct")
    assert (second.cls, second.verdict) == ("attention", "wrong")
    assert {found.id for found in second.findings} == {"softmax-over-batch"}
    (inside,) = check_file(HEAD.replace("MIXED", "attention(q, k, v)") + FUNCTION)
    assert (inside.cls, inside.verdict) == ("Attention", "wrong")
    (asked,) = check_file(beside.replace("attention(q", "mix(q"), only="mix")
    assert (asked.cls, asked.verdict) == ("mix", "wrong")
    (alone,) = check_file(beside.replace("softmax(0)", "unknown()"))
    assert (alone.verdict, alone.notes[-1]) == ("correct", "Not judged: the function attention.")
    (open_one,) = check_file(beside + "\n\ndef mix(q, k, v, colour):\n    return v\n", only="mix")
    assert open_one.verdict == "error"
    assert "of the function 'mix'" in open_one.findings[0].says


BASE = """\
import torch
from torch import nn


class BaseAttention(nn.Module):
    def mix(self, q, k, v):
        return PLAIN


class SelfAttention(BaseAttention):
    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        return self.mix(self.q(x), self.k(x), self.v(x))
""".replace("PLAIN", PLAIN)
CALLS = """\
    def forward(self, x):
        return self.mix(self.q(x), self.k(x), self.v(x))
"""


@pytest.mark.parametrize(
    "source",
    [
        BASE,
        BASE.replace("    def mix", "    def forward(self, x):\n        pass\n\n    def mix"),
        BASE.replace(CALLS, "").replace("    def mix", f"{CALLS}\n    def mix"),
    ],
)
def test_a_base_class_is_judged_in_the_classes_that_derive_from_it(source):
    (report,) = check_file(source)
    assert (report.cls, report.verdict) == ("SelfAttention", "correct")
    (asked,) = check_file(source, only="BaseAttention")
    assert asked.verdict == "error"
    assert "is a base class" in asked.findings[0].says


INSIDE = """\
import torch
from torch import nn


class GridAttention(nn.Module):
    def forward(self, q, k, v, layout):
        assert layout.of == "tokens"
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class Layout:
    of = "tokens"


class SelfAttention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.attend = GridAttention()

    def forward(self, x):
        return x + self.attend(self.q(x), self.k(x), self.v(x), Layout())
"""


def test_a_class_that_cannot_be_called_is_judged_inside_one_that_was():
    first, second = check_file(INSIDE)
    assert (first.cls, second.cls) == ("GridAttention", "SelfAttention")
    assert (first.verdict, second.verdict) == ("correct", "correct"), first
    assert "it was checked inside SelfAttention" in first.notes[0]
    first, second = check_file(INSIDE.replace(" / q.shape[-1] ** 0.5", ""))
    assert [one.verdict for one in (first, second)] == ["wrong", "wrong"]
    assert first.findings[0].line == 8
