"""The command line, as users and scripts see it."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

SENTENCE = "the cat sat on the mat"
VARIANTS = ["simplified", "self", "causal", "wrapper", "multihead", "encoder"]


@pytest.fixture
def run(command_line, monkeypatch):
    """Run a command; return exit status, output and errors."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return command_line


@pytest.fixture
def ok(run):
    """Run a command that must succeed; return its output."""

    def ok(*arguments):
        status, out, err = run(*arguments)
        assert (status, err) == (0, "")
        return out

    return ok


def process(*arguments, **environment):
    """The same in a separate process, its output in a pipe."""
    return subprocess.run(
        [sys.executable, "-c", "from clearhead.cli import main; main()", *arguments],
        capture_output=True,
        env={**os.environ, "COLUMNS": "80", **environment},
        timeout=120,
        check=False,
    )


# explain


def test_book_example_prints_the_published_numbers(ok):
    out = ok("explain")
    rows = {
        "Your": (".9544", ".1385"),
        "journey": ("1.4950", ".2379"),
        "starts": ("1.4754", ".2333"),
        "with": (".8434", ".1240"),
        "one": (".7070", ".1082"),
        "step": ("1.0865", ".1581"),
    }
    for word, (score, weight) in rows.items():
        assert re.search(rf"^ +{word} .*= +0?{re.escape(score)}$", out, re.M), word
        assert re.search(rf"^ +{word} +0?{re.escape(score)} .* 0{re.escape(weight)}$", out, re.M)
    assert "= [0.4419, 0.6515, 0.5683]" in out
    assert re.search(r"^journey +0\.4419 0\.6515 0\.5683$", out, re.M)
    assert "0.55×0.43 + 0.87×0.15 + 0.66×0.89" in out
    assert "Untrained" in out


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", [None, SENTENCE])
def test_every_variant_in_every_view(ok, variant, text):
    start = ["explain", *([text] if text else []), "--variant", variant]
    full = json.loads(ok(*start, "--json"))
    assert full["schema"] == 1
    assert full["gap"] < 1e-6
    drawn = ok(*start, "--steps")
    for step in full["steps"]:
        assert f"{step['number']} {step['title']}" in drawn
        assert step["formula"] in drawn
    assert drawn.count("Untrained") == 1
    own = {step["number"] for step in full["steps"]}
    skipped = [number for number in ("1", "2", "3", "4b", "5", "6") if number not in own]
    named = re.findall(r"^Skipped steps: (.*)\.$", drawn, re.M)
    assert [entry.split()[0] for line in named for entry in line.split(", ")] == skipped
    brief = ok(*start)
    assert len(brief.splitlines()) <= 60
    assert "Who attends to whom" in brief
    followed = ok(*start, "--query", "1")
    assert f'The query "{full["tokens"][1]}" (token 1)' in followed
    # what is followed by hand ends in the row that all tokens at once give
    last = full["steps"][-1]["tensors"]
    output = torch.tensor(next(iter(last.values()))["values"])
    row = output.flatten(0, -2)[1].tolist()
    assert ", ".join(f"{value:.4f}" for value in row[:3]) in followed
    for view in (drawn, followed, brief):
        assert max(map(len, view.splitlines())) <= 80
        assert "\x1b" not in view


def test_explain_shows_the_clearest_head_of_the_english_model(ok):
    out = ok("explain", SENTENCE)
    assert len(out.splitlines()) <= 60
    assert max(map(len, out.splitlines())) <= 80
    (chosen,) = re.findall(
        r"^Layer (\d), head (\d) of the English model: attends to the previous token \(0\.\d\d of",
        out, re.M,
    )  # fmt: skip
    assert "It has the clearest pattern in this text." in " ".join(out.split())
    assert re.findall(r"^head (\d)$", out, re.M) == [chosen[1]]
    assert len(re.findall(r"^\d  (attends to|spreads over) ", out, re.M)) == 8
    full = json.loads(ok("explain", SENTENCE, "--json"))
    assert (full["model"], full["layer"], full["head"]) == ("english", *map(int, chosen))
    weights = numbers(full, "attn_weights")[0]  # (heads, queries, keys)
    previous = weights[:, range(1, 6), range(5)].mean(1)
    assert previous.argmax() == full["head"]
    assert f"({previous.max():.2f} of" in out
    other = ok("explain", SENTENCE, "--layer", "0", "--head", "5")
    assert "Layer 0, head 5 of the English model: " in other
    assert "clearest" not in other


