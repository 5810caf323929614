"""The benchmark: its gate can fail, its statistics are right. No test looks at the clock."""

import ast
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from benchmarks.cases import Case
from benchmarks.contestants import ALL, OURS, SDPA, Builder, SdpaAttention
from torch import nn
from typer.testing import CliRunner

from benchmarks import app as app_module
from benchmarks import (
    attention,
    cases,
    contestants,
    entries,
    everything,
    gates,
    memory,
    options,
    room,
)
from clearhead import timing

# x-transformers still uses torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

# No two sizes are equal; 300 × 300 is large enough that ours leaves SDPA for masks it cannot say.
TINY = Case("fused", batch=3, tokens=11, d_model=20, heads=4, direction="forward+backward")
CASES = {
    "forward": replace(TINY, direction="forward"),
    "forward+backward": TINY,
    "float64": replace(TINY, dtype="float64"),
    "bfloat16": replace(TINY, dtype="bfloat16"),
    "dropout": replace(TINY, section="dropout", dropout=0.1),
    "window": replace(TINY, section="window", window=5),
    "padding": replace(TINY, section="padding", padding=4),
    "window, blocked": replace(TINY, section="window", tokens=300, window=37),
    "padding, blocked": replace(TINY, section="padding", tokens=300, padding=75),
    "long": replace(TINY, section="long", direction="forward", tokens=300),
    "long, dropout": replace(TINY, section="long", direction="forward", tokens=300, dropout=0.1),
    "long, backward": replace(TINY, section="long", tokens=300),
    "long, bfloat16": replace(TINY, section="long", tokens=300, dtype="bfloat16"),
}
FAST = attention.Settings(rounds=1, memory=False)


@pytest.mark.parametrize("name", CASES)
def test_every_contestant_passes_the_gate(name):
    case = CASES[name]
    reference = gates.Reference(case)
    for builder in contestants.builders_for(case):
        assert builder.installed, builder.name
        gap = reference.gap(builder, builder.module(case))
        assert not isinstance(gap, str), (builder.name, gap)
        assert gap <= gates.TOLERANCES[case.dtype], builder.name


def test_fused_section_has_the_ten_contestants():
    assert len(ALL) == len({builder.name for builder in ALL}) == 10
    assert [builder.name for builder in ALL if builder.ours] == ["clearhead"]
    assert [builder.name for builder in ALL if not builder.biases] == ["x-transformers"]


class Planted(SdpaAttention):
    """Right, but for one mistake."""

    def __init__(self, source, case, mistake):
        super().__init__(source, case, fused=False)
        self.mistake = mistake

    def forward(self, x):
        order = [1, 0, 2] if self.mistake == "swapped" else [0, 1, 2]
        q, k, v = (
            self.projections[i](x).unflatten(2, (self.heads, -1)).transpose(1, 2) for i in order
        )
        if self.mistake == "detached" or (self.mistake == "dropout gradient" and self.training):
            k = k.detach()
        scale = x.shape[-1] ** -0.5 if self.mistake == "scale" else None
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.mistake != "future", scale=scale
        )
        if "dropout" in self.mistake and self.training:  # the outputs stand in for the weights
            out = F.dropout(out, self.dropout)
        if self.mistake == "dropout" and self.training:
            out = out * (1 - self.dropout)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        return out * math.nan if self.mistake == "nan" else out


@pytest.mark.parametrize(
    "mistake",
    ["scale", "future", "swapped", "detached", "nan", "dropout", "dropout gradient"],
)
def test_a_planted_mistake_is_named_and_not_timed(mistake):
    """The whole output and all gradients are compared."""
    case = CASES["dropout"] if "dropout" in mistake else TINY
    planted = Builder("planted", lambda source, case: Planted(source, case, mistake))
    result = attention.measure_case(case, FAST, builders=(SDPA, planted, OURS))
    statuses = {row.name: row.status for row in result.rows}
    assert statuses == {SDPA.name: "timed", "planted": "different", "clearhead": "timed"}
    row = result.rows[1]
    assert row.note.startswith("computes something else")
    assert ("standard errors" in row.note) == ("dropout" in mistake)
    assert not row.seconds
    assert "median_ms" not in row.as_json()
    json.dumps(row.as_json(), allow_nan=False)


