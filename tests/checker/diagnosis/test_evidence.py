"""Each finding has its own evidence, in readable sentences."""

import in_process_check
import pytest
from planted_mistakes import PLANTED, edited, planted

TWO = edited(planted("mask-result-dropped", "book"), PLANTED["missing-scale"]["book"])


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


def test_a_failure_is_told_by_the_first_line_of_its_message():
    """And not by the signatures that torch lists after it."""
    masked = [
        ("(self, x)", "(self, x, mask=None)"),
        ("scores.masked_fill(future, -torch.inf)", "scores = scores.masked_fill(mask == 0, -1e9)"),
    ]
    found = {one.id: one for one in in_process_check.check(edited(TWO, masked)).findings}
    assert "invalid combination" in found["default-mask-fails"].evidence
    assert found["default-mask-fails"].evidence.endswith("(bool, float)")
