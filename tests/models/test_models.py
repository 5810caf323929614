"""What `--model` means: shipped models, GPT-2 folders and files, other architectures."""

import contextlib
import io
import json
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers

from clearhead import GPT2, GPT2Tokenizer
from clearhead.explainer.examples import model_example
from clearhead.models import LoadedModel, find_model
from clearhead.tokenizers import gpt2_tokenizer
from gpt2_others import TINY, hugging_face
from tiny_checkpoints import save_words

TEXT = "the cat sat on the mat and the cat ran"
WORDS = ["<unk>", "the", "cat", "sat", "on", "mat", "and", "ran"]
LARGE = {**TINY, "vocab_size": 50257, "context_length": 31}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-2 with the real vocabulary and no tokenizer in its folder."""
    folder = tmp_path_factory.mktemp("models") / "small"
    hugging_face(LARGE, torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """A GPT-2 with a tokenizer of eight words in its folder."""
    folder = tmp_path_factory.mktemp("models") / "worded"
    hugging_face({**TINY, "vocab_size": 8}, torch.float32).save_pretrained(folder)
    save_words(folder, WORDS[1:])
    return folder


@pytest.fixture
def run(command_line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    return command_line


def anything(folder):
    """As `heads` and `view` load it."""
    return find_model(folder, any_architecture=True)


# Shipped models


def test_the_default_is_the_first_shipped_model():
    for loaded in (find_model(), find_model("english"), find_model(any_architecture=True)):
        assert (loaded.name, loaded.path) == ("the English model", "english")
        assert loaded.reader.kind == "byte pairs"
        assert loaded.longest == 256
        assert not loaded.model.training
    with pytest.raises(ValueError, match="TEXT is empty"):
        find_model().read("")


def test_a_folder_with_the_name_of_a_shipped_model_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    GPT2(LARGE).save_pretrained(tmp_path / "grammar")
    loaded = find_model("grammar")
    assert (loaded.path, loaded.gpt2.config["vocab_size"]) == ("grammar", 50257)


@pytest.mark.parametrize(
    ("of_the_model", "of_the_tokenizer", "longest"),
    [(31, None, 31), (31, 7, 7), (-1, 10**30, None), (-1, 512, 512), (None, 0, None)],
)
def test_the_longest_text(of_the_model, of_the_tokenizer, longest):
    model = torch.nn.Identity()
    model.config = SimpleNamespace(max_position_embeddings=of_the_model)
    loaded = LoadedModel("m", model, lambda: SimpleNamespace(longest=of_the_tokenizer), "m")
    assert loaded.longest == longest


def test_a_model_without_a_tokenizer_can_be_loaded(tmp_path):
    """`export` needs no tokenizer; reading a text does."""
    GPT2(TINY).save_pretrained(tmp_path / "odd")
    loaded = find_model(tmp_path / "odd")
    assert loaded.gpt2.config["vocab_size"] == TINY["vocab_size"]
    with pytest.raises(ValueError, match=r"GPT-2's own does not fit[\s\S]*in the same folder"):
        loaded.read("a")


# explain


@pytest.mark.parametrize("layer", [0, 1])
def test_the_weights_are_those_of_the_whole_model(folder, layer):
    example = model_example(TEXT, model=str(folder), layer=layer)
    other = transformers.GPT2Model.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        found = other(torch.tensor([example.ids]), output_attentions=True)
    torch.testing.assert_close(example.trace["attn_weights"], found.attentions[layer])
    assert example.trace.gap < 1e-5
    assert example.ids == GPT2Tokenizer().encode(TEXT)
    assert example.trace.tokens[:2] == ("the", " cat")


def test_the_printed_program_runs(folder, run):
    _, out, _ = run("explain", "--model", folder, "--layer", 1, TEXT, "--step", "6")
    program = out[out.index("import torch") :]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), torch.no_grad():
        try:
            exec(program, {})
        finally:
            torch.set_printoptions(profile="default")
            torch.set_grad_enabled(True)
    example = model_example(TEXT, model=str(folder), layer=1)
    numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", printed.getvalue())]
    assert numbers[:3] == pytest.approx(example.trace["output"][0, 0, :3].tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "{folder}", "--layer", "2", "a"], "--layer: expected 0 to 1, got 2."),
        (["--model", "{folder}"], "TEXT is empty."),
        (["--model", "{folder}", "a", "--heads", "2"], "leave out --variant, --heads"),
        (
            ["--model", "{folder}", "a" + " a" * 31],
            "TEXT has 32 tokens, and small accepts at most 31.",
        ),
        (["--model", "no/such/folder", "a"], "no such file or folder"),
        (["--model", "{odd}", "a"], "it has 50,257 tokens, the model 97."),
    ],
)
def test_errors_of_explain(folder, run, tmp_path, arguments, message):
    GPT2(TINY).save_pretrained(tmp_path / "odd")
    names = {"folder": folder, "odd": tmp_path / "odd"}
    status, out, err = run("explain", *(word.format(**names) for word in arguments))
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


# heads


def table(run, folder):
    status, out, err = run("heads", "--model", folder, "--json", TEXT)
    assert (status, err) == (0, "")
    return json.loads(out)


def close(one, two):
    """The same table, numbers to 1e-5."""
    heads = [told.pop("heads") for told in (one, two)]
    assert one == two
    assert len(heads[0]) == len(heads[1]) == 6
    for left, right in zip(*heads, strict=True):
        assert left["chance"] == pytest.approx(right["chance"], abs=1e-5)
        assert {**left, "chance": 0} == pytest.approx({**right, "chance": 0}, abs=1e-5)
    return True


def test_both_ways_give_the_same_table(folder, run, tmp_path, monkeypatch):
    """With our GPT2 if transformers or the folder's tokenizer is missing, else with theirs."""
    assert type(anything(folder).model) is GPT2
    ours = table(run, folder)
    complete = tmp_path / "small"
    shutil.copytree(folder, complete)
    merges, vocabulary = gpt2_tokenizer._find_files(gpt2_tokenizer._package_folder())
    shutil.copy(merges, complete / "merges.txt")
    shutil.copy(vocabulary, complete / "vocab.json")
    assert type(anything(complete).model) is transformers.GPT2Model
    theirs = table(run, complete)
    assert close(dict(ours), dict(theirs))
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert type(anything(complete).model) is GPT2
    assert close(table(run, complete), theirs)


