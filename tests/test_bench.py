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
from torch import nn
from typer.testing import CliRunner

from clearhead import harness
from clearhead.bench import app as app_module
from clearhead.bench import attention, contestants, gates, memory
from clearhead.bench.contestants import ALL, OURS, SDPA, Builder, Case, SdpaAttention

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


def test_hidden_is_what_the_names_say():
    hidden = Case("window", 1, 4, 4, 1, window=2, padding=1).hidden()
    assert hidden is not None
    assert hidden[0, 0].int().tolist() == [[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0]]
    assert TINY.hidden() is None


def test_rows_by_hand_are_the_ladders_rows():
    case = replace(CASES["long"], dtype="float64")
    x, _ = contestants.make_input(case)
    rows = gates._spread_rows(case)
    assert rows[0] == 0
    assert rows[-1] == case.tokens - 1
    expected = gates.Reference(replace(case, section="fused")).answers()[0]
    torch.testing.assert_close(gates._rows_by_hand(case, x, rows), expected[:, rows])


def test_relative_gap_keeps_nan_and_refuses_other_shapes():
    one = torch.tensor([1.0, 4.0])
    assert gates.relative_gap([one], [torch.tensor([1.0, 2.0])]) == 1.0
    assert math.isnan(gates.relative_gap([one, one * math.nan], [one, one]))
    with pytest.raises(ValueError, match=r"expected \(2,\), got \(1,\)"):
        gates.relative_gap([one[:1]], [one])


def test_which_kernel_really_ran():
    def kernel(builder, case):
        run = gates.make_run(builder.module(case), *contestants.make_input(case), case)
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
    monkeypatch.setattr(harness, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_rounds_are_interleaved_and_slow_ones_run_in_every_fourth(clock):
    log = []
    people = [
        harness.Contestant("ours", clock.run("ours", 1.0, log), ours=True),
        harness.Contestant("near", clock.run("near", 1.5, log)),
        harness.Contestant("slow", clock.run("slow", 5.0, log)),
    ]
    rows = harness.race(people, tolerance=0, rounds=12)
    ours, near, slow = rows
    assert list(ours.seconds) == list(near.seconds) == list(range(12))
    assert list(slow.seconds) == [0, 4, 8]
    assert near.ratio_to_ours == harness.Ratio(1.5, 1.5, 1.5, 12)
    assert slow.ratio_to_ours == harness.Ratio(5.0, 5.0, 5.0, 3)
    assert harness.ours_to_fastest(rows) == ("near", harness.Ratio(1 / 1.5, 1 / 1.5, 1 / 1.5, 12))
    first_of_short_rounds = log[9 + 3 :][:2], log[9 + 3 + 2 :][:2], log[9 + 3 + 4 :][:2]
    assert all(sorted(pair) == ["near", "ours"] for pair in first_of_short_rounds)
    again = []
    people = [harness.Contestant(p.name, clock.run(p.name, 1.0, again)) for p in people]
    harness.race(people, tolerance=0, rounds=12)
    orders = {tuple(again[i : i + 3]) for i in range(9, len(again), 3)}
    assert len(orders) > 1, "the order is shuffled"


def test_one_disturbed_warm_up_does_not_make_a_contestant_slow(clock):
    """A noisy machine once put the fastest contestant among the slow ones, with three rounds."""
    times = iter([9.0, 9.0, 9.0])

    def disturbed():
        clock.now += next(times, 1.0)

    rows = harness.race(
        [harness.Contestant("a", disturbed), harness.Contestant("b", clock.run("b", 1.0, []))],
        tolerance=0,
        rounds=8,
    )
    assert list(rows[0].seconds) == list(range(8))


def test_the_time_limit_leaves_enough_rounds(clock):
    rows = harness.race(
        [harness.Contestant("a", clock.run("a", 1.0, []))], tolerance=0, rounds=50, seconds=20
    )
    assert len(rows[0].seconds) == 21
    rows = harness.race(
        [harness.Contestant("a", clock.run("a", 1.0, []))], tolerance=0, rounds=50, seconds=0
    )
    assert len(rows[0].seconds) == harness.FEWEST_ROUNDS


def test_paired_ratio_ignores_what_hits_both():
    noise = np.random.default_rng(1).lognormal(0, 2, 30)
    base = harness.Row("base", "timed", seconds=dict(enumerate(noise)))
    double = harness.Row("double", "timed", seconds=dict(enumerate(2 * noise)))
    ratio = harness.paired_ratio(double, base)
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    assert ratio.rounds == 30


def test_bootstrap_interval_is_the_one_of_the_median():
    """The exact 95 % interval of a median of 101 values is from the 41st to the 61st of them."""
    ratios = np.random.default_rng(2).permutation(np.linspace(1, 2, 101))
    base = harness.Row("base", "timed", seconds=dict.fromkeys(range(101), 3.0))
    row = harness.Row("row", "timed", seconds=dict(enumerate(3.0 * ratios)))
    found = harness.paired_ratio(row, base)
    assert found.median == pytest.approx(1.5)
    assert found.low == pytest.approx(1.40, abs=0.021)
    assert found.high == pytest.approx(1.60, abs=0.021)
    assert found == harness.paired_ratio(row, base), "seeded"


def test_median_and_quartiles():
    row = harness.Row("row", "timed", seconds=dict(enumerate([5.0, 1.0, 2.0, 4.0, 3.0])))
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
    assert memory.peak_extra_mib(case, contestants.BOOK.name) > 2 * one_map
    assert memory.peak_extra_mib(case, OURS.name) < one_map / 4


def test_import_statements_run():
    rows = harness.race(
        [harness.Contestant("pass", harness.import_run("pass"))], tolerance=0, rounds=1
    )
    assert len(rows[0].seconds) == 1
    with pytest.raises(subprocess.CalledProcessError):
        harness.import_run("raise SystemExit(3)")()


def test_commit(tmp_path):
    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b@c"]
        done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    file = tmp_path / "file.py"
    file.write_text("1")
    assert harness.commit(file) is None
    git("init", "--quiet")
    assert harness.commit(file) is None, "not tracked: a stranger's repository around us"
    git("add", "file.py")
    git("commit", "--quiet", "--message", "one")
    assert harness.commit(file) == git("rev-parse", "HEAD")
    file.write_text("2")
    assert harness.commit(file) == git("rev-parse", "HEAD") + "-dirty"


def test_cpu_name(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Abacus 3000\n")
    assert harness.cpu_name(cpuinfo) == "Abacus 3000"
    assert harness.cpu_name(tmp_path / "missing")


# The command.


def test_command_prints_tables_then_one_line_of_json_and_writes_it(tmp_path):
    out = tmp_path / "results" / "attention.json"
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


def test_building_the_command_imports_nothing_heavy():
    source = Path(app_module.__file__).read_text()
    imported = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported <= sys.stdlib_module_names | {"typer"}
