"""Lengths as arguments of forward, and literals that look like typing errors."""

import pytest
from in_process_check import check, ids

SOURCE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.qkv, self.o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, lengths=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / (d // self.h) ** 0.5
        if lengths is not None:
            seen = torch.arange(n)[None] < lengths[:, None]
            s = s.masked_fill(~seen[:, None, None], -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_right_lengths_are_right():
    assert check(SOURCE).verdict == "correct"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[None] < lengths", "[None] <= lengths"),
        ("~seen[:, None, None]", "~seen[:, None, :, None]"),
        ("-torch.inf", "1e-6"),
    ],
)
def test_padding_that_is_seen_is_found(old, new):
    report = check(SOURCE.replace(old, new))
    assert report.verdict == "wrong"
    assert "padding-not-hidden" in ids(report)
    found = next(one for one in report.findings if one.id == "padding-not-hidden")
    assert "With lengths = [7, 5] for 7 tokens, changing tokens beyond the length" in found.evidence
    assert "seen" in SOURCE.splitlines()[(found.line or 1) - 1]


def test_lengths_of_another_text_are_found():
    report = check(SOURCE.replace("lengths[:, None]", "lengths.flip(0)[:, None]"))
    assert "padding-in-other-texts" in ids(report)


def test_a_literal_that_looks_like_a_typing_error_is_quoted():
    source = SOURCE.replace("lengths=None", "mask").replace("if lengths is not None:", "if True:")
    source = source.replace("seen = torch.arange(n)[None] < lengths[:, None]", "pass")
    source = source.replace("~seen[:, None, None], -torch.inf", "mask == 0, -1e-9")
    report = check(source)
    (found,) = (one for one in report.findings if one.id == "mask-fill-not-inf")
    assert found.evidence.endswith("You wrote -1e-9; -1e9 was probably meant.")


def test_lengths_are_known_by_what_they_do():
    source = SOURCE.replace("lengths", "real")
    assert check(source).verdict == "correct"
    assert "padding-not-hidden" in ids(check(source.replace("[None] < real", "[None] <= real")))


def test_lengths_that_are_kept_for_the_next_call_are_found():
    kept = "self.last = lengths = self.last if lengths is None else lengths\n        if lengths is"
    source = SOURCE.replace("if lengths is", kept)
    source = source.replace("self.h = num_heads", "self.h, self.last = num_heads, None")
    report = check(source)
    assert (report.verdict, ids(report)) == ("wrong", {"depends-on-earlier-call"})