def test_explain_predicts_the_next_token(ok):
    import clearhead

    model, tokenizer = clearhead.load("english")
    ids = tokenizer.encode("Thank you very")
    with torch.no_grad():
        share, token = model(torch.tensor([ids]))[0, -1].softmax(-1).max(-1)
    full = json.loads(ok("explain", "Thank you very", "--json"))
    assert full["next"][0]["token"] == tokenizer.decode([int(token)])
    assert full["next"][0]["probability"] == pytest.approx(float(share), abs=1e-5)
    shown = tokenizer.decode([int(token)]).replace(" ", "␣")
    assert f"Most likely next  {shown} {share:.2f}  " in ok("explain", "Thank you very")


def test_explain_gives_one_line_per_head(ok):
    out = ok("explain", SENTENCE, "--layer", "all")
    lines = re.findall(r"^(\d\.\d)   (attends to|spreads over) .* \d\.\d\d$", out, re.M)
    assert [where for where, _ in lines] == [f"{i}.{j}" for i in range(6) for j in range(8)]
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads(ok("explain", SENTENCE, "--layer", "all", "--json"))["heads"]
    weights = numbers(json.loads(ok("explain", SENTENCE, "--layer", "3", "--json")), "attn_weights")
    (head,) = [each for each in found if (each["layer"], each["head"]) == (3, 2)]
    assert head["last"][0][1] == pytest.approx(weights[0, 2, -1].max().item(), abs=1e-5)
    assert head["last"][0][0] == weights[0, 2, -1].argmax()


def test_the_program_of_the_trained_model_gives_its_numbers(ok, capsys):
    start = ["explain", SENTENCE, "--layer", "1"]
    full = json.loads(ok(*start, "--json"))
    out = ok(*start, "--step", "6")
    names = {}
    try:
        exec(out[out.index("\nimport torch\n") :], names)
    finally:
        torch.set_grad_enabled(True)
        torch.set_printoptions(profile="default")
    assert "tensor(" in capsys.readouterr().out
    for name in ("queries_heads", "attn_weights", "output"):
        torch.testing.assert_close(names[name], numbers(full, name), rtol=0, atol=1e-6)


def test_words_outside_the_vocabulary_are_marked_and_noted(ok):
    out = ok("explain", "The blue cat sat on mary", "--model", "grammar")
    assert "0 The  1 blue?  2 cat" in out
    assert "Note: blue is not among the 256 words of this model" in " ".join(out.split())
    text = "the blue cat sat on the blue green mat"
    two = " ".join(ok("explain", text, "--model", "grammar").split())
    assert "Note: blue, green are not among" in two


def test_untrained_is_random_and_takes_any_word(ok):
    out = ok("explain", "quantum gravity", "--untrained")
    assert "Untrained, random weights (seed 123)" in out
    assert ok("explain", "quantum gravity", "--heads", "2") == out
    full = json.loads(ok("explain", SENTENCE, "--json", "--untrained"))
    assert full["trained"] is False


def test_words_without_quotes_are_one_text(ok):
    assert ok("explain", *SENTENCE.split()) == ok("explain", SENTENCE)


def test_json_holds_everything(ok):
    full = json.loads(ok("explain", SENTENCE, "--untrained", "--json", "--query", "the:2"))
    assert full["tokens"] == SENTENCE.split()
    assert full["ids"][0] == full["ids"][4]
    assert len(set(full["ids"])) == 5
    assert full["query"] == {"index": 4, "token": "the"}
    assert full["trained"] is False
    for step in full["steps"]:
        for tensor in step["tensors"].values():
            values = torch.tensor(
                [value or 0 for value in _flat(tensor["values"])], dtype=torch.float64
            )
            assert values.numel() == torch.Size(tensor["shape"]).numel()
            assert [size for _, size in tensor["dims"]] == tensor["shape"]
    masked = full["steps"][4]["tensors"]["masked_scores"]["values"][0][0]
    assert masked[0][1:] == [None] * 5  # JSON has no -inf
    assert None not in masked[5]


def _flat(values):
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def numbers(full, name):
    for step in full["steps"]:
        if name in step["tensors"]:
            return torch.tensor(
                [float("-inf") if v is None else v for v in _flat(step["tensors"][name]["values"])]
            ).view(step["tensors"][name]["shape"])
    raise AssertionError(name)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", [None, "to be or\nnot 'to' be"])
