"""The attention benchmark: what stays out and why, memory, and what is written."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import attention, memory
from benchmarks.cases import Case
from benchmarks.contestants import BOOK, Implementation, find

# x-transformers still uses torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

TINY = Case("fused", batch=3, tokens=11, d_model=20, heads=4, direction="forward+backward")
FAST = attention.Settings(rounds=1, memory=False)
SDPA, OURS = find("separate QKV + SDPA"), find("clearhead")


def broken(error):
    def build(source, case):
        raise error

    return Implementation("broken", build)


@pytest.mark.parametrize(
    ("contestant", "note"),
    [
        (Implementation("a", lambda s, c: nn.Identity(), package="no_such"), "not installed"),
        (broken(ImportError("No module named 'einops'")), "cannot be imported: No module named"),
        (broken(torch.OutOfMemoryError("CUDA out of memory")), "out of GPU memory"),
    ],
)
def test_a_contestant_that_cannot_run_is_a_row_not_a_crash(contestant, note):
    found = attention.measure_case(TINY, FAST, [contestant, OURS])
    assert found["rows"][0]["status"] == "not run"
    assert found["rows"][0]["note"].startswith(note)
    assert found["rows"][1]["status"] == "timed"
    assert found["ours_to_fastest_other"] is None
    assert any(note in line for line in attention.lines({"cases": [found]}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_compiled_forms_run_against_each_other():
    case = replace(TINY, direction="forward", compiled=True)
    failing = broken(RuntimeError("no C++ compiler\nand a long story"))
    found = attention.measure_case(case, FAST, [SDPA, failing, OURS])
    sdpa, fails, ours = found["rows"]
    assert sdpa["name"] == "separate QKV + SDPA, compiled"
    assert ours["kernel"] == "aten._scaled_dot_product_flash_attention_for_cpu"
    assert fails["note"] == "cannot be compiled: no C++ compiler"
    assert found["ours_to_fastest_other"]["name"] == sdpa["name"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_peak_memory_of_the_book_grows_with_tokens_squared_and_ours_does_not(monkeypatch):
    case = Case("fused", batch=1, tokens=1024, d_model=16, heads=4)
    assert case.map_mib() == 16
    settings = replace(FAST, memory=True)
    book, ours = attention.measure_case(case, settings, [BOOK, OURS])["rows"]
    assert book["peak_extra_mib"] > 2 * 16
    assert ours["peak_extra_mib"] < 16 / 4
    assert (book["stored_mask_mib"], ours["stored_mask_mib"]) == (4.0, 0.0)
    with pytest.raises(RuntimeError):  # and the times are kept without it
        memory.peak_extra_mib(replace(TINY, batch=-1), "clearhead", lambda: None)

    def fail(*_):
        raise RuntimeError("killed\nat once")

    monkeypatch.setattr(memory, "peak_extra_mib", fail)
    row = attention.measure_case(TINY, settings, [OURS])["rows"][0]
    assert (row["status"], row["note"]) == ("timed", "memory: killed")
