"""Code whose steps cannot be recorded is compared with the standard formula of attention."""

import pytest
from in_process_check import check

SLOW = pytest.mark.slow

LOOPS = """
import math
import numpy as np

def dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total = total + a[i] * b[i]
    return total

class SlowAttention:
    '''Causal attention, one number after the other.'''

    def __init__(self, d_in, d_out):
        draw = np.random.default_rng(3)
        self.W_q, self.W_k, self.W_v = (draw.normal(size=(d_in, d_out)) for _ in range(3))

    def __call__(self, tokens):
        q = [t @ self.W_q for t in tokens]
        k = [t @ self.W_k for t in tokens]
        v = [t @ self.W_v for t in tokens]
        rows = []
        for i in range(len(tokens)):
            scores = [dot(q[i], k[j]) / math.sqrt(len(k[j])) for j in range(i + 1)]
            weights = [math.exp(s - max(scores)) for s in scores]
            total = sum(weights)
            rows.append(sum(w / total * v[j] for j, w in enumerate(weights)))
        return np.array(rows)
"""


@SLOW  # harness/test_adapter_templates.py has a quicker class that the formula proves right
def test_loops_over_single_numbers_are_compared_with_the_formula():
    report = check(LOOPS)
    assert report.verdict == "correct", report
    assert report.tested.startswith("tested against the formula")
    assert (report.form.heads, report.form.causal) == (1, "yes")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" / math.sqrt(len(k[j]))", ""),
        pytest.param("math.sqrt(len(k[j]))", "len(k[j])", marks=SLOW),
        pytest.param("range(i + 1)]", "range(i + 1 if i != 4 else i)]", marks=SLOW),
        pytest.param("w / total", "w / (total + 0.1)", marks=SLOW),
        pytest.param("* v[j] for", "* k[j] for", marks=SLOW),
        pytest.param("range(len(a))", "range(1, len(a))", marks=SLOW),
    ],
)
def test_loops_that_compute_something_else_are_not_correct(old, new):
    assert old in LOOPS
    assert check(LOOPS.replace(old, new)).verdict != "correct"


@SLOW
def test_heads_in_loops_with_an_output_projection():
    output = "self.W_o = np.random.default_rng(4).normal(size=(d_out, d_out))"
    source = LOOPS.replace("d_in, d_out):", "d_in, d_out, n_heads):").replace(
        "        draw", f"        self.n = n_heads\n        {output}\n        draw"
    )
    start = source.index("        rows = []")
    source = (
        source[:start]
        + """        heads = []
        size = self.W_q.shape[1] // self.n
        for h in range(self.n):
            cut = slice(h * size, (h + 1) * size)
            rows = []
            for i in range(len(tokens)):
                scores = [dot(q[i][cut], k[j][cut]) / math.sqrt(size) for j in range(i + 1)]
                weights = [math.exp(s) for s in scores]
                total = sum(weights)
                rows.append(sum(w / total * v[j][cut] for j, w in enumerate(weights)))
            heads.append(np.array(rows))
        return np.concatenate(heads, axis=1) @ self.W_o
"""
    )
    report = check(source)
    assert (report.verdict, report.form.heads) == ("correct", 3), report
    side_by_side = "np.stack(heads, 2).reshape(len(tokens), -1)"
    swapped = source.replace("np.concatenate(heads, axis=1)", side_by_side)
    assert check(swapped).verdict != "correct"


TALKING = """
import torch
from torch import nn


class TalkingHeads(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.proj_l, self.proj_w = (nn.Linear(num_heads, num_heads) for _ in range(2))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.proj_l((q @ k.mT / q.shape[-1] ** 0.5).movedim(1, -1))
        weights = self.proj_w(scores.softmax(2)).movedim(-1, 1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))
"""


def test_several_layers_of_one_role_are_no_parts_of_a_projection():
    """And where a layer mixes the heads' weights, a row need not sum to one."""
    report = check(TALKING)
    assert (report.verdict, report.findings[0].id) == ("unsure", "unsure"), report
    assert "all tested properties" in report.findings[0].evidence
