"""`clearhead bench all`: every part runs, a part that fails harms no other; the page and charts."""

import json
import re
from pathlib import Path

import pytest
import torch
from benchmarks.app import app
from benchmarks.parts import Job, Part
from typer.testing import CliRunner

from benchmarks import charts, page, parts, watching
from clearhead import timing

# x-transformers still uses torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def invoke(*arguments):
    return CliRunner().invoke(app, ["all", *map(str, arguments)])


def test_every_part_runs_and_writes_its_file(tmp_path):
    out = tmp_path / "results"
    done = invoke("--quick", "--no-compiled", "--skip", "import", "--out", out)
    assert done.exit_code == 0, done.output
    expected = [
        part
        for part in parts.parts_for("cpu")
        if part.name != "import" and not part.name.startswith("compiled")
    ]
    assert sorted(file.name for file in out.iterdir()) == sorted(part.file for part in expected)
    for part in expected:
        found = json.loads((out / part.file).read_text())
        assert (found["schema"], found["part"]) == (1, part.name)
        assert found["command"] == (
            "clearhead bench all --device cpu --no-compiled --quick --skip import"
        )
    announced = done.output[: done.output.index("[1/9]")]
    assert all(part.name in announced for part in expected)
    assert "9 parts, about" in announced
    sweep = json.loads((out / "attention-cpu-sweep-bfloat16.json").read_text())
    assert {len(case["rows"]) for case in sweep["cases"]} == {10}
    assert {row["status"] for case in sweep["cases"] for row in case["rows"]} == {"timed"}
    watch = json.loads((out / "watch-cpu.json").read_text())
    assert watch["cases"][0]["equal_bit_for_bit"]


def made_up(monkeypatch, *made):
    monkeypatch.setattr(parts, "parts_for", lambda device, compiled: list(made))


def good(name):
    return Part(name, f"{name}.json", 1, lambda job: {"schema": 1})


def failing(name, error):
    def run(job):
        raise error

    return Part(name, f"{name}.json", 3, run)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("no", name="x_y"), "needs x_y, which is not installed: pip install"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (RuntimeError("first line\nsecond"), "RuntimeError: first line"),
        (RuntimeError(), "RuntimeError: "),
    ],
)
def test_a_part_that_fails_is_told_of_and_the_others_run(monkeypatch, tmp_path, error, words):
    made_up(monkeypatch, good("a"), failing("b", error), good("c"))
    done = invoke("--out", tmp_path)
    assert done.exit_code == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "c.json"]
    end = done.stdout[done.stdout.index("1 of 3 parts failed") :]
    assert f"b: {words}" in end
    assert "second" not in end


def test_ctrl_c_loses_only_the_part_under_way(monkeypatch, tmp_path):
    made_up(monkeypatch, good("a"), failing("b", KeyboardInterrupt()), good("c"))
    done = invoke("--out", tmp_path)
    assert done.exit_code == 130
    assert "Stopped. Written: a." in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_list_only_and_skip(monkeypatch, tmp_path):
    made_up(monkeypatch, good("a"), good("b"), good("c"))
    done = invoke("--list", "--skip", "b", "--out", tmp_path)
    assert done.exit_code == 0
    assert "2 parts, about 2 minutes" in done.output
    assert not list(tmp_path.iterdir())
    assert invoke("--only", "b", "--out", tmp_path).exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["b.json"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--only", "speed", "--out", "x"],
            "parts: expected some of sweep-float32, .* got 'speed'",
        ),
        (["--only", "view", "--skip", "view"], "everything is skipped"),
        (["--quick"], "give --out a folder of its own"),
        (["--out", __file__], "is no folder"),
    ],
)
def test_what_cannot_be_run_is_explained(arguments, words):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert re.search(words, re.sub(r"[\s│]+", " ", done.output))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(tmp_path):
    done = invoke("--device", "cuda", "--out", tmp_path)
    assert done.exit_code == 2
    assert "no CUDA device" in done.output


def test_the_time_is_shared_by_what_the_parts_usually_take(monkeypatch, tmp_path):
    now, told = [0.0], []

    def run(job):
        told.append(job.minutes)
        now[0] += 60.0
        return {}

    monkeypatch.setattr(parts.time, "monotonic", lambda: now[0])
    three = [Part(name, name, minutes, run) for name, minutes in (("a", 1), ("b", 2), ("c", 3))]
    parts.run_all(three, tmp_path, Job("cpu", minutes=12))
    assert told == [12 / 6, 11 * 2 / 5, 10]
    assert Job("cpu", minutes=1).seconds(3) == 10
    assert Job("cpu").seconds(3) == 60


