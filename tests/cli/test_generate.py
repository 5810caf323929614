"""`clearhead generate`: the text, the attention beside it, errors, Ctrl-C."""

import io
import sys
from collections.abc import Iterator

import pytest
import torch

from clearhead import GPT2, GPT2Tokenizer, watch
from clearhead.watcher import one_text
from gpt2_others import TINY, randomize

LARGE = {**TINY, "vocab_size": 50257, "context_length": 48}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with GPT-2's vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    randomize(GPT2(LARGE)).save_pretrained(folder)
    return folder


@pytest.fixture
def run(command_line):
    return lambda *arguments: command_line("generate", *arguments)


def test_the_command_continues_a_text(folder, run):
    tokenizer = GPT2Tokenizer()
    ids = GPT2.from_pretrained(folder).generate(tokenizer.encode("The cat sat"), 6)
    expected = tokenizer.decode(ids) + "\n"
    assert run("--model", folder, "The cat", "sat", "--tokens", "6") == (0, expected, "")


def test_attention_is_shown_beside_the_text(folder, run):
    arguments = (
        "--model",
        folder,
        "The cat sat",
        *["--tokens", "4", "--top-p", "0.9", "--seed", "3"],
    )
    _, text, _ = run(*arguments)
    status, out, err = run(*arguments, "--show-attention")
    assert (status, out) == (0, text)
    lines = err.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("%") for line in lines)
    assert any("␣cat" in line for line in lines)


def test_ctrl_c_keeps_the_text_so_far(folder, run, monkeypatch):
    def stream(self: GPT2, *arguments: object, **settings: object) -> Iterator[int]:
        yield 3797  # " cat"
        raise KeyboardInterrupt

    monkeypatch.setattr(GPT2, "stream", stream)
    assert run("--model", folder, "The")[:2] == (130, "The cat\n")


def test_the_text_cannot_control_the_terminal(folder, run, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def stream(self: GPT2, *arguments: object, **settings: object) -> Iterator[int]:
        yield from GPT2Tokenizer().encode("\x1b[31m")

    monkeypatch.setattr(GPT2, "stream", stream)
    monkeypatch.setattr("sys.stdout", Terminal())
    assert run("--model", folder, "The")[0] == 0
    assert sys.stdout.getvalue() == "The\\x1b[31m\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--layer 1", "--layer belongs to --show-attention"),
        ("--layer 2 --show-attention", "--layer: expected 0 to 1, got 2"),
        ("--tokens 99", "TEXT has 2 tokens; with 99 new, that is more than the 48 that tiny"),
        ("--tokens 47", "\n  Try --tokens 46, or --sliding, which drops the beginning."),
        ("--tokens 4 --temperature 0", "expected a positive number"),
        ("--tokens 4 --seed 1", "seed=1 has no effect"),
    ],
)
def test_errors_of_the_command(folder, run, arguments, message):
    status, out, err = run("--model", folder, "The cat", *arguments.split())
    assert (status, out) == (2, "")
    assert message in err


def test_a_model_without_a_tokenizer(tmp_path, run):
    GPT2(TINY).save_pretrained(tmp_path)
    status, _, err = run("--model", tmp_path, "The cat")
    assert status == 2
    assert "GPT-2's own does not fit: it has 50,257 tokens, the model 97" in err
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert "the tokenizer cannot be loaded" in run("--model", tmp_path, "The cat")[2]
    assert "TEXT is empty" in run("--model", tmp_path, "")[2]


def test_the_attention_of_each_new_token_is_that_of_the_whole_text():
    model = randomize(GPT2(TINY)).double().eval()
    ids = [1, 5, 9, 2, 6, 53, 58]
    found = list(one_text.look(model, ids, model.stream(ids, 3), layer=1, most=2))
    assert [one.token for one in found] == list(model.stream(ids, 3))
    with torch.no_grad(), watch(model, layers="blocks.1.attention") as seen:
        model(torch.tensor([ids + [one.token for one in found]]))
    dense = seen["blocks.1.attention"].dense()[0].mean(0)  # (queries, keys)
    for step, one in enumerate(found):
        top = dense[len(ids) - 1 + step].topk(2)
        assert one.positions == top.indices.tolist()
        assert one.shares == pytest.approx(top.values.tolist())


def test_positions_once_the_context_slides():
    model = randomize(GPT2(TINY))
    ids = [n % 97 for n in range(25)]
    (found,) = one_text.look(model, ids, model.stream(ids, 1, sliding=True), layer=0, most=19)
    assert sorted(found.positions) == list(range(6, 25))