@pytest.mark.parametrize("mistake", ["scale", "future", "swapped", "detached", "nan"])
@pytest.mark.parametrize("name", ["long, backward", "long, bfloat16"])
def test_a_planted_mistake_is_found_where_only_some_rows_are_compared(name, mistake):
    case = CASES[name]
    planted = Builder("planted", lambda source, case: Planted(source, case, mistake))
    result = attention.measure_case(case, FAST, builders=(SDPA, planted, OURS))
    assert [row.status for row in result.rows] == ["timed", "different", "timed"]
    assert result.case["rows_checked"] == gates.ROWS_CHECKED < case.tokens


def test_what_is_lost_through_the_keys_does_not_hide_behind_the_rows_own_gradient():
    """At 1,500 tokens the largest gradients are the rows' own; keys without one must still show."""
    case = replace(CASES["long, bfloat16"], batch=1, tokens=1500)
    planted = Builder("planted", lambda source, case: Planted(source, case, "detached"))
    reference = gates.Reference(case)
    module = planted.module(case)
    found = gates.answers(module, reference.x, reference.gradient, case, reference.rows)
    _, own, others, _ = (
        gates.relative_gap([one], [other])
        for one, other in zip(found, reference.answers(), strict=True)
    )
    assert others > 10 * gates.TOLERANCES["bfloat16"]
    assert others > 2 * own


@pytest.mark.parametrize("name", ["forward+backward", "float64", "window", "padding"])
def test_too_large_a_reference_is_replaced_by_rows(name, monkeypatch):
    """The same verdict, and the rows of the dense reference."""
    case = replace(CASES[name], tokens=97)
    dense = gates.Reference(case)
    assert dense.rows is None
    monkeypatch.setattr(gates, "LARGEST_REFERENCE", 0)
    reference = gates.Reference(case)
    assert reference.rows is not None
    assert reference.rows[0] == case.padding
    torch.testing.assert_close(
        reference.answers()[0].to(case.torch_dtype()),
        dense.answers()[0][:, reference.rows - case.padding].to(case.torch_dtype()),
    )
    for builder in contestants.builders_for(case):
        assert reference.gap(builder, builder.module(case)) <= gates.TOLERANCES[case.dtype]


def test_the_gradient_of_rows_is_the_ladders():
    case = replace(CASES["long, backward"], dtype="float64")
    reference = gates.Reference(case)
    rows = reference.rows
    assert rows is not None
    only_rows = torch.zeros_like(reference.gradient)
    only_rows[:, rows] = reference.gradient[:, rows]
    book = contestants.BOOK.module(replace(case, section="fused"))
    output, x_gradient, norm = gates.answers(book, reference.x, only_rows, case)
    others = [i for i in range(case.tokens) if i not in rows.tolist()]
    expected = [output[:, rows], x_gradient[:, rows], x_gradient[:, others], norm]
    torch.testing.assert_close(reference.answers(), expected)


@pytest.mark.parametrize(("case", "word"), [(TINY, "none"), (CASES["dropout"], "right dropout")])
def test_the_planted_class_without_mistake_passes(case, word):
    """Otherwise the test above would say nothing about the mistakes."""
    right = Builder("right", lambda source, case: Planted(source, case, word))
    result = attention.measure_case(case, FAST, builders=(right, OURS))
    assert [row.status for row in result.rows] == ["timed", "timed"]


def test_dropout_that_never_drops_is_found():
    case = CASES["dropout"]
    lazy = Builder("lazy", lambda source, case: Planted(source, case, "none"))
    assert gates.dropout_error(lazy, case) == math.inf
    assert gates.dropout_error(OURS, case) < gates.MOST_STANDARD_ERRORS