def test_the_code_of_every_step_runs_and_gives_the_numbers(ok, variant, text, capsys):
    start = ["explain", *([text] if text else []), "--variant", variant, "--seed", "9"]
    full = json.loads(ok(*start, "--json"))
    for step in full["steps"]:
        out = ok(*start, "--step", step["number"])
        code = out[out.index("\nimport torch\n") :]
        names = {}
        try:
            exec(code, names)
        finally:
            torch.set_grad_enabled(True)  # the program turns gradients off for itself
            torch.set_printoptions(profile="default")
        printed = capsys.readouterr().out
        assert "tensor(" in printed
        for name in step["tensors"]:
            torch.testing.assert_close(names[name], numbers(full, name), rtol=0, atol=1e-6)
            assert f"print({name})" in code


def test_query_that_occurs_twice(ok):
    start = ["explain", SENTENCE, "--model", "grammar", "--query"]
    out = ok(*start, "the")
    assert "'the' is token 0, 4; this is token 0. For the next one: --query the:2" in out
    assert '"the" (token 4)' in ok(*start, "the:2")
    assert '"sat" (token 2)' in ok(*start, "SAT")
    assert "may attend to: the, cat, sat\n" in ok(*start, "2")


def test_gpt2_byte_pairs(ok):
    out = ok("explain", "the cat", "--tokenizer", "gpt2", "--query", "cat")
    assert "0 the  1 ␣cat" in out
    assert "1169 3797" in out  # GPT-2's own ids


def test_long_text_is_cut_and_says_so(ok):
    words = ["--untrained", *(f"w{i}" for i in range(50))]
    out = ok("explain", *words, "--query", "w49")
    assert "and 10 more" in out
    assert "... and 34 more rows" in out
    assert "... and 34 more keys" in out
    assert "To see all numbers: --json" in out
    longer = ok("explain", *words, *words[1:], *words[1:], "--query", "w49")
    assert len(longer.splitlines()) <= len(out.splitlines()) + 5
    full = json.loads(ok("explain", *words, "--json"))
    assert numbers(full, "attn_weights").shape == (1, 2, 50, 50)


def test_very_negative_scores_do_not_vanish(ok):
    """The sum of the powers is at least 1, whatever the scores are."""
    out = ok("explain", SENTENCE, "--layer", "4", "--head", "7", "--query", "cat")
    assert re.search(r"e\^\(scaled [+-] [\d.]+\)", out)
    (total,) = re.findall(r"^ +sum +([\d.]+) +1\.0000$", out, re.M)
    assert float(total) >= 1


