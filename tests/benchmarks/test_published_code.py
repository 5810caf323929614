"""The benchmark on published packages: its labels, and its bookkeeping without a network."""

import json
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import published_code
from benchmarks.published_code import Answer, check_all, download, main, measure

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
    assert len({one["package"] for one in labels}) == 50


def test_files_that_are_there_are_not_downloaded(tmp_path):
    (tmp_path / "files" / "owner" / "name").mkdir(parents=True)
    (tmp_path / "files" / "owner" / "name" / "mine.py").write_text(RIGHT)
    labels, output = tmp_path / "labels.json", tmp_path / "found.json"
    labels.write_text(json.dumps([row("owner/name", "mine.py", "RightAttention", "right")]))
    main([str(output), "--labels", str(labels), "--files", str(tmp_path / "files")])
    assert json.loads(output.read_text())["figures"] == {"right": {"correct": 1}}


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


def test_a_class_that_the_file_did_not_judge_is_asked_for_by_name(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("")
    report = {"class": "Odd", "verdict": "correct", "findings": [], "notes": [], "how": ""}
    asked = []

    def answer(target, seconds):
        asked.append(target)
        one = target.endswith(":Odd")
        return Answer({"Odd": report}) if one else Answer(problem="took longer than 150 s")

    monkeypatch.setattr(published_code, "check", answer)
    found = check_all(file, ["Odd", "Other"])
    assert asked == [str(file), f"{file}:Odd", f"{file}:Other"]
    assert (found["Odd"]["verdict"], found["Odd"]["asked"]) == ("correct", "class")
    assert found["Other"]["notes"] == ["took longer than 150 s"]


def test_a_check_that_hangs_ends(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(RIGHT)
    assert published_code.check(str(file), 0.01).problem == "took longer than 0.01 s"


def test_only_the_python_files_of_a_wheel_are_unpacked(tmp_path, monkeypatch):
    def run(command, **options):
        place = Path(command[command.index("--dest") + 1])
        place.mkdir()
        with zipfile.ZipFile(place / "toy-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("toy/mine.py", RIGHT)
            wheel.writestr("toy/weights.bin", "no Python")

    monkeypatch.setattr(subprocess, "run", run)
    place = download("toy", "1.0", tmp_path)
    assert (place / "toy" / "mine.py").read_text() == RIGHT
    assert not (place / "toy" / "weights.bin").exists()


def test_what_pip_says_is_reported(tmp_path, monkeypatch):
    def run(command, **options):
        raise subprocess.CalledProcessError(1, command, "", "ERROR: tries\nERROR: no such version")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(OSError, match=r"toy==1\.0: no such version"):
        download("toy", "1.0", tmp_path)