def test_a_missing_package_is_a_row_not_a_crash():
    missing = Builder("missing", lambda source, case: nn.Identity(), package="no_such_package")
    result = attention.measure_case(TINY, FAST, builders=(missing, OURS))
    assert (result.rows[0].status, result.rows[0].note) == ("not run", "not installed")
    assert "not installed" in _text(result)


def test_a_package_that_cannot_be_imported_is_a_row_too():
    def build(source, case):
        raise ImportError("No module named 'einops'")

    broken = Builder("broken", build)
    result = attention.measure_case(TINY, FAST, builders=(broken, OURS))
    words = "cannot be imported: No module named 'einops'"
    assert (result.rows[0].status, result.rows[0].note) == ("not run", words)


def test_who_does_not_fit_is_not_tried_and_the_number_is_told(monkeypatch):
    """The first run at 131,072 tokens was killed: masks of 17 GB, and a dense reference."""
    monkeypatch.setattr(room, "free_mib", lambda device: 0.25)
    case = replace(TINY, direction="forward", batch=1, tokens=300)
    result = attention.measure_case(case, FAST, builders=ALL)
    statuses = {row.name: row.status for row in result.rows}
    assert statuses["clearhead"] == statuses["fused QKV + SDPA"] == "timed"
    assert {name for name, status in statuses.items() if status == "not run"} == {
        builder.name for builder in ALL if builder.squares(case) or builder.masks(case)
    }
    assert "would need about 0.0 GiB; of the 0.0 GiB that may be used" in result.rows[0].note
    long = Case("fused", 1, 131_072, 768, 12, dtype="bfloat16", device="cuda")
    refuse = room.Room(long, free=139 * 1024).refuse
    assert "would need about 1,377.1 GiB; of the 139.0 GiB" in refuse(contestants.BOOK)
    assert refuse(OURS) == refuse(SDPA) == refuse(contestants.FUSED) == ""


def test_masks_of_all_and_the_largest_run_share_the_room():
    case = Case("fused", 1, 4096, 768, 12)
    stored, _, peak = room.needed_mib(contestants.BOOK, case)
    assert stored == 64
    assert peak > 3 * 768
    shared = room.Room(case, free=peak + 2.5 * stored)
    assert shared.refuse(contestants.BOOK) == ""
    assert shared.refuse(contestants.BOOK) == ""
    assert "are left" in shared.refuse(contestants.BOOK)


def test_the_estimates_of_memory_are_those_that_were_measured():
    """Never far below what a run took; not so far above that it would be kept out for nothing."""
    checked = 0
    for file in (Path(__file__).parents[2] / "benchmarks" / "results").glob("attention-*.json"):
        for found in json.loads(file.read_text())["cases"]:
            if found["section"] == "import" or found["tokens"] < 1024 or found.get("compiled"):
                continue
            fields = Case.__dataclass_fields__.keys() & found.keys()
            case = Case(**{field: found[field] for field in fields})
            for row in found["rows"]:
                if row.get("peak_extra_mib"):
                    builder = contestants.find_builder(row["name"])
                    peak = room.needed_mib(builder, case).running
                    vectors = case.batch * case.tokens * case.d_model * case.element_size() / 2**20
                    assert peak >= 0.95 * row["peak_extra_mib"] - 4 * vectors, (file.name, row)
                    assert peak <= 1.6 * row["peak_extra_mib"] + 16 * vectors, (file.name, row)
                    checked += 1
    assert checked > 50


