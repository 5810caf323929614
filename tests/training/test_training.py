"""Training: the loop and its checkpoints, the grammar's task, the command, and what it wrote."""

import json
import math
import re
import runpy
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from importlib import resources

import pytest
import safetensors
import torch

from clearhead import GPT2, cli
from clearhead.lab import grammar, grammar_training, seed_runs
from clearhead.lab.grammar_training import GrammarSettings, GrammarTask, write_rows
from clearhead.lab.vocabulary import vocabulary
from clearhead.models.trained_model import CHECKPOINT, load_model, save_model, trained_file
from clearhead.training.loop import (
    Batch,
    Curve,
    Settings,
    chosen_rows,
    learning_rate,
    load_checkpoint,
    new_optimiser,
    save_checkpoint,
    train,
)

TINY = GrammarSettings(
    seed=5,
    steps=30,
    batch=5,
    tokens=13,
    rows=37,
    warmup=3,
    d_model=12,
    num_heads=3,
    num_layers=2,
    every=3,
    examples=4,
)


@pytest.fixture(scope="module")
def rows():
    return write_rows(8, 23)


def grammar_task(**changes):
    return GrammarTask(replace(TINY, **changes))


def with_rows(rows, **changes):
    task = grammar_task(**changes)
    task.rows = rows  # instead of writing more
    return task


# The loop, with a task of its own.


class Counting:
    """Predict the next of seven symbols, which follow each other in a circle."""

    def __init__(self, settings):
        self.settings = settings

    def new_model(self):
        torch.manual_seed(self.settings.seed)
        sizes = {"vocab_size": 7, "context_length": 5, "d_model": 6, "num_heads": 2}
        return GPT2({**sizes, "num_layers": 1, "dropout": 0.0, "qkv_bias": False})

    def batch(self, step):
        first = chosen_rows(7, self.settings, step)
        ids = (first[:, None] + torch.arange(6)) % 7
        return Batch(ids[:, :-1], ids[:, 1:])

    def evaluate(self, model):
        return {"loss": 1.0}


COUNTING = Settings(seed=3, steps=40, batch=7, learning_rate=0.03, warmup=3, every=10)


def test_the_loop_trains_any_task(tmp_path):
    _, curve = train(Counting(COUNTING), tmp_path)
    assert curve.loss[-1] < 0.5 * curve.loss[0]
    assert all(math.isnan(floor) for floor in curve.floor)
    assert curve.evaluations == [{"step": step, "loss": 1.0} for step in (10, 20, 30, 40)]


def test_every_row_is_read_once_per_epoch():
    settings = replace(COUNTING, batch=2)
    epochs = [[chosen_rows(8, settings, 4 * epoch + i) for i in range(4)] for epoch in (0, 1)]
    first, second = (torch.cat(epoch).tolist() for epoch in epochs)
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert not torch.equal(epochs[0][0], chosen_rows(8, replace(settings, seed=4), 0))


def test_the_learning_rate_rises_and_falls():
    rates = [learning_rate(TINY, step) for step in range(TINY.steps)]
    assert rates[0] == pytest.approx(1e-3)
    assert max(rates) == rates[2] == pytest.approx(TINY.learning_rate)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] < 0.02 * TINY.learning_rate


