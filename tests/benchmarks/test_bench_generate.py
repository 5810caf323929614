"""The generation benchmark: who takes part, what counts as equal, and the floor."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.app import app
from typer.testing import CliRunner

from benchmarks import generate as bench
from clearhead import configs
from clearhead.configs import GPT2Config
from clearhead.gpt2 import GPT2

TINY: GPT2Config = {
    "vocab_size": 101,
    "context_length": 48,
    "d_model": 24,
    "num_heads": 3,
    "num_layers": 2,
    "dropout": 0.1,
    "qkv_bias": True,
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small GPT-2 becomes a tiny one, and the memory is not measured."""
    monkeypatch.setitem(configs._ALL, "gpt2-small", TINY)
    monkeypatch.setattr(bench, "bandwidth", lambda device: 1e9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_take_part_and_write_the_same(dtype: str) -> None:
    settings = bench.Settings(batches=[1, 2], dtype=dtype, tokens=5, rounds=2, prefill=40)
    found = json.loads(json.dumps(bench.measure(settings), allow_nan=False))
    assert found["schema"] == 1
    assert (found["benchmark"], found["dtype"]) == ("generate", dtype)
    assert [case["batch"] for case in found["cases"]] == [1, 2]
    for case in found["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        assert list(rows) == ["clearhead", "Hugging Face", "no cache"]
        for row in rows.values():
            assert row["status"] == "timed"
            assert row["tokens_per_second"] > 0
            equal, total = row["tokens_equal_to_hugging_face"]
            assert total == 5 * case["batch"]
            assert equal == total or dtype == "bfloat16"
    assert [row["status"] for row in found["prefill"]["rows"]] == ["timed", "timed"]
    lines = "\n".join(bench.draw(found))
    assert "floor at batch 1" in lines
    assert "x our time" in lines
    assert "prefill of 40 tokens" in lines


@pytest.mark.parametrize(("dtype", "words"), [("float32", "of 5 tokens"), ("bfloat16", "off by")])
def test_who_writes_something_else_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, dtype: str, words: str
) -> None:
    generate = GPT2.generate

    def wrong(self: GPT2, ids: Any, new: int, *, cache: bool = True) -> Any:
        found = generate(self, ids, new, cache=cache)
        if cache:
            found[0, -2] = (found[0, -2] + 50) % 101
        return found

    monkeypatch.setattr(GPT2, "generate", wrong)
    settings = bench.Settings(batches=[1], dtype=dtype, tokens=5, rounds=1, prefill=0)
    found = bench.measure(settings)
    rows = {row["name"]: row for row in found["cases"][0]["rows"]}
    assert rows["clearhead"]["status"] == "different"
    assert words in rows["clearhead"]["note"]
    assert rows["no cache"]["status"] == "timed"
    assert any("computes something else" in line for line in bench.draw(found))


def test_without_transformers_ours_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_hugging_face", lambda ours: None)
    settings = bench.Settings(batches=[1], tokens=5, rounds=1, prefill=40)
    found = bench.measure(settings)
    rows = {row["name"]: row for row in found["cases"][0]["rows"]}
    assert rows["clearhead"]["status"] == "timed"
    assert rows["Hugging Face"]["note"] == "transformers is not installed"
    assert found["prefill"]["rows"][1]["status"] == "not run"


def test_equality_ends_at_the_first_other_token() -> None:
    one = torch.zeros(2, bench._PROMPT + 4, dtype=torch.long)
    other = one.clone()
    other[0, -3] = 1
    assert bench._equal(one, other) == 1 + 4


def test_the_bytes_that_a_token_needs() -> None:
    model = GPT2(TINY)
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert bench.weight_bytes(model) == 4 * (whole - 48 * 24)
    untied = GPT2(TINY, tied=False).double()
    assert bench.weight_bytes(untied) == 8 * (whole - 48 * 24)


def test_bandwidth_is_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 1e8 < bench.bandwidth("cpu", runs=1) < 1e13


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    words = ["generate", "--batch", "1", "--tokens", "3", "--rounds", "1", "--prefill", "0"]
    words.append("--out")
    result = CliRunner().invoke(app, [*words, str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert json.loads(result.output.splitlines()[-1]) == found
    assert found["tokens"] == 3
    refused = CliRunner().invoke(app, [*words, str(tmp_path)])
    assert isinstance(refused.exception, IsADirectoryError)
    assert "--out" in str(refused.exception)
    long = CliRunner().invoke(app, ["generate", "--tokens", "17", "--prefill", "0"])
    assert "do not fit into the context of 48" in str(long.exception)