def test_free_memory(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  9000000 kB\nMemAvailable:    1048576 kB\n")
    assert room.free_mib("cpu", file) == pytest.approx(0.9 * 1024)
    file.write_text("MemAvailable:  104857600 kB\n")
    assert room.free_mib("cpu", file) == room.free_mib("cpu", tmp_path / "none") == room.CPU_MIB


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_compiled_forms_run_against_each_other():
    case = replace(TINY, direction="forward", compiled=True)
    result = attention.measure_case(case, FAST, builders=(SDPA, OURS))
    assert [row.name for row in result.rows] == [
        "separate QKV + SDPA, compiled",
        "clearhead, compiled",
    ]
    found = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert found["compiled"] is True
    assert found["ours_to_fastest_other"]["name"] == "separate QKV + SDPA, compiled"
    for row in found["rows"]:
        assert row["status"] == "timed"
        assert row["compile_s"] >= 0
        assert row["kernel"] == "aten._scaled_dot_product_flash_attention_for_cpu"
    assert "compiled in" in _text(result)


def test_what_cannot_be_compiled_is_a_row_not_a_crash(monkeypatch):
    def fail(run, case):
        raise RuntimeError("no C++ compiler\nand a long story")

    monkeypatch.setattr(entries, "_compile", fail)
    result = attention.measure_case(replace(TINY, compiled=True), FAST, builders=(OURS,))
    row = result.rows[0]
    assert (row.status, row.note) == ("not run", "cannot be compiled: no C++ compiler")


def test_compiled_cases_come_after_the_eager_ones_and_only_where_they_are_asked_for():
    settings = attention.Settings(["fused", "window"], [(3, 11, 20, 4)], forms=attention.FORMS)
    kinds = [(case.section, case.compiled) for case in settings.cases()]
    assert kinds == [("fused", False)] * 2 + [("fused", True)] * 2 + [("window", False)] * 2
    alone = replace(settings, forms=("compiled",)).cases()
    assert [builder.name for builder in contestants.builders_for(next(alone))] == [
        "book's class (rung 4)",
        "nn.MultiheadAttention, no weights",
        "separate QKV + SDPA",
        "fused QKV + SDPA",
        "clearhead",
    ]


def test_the_minutes_are_shared_among_the_cases_that_are_left(monkeypatch):
    now, asked = [0.0], []

    def measure_case(case, settings, say, *, meter):
        asked.append(settings.seconds)
        now[0] += 30.0
        return attention.Result({**case.as_json()}, "", [])

    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(attention, "time", clock)
    monkeypatch.setattr(attention, "measure_case", measure_case)
    shapes = [(3, 11, 20, 4), (3, 13, 20, 4)]
    attention.measure(attention.Settings(["fused"], shapes, minutes=2, seconds=14, memory=False))
    assert asked == [14, 14, 14, 14]
    asked.clear()
    attention.measure(attention.Settings(["fused"], shapes, minutes=1, memory=False))
    assert asked == [60 / 4 / 2, 30 / 3 / 2, 0, 0]


def test_hidden_is_what_the_names_say():
    hidden = Case("window", 1, 4, 4, 1, window=2, padding=1).hidden()
    assert hidden is not None
    assert hidden[0, 0].int().tolist() == [[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0]]
    assert TINY.hidden() is None


@pytest.mark.parametrize("biases", [True, False])
def test_rows_by_hand_are_the_ladders_rows(biases):
    case = replace(CASES["long"], dtype="float64")
    reference = gates.Reference(case)
    rows = reference.rows
    assert rows is not None
    assert rows[0] == 0
    assert rows[-1] == case.tokens - 1
    expected = gates.Reference(replace(case, section="fused")).answers(biases)[0]
    torch.testing.assert_close(reference.answers(biases)[0], expected[:, rows])


def test_relative_gap_keeps_nan_and_refuses_other_shapes():
    one = torch.tensor([1.0, 4.0])
    assert gates.relative_gap([one], [torch.tensor([1.0, 2.0])]) == 1.0
    assert math.isnan(gates.relative_gap([one, one * math.nan], [one, one]))
    with pytest.raises(ValueError, match=r"expected \(2,\), got \(1,\)"):
        gates.relative_gap([one[:1]], [one])


def test_which_kernel_really_ran():
    def kernel(builder, case):
        run = gates.make_run(builder.module(case), *cases.make_input(case), case)
        return gates.which_kernel(run)

    fused = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert kernel(contestants.BOOK, TINY) == "aten._softmax"
    assert kernel(OURS, TINY) == fused
    assert kernel(OURS, CASES["window, blocked"]) == "clearhead.blocked_attention"
    assert kernel(SDPA, CASES["dropout"]) == "aten._safe_softmax"


def test_stored_masks():
    case = replace(TINY, tokens=512)
    assert gates.stored_mask_mib(OURS.module(case)) == 0
    assert gates.stored_mask_mib(contestants.BOOK.module(case)) == 1.0


# The race, on a clock that only the contestants move.


class Clock:
    def __init__(self):
        self.now = 0.0

    def run(self, name, seconds, log):
        def one():
            self.now += seconds
            log.append(name)

        return one


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_rounds_are_interleaved_and_slow_ones_run_in_every_fourth(clock):
    log = []
    people = [
        timing.Contestant("ours", clock.run("ours", 1.0, log), ours=True),
        timing.Contestant("near", clock.run("near", 1.5, log)),
        timing.Contestant("slow", clock.run("slow", 5.0, log)),
    ]
    rows = timing.race(people, tolerance=0, rounds=12)
    ours, near, slow = rows
    assert list(ours.seconds) == list(near.seconds) == list(range(12))
    assert list(slow.seconds) == [0, 4, 8]
    assert near.ratio_to_ours == timing.Ratio(1.5, 1.5, 1.5, 12)
    assert slow.ratio_to_ours == timing.Ratio(5.0, 5.0, 5.0, 3)
    assert timing.ours_to_fastest(rows) == ("near", timing.Ratio(1 / 1.5, 1 / 1.5, 1 / 1.5, 12))
    first_of_short_rounds = log[9 + 3 :][:2], log[9 + 3 + 2 :][:2], log[9 + 3 + 4 :][:2]
    assert all(sorted(pair) == ["near", "ours"] for pair in first_of_short_rounds)
    again = []
    people = [timing.Contestant(p.name, clock.run(p.name, 1.0, again)) for p in people]
    timing.race(people, tolerance=0, rounds=12)
    orders = {tuple(again[i : i + 3]) for i in range(9, len(again), 3)}
    assert len(orders) > 1, "the order is shuffled"


def test_one_disturbed_warm_up_does_not_make_a_contestant_slow(clock):
    """A noisy machine once put the fastest contestant among the slow ones, with three rounds."""
    times = iter([9.0, 9.0, 9.0])

    def disturbed():
        clock.now += next(times, 1.0)

    rows = timing.race(
        [timing.Contestant("a", disturbed), timing.Contestant("b", clock.run("b", 1.0, []))],
        tolerance=0,
        rounds=8,
    )
    assert list(rows[0].seconds) == list(range(8))


def _slow(clock):
    return [timing.Contestant("slow", clock.run("slow", 5.0, []))]


def test_the_time_limit_leaves_enough_rounds(clock):
    rows = timing.race(
        [timing.Contestant("a", clock.run("a", 1.0, []))], tolerance=0, rounds=50, seconds=20
    )
    assert len(rows[0].seconds) == 21
    rows = timing.race(
        [timing.Contestant("a", clock.run("a", 1.0, []))], tolerance=0, rounds=50, seconds=0
    )
    assert len(rows[0].seconds) == timing.FEWEST_ROUNDS
    log = []
    rows = timing.race(
        [timing.Contestant("a", clock.run("a", 1.0, log)), *_slow(clock)],
        tolerance=0,
        rounds=50,
        seconds=0,
        fewest=5,
        warm_ups=0,
    )
    assert len(log) == len(rows[0].seconds) == 5
    assert list(rows[1].seconds) == [0, 4], "who is slow is known after the first round"


def test_paired_ratio_ignores_what_hits_both():
    noise = np.random.default_rng(1).lognormal(0, 2, 30)
    base = timing.Row("base", "timed", seconds=dict(enumerate(noise)))
    double = timing.Row("double", "timed", seconds=dict(enumerate(2 * noise)))
    ratio = timing.paired_ratio(double, base)
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    assert ratio.rounds == 30


def test_bootstrap_interval_is_the_one_of_the_median():
    """The exact 95 % interval of a median of 101 values is from the 41st to the 61st of them."""
    ratios = np.random.default_rng(2).permutation(np.linspace(1, 2, 101))
    base = timing.Row("base", "timed", seconds=dict.fromkeys(range(101), 3.0))
    row = timing.Row("row", "timed", seconds=dict(enumerate(3.0 * ratios)))
    found = timing.paired_ratio(row, base)
    assert found.median == pytest.approx(1.5)
    assert found.low == pytest.approx(1.40, abs=0.021)
    assert found.high == pytest.approx(1.60, abs=0.021)
    assert found == timing.paired_ratio(row, base), "seeded"


def test_median_and_quartiles():
    row = timing.Row("row", "timed", seconds=dict(enumerate([5.0, 1.0, 2.0, 4.0, 3.0])))
    assert row.median == 3.0
    assert row.quartiles == (2.0, 4.0)


# What comes out.


def _text(result):
    from clearhead.drawing import plain

    return plain(attention.draw(result), width=160)


def test_json_has_the_fields():
    settings = attention.Settings(
        sections=["fused", "padding"], shapes=[(3, 11, 20, 4)], rounds=2, memory=False
    )
    shown = []
    found = json.loads(json.dumps(attention.measure(settings, show=shown.append), allow_nan=False))
    assert found["schema"] == 1
    assert found["benchmark"] == "attention"
    assert {"date", "machine", "versions", "commit", "settings", "cases"} <= found.keys()
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["machine"]["cpu"]
    assert found["versions"]["torch"] == torch.__version__
    assert {"transformers", "x-transformers", "clearhead", "python"} <= found["versions"].keys()
    sections = [(case["section"], case["direction"]) for case in found["cases"]]
    both = ("forward", "forward+backward")
    assert sections == [(s, d) for s in ("fused", "padding") for d in both]
    for case in found["cases"]:
        assert case["shape"] == [3, 11, 20, 4]
        assert case["dtype"] == "float32"
        assert case["ours_to_fastest_other"]["interval_95"]
        for row in case["rows"]:
            assert row["status"] == "timed"
            assert row["gap"] <= gates.TOLERANCES["float32"]
            assert {
                "median_ms",
                "quartiles_ms",
                "rounds",
                "kernel",
                "stored_mask_mib",
            } <= row.keys()
            assert (row["ratio_to_ours"] is None) == row["ours"]
    assert len(shown) == 4
    assert "has no biases" in _text(shown[0])
    assert "times the time of the fastest other" in " ".join(_text(shown[0]).split())


def test_default_cases_are_the_ones_asked_for():
    cases = list(attention.Settings().cases())
    fused = [case.shape for case in cases if case.section == "fused"]
    assert fused[::2] == fused[1::2] == [(8, 1024, 768, 12), (1, 4096, 768, 12), (2, 100, 768, 12)]
    assert {case.dropout for case in cases if case.section == "dropout"} == {0.1}
    assert {case.window for case in cases if case.section == "window"} == {256}
    assert {case.padding * 4 - case.tokens for case in cases if case.section == "padding"} == {0}
    long = next(case for case in cases if case.section == "long")
    assert long.shape == (1, 16384, 768, 12)
    assert attention.book_weights_mib(long) * 2**20 == pytest.approx(12.9e9, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sections": ["fast"]}, "sections: expected some of fused, .* got fast"),
        ({"dtype": "int8"}, "dtype: expected one of float64, .* got 'int8'"),
        ({"device": "tpu"}, 'device: expected "cpu" or "cuda", got \'tpu\''),
        ({"rounds": 0}, "rounds: expected at least 1, got 0"),
        ({"forms": ["fast"]}, "forms: expected some of eager, compiled, got fast"),
        ({"shapes": [(1, 8, 10, 3)]}, "heads dividing d_model, got 1,8,10,3"),
    ],
)
def test_settings_that_cannot_be_measured(settings, message):
    with pytest.raises(ValueError, match=message):
        attention.measure(attention.Settings(**settings))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_peak_extra_memory_of_the_book_grows_with_tokens_squared_and_ours_does_not():
    case = Case("fused", batch=1, tokens=1024, d_model=16, heads=4)
    one_map = attention.book_weights_mib(case)
    assert one_map == 16
    with memory.Meter() as meter:
        assert meter.peak_extra_mib(case, contestants.BOOK.name) > 2 * one_map
        assert meter.peak_extra_mib(case, OURS.name) < one_map / 4


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_that_cannot_be_measured_leaves_the_times(monkeypatch):
    broken = replace(TINY, batch=-1)
    with memory.Meter() as meter:
        with pytest.raises(RuntimeError, match=r"memory of 'clearhead' failed:\nTraceback"):
            meter.peak_extra_mib(broken, "clearhead")
        assert meter.peak_extra_mib(TINY, "clearhead") is not None, "the next one is measured"

        def fail(*_):
            raise RuntimeError("it failed:\nkilled")

        monkeypatch.setattr(meter, "peak_extra_mib", fail)
        settings = replace(FAST, memory=True)
        result = attention.measure_case(TINY, settings, builders=(OURS,), meter=meter)
    row = result.rows[0]
    assert (row.status, row.note, row.peak_extra_mib) == ("timed", "memory: killed", None)