def test_a_finished_run_is_not_trained_again(tmp_path):
    first, curve = train(Counting(COUNTING), tmp_path)
    steps = []
    second, again = train(
        Counting(COUNTING), tmp_path, resume=True, on_step=lambda *_: steps.append(1)
    )
    assert (steps, again.loss) == ([], curve.loss)
    assert torch.equal(first.embedding.token.weight, second.embedding.token.weight)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    train(Counting(replace(COUNTING, steps=3)), tmp_path)
    with pytest.raises(ValueError, match=r"other settings: steps is 3 there and 6 here\."):
        train(Counting(replace(COUNTING, steps=6)), tmp_path, resume=True)
    train(Counting(replace(COUNTING, steps=3, every=1)), tmp_path, resume=True)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    model = Counting(COUNTING).new_model()
    optimiser = new_optimiser(model, COUNTING)
    file = tmp_path / CHECKPOINT
    save_checkpoint(file, COUNTING, model, optimiser, Curve())
    whole = file.read_bytes()
    for part in (whole[:-9], whole[:20], b""):
        file.write_bytes(part)
        with pytest.raises(ValueError, match="not a complete safetensors file"):
            load_checkpoint(file, COUNTING, model, optimiser)
    save_model(file, model, list("abcdefg"), {})
    with pytest.raises(ValueError, match="expected a checkpoint of `clearhead train`"):
        load_checkpoint(file, COUNTING, model, optimiser)


# The grammar's task.


def test_rows_hold_whole_sentences_and_their_floor(rows):
    tokens = grammar.tokenizer()
    assert rows.ids.shape == (8, 24)
    assert rows.nats.shape == (8, 23)
    source = grammar.sentences(0)
    for row, (ids, nats) in enumerate(zip(rows.ids, rows.nats, strict=True)):
        words = tokens.decode(ids).replace(".", " .").replace(",", " ,").split()
        costs = []
        if row % 2 == 0:
            assert words.pop(0) == "<|endoftext|>"
            costs.append(0.0)
        while words:
            sentence = next(source)
            seen = len(words[: len(sentence.words)])
            assert words[:seen] == list(sentence.words[:seen])
            costs += sentence.nats[:seen]
            del words[:seen]
        torch.testing.assert_close(nats, torch.tensor(costs[1:]))


def test_a_batch_depends_on_seed_and_step_only(rows):
    task = with_rows(rows, batch=3, unknown=0.2)
    inputs, targets, floor = task.batch(4)
    again = task.batch(4)
    assert torch.equal(inputs, again.inputs)
    assert (targets.tolist(), floor) == (again.targets.tolist(), again.floor)
    assert not torch.equal(targets, task.batch(5).targets)
    assert not torch.equal(targets, with_rows(rows, batch=3, seed=6).batch(4).targets)
    unknown = grammar.tokenizer().encode("zebra")[0]
    hidden = inputs == unknown
    assert 0 < hidden.sum() < inputs.numel() / 2
    assert torch.equal(inputs[:, 1:][~hidden[:, 1:]], targets[:, :-1][~hidden[:, 1:]])
    assert unknown not in targets


def test_training_brings_the_loss_down():
    _, curve = train(grammar_task(learning_rate=1e-2, steps=60, every=60))
    assert len(curve.loss) == len(curve.floor) == 60
    assert sum(curve.loss[-5:]) < 0.9 * sum(curve.loss[:5])
    assert all(loss > floor for loss, floor in zip(curve.loss, curve.floor, strict=True))
    (last,) = curve.evaluations
    assert last["loss"] > last["floor"] > 1.0
    assert set(last["accuracy"]) == set(grammar.RELATIONS)


# A run in a process of its own, killed and resumed.

PROGRAM = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from clearhead.lab.grammar_training import GrammarSettings, GrammarTask
from clearhead.training.loop import train
task = GrammarTask(GrammarSettings(**eval(sys.argv[2])))
def on_step(done, curve, model):
    print(done, flush=True)
    time.sleep(0.05)