def test_a_tokenizer_that_needs_transformers(worded, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, out, err = run("heads", "--model", worded, TEXT)
    assert (status, out) == (2, "")
    assert "needs transformers, which is not installed" in err


@pytest.mark.parametrize(
    "arguments", [("export", "{out}"), ("generate", "cat"), ("explain", "cat")], ids=lambda a: a[0]
)
def test_a_llama_is_named(command_line, tmp_path, arguments):
    """The message names the architecture, not just unexpected weight names."""
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=20,
    )  # fmt: skip
    transformers.LlamaModel(config).save_pretrained(tmp_path / "llama")
    name, rest = arguments[0], arguments[1].format(out=tmp_path / "x.onnx")
    status, out, err = command_line(name, "--model", tmp_path / "llama", rest)
    assert (status, out) == (2, "")
    assert "expected a GPT-2, got a llama; export, generate and explain support GPT-2 only" in err
    assert "clearhead heads, clearhead view and clearhead.watch support it" in err


def test_text_and_relations_agree_about_the_tokenizer(folder, run):
    """A text is read with GPT-2's own tokenizer; known relations need one with offsets."""
    assert run("heads", "--model", folder, TEXT)[0] == 0
    status, _, err = run("heads", "--model", folder, "--relations")
    assert status == 2
    assert "small: --relations needs a fast tokenizer, which gives the character offsets" in err
    assert "give a TEXT instead" in err
