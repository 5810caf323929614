"""Each claim's verdict, and that each experiment can give another one; the command and the page."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clearhead import GPT2, cli, ladder, load
from clearhead.lab import grammar
from clearhead.lab.claims import (
    arithmetic_claims,
    claim_report,
    cost_claims,
    english_claims,
    head_claims,
    mask_claims,
)
from clearhead.lab.claims.catalogue import CLAIMS
from clearhead.lab.grammar_training import GrammarSettings, GrammarTask
from clearhead.masks import Mask
from clearhead.timing import Row

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "benchmarks" / "results" / "claims-cpu.json"

RESULTS = json.loads(COMMITTED.read_text(encoding="utf-8"))
# The verdicts that do not depend on timing.
VERDICTS = {
    each["name"]: claim_report.words(each) for each in RESULTS["claims"] if not each["timed"]
}


# What each experiment is run on instead, and the verdict it must then give.


def scaled(d_k: int) -> float:
    return d_k**-0.5


def correlated(count: int, d: int) -> torch.Tensor:
    return torch.randn(count, 1).expand(count, d)


def positions(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(x.shape[1])[:, None]


class NoMask(nn.Module):
    """Attention of the paper's form as a causal one: it has no mask."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.inner = ladder.EncoderAttention(16, 4)

    def forward(self, x):
        return self.inner(x)[0]


class Table(nn.Module):
    """Something that asks a table for row 6 of 6."""

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(context_length, 4)

    def forward(self, x):
        return x + self.table(torch.arange(x.shape[1]))


def no_layer() -> None:
    raise RuntimeError("what the notes expect")


def asserting(d_out: int, heads: int) -> None:
    assert d_out % heads == 0


def same_width(d_in: int, d_out: int) -> nn.Module:
    return ladder.MultiHeadAttention(d_in, d_in, 10, 0.0, num_heads=4)


def in_pieces(q, k, v):
    """Attention one query at a time: memory n, not n²."""
    rows = [cost_claims.plain(q[..., i : i + 1, :], k, v) for i in range(0, q.shape[-2], 64)]
    return torch.cat(rows, dim=-2)


def timed(**seconds: float) -> cost_claims.Race:
    """A race whose outcome is known: every round takes the same time."""

    def run(runs: cost_claims.Runs, quick: bool) -> dict[str, Row]:
        rounds = range(9)
        return {
            name: Row(name, "timed", seconds=dict.fromkeys(rounds, seconds[name.replace(" ", "_")]))
            for name in runs
        }

    return run


def frugal(q, k, v, future):
    """Masks in place and needs no memory for the weights, either."""
    scores = q @ k.transpose(-2, -1)
    scores.masked_fill_(future, -torch.inf).sub_(scores.amax(-1, keepdim=True)).exp_()
    return (scores @ v) / scores.sum(-1, keepdim=True)


def untrained() -> head_claims.Trained:
    return GrammarTask(GrammarSettings(seed=3)).new_model().eval(), grammar.tokenizer()