def test_every_part_has_a_name_and_a_file_of_its_own():
    for device, gpu in (("cpu", None), ("cuda", "NVIDIA H200")):
        found = parts.parts_for(device, gpu=gpu)
        assert len({part.name for part in found}) == len({part.file for part in found})
        assert len({part.name for part in found}) == len(found)
    files = {part.file for part in found}
    assert {"attention-h200-sweep-bfloat16.json", "watch-h200.json"} <= files
    assert "view" not in {part.name for part in found}


# The cost of looking.


def test_watch_is_measured_beside_plain():
    settings = watching.Settings([(2, 16), (1, 8)], rounds=2, layers=1)
    found = json.loads(json.dumps(watching.measure(settings), allow_nan=False))
    assert [(case["batch"], case["tokens"]) for case in found["cases"]] == [(2, 16), (1, 8)]
    for case in found["cases"]:
        assert case["equal_bit_for_bit"]
        assert case["watched_over_plain"]["rounds"] == 2
        assert case["plain_ms"] > 0
    assert "times that" in watching.draw(found)[1]


def test_watch_that_changes_the_output_is_not_timed(monkeypatch):
    class Changing:
        def __init__(self, model):
            self.norm = model.ln_f

        def __enter__(self):
            self.norm.bias.data += 1

        def __exit__(self, *_):
            self.norm.bias.data -= 1

    monkeypatch.setattr(watching, "watch", Changing)
    found = watching.measure(watching.Settings([(1, 8)], rounds=1, layers=1))
    case = found["cases"][0]
    assert not case["equal_bit_for_bit"]
    assert case["watched_over_plain"] is None
    assert "computes something else: 6,144 of 6,144 numbers differ" in watching.draw(found)[1]


def test_watch_command(tmp_path):
    out = tmp_path / "watch.json"
    command = ["watch", "--shape", "1,8", "--layers", "1", "--rounds", "1", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(out.read_text())
    done = CliRunner().invoke(app, ["watch", "--shape", "8"])
    assert done.exit_code == 2
    assert "batch,tokens" in done.output
    done = CliRunner().invoke(app, ["watch", "--size", "gpt3"])
    assert done.exit_code == 2
    assert "gpt2-xl" in done.output


# The page and its charts, from numbers that are easy to find again.


def sweep(*, losing, compiled=False):
    """Two lengths; at the second, the book's class is not run and ours loses or not."""
    cases = []
    for tokens in (128, 4096):
        for direction in charts.PASSES:
            names = ["book's class (rung 4)", "fused QKV + SDPA", "clearhead"]
            rows = []
            for name in names:
                ours = name == "clearhead"
                row = {"name": name, "status": "timed", "ours": ours, "gap": 0.0}
                row |= {"median_ms": 2.0 * tokens, "peak_extra_mib": 7.0, "kernel": "aten._x"}
                row |= {"compile_s": 3.0} if compiled else {}
                row["ratio_to_ours"] = None if ours else ratio(0.5 if losing else 2.0)
                rows.append(row)
            if tokens == 4096:
                rows[0] = {"name": names[0], "status": "not run", "ours": False}
                rows[0]["note"] = "would need about 9.9 GiB"
            cases.append(
                {
                    "section": "fused",
                    "batch": 2,
                    "tokens": tokens,
                    "d_model": 768,
                    "heads": 12,
                    "shape": [2, tokens, 768, 12],
                    "direction": direction,
                    "dtype": "float32",
                    "device": "cpu",
                    "compiled": compiled,
                    "rows_checked": 64 if tokens > 1000 else None,
                    "rows": rows,
                    "ours_to_fastest_other": {"name": names[1], **ratio(2.0 if losing else 0.5)},
                }
            )
    machine = {"cpu": "Abacus", "cores": 2}
    return {
        "benchmark": "attention",
        "machine": machine,
        "versions": {"torch": "2"},
        "cases": cases,
    }


def ratio(value):
    return {"median": value, "interval_95": [value - 0.1, value + 0.1], "rounds": 9}


def test_the_page_says_where_we_lose_and_why():
    results = {
        "attention-cpu-sweep-float32": sweep(losing=True),
        "attention-cpu-compiled-float32": sweep(losing=False, compiled=True),
    }
    text = page.markdown(results, folder="charts")
    assert "- float32, forward, 2 × 128 tokens: 2.00 [1.90, 2.10] times fused QKV + SDPA. " in text
    assert "it projects Q, K and V in one product of matrices" in text
    assert "**2.00 [1.90, 2.10]**" in text
    assert "| float32, forward, compiled | 0.50 [0.40, 0.60] | 0.50 [0.40, 0.60] |" in text
    assert "| book's class (rung 4) | 256.00 (0.50) | not run |" in text
    assert "- book's class (rung 4), 4,096: would need about 9.9 GiB." in text
    assert "| **clearhead** | 256.00; 3 s to compile | 8,192.00; 3 s to compile |" in text
    assert "From 4,096 tokens on, 64 rows of the output" in text
    assert "Kernels: `_x`: book's class (rung 4), fused QKV + SDPA, clearhead" in text
    for chart in charts.charts(results):
        assert f"![{chart.alt}](charts/{chart.file})" in text
    winning = page.markdown(
        results | {"attention-cpu-sweep-float32": sweep(losing=False)}, folder=""
    )
    assert "Nowhere more than 1.03 times the fastest other's time." in winning


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"interval_95": [0.9, 2.1]}, "Not certain: the interval reaches down to 0.90."),
        ({"name": "clearhead's friend"}, "the difference is in what is done around it"),
    ],
)
def test_why_we_lose_is_read_from_the_measurement(change, words):
    case = sweep(losing=True)["cases"][0]
    case["ours_to_fastest_other"] |= change
    case["rows"][1]["name"] = case["ours_to_fastest_other"]["name"]
    assert words in page._why(case)
    case["ours_to_fastest_other"]["interval_95"] = [1.9, 2.1]
    case["rows"][1]["kernel"] = "aten._y"
    assert "Another kernel: `_y`, ours ran `_x`." in page._why(case)