def test_hostile_text(ok):
    out = ok("explain", "--untrained", "[red]x[/red] :smile: \x1b[31m \u202e\na <script>")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", out)
    assert r"\x1b" in out
    assert r"\u202e" in out
    assert "smile" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", ""], "TEXT is empty."),
        (["explain", "a", "--heads", "3"], "d_out (8) must be divisible by num_heads (3).\n  Numb"),
        (["explain", "a", "--variant", "self", "--heads", "2"], "the variant self has one head."),
        (
            ["explain", SENTENCE, "--query", "dog"],
            "there is no such token.\n  The tokens are: 0 the",
        ),
        (["explain", SENTENCE, "--query", "the:3", "--untrained"], "'the' occurs 2 times."),
        (["explain", SENTENCE, "--query", "mat:2", "--untrained"], "'mat' occurs once."),
        (
            ["explain", "a", "--model", "grammar", "--step", "7"],
            "this model has no such step.\n  Its steps are 1, 2, 3, 3b, 4a",
        ),
        (
            ["explain", "quantum gravity is \x1b[31m hard", "--model", "grammar"],
            "are not among the 256 English words of this model (quantum, gravity, ",
        ),
        (
            ["explain", "cat" + " cat" * 64, "--model", "grammar"],
            "TEXT has 65 tokens, and the grammar model accepts at most 64.\n  Shorten the text",
        ),
        (
            ["explain", "cat" + " cat" * 256],
            "TEXT has 258 tokens, and the English model accepts at most 256.\n  Shorten the text, "
            "or use another model: --model NAME_OR_DIR.",
        ),
        (["explain", "a", "--layer", "6"], "--layer: expected 0 to 5, got 6."),
        (["explain", "a", "--head", "8"], "--head: expected 0 to 7, got 8."),
        (["explain", "a", "--layer", "all", "--head", "1"], "--layer all prints one line per head"),
        (["explain", "--layer", "all"], "--layer all prints one line per head: give a TEXT"),
        (["explain", "a", "--layer", "1", "--untrained"], "leave out --variant, --heads"),
        (["explain", "--layer", "1"], "select a head of a model that reads TEXT"),
        (["explain", "a", "--step", "1", "--query", "a"], "choose one of the three."),
        (
            ["explain", "--variant", "encoder", "--d-model", "4"],
            "the book's vectors have 3 numbers",
        ),
        (["explain", "--untrained", "w " * 1025], "TEXT has 1025 tokens;"),
        (["explain", "a", "--variant", "rnn"], "'multihead'"),
        (["explain", "a", "--heads", "0"], "--heads"),
        (["explain", "a", "-o", "x.doc"], "that ends in .html, .svg, .png, .pdf, .json, got"),
        (["explain", "a", "-o", ""], "The file name is empty."),
        (["heads", "--model", "x" * 300, "a"], "x: File name too long"),
        (["\x1b[31m"], r"\x1b[31m"),
        (
            ["info", "--d-model", "1024", "--heads", "24"],
            "24 is GPT-2 medium's number of layers; it has 16 heads.",
        ),
        (["info", "gpt2-medum"], "Did you mean gpt2-medium?"),
        (["info", "--batch", "0"], "--batch"),
        (["info", "--dtype", "int8"], "'bfloat16'"),
    ],
)
def test_errors_are_one_message_and_status_2(run, arguments, message):
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("Error: ")
    assert message in err
    assert len(err.splitlines()) <= 2
    assert "\x1b" not in err


# play


