"""Each benchmark runs from its command line and refuses wrong settings; `python -m benchmarks`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import chromium
import gpt2_others
from benchmarks import __main__ as run_all
from benchmarks import attention, command, generate, maps, view, watch
from clearhead.gpt2 import GPT2

# x-transformers still uses torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

ROOT = Path(__file__).parents[2]
TINY = {**gpt2_others.TINY, "vocab_size": 101, "context_length": 48, "d_model": 24, "dropout": 0.1}
SCHEMA = {"schema", "benchmark", "date", "machine", "versions", "commit"}


def say(text):
    pass


@pytest.fixture
def _tiny_model(monkeypatch):
    """GPT-2 small becomes a tiny model, and memory bandwidth is not measured."""
    monkeypatch.setattr(generate, "find_config", lambda size: dict(TINY))
    monkeypatch.setattr(watch, "find_config", lambda size: dict(TINY))
    monkeypatch.setattr(generate, "bandwidth", lambda device: 1e9)


COMMANDS = {
    "attention": (attention.main, ["--only", "window", "padding"], "x our time"),
    "maps": (maps.main, [], "x the forward pass"),
    "generate": (generate.main, [], "tokens per second"),
    "watch": (watch.main, [], "times that"),
    "view": (view.main, [], "first picture after"),
}


@pytest.mark.usefixtures("_tiny_model")
@pytest.mark.parametrize("name", COMMANDS)
def test_command_prints_and_writes_the_results(name, tmp_path, capsys):
    main, options, words = COMMANDS[name]
    out = tmp_path / "found.json"
    main([*options, "--quick", "--out", str(out)])
    assert words in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert SCHEMA | {"device", "dtype", "settings", "command"} <= found.keys()
    assert (found["schema"], found["benchmark"]) == (1, name)
    assert found["command"].startswith(f"python -m benchmarks.{name} ")
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["versions"]["torch"] == torch.__version__
    for case in found.get("cases", ()):
        for row in case.get("rows", ()):
            assert row["status"] == "timed", row


@pytest.mark.slow
@pytest.mark.skipif(chromium.find() is None, reason="no Chromium is installed")
def test_play_is_measured_in_a_browser(tmp_path):
    """In a process of its own: the tests of pages already hold a browser in this one."""
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.play", "--quick", "--out", str(out)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "8 tokens, one more word" in ran.stdout
    found = json.loads(out.read_text())
    assert SCHEMA | {"bytes", "chromium", "ready_ms"} <= found.keys()
    case = found["cases"][0]
    assert case["new text"]["computed"] == 8
    assert case["one more word"]["computed"] == 1


@pytest.mark.parametrize(
    ("main", "options", "message"),
    [
        (attention.main, "--shape 8,1024,768", "expected batch,tokens,d_model,heads"),
        (attention.main, "--shape 1,8,10,3", "heads dividing d_model, got 1,8,10,3"),
        (attention.main, "--only fast", "invalid choice: 'fast'"),
        (attention.main, "--rounds 0", "expected a whole number above 0"),
        (maps.main, "--dense", "needs --device cuda"),
        (maps.main, "--out none/a.json", "there is no folder none"),
        (maps.main, "--out .", "expected the name of a file"),
        (generate.main, "--tokens 1000", "exceed the context of 1024"),
        (generate.main, "--size gpt3", "invalid choice: 'gpt3'"),
        (view.main, "--dtype bfloat16", "only cpu and float32 are supported"),
        (run_all.main, "--only speed --list", "expected parts among sweep-float32"),
        (run_all.main, "--quick", "choose another folder with --out"),
        (run_all.main, f"--out {__file__}", "expected a folder"),
    ],
)
def test_wrong_options_are_explained(main, options, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(options.split())
    assert end.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("main", [maps.main, run_all.main])
def test_cuda_where_there_is_none(main, capsys):
    with pytest.raises(SystemExit):
        main(["--device", "cuda"])
    assert "torch finds no CUDA device" in capsys.readouterr().err


# Generation.


@pytest.mark.usefixtures("_tiny_model")
@pytest.mark.parametrize(("dtype", "words"), [("float32", "of 5 tokens"), ("bfloat16", "off by")])
def test_generation_that_differs_is_not_timed(monkeypatch, dtype, words):
    settings = generate.Settings(batch=(1,), dtype=dtype, tokens=5, rounds=1, prefill=0)
    rows = generate.measure(settings, say)["cases"][0]["rows"]
    assert {row["status"] for row in rows} == {"timed"}
    right = GPT2.generate

    def wrong(self, ids, new, *, cache=True):
        found = right(self, ids, new, cache=cache)
        if cache:
            found[0, -2] = (found[0, -2] + 50) % 101
        return found

    monkeypatch.setattr(GPT2, "generate", wrong)
    found = generate.measure(settings, say)
    ours, theirs, plain = found["cases"][0]["rows"]
    assert ours["status"] == "different"
    assert words in ours["note"]
    assert theirs["status"] == plain["status"] == "timed"
    assert any("computes something else" in line for line in generate.lines(found))


@pytest.mark.usefixtures("_tiny_model")
def test_watch_that_changes_the_output_is_not_timed(monkeypatch):
    class Changing:
        def __init__(self, model):
            self.norm = model.ln_f

        def __enter__(self):
            self.norm.bias.data += 1

        def __exit__(self, *_):
            self.norm.bias.data -= 1

    monkeypatch.setattr(watch, "watch", Changing)
    found = watch.measure(watch.Settings(shape=((1, 8),), rounds=1, layers=1), say)
    case = found["cases"][0]
    assert not case["equal_bit_for_bit"]
    assert case["watched_over_plain"] is None
    assert any("192 of 192 numbers differ" in line for line in watch.lines(found))


# All of them.


def part(name, error=None):
    def measure(settings, say):
        if error is not None:
            raise error
        return {"schema": 1}

    return run_all.Part(name, f"{name}.json", 1.0, measure, command.Settings())


def test_a_part_that_fails_is_reported_and_the_others_run(monkeypatch, tmp_path, capsys):
    failing = {
        "b": (ModuleNotFoundError("no", name="x_y"), "needs x_y, which is not installed: pip"),
        "c": (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        "d": (RuntimeError("first line\nsecond"), "RuntimeError: first line"),
    }
    parts = [part(name, *failing.get(name, ())[:1]) for name in "abcde"]
    monkeypatch.setattr(run_all, "parts_for", lambda device: parts)
    with pytest.raises(SystemExit) as end:
        run_all.main(["--out", str(tmp_path)])
    assert end.value.code == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "e.json"]
    written = json.loads((tmp_path / "a.json").read_text())
    assert written == {
        "schema": 1,
        "part": "a",
        "command": f"python -m benchmarks --out {tmp_path}",
    }
    printed = capsys.readouterr().out
    for name, (_, words) in failing.items():
        assert f"{name}: {words}" in printed
