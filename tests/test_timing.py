"""Interleaved rounds and ratios, on a clock that only the contestants move."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import attention
from clearhead import timing


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
    best = attention.ours_to_fastest(rows)
    assert best == {"name": "near", **timing.Ratio(1 / 1.5, 1 / 1.5, 1 / 1.5, 12).as_json()}
    first_of_short_rounds = log[9 + 3 :][:2], log[9 + 3 + 2 :][:2], log[9 + 3 + 4 :][:2]
    assert all(sorted(pair) == ["near", "ours"] for pair in first_of_short_rounds)
    again = []
    people = [timing.Contestant(p.name, clock.run(p.name, 1.0, again)) for p in people]
    timing.race(people, tolerance=0, rounds=12)
    orders = {tuple(again[i : i + 3]) for i in range(9, len(again), 3)}
    assert len(orders) > 1, "the order is shuffled"


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
