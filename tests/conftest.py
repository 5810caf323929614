"""Shared set-up: deterministic hypothesis, one thread a worker, the same tolerance everywhere."""

import os
from collections.abc import Callable

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    # Our CUDA kernels run in Triton's interpreter then. It reads this when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("default")

if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str, str]]:
    """Run `clearhead ARGUMENTS`; give back exit status, output and errors."""
    from clearhead import cli

    def run(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def plain_terminal(monkeypatch):
    """No colours, and wide enough that nothing is cut."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
