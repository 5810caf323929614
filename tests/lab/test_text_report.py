"""What heads do with our own sentences: the report, and the command without a text."""

import json

import pytest
import torch

import clearhead
from clearhead.drawing import plain
from clearhead.lab.text_report import measure_text, rows_of
from clearhead.models import find_model
from clearhead.training.loop import token_loss


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with the vocabulary of the English one."""
    path = tmp_path_factory.mktemp("models") / "little"
    _, tokenizer = clearhead.load("english")
    torch.manual_seed(5)
    sizes = {"vocab_size": 8192, "context_length": 128, "d_model": 12, "num_heads": 3}
    clearhead.GPT2({**sizes, "num_layers": 2, "dropout": 0.0, "qkv_bias": True}).save_pretrained(
        path
    )
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def report(folder):
    shares = []
    found = measure_text(find_model(folder), on_progress=lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    return found


def test_the_report_measures_every_head(report, folder):
    assert len(report.table.rows) == len(report.losses.rows) == 6
    assert all(row.chance["previous"] > 0 for row in report.table.rows)
    model, tokenizer = clearhead.load(folder)
    ids = rows_of(tokenizer)[:8]
    with torch.no_grad(), clearhead.ablate(model, {"blocks.1": [2]}):
        without = token_loss(model, ids[:, :-1], ids[:, 1:]).item()
    assert report.losses.loss + report.losses.rows[-1].rise == pytest.approx(without, abs=1e-4)
    assert len(report.pairs) == 6


def test_the_report_as_text(report):
    text = plain(report.__rich__(), width=80)
    assert "What the heads of little do" in text
    assert "(chance)" in text
    assert "480 pairs such as" in text
    assert "agreement across a clause" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_command_without_a_text(folder, command_line):
    status, out, err = command_line("heads", "--model", folder, "--json")
    assert status == 0
    assert err.startswith("Measuring 6 heads of little, each removed once: ")
    assert err.count("\n") == 1
    found = json.loads(out)
    assert (found["schema"], found["model"], len(found["heads"])) == (1, "little", 6)
    assert {pair["kind"] for pair in found["pairs"]} >= {"agreement", "reflexive, number"}
    assert len(found["ablation"]["heads"]) == 6