train(task, Path(sys.argv[1]), resume=True, on_step=on_step)
"""


def start(folder, settings):
    command = [sys.executable, "-c", PROGRAM, str(folder), repr(asdict(settings))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def stored(folder):
    with safetensors.safe_open(folder / CHECKPOINT, framework="pt") as file:
        about = json.loads(file.metadata()["clearhead.training"])
        return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not iterable


def test_killed_and_resumed_the_curve_is_the_same_bit_for_bit(tmp_path):
    """kill -9 between two checkpoints; the second process resumes from the last one."""
    torch.set_num_threads(1)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    with start(killed, TINY) as process:
        for line in process.stdout:
            if int(line) >= 11:
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait() == -signal.SIGKILL
    about, tensors = stored(killed)
    assert 9 <= len(tensors["curve.loss"]) < 30
    assert [path.name for path in killed.iterdir() if not path.name.startswith(".")] == [CHECKPOINT]

    done = []
    train(grammar_task(), killed, resume=True, on_step=lambda step, *_: done.append(step))
    assert done[0] == len(tensors["curve.loss"]) + 1  # it did not start again
    assert done[-1] == 30
    train(grammar_task(), whole)
    about, tensors = stored(killed)
    expected_about, expected = stored(whole)
    assert about == expected_about
    assert len(about["looks"]) == 10
    assert set(tensors) == set(expected)
    del expected["curve.seconds"]  # the time that it took
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


@pytest.mark.slow
def test_a_full_run_reaches_the_accuracies(tmp_path):
    """One seed as it is shipped: about two minutes on two cores."""
    _, curve = train(GrammarTask(GrammarSettings()), tmp_path)
    last = curve.evaluations[-1]
    assert last["loss"] - last["floor"] < 0.1
    for name in ("subject", "possessive", "pronoun"):
        assert last["accuracy"][name] >= 0.95


# The command.


@pytest.fixture
def run(command_line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    measure = seed_runs.measure_heads
    monkeypatch.setattr(seed_runs, "measure_heads", lambda folder: measure(folder, sentences=12))
    monkeypatch.setattr(grammar_training, "GrammarSettings", lambda **given: replace(TINY, **given))
    return partial(command_line, "train")


def test_the_command_trains_seeds_and_names_the_best(run, tmp_path):
    out = tmp_path / "lab"
    status, shown, err = run("--seeds", 2, "--steps", 4, "--out", out)
    assert (status, err) == (0, "")
    assert "Best seed: " in shown
    assert "possessive: accuracy lost without the chosen head" in shown
    for seed in (0, 1):
        folder = out / f"seed-{seed}"
        files = {"model.safetensors", CHECKPOINT, "heads.json"}
        assert {path.name for path in folder.iterdir()} == files
        assert json.loads((folder / "heads.json").read_text())["schema"] == 1
    assert "<svg" in (out / "training.svg").read_text()
    assert max(map(len, shown.splitlines())) <= 100

    status, _, err = run("--seeds", 2, "--steps", 4, "--out", out)
    assert status == 2
    assert "this folder already holds a run.\n  Continue it with --resume" in err
    before = (out / "seed-0" / CHECKPOINT).read_bytes()
    status, again, _ = run("--seeds", 2, "--steps", 4, "--out", out, "--resume")
    assert (status, again) == (0, shown)
    assert (out / "seed-0" / CHECKPOINT).read_bytes() == before


def test_ctrl_c_says_what_is_saved_and_how_to_resume(run, tmp_path, monkeypatch):
    out = tmp_path / "lab"
    train_seed = seed_runs.train_seed

    def interrupted(at):
        def interrupt(settings, folder, *, resume, on_step):
            def check(done, curve, model):
                if (settings.seed, done) == at:
                    raise KeyboardInterrupt
                on_step(done, curve, model)

            return train_seed(settings, folder, resume=resume, on_step=check)

        return interrupt

    monkeypatch.setattr(seed_runs, "train_seed", interrupted((0, 2)))
    status, shown, err = run("--seeds", 2, "--steps", 7, "--out", out)
    assert (status, shown) == (130, "")
    assert err == f"\nInterrupted before the first checkpoint: nothing is saved in {out}.\n"
    monkeypatch.setattr(seed_runs, "train_seed", interrupted((1, 5)))
    status, shown, err = run("--seeds", 2, "--steps", 7, "--out", out)
    assert (status, shown) == (130, "")
    assert f"Saved in {out}: seed 0 to step 7 of 7, seed 1 to step 3 of 7.\n" in err
    again = re.search(r"^Resume: clearhead train (.*)$", err, re.M)[1].split()

    with pytest.raises(ValueError, match=r"step 3 of 7"):
        trained_file(out / "seed-1")
    monkeypatch.setattr(seed_runs, "train_seed", train_seed)
    status, shown, _ = run(*again)
    assert status == 0
    assert "Best seed: " in shown


def test_without_matplotlib_the_command_says_so(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, shown, err = run("--steps", 3, "--out", tmp_path / "lab")
    assert status == 0
    assert "Best seed: 0" in shown
    assert "matplotlib" in err


def test_the_former_name_of_the_distributed_command_works_and_warns(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["clearhead.lab.train", "--help"])
    monkeypatch.delitem(sys.modules, "clearhead.lab.train", raising=False)
    with (
        pytest.warns(DeprecationWarning, match=r"clearhead.lab.train is now clearhead.lab.dist"),
        pytest.raises(SystemExit) as end,
    ):
        runpy.run_module("clearhead.lab.train", run_name="__main__")
    assert end.value.code == 0
    assert "--shard" in capsys.readouterr().out


# What the command wrote.


def test_a_saved_model_comes_back(tmp_path):
    model = grammar_task().new_model().eval()
    save_model(tmp_path / "m.safetensors", model, vocabulary(), {"seed": 5})
    loaded, tokens = load_model(tmp_path / "m.safetensors")
    assert tokens.tokens("the cat sat.") == ["the", "cat", "sat", "."]
    ids = torch.tensor([tokens.encode("Mary met Adam in her house.")])
    assert torch.equal(loaded(ids), model(ids))
    train(Counting(COUNTING), tmp_path)
    with pytest.raises(ValueError, match="`clearhead train`"):
        load_model(tmp_path / CHECKPOINT)


@pytest.fixture
def trained(tmp_path):
    """What `clearhead train` leaves: here with the model that is shipped."""
    shipped = resources.files("clearhead.models") / "grammar" / "model.safetensors"
    folder = tmp_path / "my-lab" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(shipped.read_bytes())
    return folder


def test_a_trained_model_is_known_by_its_file(trained, tmp_path):
    file = trained / "model.safetensors"
    assert trained_file(file) == trained_file(trained) == trained_file(trained.parent) == file
    train(Counting(replace(COUNTING, steps=3)), trained)
    assert trained_file(trained / CHECKPOINT) == file
    other = trained.parent / "seed-1"
    other.mkdir()
    assert trained_file(trained.parent) == file
    (other / "model.safetensors").write_bytes(file.read_bytes())
    with pytest.raises(
        ValueError, match=r"with 2 models.\n  Pass one of them: .*seed-0, .*seed-1\."
    ):
        trained_file(trained.parent)
    for none in (tmp_path, tmp_path / "no", "gpt2", trained / "heads.json"):
        assert trained_file(none) is None
    file.write_bytes(file.read_bytes()[:100])
    assert trained_file(trained) is None
    file.unlink()
    with pytest.raises(
        ValueError, match=r"not finished: step 3 of 3.\n  Finish it: clearhead train"
    ):
        trained_file(trained)
    (other / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="is not finished"):
        trained_file(trained.parent)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["explain", "The cat sat"], "Layer 2, head "),
        (["generate", "The cat sat", "--tokens", "3"], "The cat sat. the brave\n"),
        (["heads", "The cat sat on the mat"], "first token"),
        pytest.param(["export", "lab.pt2"], "equal to the model within", marks=pytest.mark.slow),
    ],
)
def test_every_command_reads_what_train_wrote(arguments, shown, trained, capsys, monkeypatch):
    """Not only `lab.load`."""
    monkeypatch.chdir(trained.parents[1])
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments, "--model", "my-lab"])
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    assert shown in out


def test_gpt2_says_how_such_a_file_is_read(trained):
    with pytest.raises(ValueError, match=r"with clearhead.load\(path\)"):
        GPT2.from_pretrained(trained)
