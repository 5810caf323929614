"""Training on text: documents, vocabulary, windows, runs by the clock, the command."""

import gzip
import json
import lzma
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import clearhead
from clearhead.models.trained_model import CHECKPOINT
from clearhead.tokenizers import BytePairTokenizer
from clearhead.training import text_run
from clearhead.training.loop import is_finished, learning_rate, train
from clearhead.training.text_corpus import load_corpus, prepare, read_documents
from clearhead.training.text_task import SIZES, TextSettings, TextTask

SETTINGS = TextSettings(
    seed=3,
    steps=20,
    batch=5,
    warmup=3,
    every=5,
    d_model=12,
    num_heads=3,
    num_layers=2,
    tokens=7,
    held_out_rows=11,
)
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "near", "red", "and"]


def documents(count=30, words=60):
    random_words = random.Random(5)
    return [" ".join(random_words.choices(WORDS, k=words)) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    return prepare(documents(), folder, vocab_size=300), folder


def test_documents_of_files_and_folders(tmp_path):
    (tmp_path / "b.txt").write_text("one\n<|endoftext|>\ntwo\n", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.md").write_text("three", encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("zéro".encode()))
    (tmp_path / "z.xz").write_bytes(lzma.compress(b"packed"))
    (tmp_path / "code.py").write_text("no text", encoding="utf-8")
    assert read_documents(tmp_path) == ["zéro", "one", "two", "three"]
    assert read_documents(tmp_path / "z.xz") == ["packed"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"caf\xe9", r"expected text in UTF-8, got other bytes at offset 3"),
        ("x.gz", b"no gzip", "cannot be decompressed"),
        ("x.xz", b"no xz", "cannot be decompressed"),
        ("x.txt", b" \n", "contains no text"),
    ],
)
def test_files_that_are_no_text(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_documents(tmp_path / name)
    with pytest.raises(ValueError, match="does not exist"):
        read_documents(tmp_path / "nowhere")


def test_every_hundredth_document_is_held_out(tmp_path):
    texts = [f"document number {i}" for i in range(201)]
    corpus = prepare(texts, tmp_path, vocab_size=290)
    tokenizer = BytePairTokenizer(tmp_path)
    held_out = tokenizer.decode(corpus.validation.long()).split("<|endoftext|>")
    assert held_out == [texts[0], texts[100], texts[200], ""]
    trained_on = tokenizer.decode(corpus.train.long()).split("<|endoftext|>")
    assert trained_on == [*texts[1:100], *texts[101:200], ""]
    size = sum(len(texts[i]) for i in (0, 100, 200))
    assert corpus.bytes_per_token == size / (len(corpus.validation) - 3)
    again = load_corpus(tmp_path)
    assert torch.equal(again.train, corpus.train)
    assert (again.bytes_per_token, again.vocab_size) == (corpus.bytes_per_token, 290)


def test_a_damaged_text_is_refused(tmp_path):
    (tmp_path / "text.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a file that `clearhead train --text` prepared"):
        load_corpus(tmp_path)


def test_windows_are_pieces_of_the_text(prepared):
    corpus, _ = prepared
    task = TextTask(SETTINGS, corpus)
    inputs, targets, _ = task.batch(4)
    assert inputs.shape == targets.shape == (5, 7)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    text = corpus.train.tolist()
    starts = [i for i in range(len(text)) if text[i : i + 7] == inputs[0].tolist()]
    assert any(text[i + 7] == targets[0, -1] for i in starts)
    again = TextTask(SETTINGS, corpus).batch(4)
    assert torch.equal(inputs, again.inputs)
    assert not torch.equal(inputs, task.batch(5).inputs)
    assert not torch.equal(inputs, TextTask(replace(SETTINGS, seed=4), corpus).batch(4).inputs)
    with pytest.raises(ValueError, match="expected more than 9999 tokens, got"):
        TextTask(replace(SETTINGS, tokens=9999), corpus)


def test_the_loss_falls_and_is_that_of_the_held_out_text(prepared):
    corpus, _ = prepared
    task = TextTask(replace(SETTINGS, steps=60, every=60, learning_rate=1e-2), corpus)
    model, curve = train(task)
    assert sum(curve.loss[-5:]) < 0.8 * sum(curve.loss[:5])
    rows = corpus.validation.long().unfold(0, 8, 7)[:11]
    logits = model(rows[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert curve.evaluations[-1]["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_a_run_by_the_clock_ends(prepared):
    corpus, _ = prepared
    settings = replace(SETTINGS, minutes=0.005, every=10**6)
    _, curve = train(TextTask(settings, corpus))
    assert 0.3 <= curve.seconds < 30
    assert len(curve.evaluations) == 1
    assert curve.evaluations[0]["step"] == len(curve.loss)
    assert not is_finished(settings, 10**9, 0.29)
    rates = [learning_rate(settings, 99, seconds) for seconds in (0.0, 0.15, 0.3, 5.0)]
    assert rates[0] == settings.learning_rate
    assert rates[1] == pytest.approx(settings.learning_rate * 0.505)
    assert rates[2] == rates[3] == pytest.approx(settings.learning_rate * 0.01)


def test_stopped_and_resumed_a_run_on_text_is_the_same(prepared, tmp_path):
    corpus, _ = prepared

    def stop(done, curve, model):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        text_run.train_text(corpus, SETTINGS, tmp_path, on_step=stop)
    assert not (tmp_path / "model.safetensors").exists()
    resumed = text_run.train_text(corpus, SETTINGS, tmp_path)
    (tmp_path / "whole").mkdir()
    whole = text_run.train_text(corpus, SETTINGS, tmp_path / "whole")
    assert resumed.loss == whole.loss
    assert resumed.evaluations == whole.evaluations
    content = json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert content["evaluations"] == whole.evaluations
    assert content["steps"] == 20


@pytest.fixture
def text_file(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n<|endoftext|>\n".join(documents(20)), encoding="utf-8")
    return file


def test_the_command_trains_and_every_command_reads_the_folder(text_file, tmp_path, command_line):
    out = tmp_path / "mine"
    start = ["train", "--text", text_file, "--steps", "12", "--vocabulary", "300", "--out", out]
    status, printed, err = command_line(*start)
    assert status == 0, err
    assert "Loss on the held-out text: " in printed
    assert "tokens to train on" in err
    model, tokenizer = clearhead.load(out)
    assert model.config["vocab_size"] == tokenizer.vocab_size <= 300
    assert model.config["d_model"] == SIZES["tiny"][0].d_model
    status, printed, _ = command_line("generate", "the cat", "--tokens", "3", "--model", out)
    assert (status, printed[:7]) == (0, "the cat")
    status, printed, _ = command_line("explain", "the cat sat", "--model", out)
    assert status == 0
    assert "of mine: " in printed
    status, _, err = command_line(*start)
    assert (status, "this folder already holds a run." in err) == (2, True)
    assert command_line(*start, "--resume")[0] == 0
    _, _, err = command_line("train", "--resume", "--steps", "13", "--out", out)
    assert "steps is 12 there and 13 here" in err


def test_prepared_first_and_trained_later(text_file, tmp_path, command_line):
    out = tmp_path / "later"
    start = ["train", "--out", out, "--vocabulary", "280"]
    _, printed, _ = command_line(*start, "--text", text_file, "--prepare")
    assert f"Train: clearhead train --resume --out {out}" in printed
    assert not (out / CHECKPOINT).exists()
    text_file.unlink()
    assert command_line("train", "--out", out, "--resume", "--steps", "2")[0] == 0
    assert (out / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "2", "--text", "x"], "--seeds trains several grammar models."),
        (["--minutes", "1"], "belong to --text"),
        (["--prepare"], "belong to --text"),
        (["--text", "x", "--steps", "2", "--minutes", "1"], "give one of the two."),
        (["--text", "nowhere.txt"], "nowhere.txt does not exist."),
    ],
)
def test_options_that_do_not_go_together(options, message, tmp_path, command_line):
    status, _, err = command_line("train", "--out", tmp_path / "new", *options)
    assert (status, message in err) == (2, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_cuda_is_refused(text_file, tmp_path, command_line):
    out = tmp_path / "new"
    _, _, err = command_line("train", "--text", text_file, "--device", "cuda", "--out", out)
    assert "torch finds no GPU." in err


def test_a_tokenizer_needs_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install 'clearhead\[train\]'"):
        prepare(["some", "words"], tmp_path, vocab_size=300)


@pytest.mark.slow
def test_two_processes_train_together(text_file, tmp_path):
    out = tmp_path / "two"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("-m", "clearhead", "train", "--text", str(text_file), "--steps", "4"),
            *("--vocabulary", "300", "--out", str(out)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "trained by 2 process(es)" in done.stdout
    assert clearhead.load(out)[0].config["vocab_size"] <= 300