def test_a_case_that_a_sweep_measured_again_is_shown_once():
    old = sweep(losing=False)
    results = {"attention-cpu-2x128": old, "attention-cpu-sweep-float32": sweep(losing=False)}
    assert "## attention-cpu-2x128" not in page.markdown(results, folder="")
    for case in old["cases"]:
        case |= {"batch": 3, "shape": [3, *case["shape"][1:]], "dropout": 0.0}
        case |= {"window": None, "padding": 0}
    assert "## attention-cpu-2x128" in page.markdown(results, folder="")


def test_charts_carry_their_numbers_and_are_the_same_every_time():
    made = charts.charts(
        {
            "attention-h200-sweep-float32": sweep(losing=True),
            "attention-h200-compiled-float32": sweep(losing=False, compiled=True),
        }
    )
    assert [chart.file for chart in made] == [
        "time-h200-float32.svg",
        "memory-h200-float32.svg",
        "ratio-h200.svg",
    ]
    times = {line.name: line.points for line in made[0].panels[0].lines}
    assert times["clearhead"] == ((128, 128.0, 128.0, 128.0), (4096, 4096.0, 4096.0, 4096.0))
    assert len(times["book's class (rung 4)"]) == 1
    assert {line.name for line in made[2].panels[0].lines} == {"float32", "float32, compiled"}
    for chart in made:
        svg = charts.draw(chart)
        assert charts.data_in(svg) == chart.data()
        assert svg == charts.draw(chart)
        assert f"<title>{chart.title.replace(chr(39), '&#x27;')}</title>" in svg
    with pytest.raises(ValueError, match="carries no numbers"):
        charts.data_in("<svg></svg>")


def test_the_maps_chart():
    rows = [
        {"name": "forward, SDPA", "status": "timed", "ratio_to_ours": None},
        {"name": "summary, log-sum-exp given", "status": "timed", "ratio_to_ours": ratio(1.3)},
    ]
    found = {"benchmark": "maps", "cases": [{"tokens": 16384, "rows": rows}]}
    (chart,) = charts.charts({"maps-cpu-16384": found})
    assert chart.panels[0].title == "CPU, 16,384 tokens"
    assert [line.points[0][1] for line in chart.panels[0].lines] == [1.3]
    assert "1.30" in charts.draw(chart)


def test_a_package_without_metadata_has_no_known_version(tmp_path, monkeypatch):
    (tmp_path / "lone_package.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    versions = timing.environment(["lone-package", "no-such-package"])["versions"]
    assert versions["lone-package"] == "not known"
    assert versions["no-such-package"] == "not installed"


def test_the_committed_results_give_a_page():
    folder = Path(__file__).parents[2] / "benchmarks" / "results"
    results = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    assert page.markdown(results, folder="charts").startswith("# Speed\n")
