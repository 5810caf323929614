"""The benchmark on published packages: its labels, and its bookkeeping without a network."""

import json
from collections import Counter

import pytest

from benchmarks import published_code
from benchmarks.published_code import measure

RIGHT = """
import torch
from torch import nn

class RightAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        scores = self.W_query(x) @ self.W_key(x).transpose(-2, -1)
        return (scores / self.W_key(x).shape[-1] ** 0.5).softmax(dim=-1) @ self.W_value(x)
"""
WRONG = RIGHT.replace("RightAttention", "WrongAttention").replace(
    " / self.W_key(x).shape[-1] ** 0.5", ""
)
LABELLED = {"package", "version", "file", "class", "label", "why"}


def row(package, file, name, label):
    return {
        "package": package,
        "version": "1.0",
        "file": file,
        "class": name,
        "label": label,
        "why": "said here",
    }


def fetch(package, version, folder):
    """What `download` does, for two packages that exist here only."""
    if package == "gone":
        raise OSError("gone==1.0: no matching distribution found")
    place = folder / package
    place.mkdir()
    (place / "mine.py").write_text(RIGHT + WRONG)
    return place


def test_every_class_is_labelled_once_and_with_a_reason():
    labels = json.loads(published_code.LABELS.read_text(encoding="utf-8"))
    assert all(set(one) == LABELLED and one["why"] for one in labels)
    assert {one["label"] for one in labels} == {"right", "wrong", "unusual"}
    assert len({(one["package"], one["file"], one["class"]) for one in labels}) == len(labels)
    assert max(Counter(one["package"] for one in labels).values()) <= 6
    assert len({one["package"] for one in labels}) >= 45


def test_every_class_of_a_repository_is_labelled_once_and_with_a_reason():
    text = published_code.LABELS.with_name("repository_code.json").read_text(encoding="utf-8")
    labels = json.loads(text)
    assert all(set(one) >= LABELLED and one["why"] for one in labels)
    assert {one["label"] for one in labels} == {"right", "wrong", "unusual"}
    assert len({(one["package"], one["file"], one["class"]) for one in labels}) == len(labels)
    assert len({one["package"] for one in labels}) == 239


@pytest.mark.slow
def test_verdicts_are_counted_by_label():
    labels = [
        row("toy", "mine.py", "RightAttention", "right"),
        row("toy", "mine.py", "WrongAttention", "wrong"),
        row("toy", "mine.py", "MissingAttention", "right"),
        row("toy", "another.py", "RightAttention", "right"),
        row("toy", None, "RightAttention", "right"),
        row("gone", "mine.py", "RightAttention", "unusual"),
    ]
    found = measure(labels, 2, fetch=fetch)
    verdicts = [one["verdict"] for one in found["classes"]]
    nowhere = "not in the package"
    assert verdicts == ["correct", "wrong", "no report", nowhere, nowhere, "not downloaded"]
    assert [one["id"] for one in found["classes"][1]["findings"]] == ["missing-scale"]
    assert "no class MissingAttention" in found["classes"][2]["notes"][0]
    assert found["not_downloaded"] == {"gone": "gone==1.0: no matching distribution found"}
    assert found["figures"]["wrong"] == {"wrong": 1}
    assert found["packages"] == 2
    assert json.loads(json.dumps(found)) == found


def test_a_check_that_hangs_ends(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(RIGHT)
    assert published_code.check(str(file), 0.01).problem == "took longer than 0.01 s"
