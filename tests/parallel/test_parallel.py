"""Several processes compute together what one process computes."""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import parallel_ring
import parallel_workers
import pytest
import torch
import torch.multiprocessing as mp

from clearhead.lab.grammar_training import GrammarTask
from clearhead.models.trained_model import load_model
from clearhead.training import loop

ROOT = Path(__file__).parents[2]
TOGETHER = ["tensor_and_data", "tensor_and_context"]
ALONE = [name for name in parallel_workers.CHECKS if name not in TOGETHER]


def run(world: int, names: list[str], folder: Path) -> dict[str, str]:
    """Start the ranks once and run all checks; return "" per check that passed, else the error."""
    # A server process imports torch once; the ranks are forked from it.
    multiprocessing.set_forkserver_preload(["parallel_workers"])
    try:
        mp.start_processes(
            parallel_workers.main,
            (world, names, str(folder)),
            nprocs=world,
            start_method="forkserver",
        )
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        stopped = str(error)
    else:
        stopped = ""
    results = {}
    for name in names:
        failed = [file.read_text() for file in sorted(folder.glob(f"{name}.*.failed"))]
        passed = len(list(folder.glob(f"{name}.*.passed")))
        ended = "" if passed == world else f"did not run to its end.\n{stopped}"
        results[name] = "\n".join(failed) or ended
    return results


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return run(2, ALONE, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    return run(4, list(parallel_workers.CHECKS), tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("name", ALONE)
def test_two_ranks_compute_what_one_computes(two_ranks, name):
    assert not two_ranks[name], two_ranks[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", parallel_workers.CHECKS)
def test_four_ranks_compute_what_one_computes(four_ranks, name):
    assert not four_ranks[name], four_ranks[name]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="ring attention has CUDA kernels only")
def test_ring_attention_computes_what_one_process_computes():
    parallel_ring.main()


def test_the_page_starts_from_the_measured_figures():
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks" / "results" / "scale-h200.json").read_text())
    for layer in found["layers"]:
        for part in ("forward", "forward_backward"):
            assert f"{layer[part]['median_ms']:,.0f} ms" in page
            assert f"{layer[part]['peak_gib']} GiB" in page
    for step in found["steps"]:
        assert f"{step['step']['median_ms']:,.0f} ms" in page
        assert f"{step['step']['peak_gib']} GiB" in page


# Training with a rank that dies.


def start(
    world: int,
    folder: Path,
    *,
    dies_after: int | None = None,
    sleeps: bool = False,
    shard: bool = False,
) -> list[int | None]:
    """Start the ranks and wait for their ends; their exit codes."""
    multiprocessing.set_forkserver_preload(["parallel_workers"])
    context = multiprocessing.get_context("forkserver")
    ranks = [
        context.Process(
            target=parallel_workers.training,
            args=(rank, world, str(folder), dies_after, sleeps, shard),
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=90)
    hanging = [rank for rank in ranks if rank.is_alive()]
    for rank in hanging:
        rank.kill()
    assert not hanging, "a rank waits for ever"
    return [rank.exitcode for rank in ranks]


def losses(file: Path) -> dict[int, float]:
    lines = [line.split() for line in file.read_text().splitlines()]
    return {int(step): float(loss) for step, loss in lines}


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_rank_that_dies_ends_the_others_and_little_is_lost(tmp_path, ranks):
    """The rest is trained by another number of ranks, under another plan, to the same model."""
    assert start(2, tmp_path, dies_after=8) == [3, -9]
    message = (tmp_path / "error-0").read_text()
    assert message.startswith("rank 0 of 2: another rank stopped responding after step 8")
    assert "The newest checkpoint is of step 6; steps lost: 2." in message
    before = losses(tmp_path / "losses-2")
    assert list(before) == list(range(1, 9))

    assert start(ranks, tmp_path, shard=True) == [0] * ranks
    after = losses(tmp_path / f"losses-{ranks}")
    assert list(after) == [7, 8, 9], "at most one interval of 3 steps is done again"

    alone, curve = loop.train(GrammarTask(parallel_workers.SETTINGS))
    one_process = dict(enumerate(curve.loss, 1))
    for found in (before, after):
        assert found == pytest.approx({step: one_process[step] for step in found}, rel=1e-5)
    trained = torch.load(tmp_path / "trained.pt", weights_only=True)
    torch.testing.assert_close(trained, alone.state_dict(), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_rank_that_falls_asleep_ends_the_others_too(tmp_path):
    assert start(2, tmp_path, dies_after=4, sleeps=True) == [3, 4]
    message = (tmp_path / "error-0").read_text()
    assert "another rank stopped responding after step 4" in message
    assert "The newest checkpoint is of step 3; steps lost: 1." in message


@pytest.mark.slow
def test_torchrun_trains_and_goes_on_with_another_number_of_ranks(tmp_path):
    def torchrun(ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
        module = "clearhead.lab.distributed_training"
        words = f"-m torch.distributed.run --nproc-per-node {ranks} -m {module}"
        command = [sys.executable, *words.split(), "--out", str(tmp_path), *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    first = torchrun(2, "--steps", "4", "--every", "2")
    assert first.returncode == 0, first.stderr
    assert "step 4 of 4: loss" in first.stdout
    (tmp_path / "checkpoints" / "step-00000004").rename(tmp_path / "later")
    again = torchrun(4, "--steps", "4", "--every", "2", "--shard")
    assert again.returncode == 0, again.stderr
    assert "step 2" not in again.stdout, "it goes on after step 2"
    assert first.stdout.splitlines()[1] == again.stdout.splitlines()[0]
    model, _ = load_model(tmp_path / "model.safetensors")
    assert len(model.blocks) == 3
    other = torchrun(2, "--steps", "5")
    assert other.returncode != 0
    assert "a run with other settings: steps is 4 there and 5 here" in other.stderr