def attending(rule: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> head_claims.Trained:
    """An untrained model that attends only where the rule says, or to itself if nowhere."""
    model, tokens = untrained()
    for block in model.blocks:
        project = block.attention.project

        def project_and_mask(x, *rest, project=project, **options):
            queries, keys, values, _ = project(x, *rest, **options)
            position = torch.arange(x.shape[1])
            visible = rule(position[:, None], position)
            visible |= torch.eye(len(position), dtype=torch.bool) & ~visible.any(1, keepdim=True)
            return queries, keys, values, Mask.custom(visible)

        block.attention.project = project_and_mask
    return model, tokens


def back() -> head_claims.Trained:
    return attending(lambda query, key: key == query - 1)


def far_back() -> head_claims.Trained:
    return attending(lambda query, key: (query - key >= head_claims.FAR) & (key > 0))


def headless() -> head_claims.Trained:
    """A model to which its heads contribute nothing."""
    model, tokens = untrained()
    for block in model.blocks:
        nn.init.zeros_(block.attention.out_proj.weight)
    return model, tokens


def untrained_english() -> english_claims.Trained:
    """A small model of random weights that reads English."""
    _, tokenizer = load("english")
    torch.manual_seed(3)
    sizes = {"vocab_size": 8192, "context_length": 128, "d_model": 24, "num_heads": 3}
    return GPT2({**sizes, "num_layers": 2, "dropout": 0.0, "qkv_bias": True}).eval(), tokenizer


def given(*args, **options):
    return args, options


COUNTER_EXAMPLES = [
    ("rows-sum-to-one", given(lambda scores: scores.softmax(dim=-2)), "does not hold"),
    ("dot-product-variance", given(correlated), "does not hold"),
    ("dot-product-variance", given(torch.rand), "does not hold"),
    ("softmax-saturates", given(scaled), "does not hold"),
    ("gradients-vanish", given(scaled), "does not hold"),
    # So steep that every row is saturated: then the gradient at W_query is tiny too.
    ("gradients-vanish", given(lambda d: 1e6), "holds if"),
    ("root-of-d-out", given(lambda d_out, head_dim: head_dim), "holds"),
    ("root-of-d-out", given(lambda d_out, head_dim: 1), "does not hold"),
    ("one-matrix", given(bias=1.0), "does not hold"),
    (
        "one-matrix",
        given(lambda d, width: torch.randn(d, width, dtype=torch.float64).expand(2, -1, -1)),
        "holds",
    ),
    ("blind-to-order", given(positions), "does not hold"),
    ("cat-weights", given((0.22, 0.45, 0.33)), "holds"),
    (
        "four-by-four-weights",
        given(((1.0,), (0.45, 0.55), (0.30, 0.37, 0.33), (0.25, 0.21, 0.23, 0.31))),
        "holds",
    ),
    ("journey-weights", given((0.14, 0.24, 0.23, 0.12, 0.11, 0.16)), "holds"),
    ("gpt2-parameters", given({"gpt2-small": 124, "gpt2-large": 774}), "holds"),
    ("attention-parameters", given(lambda: nn.Linear(768, 4 * 768, bias=False)), "holds"),
    ("attention-parameters", given(printed=2_360_064), "holds"),
    ("gpt2-24-heads", given({"gpt2-medium": 16}), "holds"),
    ("gpt2-qkv-bias", given(True), "holds"),
    ("256-in-12-heads", given(lambda d_out, heads: 64), "holds"),
    ("256-in-12-heads", given(lambda d_out, heads: d_out // heads + 1), "does not hold"),
    ("mask-and-scaling", given(-20.0), "does not hold"),
    (
        "mask-after-softmax",
        given(lambda w, future: F.normalize(w.masked_fill(future, 0.0), p=1, dim=-1)),
        "holds",
    ),
    ("mask-after-softmax", given(lambda w, future: w.masked_fill(future, 0.1)), "does not hold"),
    ("mask-future", given(NoMask), "does not hold"),
    ("minus-1e9", given(-torch.inf), "holds"),
    ("minus-1e9", given(-10.0), "does not hold"),
    ("fully-masked-row", given({"safe": mask_claims.WAYS["Clearhead"]}), "does not hold"),
    ("fully-masked-row", given({"plain": mask_claims.WAYS["softmax written out"]}), "holds"),
    ("same-shape", given(same_width), "holds"),
    ("same-shape", given(lambda d_in, d_out: nn.Linear(d_in, 5)), "does not hold"),
    ("view-never-copies", given(torch.reshape), "does not hold"),
    ("contiguous", given(torch.reshape), "does not hold"),
    ("too-long", given(Table), "holds"),
    ("no-super-init", given(no_layer), "holds"),
    ("not-divisible", given(asserting), "holds"),
    ("split-projection", given(timed(per_head=2, split=1), quick=True), "holds"),
    ("split-projection", given(timed(per_head=1, split=2), quick=True), "does not hold"),
    ("in-place", given(race=timed(in_place=2, copy=1), quick=True), "does not hold"),
    ("in-place", given(race=timed(in_place=1, copy=2), quick=True), "holds if"),
    ("in-place", given(frugal, timed(in_place=1, copy=2), quick=True), "holds"),
    ("time-n-squared", given(timed(**{"n": 1, "4_n": 16}), quick=True), "holds"),
    ("time-n-squared", given(timed(**{"n": 1, "4_n": 4}), quick=True), "does not hold"),
    ("memory-n-squared", given({"plain": cost_claims.plain}), "holds"),
    ("memory-n-squared", given({"pieces": in_pieces}), "does not hold"),
    ("mask-cheating", given(lambda attention: None, quick=True), "does not hold"),
    ("dropout-overfitting", given(0.0, quick=True), "does not hold"),
    ("more-heads", given(lambda heads, distances, seed: 0.5), "does not hold"),
    ("more-heads", given(lambda heads, distances, seed: heads / 16), "holds"),
    ("head-subject-verb", given(untrained, quick=True), "does not hold"),
    ("head-pronoun", given(untrained, quick=True), "does not hold"),
    ("head-adjective-noun", given(untrained, quick=True), "does not hold"),
    ("head-adjacent-words", given(back), "holds"),
    ("head-long-range", given(untrained, quick=True), "does not hold"),
    ("head-long-range", given(far_back, quick=True), "holds"),
    ("head-position", given(back), "holds"),
    ("removing-heads", given(headless), "holds"),
    ("attention-explains", given(untrained, quick=True), "does not hold"),
    ("english-specialise", given(untrained_english), "does not hold"),
    ("english-previous-token", given(untrained_english), "does not hold"),
    ("english-agreement", given(untrained_english), "does not hold"),
    ("english-sinks", given(untrained_english), "does not hold"),
    ("english-induction", given(untrained_english, quick=True), "does not hold"),
    ("english-removing-heads", given(untrained_english, quick=True), "holds"),
]


def test_every_claim_has_a_counter_example():
    assert len(CLAIMS) == 47
    assert {name for name, _, _ in COUNTER_EXAMPLES} == set(CLAIMS)


# They train or measure for about a second each; the others stand for them in `make test`.
SLOW_VERDICTS = (
    "english-removing-heads",
    "english-specialise",
    "dropout-overfitting",
    "more-heads",
)
SLOW_COUNTER_EXAMPLES = (
    *("dropout-overfitting", "removing-heads", "mask-cheating", "attention-explains"),
    *("head-pronoun", "head-adjective-noun", "head-long-range", "head-adjacent-words"),
)


def slow_if(is_slow):
    return [pytest.mark.slow] if is_slow else []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=slow_if(name in SLOW_VERDICTS)) for name in VERDICTS]
)
def test_verdict(name):
    assert CLAIMS[name].run(quick=True).words == VERDICTS[name]


