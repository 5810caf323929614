"""The equality gate: every contestant passes, and planted mistakes are found and not timed."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks import attention, equality
from benchmarks.cases import Case
from benchmarks.contestants import (
    Implementation,
    SdpaAttention,
    contestants_for,
    find,
)

# x-transformers still uses torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

SDPA, OURS = find("separate QKV + SDPA"), find("clearhead")
# No two sizes are equal; 300 × 300 is large enough that ours leaves SDPA for masks it cannot say.
TINY = Case("fused", batch=3, tokens=11, d_model=20, heads=4, direction="forward+backward")
CASES = {
    "forward": replace(TINY, direction="forward"),
    "forward+backward": TINY,
    "float64": replace(TINY, dtype="float64"),
    "bfloat16": replace(TINY, dtype="bfloat16"),
    "dropout": replace(TINY, section="dropout", dropout=0.1),
    "window": replace(TINY, section="window", window=5),
    "padding": replace(TINY, section="padding", padding=4),
    "window, blocked": replace(TINY, section="window", tokens=300, window=37),
    "padding, blocked": replace(TINY, section="padding", tokens=300, padding=75),
    "long": replace(TINY, section="long", direction="forward", tokens=300),
    "long, dropout": replace(TINY, section="long", direction="forward", tokens=300, dropout=0.1),
    "long, backward": replace(TINY, section="long", tokens=300),
    "long, bfloat16": replace(TINY, section="long", tokens=300, dtype="bfloat16"),
}
FAST = attention.Settings(rounds=1, memory=False)


@pytest.mark.parametrize("name", CASES)
def test_every_contestant_passes_the_gate(name):
    case = CASES[name]
    reference = equality.Reference(case)
    for contestant in contestants_for(case):
        assert contestant.installed, contestant.name
        gap = reference.gap(contestant, contestant.module(case))
        assert not isinstance(gap, str), (contestant.name, gap)
        assert gap <= equality.TOLERANCES[case.dtype], contestant.name


class Planted(SdpaAttention):
    """Right, but for one mistake."""

    def __init__(self, source, case, mistake):
        super().__init__(source, case, fused=False)
        self.mistake = mistake

    def forward(self, x):
        order = [1, 0, 2] if self.mistake == "swapped" else [0, 1, 2]
        q, k, v = (
            self.projections[i](x).unflatten(2, (self.heads, -1)).transpose(1, 2) for i in order
        )
        if self.mistake == "detached" or (self.mistake == "dropout gradient" and self.training):
            k = k.detach()
        scale = x.shape[-1] ** -0.5 if self.mistake == "scale" else None
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.mistake != "future", scale=scale
        )
        if "dropout" in self.mistake and self.training:  # the outputs stand in for the weights
            out = F.dropout(out, self.dropout)
        if self.mistake == "dropout" and self.training:
            out = out * (1 - self.dropout)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        return out * math.nan if self.mistake == "nan" else out


def planted(mistake):
    return Implementation(mistake, lambda source, case: Planted(source, case, mistake))


@pytest.mark.parametrize(
    ("name", "mistakes"),
    [
        ("forward+backward", ["none", "scale", "future", "swapped", "detached", "nan"]),
        ("dropout", ["right dropout", "dropout", "dropout gradient"]),
        ("long, backward", ["none", "scale", "future", "swapped", "detached", "nan"]),
        ("long, bfloat16", ["none", "scale", "future", "swapped", "detached", "nan"]),
    ],
)
def test_a_planted_mistake_is_named_and_not_timed(name, mistakes):
    """The first of each list is no mistake, and must pass."""
    wrong = [
        Implementation(
            mistake, lambda source, case, mistake=mistake: Planted(source, case, mistake)
        )
        for mistake in mistakes
    ]
    found = attention.measure_case(CASES[name], FAST, [*wrong, OURS])
    json.dumps(found, allow_nan=False)
    right, *different, ours = found["rows"]
    assert right["status"] == ours["status"] == "timed"
    for row in different:
        assert row["status"] == "different", row
        assert row["note"].startswith("computes something else")
        assert ("standard errors" in row["note"]) == ("dropout" in row["name"])
        assert "median_ms" not in row
    sampled = name.startswith("long")
    assert found["rows_checked"] == (equality.ROWS_CHECKED if sampled else None)


def test_dropout_that_never_drops_is_found():
    case = CASES["dropout"]
    assert equality.dropout_error(planted("none"), case) == math.inf
    assert equality.dropout_error(OURS, case) < equality.MOST_STANDARD_ERRORS


def test_relative_gap_keeps_nan_and_refuses_other_shapes():
    one = torch.tensor([1.0, 4.0])
    assert equality.relative_gap([one], [torch.tensor([1.0, 2.0])]) == 1.0
    assert math.isnan(equality.relative_gap([one, one * math.nan], [one, one]))
    with pytest.raises(ValueError, match=r"expected \(2,\), got \(1,\)"):
        equality.relative_gap([one[:1]], [one])
