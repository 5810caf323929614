"""The commands have one feel: the same options, examples that work, errors that name the fix."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import clearhead
from clearhead import cli

SENTENCE = "the cat sat on the mat"
READERS = ("explain", "play", "heads", "view", "generate")  # they take TEXT
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def run(command_line, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return command_line


@pytest.fixture
def shown(monkeypatch):
    """What `view` would serve, instead of a server that waits."""
    calls = []
    monkeypatch.setattr("clearhead.viewer.view", lambda seen, **more: calls.append((seen, more)))
    return calls


# the same options everywhere


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_fits_80_columns_and_ends_with_an_example(run, command):
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert out.split("Example: ")[1].split() == commands_example(command)
    assert "list[str]" not in out
    assert "4294967295" not in out


def commands_example(command):
    return sys.modules[f"clearhead.cli.{command}"].EXAMPLE.split()


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("export", "claims") else name
        for name in cli.COMMANDS
    ],
)
def test_the_example_in_the_help_works(run, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    shutil.copy(EXAMPLES / "my_attention.py", tmp_path)
    (tmp_path / "my_texts").mkdir()
    (tmp_path / "my_texts" / "a.txt").write_text(f"{SENTENCE}. " * 900, encoding="utf-8")
    words = shlex.split(" ".join(run(command, "--help")[1].split("Example: clearhead ")[1].split()))
    assert words[0] == command
    short = {"train": ["--steps", "2", "--vocabulary", "260"], "claims": ["--quick"]}
    status, _, err = run(*words, *short.get(command, ()))
    # the submission in the docs has a mistake, which `check` finds
    assert status == (1 if command == "check" else 0), err
    assert not err.startswith("Error")


def test_clearhead_alone_shows_five_things_to_try(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    tried = re.findall(r"^  clearhead (.*)$", out, re.M)
    assert len(tried) == 5
    assert [shlex.split(one)[0] for one in tried] == ["explain", "play", "check", "heads", "claims"]
    assert "clearhead --help" in out
    assert len(out.splitlines()) <= 16
    assert max(map(len, out.splitlines())) <= 80
    for words in map(shlex.split, tried):  # they are understood, if not run
        command = typer.main.get_command(cli.make_app()).commands[words[0]]
        command.make_context(words[0], words[1:])


# unknown options, commands, models


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "a", "--modle", "x"], "--modle. Did you mean --model?"),
        (["explain", "a", "--laye=3"], "--laye. Did you mean --layer?"),
        (["generate", "a", "-tokens", "3"], "-tokens. Did you mean --tokens?"),
        (["check", "a.py", "--hepl"], "--hepl. Did you mean --help?"),
        (["export", "a.onnx", "--zzz"], "--zzz."),
        (["--verison"], "--verison. Did you mean --version?"),
    ],
)
def test_an_unknown_option_suggests_the_nearest_one(run, arguments, said):
    command = "" if len(arguments) == 1 else f" {arguments[0]}"
    expected = f"Error: No such option: {said}\n  Try: clearhead{command} --help\n"
    assert run(*arguments) == (2, "", expected)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("explian", ". Did you mean explain?\n  Try: clearhead --help"),
        ("zzz", ".\n  Try: clearhead --help"),
        ("My dog's pizza", ".\n  Try: clearhead explain 'My dog'\"'\"'s pizza'"),
        ("my_attention.py", ".\n  Try: clearhead check my_attention.py"),
    ],
)
def test_an_unknown_command_names_the_next_one(run, word, said):
    assert run(word) == (2, "", f"Error: No such command {word!r}{said}\n")


@pytest.mark.parametrize("command", ["explain", "heads"])
def test_a_misspelled_model_is_corrected_without_a_network(run, monkeypatch, command):
    import huggingface_hub

    def asked(*arguments, **more):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", asked)
    for name, meant in (
        ("grammer", "grammar"),
        ("English", "english"),
        ("gpt2_medium", "gpt2-medium"),
    ):
        status, out, err = run(command, "a", "--model", name)
        assert (status, out) == (2, "")
        assert err == (
            f"Error: {name}: no such file or folder. Did you mean {meant}?\n"
            "  english and grammar come with Clearhead.\n"
        )


def test_an_unknown_model_names_those_that_there_are(run, monkeypatch):
    import huggingface_hub

    def offline(*arguments, **more):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    for command in ("explain", "heads"):
        err = run(command, "a", "--model", "zzz/zzz")[2]
        assert err.endswith("\n  english and grammar come with Clearhead.\n")
    err = run("play", "--model", "my-model")[2]
    assert "clearhead explain TEXT --model my-model -o page.html" in err
    assert "english, grammar, a folder" in run("info", "zzz")[2]


# the text


@pytest.mark.parametrize(
    ("command", "way"),
    [
        *((name, ["--text", "a.txt"]) for name in READERS),
        ("explain", ["-"]),
        ("heads", ["--text", "-"]),
    ],
)
def test_every_text_can_come_from_a_file_or_a_pipe(run, shown, tmp_path, monkeypatch, command, way):
    monkeypatch.chdir(tmp_path)
    given = "the dogs that see the cat"
    (tmp_path / "a.txt").write_text(f"{given}\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{given}\n".encode())))
    more = {"play": ["--model", "grammar"], "generate": ["--tokens", "2"]}.get(command, [])

    def result(words):
        found = run(command, *words, *more)
        assert found[0] == 0, found
        if command == "view":
            return shown[-1][1]["tokens"]
        return (tmp_path / "clearhead.html").read_bytes() if command == "play" else found

    assert result(way) == result([given])


def test_a_text_that_cannot_be_read(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.bin").write_bytes(b"ab\xff")
    for command in READERS:
        err = run(command, "--text", "none.txt")[2]
        assert err == (
            "Error: --text none.txt: No such file or directory.\n"
            f"  Looked for {tmp_path / 'none.txt'}.\n"
        )
        assert "not both" in run(command, "cat", "--text", "a.bin")[2]
        assert "--text a.bin: not text in UTF-8 (byte 2)." in run(command, "--text", "a.bin")[2]
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
        assert "Standard input: not text in UTF-8 (byte 0)." in run(command, "-")[2]
    for command in ("view", "generate"):
        assert f"Try: clearhead {command} " in run(command)[2]
    for arguments in (["train", "--text", "none.txt"], ["check", "none.py"]):
        assert f"Looked for {tmp_path / arguments[-1]}." in run(*arguments)[2]


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("command", ["heads", "view", "generate"])
def test_unknown_words_are_noted_in_every_command(run, command):
    err = run(command, "the blue cat sat", "--model", "grammar")[2]
    note = "Note: blue is not among the 256 words of this model, which reads <unk> instead."
    assert note in err


# layers


def test_layers_by_number_name_or_part(run, shown):
    explain = ("explain", SENTENCE, "--json", "--layer")
    assert run(*explain, "h.3") == run(*explain, "3") == run(*explain, "3.attn")
    generate = ("generate", SENTENCE, "--tokens", "2", "--show-attention", "--layer")
    assert run(*generate, "h.3.attn") == run(*generate, "3") != run(*generate, "4")
    assert run("heads", SENTENCE, "--layer", "all") == run("heads", SENTENCE)
    run("view", SENTENCE, "--layer", "h.3", "--layer", "1")
    assert list(shown[0][0]) == ["h.1.attn", "h.3.attn"]


@pytest.mark.parametrize("command", [["explain", "a"], ["generate", "a", "--show-attention"]])
def test_layers_that_are_not_there(run, command):
    assert run(*command, "--layer", "6")[2] == "Error: --layer: expected 0 to 5, got 6.\n"
    several = run(*command, "--layer", "attn")[2]
    assert several.startswith("Error: --layer: 'attn' fits 6 attention layers:\n    0  h.0.attn\n")
    none = run(*command, "--layer", "z")[2]
    assert none.startswith("Error: --layer: no attention layer is called 'z'.\n  There are:")


# JSON


def test_generate_as_json(run):
    arguments = ("generate", "Thank you", "--tokens", "3", "--seed", "4", "--top-k", "5")
    text = run(*arguments)[1]
    status, out, err = run(*arguments, "--json", "--show-attention", "--layer", "2")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["schema"], found["model"], found["text"]) == (1, "english", "Thank you")
    assert found["text"] + found["continuation"] + "\n" == text
    assert "".join(one["token"] for one in found["tokens"]) == found["continuation"]
    for number, one in enumerate(found["tokens"]):
        positions, weights = zip(*one["attended"], strict=True)
        assert max(positions) <= number + 1
        assert 0 < sum(weights) < 1.0001
    assert "attended" not in json.loads(run(*arguments, "--json")[1])["tokens"][0]


@pytest.mark.parametrize("model", ["english", "grammar"])
def test_info_counts_the_parameters_of_a_real_model(run, model):
    real = sum(each.numel() for each in clearhead.load(model)[0].parameters())
    status, out, err = run("info", "--model", model, "--json", "--tokens", "7")
    assert (status, err) == (0, "")
    (found,) = json.loads(out)["models"]
    assert found["parameters"]["total"] == real
    assert found["memory_mib"]["parameters"] == real * 4 / 2**20
    assert found["tokens"] == 7
    assert re.search(rf"^total +{real:,}$", run("info", model)[1], re.M)


@pytest.mark.slow
def test_export_takes_o_and_prints_json(run, tmp_path):
    out = tmp_path / "a.pt2"
    status, printed, _ = run("export", "-o", out, "--model", "grammar", "--json")
    assert status == 0
    found = json.loads(printed)
    assert (found["path"], found["what"], found["model"]) == (str(out), "model", "grammar")
    assert out.is_file()
    for wrong in ([], [out, "-o", out]):
        assert "Name one file to write: OUT, or -o OUT." in run("export", *wrong)[2]


# the terminal


def complete(line, shell="bash"):
    """What a shell offers at the end of a line."""
    words = line.split(" ")
    program = (
        "import clearhead.cli, sys\n"
        "try:\n    clearhead.cli.main()\n"
        "finally:\n    assert 'torch' not in sys.modules\n"
    )
    asked = {
        "_CLEARHEAD_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_completes_commands_options_and_models():
    assert complete("clearhead ex") == ["explain", "export"]
    assert complete("clearhead explain --model ") == ["english", "grammar"]
    offered = " ".join(complete("clearhead ex", "zsh"))
    assert "explain" in offered
    assert "check" not in offered
