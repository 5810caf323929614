"""The line of a mistake, also in classes and functions that the judged class uses."""

import ast

import pytest
from in_process_check import Here
from planted_mistakes import WRAPPER, edited

from clearhead.checker.diagnosis.class_check import check_class
from clearhead.checker.diagnosis.file_check import check_source
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.submission import ClassInfo
from clearhead.checker.source.class_text import (
    Text,
    dropped_mask,
    expects_causal,
    locate,
    used_by,
)

HEADS = edited(
    WRAPPER,
    [
        ("        scores.masked_fill_(self.mask.bool()[:n, :n], -torch.inf)\n", ""),
        ("return w", "weights = weights * (1 - self.mask[:n, :n])\n        return w"),
    ],
)  # fmt: skip


def text_of(file: str, name: str) -> Text:
    (node,) = (n for n in ast.parse(file).body if isinstance(n, ast.ClassDef) and n.name == name)
    lines = file.splitlines()[node.lineno - 1 : node.end_lineno]
    return Text("\n".join(lines), node.lineno, name, file)


def line_of(file: str, code: str) -> int:
    (number,) = (n for n, line in enumerate(file.splitlines(), 1) if code in line)
    return number


def test_the_line_is_found_in_the_class_that_is_wrapped():
    """A policy may choose the wrapper, while the mistake is in the wrapped class."""
    session = Here(HEADS)
    info = next(one for one in session.classes() if one.name == "MultiHeadAttentionWrapper")
    (found,) = check_class(session, info, HEADS, "file.py").findings
    assert (found.id, found.line) == (
        "mask-after-softmax",
        line_of(HEADS, "weights = weights * (1 - self.mask"),
    )


FUNCTION = """\
import torch

def attention(q, k, v, hidden):
    scores = q @ k.transpose(-2, -1)
    scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v

def unused(q):
    return q.softmax(-2)

class MultiHead(torch.nn.Module):
    def __init__(self, context_length):
        self.hidden = torch.triu(torch.ones(context_length, context_length), diagonal=2)

    def forward(self, x):
        q = self.q(x).view(2, 3, 5, 7)
        return attention(q, q, q, self.hidden)
"""


@pytest.mark.parametrize(
    ("id", "code"),
    [
        ("no-causal-mask", "scores = q @ k"),
        ("mask-off-by-one", "diagonal=2"),  # the mask is made in the class itself
        ("heads-interleaved", ".view("),
        ("mask-ignored", "def forward"),
        ("query-not-projected", "q = self.q(x)"),
    ],
)
def test_scores_are_sought_where_they_are_computed(id, code):
    assert locate(id, text_of(FUNCTION, "MultiHead")) == line_of(FUNCTION, code)


def test_a_result_that_is_dropped_in_what_the_class_uses():
    assert dropped_mask(text_of(FUNCTION, "MultiHead")) == 5
    other = HEADS.replace("weights = weights *", "scores.masked_fill(self.mask == 0, 0)  #")
    line = line_of(other, "scores.masked_fill(")
    assert dropped_mask(text_of(other, "MultiHeadAttentionWrapper")) == line


def test_a_class_that_computes_its_own_scores_is_looked_at_first():
    own = "return (q @ q.mT).softmax(-1) + attention("
    file = FUNCTION.replace("return attention(", own)
    assert locate("no-causal-mask", text_of(file, "MultiHead")) == line_of(file, own)


def test_what_is_used():
    assert [part.name for part in used_by(text_of(FUNCTION, "MultiHead"))] == ["attention"]
    assert used_by(Text("class A: ...", 1, "A")) == ()
    assert used_by(Text("class A: ...", 1, "A", "class A(:")) == ()
    loop = "class A:\n    def f(self): return B()\nclass B:\n    def f(self): return A(), B()\n"
    assert [part.name for part in used_by(text_of(loop, "A"))] == ["B"]


def test_a_loop_at_the_top_of_a_file_is_named():
    """A timeout alone does not say where the file hangs."""
    source = "import torch\nx = 0\nwhile True:\n    x += 1\n"
    (report,) = check_source(source, "loop.py", limits=Limits(seconds=2))
    (found,) = report.findings
    assert (report.verdict, found.line in (3, 4), found.evidence) == ("error", True, "")
    assert "It timed out at import: it was still running after 1.8 s" in found.says
    assert found.says.endswith(
        "Code at the top level of the file may be training, or waiting for something."
    )
    assert 'if __name__ == "__main__":' in found.fix


HANGS = """
import time
from torch import nn

class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        while len(x) > 0:
            time.sleep(0.1)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / x.shape[-1] ** 0.5
        return scores.softmax(-1) @ self.v(x)
"""


@pytest.mark.parametrize(
    ("most", "verdict"), [(0, "error"), pytest.param(6, "unsure", marks=pytest.mark.slow)]
)
def test_the_line_of_a_pass_that_hangs_is_named(most, verdict):
    source = HANGS.replace("> 0", f"> {most}")
    (report,) = check_source(source, "hangs.py", limits=Limits(seconds=3))
    assert report.verdict == verdict
    assert report.findings[0].line in (11, 12)
    if verdict == "error":
        assert "It timed out at forward: it was still running after 2.7 s" in str(report)


def test_a_question_at_the_top_of_a_file_is_named():
    (report,) = check_source("n = int(input('heads? '))\n", "asks.py")
    (found,) = report.findings
    assert (report.verdict, found.line, found.evidence) == ("error", 1, "")  # the note says it
    assert found.says.endswith("EOFError: EOF when reading a line. Nobody answers input() here.")
    assert 'if __name__ == "__main__":' in found.fix


@pytest.mark.parametrize(
    ("how", "causal"),
    [
        ("if mask is None:\n            mask = self.future(x)", "yes"),
        ("if mask == 'causal':\n            mask = self.future(x)", "no"),
        ("pass", "no"),
    ],
)
def test_a_mask_that_is_made_for_the_caller_makes_no_class_causal(how, causal):
    source = (
        "class Attention:\n"
        "    def future(self, x):\n        return torch.ones(9, 9).tril()\n\n"
        f"    def forward(self, x, mask=None):\n        {how}\n        return x\n"
    )
    info = ClassInfo("Attention", 1, 7, False, (), (), (), ())
    text = Text(source, 1, "Attention", source)
    assert expects_causal(text, info, takes_mask=True) == causal
