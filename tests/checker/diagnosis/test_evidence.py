"""Each finding has its own evidence, in readable sentences."""

import in_process_check
import pytest

TWO = """\
import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out)
        self.W_key = nn.Linear(d_in, d_out)
        self.W_value = nn.Linear(d_in, d_out)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), 1))

    def forward(self, x):
        n = x.shape[1]
        scores = self.W_query(x) @ self.W_key(x).transpose(1, 2)
        scores.masked_fill(self.mask.bool()[:n, :n], -torch.inf)
        return scores.softmax(dim=-1) @ self.W_value(x)
"""


@pytest.fixture(scope="module")
def evidence() -> dict[str, str]:
    return {found.id: found.evidence for found in in_process_check.check(TWO).findings}


def test_two_mistakes_have_their_own_evidence(evidence):
    assert evidence.keys() == {"mask-result-dropped", "missing-scale"}
    assert "masked_fill is never used" in evidence["mask-result-dropped"]
    assert "masked_fill" not in evidence["missing-scale"]


def test_a_leak_is_evidence_for_the_mask_and_not_for_the_scale(evidence):
    """Which output a later token changes says nothing about the scale."""
    assert "Changing token" in evidence["mask-result-dropped"]
    assert "Changing token" not in evidence["missing-scale"]
    assert "The scale is 1 instead of" in evidence["missing-scale"]
