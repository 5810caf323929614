"""Each mistake of the catalogue, planted in our own code, makes a test fail.

A plant is put into a copy of the package, and the core of the suite is run on that copy in a
process of its own. These processes are forked from one that has already imported torch and
transformers, since importing them takes longer than the tests themselves.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from package_mutations import PLANTS as PLANTED
from package_mutations import Plant

import clearhead
from clearhead.checker.catalogue import FAMILIES, MISTAKES, Mistake, find

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "clearhead"

LADDER = ["tests/test_ladder.py"]
MASKS = ["tests/masks/test_masks.py"]
# Without the tests of memory use and of many random draws, which take long.
KERNELS = ["tests/kernels/test_kernels.py", "-k", "not queries_by_keys and not its_share"]
DRAWS = ["tests/kernels/test_kernels.py", "-k", "its_share"]
# Without the tests of compilation and of error messages.
ATTENTION = [
    "tests/test_attention.py",
    "-k",
    "equals_the_ladder or equals_lists or cached or checkpoints or padded or dropout",
]

# The tests to run for an edit in each module, until one fails.
STAGES = {
    "ladder": [LADDER, ATTENTION],
    "masks.mask": [MASKS],
    "kernels": [KERNELS],
    "kernels.eager": [KERNELS, DRAWS],
    "kernels.sdpa": [KERNELS, DRAWS],
    "kernels.blocked": [KERNELS, DRAWS],
    "attention": [ATTENTION],
}

CRASHED, NOT_THE_COPY = 98, 99  # exit statuses that pytest does not have

SERVER = f"""
import gc, json, os, sys, traceback
import hypothesis, pytest, torch, torch._dynamo.testing
import transformers.models.gpt2.modeling_gpt2
gc.freeze()
for line in sys.stdin:
    folder, report, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(report, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        sys.path.insert(0, folder)
        status = {CRASHED}
        try:
            import clearhead
            copied = clearhead.__file__.startswith(folder + os.sep)
            status = pytest.main(arguments) if copied else {NOT_THE_COPY}
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

Suite = Callable[[Path, list[str]], tuple[int, str]]


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    """Run tests on a copy of the package; give back the exit status and what pytest wrote."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    stdin, stdout = server.stdin, server.stdout

    def run(folder: Path, tests: list[str]) -> tuple[int, str]:
        report = folder / "report.txt"
        arguments = [*tests, "-x", "-q", "--tb=short", "-p", "no:cacheprovider"]
        print(json.dumps([str(folder), str(report), arguments]), file=stdin, flush=True)
        status = int(stdout.readline())
        text = report.read_text(encoding="utf-8")
        report.unlink()
        assert status != NOT_THE_COPY, "the planted copy was not the one imported"
        return status, text

    yield run
    stdin.close()
    server.wait()
    stdout.close()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package in it."""
    shutil.copytree(PACKAGE, tmp_path / "clearhead", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


PLANTS = [
    pytest.param(mistake, plant, id=f"{mistake.id}-in-{plant.module}-{number}")
    for mistake in MISTAKES
    for number, plant in enumerate(PLANTED.get(mistake.id, ()))
]


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "plant"), PLANTS)
def test_planted_mistake_turns_the_suite_red(
    mistake: Mistake, plant: Plant, copy: Path, suite: Suite
) -> None:
    plant.apply(copy / "clearhead")
    seen = ""
    for tests in STAGES[plant.module]:
        status, text = suite(copy, tests)
        seen += text
        if status != 0:
            break
    assert status == pytest.ExitCode.TESTS_FAILED, seen
    # Not by a crash: the planted code runs, and a test has compared its result.
    assert re.search(
        r"^(E +| +\| )(AssertionError|assert |\S+GradcheckError)", seen, re.MULTILINE
    ), seen


@pytest.mark.parametrize(("mistake", "plant"), PLANTS)
def test_every_plant_fits_the_code_of_today(mistake: Mistake, plant: Plant, tmp_path: Path) -> None:
    """Edits that no longer fit the code are noticed here, and not only in the slow tests."""
    name = plant.module.replace(".", "/")
    file = PACKAGE / f"{name}.py"
    file = file if file.exists() else PACKAGE / name / "__init__.py"
    target = tmp_path / file.relative_to(PACKAGE)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)
    plant.apply(tmp_path)


@pytest.mark.slow
def test_without_a_plant_the_suite_is_green(copy: Path, suite: Suite) -> None:
    """Otherwise a failing test would prove nothing about the planted mistake."""
    for tests in (LADDER, MASKS, KERNELS, DRAWS, ATTENTION):
        status, text = suite(copy, tests)
        assert status == pytest.ExitCode.OK, text


# Their evidence serves as the hint, and their fix depends on the case.
VERDICTS = {mistake.id for mistake in FAMILIES[-1].mistakes}


def test_catalogue_is_in_order() -> None:
    ids = [mistake.id for mistake in MISTAKES]
    assert len(set(ids)) == len(ids) >= 44
    assert set(PLANTED) <= set(ids)
    assert all(PLANTED.values())
    assert len(PLANTED) >= 28
    fast = {
        id_ for id_, plants in PLANTED.items() for p in plants if p.module.split(".")[0] != "ladder"
    }
    assert len(fast) >= 8
    for mistake in MISTAKES:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", mistake.id)
        assert mistake.says.endswith(".")
        if mistake.id not in VERDICTS:
            assert mistake.fix.endswith(".")
            assert mistake.symptom.endswith(".")
            assert mistake.fix not in mistake.symptom  # a hint does not give the answer away
            assert mistake.says != mistake.fix
        assert mistake.section.endswith("\n")
        assert find(mistake.id) is mistake
    with pytest.raises(ValueError, match="unknown mistake 'typo'"):
        find("typo")


def test_a_plant_that_no_longer_fits_says_so(copy: Path) -> None:
    with pytest.raises(ValueError, match="ladder: expected this text once, found it 0 times:\nno"):
        Plant("ladder", "no such text", "").apply(copy / "clearhead")
    with pytest.raises(ValueError, match=r"attention: expected this text once, found it \d+ times"):
        Plant("attention", "self", "").apply(copy / "clearhead")


def test_the_package_under_test_is_the_one_in_this_folder() -> None:
    assert Path(clearhead.__file__).parent == PACKAGE