@pytest.mark.parametrize(
    ("name", "arguments", "verdict"),
    [
        pytest.param(
            *each,
            id=f"{each[0]}-{each[2]}-{number}",
            marks=slow_if(each[0] in SLOW_COUNTER_EXAMPLES),
        )
        for number, each in enumerate(COUNTER_EXAMPLES)
    ],
)
def test_every_experiment_can_give_another_verdict(name, arguments, verdict):
    args, options = arguments
    found = CLAIMS[name](*args, **options)
    assert found.verdict == verdict, found
    assert found.words != VERDICTS.get(name)


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_explains_itself(name):
    each = CLAIMS[name]
    assert each.says.endswith(".")
    assert len(each.explanation) > 40
    assert (ROOT / "src" / "clearhead" / each.file).is_file()
    source = (ROOT / "src" / "clearhead" / each.file).read_text(encoding="utf-8")
    assert f"def {each.experiment.__name__}(" in source
    begin = source.splitlines()[each.experiment.__code__.co_firstlineno - 1 :]
    assert begin[0].startswith("@claim")
    body = source.split(f"def {each.experiment.__name__}(")[1].split("\n\n\n")[0]
    assert body.count("\n") < 60, "a student reads it in one go"


# The helpers.


def test_the_caller_keeps_its_random_numbers():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    arithmetic_claims.rows_sum_to_one(seed=9)
    assert torch.equal(torch.rand(3), wanted)


def test_living_bytes_are_counted():
    x = torch.zeros(1000)  # 4,000 bytes, not counted: it was there before

    def run() -> torch.Tensor:
        first = x + 1  # 4,000
        second = first.view(10, 100) * 2  # 8,000; the view is no memory
        del first
        third = second.t() + 1  # 8,000 again
        return third.sum()  # and 4

    assert cost_claims.peak_bytes(run) == 8004
    assert cost_claims.peak_bytes(lambda: x.view(10, 100)) == 0
    assert cost_claims.peak_bytes(lambda: x.mul_(2)) == 0


def test_both_forms_of_projection_are_the_ladder_s():
    wrapper = ladder.MultiHeadAttentionWrapper(12, 5, 7, 0.0, num_heads=3).double()
    weights = torch.stack(
        [
            torch.stack([getattr(head, name).weight for head in wrapper.heads])
            for name in ("W_query", "W_key", "W_value")
        ]
    )
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    for attend in (cost_claims.plain, cost_claims.fused):
        torch.testing.assert_close(cost_claims.one_per_head(x, weights, attend), wrapper(x))
        torch.testing.assert_close(cost_claims.split(x, weights, attend), wrapper(x))


# The command line, the JSON and the page.


@pytest.fixture
def run(command_line):
    def run(*arguments):
        status, out, err = command_line("claims", *arguments)
        assert status == 0, err
        return out

    return run


def test_one_claim_in_full(run):
    shown = run("mask-after-softmax")
    for part in ("Verdict  holds if each row", "Figure ", "Spread ", "Seeds    0", "Source "):
        assert part in shown
    assert "src/clearhead/lab/claims/mask_claims.py, mask_after_softmax" in shown
    assert "clearhead claims mask-after-softmax" in shown
    assert "Dividing each row by its new sum fixes both." in shown