def test_import_statements_run():
    rows = timing.race(
        [timing.Contestant("pass", timing.import_run("pass"))], tolerance=0, rounds=1
    )
    assert len(rows[0].seconds) == 1
    with pytest.raises(subprocess.CalledProcessError):
        timing.import_run("raise SystemExit(3)")()


def test_commit(tmp_path):
    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b@c"]
        done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    file = tmp_path / "file.py"
    file.write_text("1")
    assert timing.commit(file) is None
    git("init", "--quiet")
    assert timing.commit(file) is None, "not tracked: a stranger's repository around us"
    git("add", "file.py")
    git("commit", "--quiet", "--message", "one")
    assert timing.commit(file) == git("rev-parse", "HEAD")
    file.write_text("2")
    assert timing.commit(file) == git("rev-parse", "HEAD") + "-dirty"


def test_cpu_name(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Abacus 3000\n")
    assert timing.cpu_name(cpuinfo) == "Abacus 3000"
    assert timing.cpu_name(tmp_path / "missing")


# The command.


def test_command_prints_tables_then_one_line_of_json_and_writes_it(tmp_path):
    out = tmp_path / "attention.json"
    command = ["attention", "--quick", "--only", "window", "--shape", "1,24,16,2"]
    done = CliRunner().invoke(app_module.app, [*command, "--rounds", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    *table, line = done.stdout.splitlines()
    assert json.loads(line) == json.loads(out.read_text())
    assert "window 6" in table[0]
    assert list(out.parent.iterdir()) == [out], "nothing left beside it"


@pytest.mark.parametrize("shape", ["8,1024,768", "a,b,c,d", "1,8,10,3"])
def test_command_explains_a_wrong_shape(shape):
    done = CliRunner().invoke(app_module.app, ["attention", "--shape", shape])
    assert done.exit_code == 2
    assert "batch,tokens,d_model,heads" in " ".join(done.output.split())


def test_command_knows_the_sections_and_dtypes():
    assert tuple(section.value for section in app_module.Section) == attention.SECTIONS
    assert [dtype.value for dtype in app_module.Dtype] == [
        "float64",
        "float32",
        "bfloat16",
        "float16",
    ]
    assert {dtype.value for dtype in app_module.Dtype} == gates.TOLERANCES.keys()


@pytest.mark.parametrize("module", [app_module, everything, options])
def test_building_the_command_imports_nothing_heavy(module):
    imported = set()
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    ours = {"benchmarks.everything", "benchmarks.options", "clearhead.atomic_files"}
    assert {name.partition(".")[0] for name in imported - ours} <= {
        *sys.stdlib_module_names,
        "typer",
    }
