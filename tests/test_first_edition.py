"""Files that users of version 0.1.0 have on disk still load, and give the same numbers.

The files are in `tests/data/first_edition`; the README there says how each was written. Only public
names and the command line are used here, so that this file need not change when modules move.
"""

import csv
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file

import clearhead
from clearhead.parallel import load_checkpoint

DATA = Path(__file__).parent / "data" / "first_edition"
SIZES = {"d_in": 5, "d_out": 24, "context_length": 11, "dropout": 0.0, "num_heads": 6}
GPT2 = {
    "vocab_size": 97,
    "context_length": 16,
    "d_model": 12,
    "num_heads": 3,
    "num_layers": 2,
    "dropout": 0.0,
    "qkv_bias": True,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files to work in: paths in them are relative, and some commands write."""
    folder = tmp_path / "first_edition"
    shutil.copytree(DATA, folder)
    monkeypatch.chdir(folder)
    return folder


def start(arguments: str) -> subprocess.Popen[str]:
    """Start Python with one thread, as when the files were written."""
    return subprocess.Popen(
        [sys.executable, *arguments.split()],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Attention modules.


def attention_module(name: str) -> torch.nn.Module:
    if name == "ladder":
        return clearhead.ladder.MultiHeadAttention(**SIZES)
    if name == "grouped":
        rope = clearhead.Rope(base=500.0)
        return clearhead.MultiHeadAttention(**SIZES, num_kv_heads=2, qk_norm=True, rope=rope)
    return clearhead.MultiHeadAttention(**SIZES, qkv_bias=name == "bias")


def check_attention(module: torch.nn.Module, state: dict[str, torch.Tensor], name: str) -> None:
    expected = load_file(DATA / "attention" / "expected.safetensors")
    module.load_state_dict(state)
    torch.testing.assert_close(module.double().eval()(expected["x"]), expected[name])


@pytest.mark.parametrize("name", ["plain", "bias", "grouped", "ladder"])
def test_attention_loads_its_state_dict(name):
    module = attention_module(name)
    state = load_file(DATA / "attention" / f"{name}.safetensors")
    assert state.keys() == module.state_dict().keys()
    check_attention(module, state, name)


@pytest.mark.parametrize("name", ["plain", "ladder"])
def test_both_modules_load_the_books_pth_with_its_mask(name):
    state = torch.load(DATA / "attention" / "ladder.pth", weights_only=True)
    assert "mask" in state
    check_attention(attention_module(name), state, "ladder")


# GPT-2.


@pytest.mark.parametrize("name", ["pretrained", "rotary"])
def test_gpt2_loads_a_saved_folder(name):
    expected = load_file(DATA / "gpt2" / "expected.safetensors")
    model = clearhead.GPT2.from_pretrained(DATA / "gpt2" / name, dtype=torch.float64)
    torch.testing.assert_close(model(expected["ids"]), expected[name])


def test_gpt2_loads_a_saved_state_dict():
    expected = load_file(DATA / "gpt2" / "expected.safetensors")
    file = DATA / "gpt2" / "untied.pth"
    by_name = clearhead.GPT2.from_pretrained(file, num_heads=3, dtype=torch.float64)
    by_hand = clearhead.GPT2(GPT2, tied=False)
    by_hand.load_state_dict(torch.load(file, weights_only=True))
    for model in (by_name, by_hand.double().eval()):
        torch.testing.assert_close(model(expected["ids"]), expected["untied"])


# Recorded attention.


def test_seen_loads_the_maps_of_a_gpt2():
    expected = load_file(DATA / "seen" / "expected.safetensors")
    seen = clearhead.Seen.load(DATA / "seen" / "gpt2.safetensors")
    assert seen.layers == ["blocks.0.attention", "blocks.1.attention"]
    assert [call.step for call in seen.calls] == [0, 0, 1, 1]
    first, padded = seen["blocks.1.attention", 0], seen["blocks.1.attention", 1]
    torch.testing.assert_close(first[1, 2, 3:6, 1:5], expected["first"])
    torch.testing.assert_close(padded[0, 2, 3:6, 1:5], expected["padded"])


def test_seen_loads_every_kind_of_mask():
    expected = load_file(DATA / "seen" / "expected.safetensors")
    seen = clearhead.Seen.load(DATA / "seen" / "masks.safetensors")
    weights = seen["MultiHeadAttention"]
    torch.testing.assert_close(weights[0, 4, 2:5, 0:5], expected["masks"])


# Training runs.


def test_lab_loads_a_finished_run():
    expected = load_file(DATA / "train" / "expected.safetensors")
    model, words = clearhead.lab.load(DATA / "train" / "finished")
    assert words.encode("the cat sat on the mat") == expected["ids"][0].tolist()
    torch.testing.assert_close(model(expected["ids"]), expected["logits"], rtol=1e-4, atol=1e-5)


def test_train_resumes_an_interrupted_run(here, command_line, monkeypatch):
    """It takes the ten steps that are left; the losses are those of a run without interruption."""

    def stop(folder):
        raise KeyboardInterrupt

    # The model is written before its heads are measured, which takes long and is not needed here.
    monkeypatch.setattr("clearhead.lab.seed_runs.measure_heads", stop)
    expected = load_file("train/expected.safetensors")
    folder = here / "train" / "interrupted" / "seed-0"
    resume = ("train", "--steps", "110", "--out", "train/interrupted", "--resume")
    _, _, errors = command_line(*resume)
    assert (folder / "model.safetensors").exists(), errors
    losses = load_file(folder / "checkpoint.safetensors")["curve.loss"]
    torch.testing.assert_close(losses[:100], expected["losses"][:100], rtol=0, atol=0)
    torch.testing.assert_close(losses, expected["losses"], rtol=1e-3, atol=0)
    model, _ = clearhead.lab.load(folder)
    torch.testing.assert_close(model(expected["ids"]), expected["logits"], rtol=1e-2, atol=1e-2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the checkpoint holds a POSIX path")
def test_torchrun_resumes_with_another_number_of_processes(here):
    """Two processes wrote the checkpoint of step 2; one takes the two steps that are left."""
    expected = load_file("distributed/expected.safetensors")
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 1"
    run = start(f"{launcher} -m clearhead.lab.train --steps 4 --every 2 --out distributed/lab")
    output, errors = run.communicate()
    assert run.returncode == 0, errors
    assert "step 2 of 4" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("step 4 of 4: loss ")]
    assert float(line.split()[-1]) == pytest.approx(expected["lab_loss"].item(), rel=1e-3)
    model, _ = clearhead.lab.load("distributed/lab/model.safetensors")
    assert len(model.blocks) == 3


@pytest.fixture
def one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    meeting = f"file://{tmp_path}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(sys.platform == "win32", reason="the checkpoint holds a POSIX path")
@pytest.mark.usefixtures("one_process")
def test_one_process_loads_the_sharded_checkpoint_of_two():
    expected = load_file(DATA / "distributed" / "expected.safetensors")
    ids = expected["ids"]
    model = clearhead.GPT2({**GPT2, "num_layers": 1}).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)  # 0.01 is in the checkpoint
    assert load_checkpoint(DATA / "distributed" / "sharded", model, optimizer) == 3
    torch.testing.assert_close(model(ids), expected["before"])
    optimizer.zero_grad()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    torch.testing.assert_close(model(ids), expected["after"])


# Marks.


def read_rows(file: str) -> list[dict[str, str]]:
    with Path(file).open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_check_resumes_a_file_of_marks(here, command_line):
    before = read_rows("check/marks.csv")
    assert [row["file"] for row in before] == ["anna.py", "cleo.py"]
    status, _, errors = command_line("check", "check/submissions", "--csv", "check/marks.csv")
    assert status == 1, errors
    after, expected = read_rows("check/marks.csv"), read_rows("check/whole.csv")
    # Another version judges every file again.
    stable = ("file", "class", "verdict", "findings", "severities", "places", "sha256")
    assert set(after[0]) >= set(expected[0])  # new columns break no program
    assert [[row[k] for k in stable] for row in after] == [
        [row[k] for k in stable] for row in expected
    ]


# JSON for programs.

# Text may be reworded. Under these keys it is an identifier that programs compare.
IDENTIFIERS = {
    *("class", "id", "name", "severity", "verdict"),
    *("layer", "number", "relation", "tokenizer", "tokens", "variant"),
}
# These describe the machine, the moment and the version.
NOT_COMPARED = {"date", "machine", "versions", "commit", "seconds"}


def compare(found: object, expected: object, where: str = "$", key: str = "") -> None:
    """Raise unless every value is there, with its type; numbers and identifiers must be equal.

    New keys are allowed: they break no program.
    """
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        assert expected.keys() <= found.keys(), f"{where}: {expected.keys() - found.keys()} missing"
        for name in expected.keys() - NOT_COMPARED:
            compare(found[name], expected[name], f"{where}.{name}", name)
    elif isinstance(expected, list):
        assert isinstance(found, list), where
        assert len(found) == len(expected), where
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            compare(one, other, f"{where}[{index}]", key)
    elif isinstance(expected, float):
        assert isinstance(found, float), where
        assert math.isclose(found, expected, rel_tol=1e-3, abs_tol=1e-5), (
            f"{where}: expected {expected}, got {found}"
        )
    else:
        assert type(found) is type(expected), where
        if not isinstance(expected, str) or key in IDENTIFIERS:
            assert found == expected, where


COMMANDS = {
    "explain-book": ["explain"],
    "explain-untrained": ["explain", "the cat sat", "--untrained"],
    "explain-model": ["explain", "the cat sat", "--model", "train/finished"],
    "explain-step": ["explain", "the cat sat", "--model", "train/finished", "--step", "4c"],
    "heads-text": ["heads", "the cat sat on the mat", "--model", "train/finished"],
    "heads-relations": [
        *("heads", "--relations", "--model", "train/finished", "--sentences", "8"),
    ],
    "claims": ["claims", "journey-weights", "mask-after-softmax", "--quick"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_json_has_the_same_structure_and_numbers(name, here, command_line):
    status, output, errors = command_line(*COMMANDS[name], "--json")
    assert status == 0, errors
    compare(json.loads(output), json.loads((here / "json" / f"{name}.json").read_text()))


@pytest.mark.parametrize("name", ["book", "untrained", "model"])
@pytest.mark.usefixtures("here")
def test_programs_that_explain_wrote_still_run(name):
    """The JSON holds the Python of each step: users keep it in scripts and notebooks."""
    found = json.loads(Path(f"json/explain-{name}.json").read_text())
    names: dict[str, object] = {}
    try:
        exec("\n".join([found["setup"], *(step["code"] for step in found["steps"])]), names)
    finally:
        torch.set_grad_enabled(True)
    ((result, expected),) = found["steps"][-1]["tensors"].items()
    values = torch.tensor(expected["values"])
    torch.testing.assert_close(names[result], values, rtol=1e-4, atol=1e-5)


def test_check_prints_the_same_json_lines(here, command_line):
    status, output, errors = command_line("check", "check/submissions", "--json")
    assert status == 1, errors
    found = [json.loads(line) for line in output.splitlines()]
    lines = (here / "json" / "check.jsonl").read_text().splitlines()
    expected = [json.loads(line) for line in lines]
    assert [report["file"] for report in found] == ["anna.py", "ben.py", "cleo.py"]
    compare(found, expected)


def test_claims_shows_and_resumes_an_earlier_file(here, command_line):
    expected = json.loads(Path("json/claims.json").read_text())
    status, output, errors = command_line("claims", "--from", "json/claims.json", "--json")
    assert status == 0, errors
    assert json.loads(output) == expected
    resume = ["claims", "rows-sum-to-one", "--quick", "--out", "json/claims.json", "--resume"]
    status, _, errors = command_line(*resume)
    assert status == 0, errors
    first, *earlier = json.loads(Path("json/claims.json").read_text())["claims"]
    assert first["name"] == "rows-sum-to-one"
    assert earlier == expected["claims"]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["x"]["values"][0].__setitem__(0, 0.5),
        lambda found: found["steps"][0].pop("tensors"),
        lambda found: found.update(schema="1"),
        lambda found: found.update(tokens=["other", *found["tokens"][1:]]),
    ],
    ids=["number", "key", "type", "identifier"],
)
def test_the_comparison_of_json_can_fail(change):
    text = (DATA / "json" / "explain-book.json").read_text()
    found = json.loads(text)
    compare(found, json.loads(text))
    change(found)
    with pytest.raises(AssertionError, match=r"\$"):
        compare(found, json.loads(text))


def test_the_paths_in_pickles_of_whole_models_exist():
    """`torch.save(model)` of 0.1.0 stores these; state dicts are the supported way."""
    from clearhead.gpt2 import model

    assert model.GPT2 is clearhead.GPT2
    assert model.TransformerBlock is clearhead.TransformerBlock
    assert model.FeedForward is clearhead.FeedForward