def test_json_out_from_and_page(run, tmp_path):
    out, text = tmp_path / "claims.json", tmp_path / "claims.md"
    assert run("cat-weights", "minus-1e9", "--json", "--quick", "--out", str(out)) == ""
    found = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(run("--json", "--from", str(out))) == found
    assert found["schema"] == 1
    assert found["settings"] == {"quick": True}
    assert [each["name"] for each in found["claims"]] == ["cat-weights", "minus-1e9"]
    shown = run("--from", str(out), "--page", str(text))
    assert "cat-weights" in shown
    assert "does not hold" in shown
    assert text.read_text(encoding="utf-8") == claim_report.markdown(found)
    assert "minus-1e9" not in run("cat-weights", "--from", str(out))


@pytest.mark.parametrize("width", [50, 129])
def test_a_narrow_window_has_one_claim_below_the_other(width, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run("--from", str(COMMITTED)).splitlines()
    assert max(map(len, lines)) <= width
    start = lines.index("rows-sum-to-one")
    assert lines[start + 1].startswith("  Claim    Each row of the attention weights")
    text = " ".join(" ".join(lines).split())
    for each in RESULTS["claims"]:
        for said in (each["says"], claim_report.words(each), each["figure"]):
            assert " ".join(said.split()) in text
    assert "47 claims: 10 hold, 24 hold if ..., 13 do not hold." in text
    monkeypatch.setenv("COLUMNS", "130")
    assert run("--from", str(COMMITTED)).split()[:4] == ["id", "claim", "verdict", "figure"]


def test_a_stopped_run_keeps_what_was_measured_and_goes_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "claims.json"
    names = ["cat-weights", "gpt2-parameters", "minus-1e9"]
    real = CLAIMS["gpt2-parameters"].experiment

    def stop() -> None:
        raise KeyboardInterrupt

    def measure(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(["claims", *names, "--quick", *more])
        return end.value.code, capsys.readouterr().err

    stopped = replace(CLAIMS["gpt2-parameters"], experiment=stop)
    monkeypatch.setitem(CLAIMS, "gpt2-parameters", stopped)
    status, err = measure("--out", str(out))
    assert status == 130
    assert f"Interrupted: 1 of 3 claims measured and saved in {out}." in err
    assert "repeat the command with --resume" in err
    assert [c["name"] for c in json.loads(out.read_text())["claims"]] == names[:1]
    status, err = measure()
    assert status == 130
    assert "Nothing is saved: with --out FILE" in err

    monkeypatch.setitem(CLAIMS, "gpt2-parameters", replace(stopped, experiment=real))
    first = out.read_text()
    status, err = measure("--out", str(out), "--resume")
    assert (status, err) == (0, f"Wrote {out}\n")
    found = json.loads(out.read_text())
    assert sorted(c["name"] for c in found["claims"]) == sorted(names)
    assert json.loads(first)["claims"][0] in found["claims"]
    with pytest.raises(SystemExit):
        cli.main(["claims", *names, "--out", str(out), "--resume"])
    assert "was measured with --quick, and this run is without it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gradient-vanish"], "unknown claim 'gradient-vanish'. Did you mean gradients"),
        (["nonsense"], "unknown claim 'nonsense'.\n  All ids: clearhead claims --list"),
        (["--out", "no/such/a.json"], "--out no/such/a.json: there is no folder no/such."),
        (["--resume"], "--resume continues the results in --out FILE"),
        (["--resume", "--out", "no.json"], "give an existing file"),
        (["--from", "no.json"], "--from no.json: No such file or directory."),
        (["--from", "broken.json"], "--from broken.json: not a JSON file."),
        (
            ["--from", "other.json"],
            "--from other.json: expected the output of `clearhead claims --out",
        ),
    ],
)
def test_errors_say_what_is_wrong(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(SystemExit):
        cli.main(["claims", *arguments])
    assert message in capsys.readouterr().err


def test_committed_results_are_those_of_these_claims():
    assert RESULTS["settings"] == {"quick": False}
    assert [each["name"] for each in RESULTS["claims"]] == list(CLAIMS)
    for each in RESULTS["claims"]:
        here = CLAIMS[each["name"]]
        assert (each["says"], each["explanation"]) == (here.says, here.explanation)
        assert (each["file"], each["seeds"]) == (here.file, here.seeds)
        assert (each["function"], each["timed"]) == (here.experiment.__name__, here.timed)


def test_the_page_is_made_from_the_committed_results():
    files = sorted(COMMITTED.parent.glob("claims-h*.json"))
    others = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert text == claim_report.markdown(RESULTS, others)
