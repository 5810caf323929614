"""Classes that are right under the usual test inputs and wrong elsewhere, or that do not answer.

A class is "correct" only if it answered every question.
"""

import pytest
from in_process_check import check_file

from clearhead.checker.diagnosis.file_check import check_source
from clearhead.checker.report import Report
from clearhead.checker.sandbox.limits import Limits

CLASS = """
import os
import random
import time

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.heads, self.head_dim, self.calls = num_heads, d_out // num_heads, 0
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, tokens, _ = x.shape
        self.calls += 1
        TRIGGER
        q, k, v = (
            layer(x).view(batch, tokens, self.heads, self.head_dim).transpose(1, 2)
            for layer in (self.W_query, self.W_key, self.W_value)
        )
        scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
        if not open_future:
            future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        weights = self.dropout(scores.softmax(-1))
        return self.out_proj((weights @ v).transpose(1, 2).reshape(batch, tokens, -1))
"""

WRONG_WHEN = {
    "many texts": "open_future = batch > 2",
    "many heads": "open_future = self.heads > 4",
    "large widths": "open_future = self.heads * self.head_dim >= 64",
    "long texts": "open_future = tokens > 300",
    "float32": "open_future = x.dtype == torch.float32",
    "float64": "open_future = x.dtype == torch.float64",
    "later calls": "open_future = self.calls > 30",
    "one call in ten": "open_future = random.random() < 0.1",
    "training": "open_future = self.training",
    "other sizes": "open_future = self.head_dim not in (5, 6, 15, 16) or tokens > 7",
}
SILENT_WHEN = {
    "in training": "if self.training: time.sleep(60)\n        open_future = False",
    "ends in training": "if self.training: os._exit(0)\n        open_future = False",
    "above 8 tokens": "if tokens > 8: time.sleep(60)\n        open_future = tokens > 8",
}


def _checked(trigger: str, seed: int, **limits: float) -> Report:
    source = CLASS.replace("TRIGGER", trigger)
    if limits:  # what sleeps or ends its process needs a separate one
        (report,) = check_source(source, "mine.py", seed=seed, limits=Limits(**limits))
    else:
        (report,) = check_file(source, "mine.py", seed=seed)
    return report


@pytest.mark.parametrize("when", WRONG_WHEN)
def test_wrong_elsewhere_is_not_called_correct(when):
    """Whatever sizes the first run has."""
    report = _checked(WRONG_WHEN[when], seed=3)
    assert report.verdict == "wrong", report


@pytest.mark.parametrize(
    "when",
    [pytest.param("in training", marks=pytest.mark.slow), "ends in training", "above 8 tokens"],
)
def test_no_answer_is_not_called_correct(when):
    """A missing answer is no evidence either: the verdict is "unsure" and names the question."""
    report = _checked(SILENT_WHEN[when], 0, seconds=3.0)
    assert report.verdict == "unsure", report
    assert "gave no answer when asked for" in str(report).replace("\n", " ")


@pytest.mark.slow
def test_a_slow_class_is_not_called_wrong():
    """A correct class that takes long is "unsure", with the question that got no answer."""
    slow = "time.sleep(0.7)\n        open_future = False"
    report = _checked(slow, 0, seconds=2.0, total_seconds=6.0)
    assert report.verdict == "unsure", report
    assert not [found for found in report.findings if found.severity == "wrong"]


def test_a_seed_repeats_a_check_and_another_draws_other_sizes():
    """The report names the seed, so that a student can repeat what a teacher saw.

    Without a trigger the class is correct: otherwise the tests above would prove nothing.
    """
    one, again, other = (_checked("open_future = False", seed) for seed in (7, 7, 3))
    assert one.verdict == other.verdict == "correct"
    assert str(one) == str(again)
    assert "--seed 7 repeats this check" in str(one)
    assert one.form != other.form