def test_play_writes_one_file(run, tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    arguments = ("play", "the", "cat", "--model", "grammar", "-o", str(file))
    assert run(*arguments) == (0, "", f"Wrote {file} ({file.stat().st_size / 1e6:.1f} MB)\n")
    page = file.read_text(encoding="ascii")
    assert '"start":{"text":"the cat"}' in page
    assert 'id="engine"' in page
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    run(*arguments, "--open")
    assert opened == [file.as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    assert run(*arguments, "--open")[2].endswith(f"no browser was found.\n  Open {file} in one.\n")


def test_play_refuses_other_files(run, tmp_path):
    assert run("play", "-o", "page.pdf") == (
        2, "", "Error: --out page.pdf: expected a name that ends in .html.\n"
    )  # fmt: skip
    missing = tmp_path / "no" / "page.html"
    assert run("play", "--model", "grammar", "-o", str(missing))[0] == 2


# Terminal, pipe, help


def test_a_pipe_has_no_escapes_and_a_terminal_has():
    """Here with an encoding that has no box-drawing characters."""
    piped = process("explain", PYTHONIOENCODING="ascii")
    colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": ""}
    coloured = process("explain", PYTHONIOENCODING="ascii", **colours)
    for done in (piped, coloured):
        assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in piped.stdout
    assert b"\x1b[" in coloured.stdout
    assert re.sub(rb"\x1b\[[0-9;]*m", b"", coloured.stdout) == piped.stdout


def test_wrong_use_points_to_the_help(run):
    assert run("check") == (
        2, "", "Error: Missing argument 'TARGET'.\n  Try: clearhead check --help\n"
    )  # fmt: skip
    assert run("explian")[2].endswith("\n  Try: clearhead --help\n")


@pytest.mark.parametrize("arguments", [[], ["attention", "--out", "x.json"], ["--help"]])
def test_bench_says_what_replaces_it(run, arguments):
    status, out, err = run("bench", *arguments)
    assert (status, out) == (2, "")
    assert "make bench" in err
    assert "bench" not in run("--help")[1]


def test_only_the_file_of_the_command_is_imported():
    program = (
        "import sys\n"
        "from clearhead.cli import COMMANDS, make_app\n"
        "for command in COMMANDS:\n"
        "    for name in [n for n in sys.modules if n.startswith('clearhead.cli.')]:\n"
        "        del sys.modules[name]\n"
        "    make_app([command])\n"
        "    found = {n for n in sys.modules if n.startswith('clearhead.cli.')}\n"
        "    found -= {'clearhead.cli.shared', 'clearhead.cli.help_pages'}\n"
        "    assert found == {f'clearhead.cli.{command}'}, found\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_needs_no_torch_does_not_import_it():
    program = (
        "import sys\n"
        "from clearhead.cli import main\n"
        "import clearhead.cli.claims\n"
        "for words in (['--help'], ['--version'], ['explain', '--help'], ['info']):\n"
        "    assert 'rich' not in sys.modules\n"
        "    try:\n        main(words)\n"
        "    except SystemExit as end:\n        assert end.code == 0, end.code\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# info


def test_info_compares_all_sizes(ok):
    out = ok("info")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:6]}
    assert rows == {
        "gpt2-small": ["12", "768", "12", "64", "1024", "124,439,808"],
        "gpt2-medium": ["24", "1024", "16", "64", "1024", "354,823,168"],
        "gpt2-large": ["36", "1280", "20", "64", "1024", "774,030,080"],
        "gpt2-xl": ["48", "1600", "25", "64", "1024", "1,557,611,200"],
        "gpt3": ["96", "12288", "96", "128", "2048", "174,604,259,328"],
    }
    assert "batch 1, tokens = context, float32" in out
    assert max(map(len, out.splitlines())) <= 80


def test_info_of_one_size(ok):
    out = ok("info", "gpt2-medium")
    for line in (
        r"24 layers, d_model 1024, 16 heads × head_dim 64, context 1024, vocabulary 50,257",
        r"Counted for batch 1, tokens 1,024, float32\.",
        r"attention +100,761,600 +28\.4%",
        r"total +354,823,168",
        r"weights +1,353\.54",
        r"KV cache +192\.00",
        r"attention matrix, n × n +64\.00 +1,536\.00",
        r"what we keep instead +0\.06 +1\.50",
    ):
        assert re.search(f"^{line}$", out, re.M), line


def test_info_says_where_a_text_is_longer_than_the_context(ok):
    for name in ("gpt2-small", "gpt3"):
        out = ok("info", name, "--tokens", "5000")
        assert "Note: 5,000 tokens are more than the context of the model" in out
        assert "Note" not in ok("info", name, "--tokens", "1024")
    out = " ".join(ok("info", "--tokens", "2000").split())
    assert "context of gpt2-small, gpt2-medium, gpt2-large, gpt2-xl: counted" in out
    assert "Note" not in ok("info")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("export none/a.onnx", "none/a.onnx: there is no folder none. Create it first."),
        ("generate the --temperature 1 --seed 99999999999999999999999", "--seed"),
        ("generate the --temperature 1 --seed -1", "--seed"),
        ("check {file} --adapter none.py", "--adapter none.py: No such file or directory."),
        ("check {file} --policy none.toml", "--policy none.toml: No such file or directory."),
        ("train --out {file}", "--out {file}: expected a folder, got a file."),
    ],
)
def test_wrong_files_and_seeds(run, tmp_path, monkeypatch, command, said):
    """One message each, no traceback, and no file or folder is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("class A: pass\n", encoding="utf-8")
    status, out, err = run(*command.format(file="a.py").split())
    assert (status, out) == (2, "")
    assert said.format(file="a.py") in err
    assert [file.name for file in tmp_path.iterdir()] == ["a.py"]


def test_a_missing_extra_is_one_message(command_line, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = command_line("explain", "the cat sat", "-o", tmp_path / "cat.png")
    assert status == 2
    assert (
        "pip install 'clearhead[plot]'. In a clone: pip install -c constraints.txt '.[plot]'" in err
    )
    assert "Traceback" not in err


def test_mistakes_explains_what_check_names(ok, run):
    full = ok("mistakes", "missing-scale", "mask-off-by-one")
    assert full.startswith("missing-scale (wrong)\n  The scores are not divided by √head_dim")
    assert "\n  Right\n    weights = (queries @ keys.transpose(-2, -1) / head_dim**0.5)" in full
    assert "\nmask-off-by-one (wrong)\n" in full
    listed = ok("mistakes").splitlines()
    found = json.loads(ok("mistakes", "--json"))
    assert {f"  {one['id']}" for one in found} <= set(listed)
    status, _, error = run("mistakes", "mising-scale")
    assert status == 2
    assert "Did you mean missing-scale?\n  All ids: clearhead mistakes" in error
    assert not [line for line in full.splitlines() if line != line.rstrip()]
