"""Results -> docs/speed.md, on three screens, and docs/speed-tables.md with every table."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import OURS, TIE, Results, cases_of, charts
from benchmarks.command import ratio_text

BOOK, SDPA = "book's class (rung 4)", "separate QKV + SDPA"
Case = dict[str, Any]

_INTRODUCTION = f"""# Speed

Our time as a multiple of the fastest alternative's: below 1, Clearhead is faster. Outputs are
compared first, and code that computes something else is not timed. All contestants take turns in
each round, and a figure is the median of the ratios per round. The nine alternatives include SDPA
with separate and with fused projections, `nn.MultiheadAttention`, Hugging Face's `GPT2Attention`,
x-transformers and the book's class. Width 768, 12 heads, causal. **Bold**: we lose, with the whole
95 % interval above {TIE}. [All tables](speed-tables.md) have the intervals, what `torch.compile`
changes, and memory."""

_TABLES = f"""# Speed: all tables

The figures behind [Speed](speed.md): ratios with their 95 % intervals, and the peak memory on top
of weights, masks and input. **Bold** marks a median above {TIE}. The files in `benchmarks/results`
also hold times, kernels, versions and commands."""

_REPRODUCE = """## Measure it yourself

```sh
make bench                              # everything, into benchmarks/results
python -m benchmarks --list             # the parts
python -m benchmarks.attention --help   # one of them; also maps, generate, watch, view
python docs/generate.py                 # this page, from the results
```

Every figure comes from a JSON file in `benchmarks/results`, which also holds machine, versions,
kernels, times and command."""


def load(folder: Path) -> dict[str, Any]:
    """All results files, by name without ".json"."""
    files = sorted(folder.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def markdown(results: Results) -> str:
    """The short page: one table and one chart per device, where we lose, and the rest in brief."""
    pictures = _pictures(results)
    parts = [_INTRODUCTION]
    for place, title in (("cpu", "On a CPU"), ("h200", "On a GPU")):
        parts += [
            f"## {title}\n\n{_machine(_sweep(place, results))}:\n\n"
            + _module(place, results, brief=True),
            pictures[f"ratio-{place}.svg"],
        ]
    return "\n\n".join([*parts, _losses_in_brief(results), _brief(results), _REPRODUCE]) + "\n"


def tables(results: Results) -> str:
    """The page with every table."""
    parts = [
        _TABLES,
        "## The module",
        *(
            f"{_machine(_sweep(place, results))}:\n\n" + _module(place, results)
            for place in ("cpu", "h200")
        ),
        _losses(results),
        *_book(results),
        _pictures(results)["memory-h200.svg"],
        *_masks(results),
        *_kernels(results),
        *_maps(results),
        *_generate(results),
        *_watch(results),
        *_others(results),
    ]
    return "\n\n".join(parts) + "\n"


def _pictures(results: Results) -> dict[str, str]:
    return {chart.file: f"![{chart.alt}](charts/{chart.file})" for chart in charts(results)}


def _sweep(place: str, results: Results) -> dict[str, Any]:
    found: dict[str, Any] = next(
        results[name] for name in results if name.startswith(f"attention-{place}-sweep")
    )
    return found


def _module(place: str, results: Results, *, brief: bool = False) -> str:
    """Our module against the fastest alternative, at each length.

    Args:
        place: "cpu" or "h200".
        results: All results files.
        brief: Leave out the intervals and what is compiled.
    """
    shown = _bold_median if brief else _bold_ratio
    cases = cases_of(place, results)
    lengths = sorted({(case["tokens"], case["batch"]) for case in cases})
    if not brief:
        cases += cases_of(place, results, "compiled")
    rows: dict[str, dict[int, str]] = {}
    for case in cases:
        name = f"{case['dtype']}, {_direction(case)}" + ", compiled" * bool(case.get("compiled"))
        rows.setdefault(name, {})[case["tokens"]] = shown(case["ours_to_fastest_other"])
        if packed := case.get("packed_to_fastest_other"):
            rows.setdefault(f"{name}, `packed=True`", {})[case["tokens"]] = shown(packed)
    return _table(
        ["batch × tokens", *(f"{batch}\xa0×\xa0{tokens:,}" for tokens, batch in lengths)],
        ([name, *(row.get(tokens, "") for tokens, _ in lengths)] for name, row in rows.items()),
    )


def _lost(results: Results) -> tuple[list[Case], list[Case], list[Case]]:
    """All cases; those with a median above `TIE`; those with the whole interval above it."""
    cases = [
        case
        for name, found in results.items()
        if found.get("benchmark") == "attention"
        for case in found["cases"]
        if case["section"] != "import" and case["ours_to_fastest_other"]
    ]
    above = [case for case in cases if case["ours_to_fastest_other"]["median"] > TIE]
    certain = [c for c in above if c["ours_to_fastest_other"]["interval_95"][0] > TIE]
    return cases, above, certain


def _losses_in_brief(results: Results) -> str:
    """Reasons, each with the number of cases and the range."""
    cases, _, certain = _lost(results)
    reasons: dict[str, list[Case]] = {}
    for case in certain:
        reasons.setdefault(_why(case)[0], []).append(case)
    lines = []
    for why, lost in sorted(reasons.items(), key=lambda each: -len(each[1])):
        ratios = [case["ours_to_fastest_other"]["median"] for case in lost]
        where = " and ".join(sorted({_where(case) for case in lost}))
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"- {why} {len(lost)} cases on {where}, {span}.")
    return (
        f"## Where we lose\n\nIn {len(certain)} of {len(cases)} cases, listed in "
        "[the tables](speed-tables.md#where-we-lose):\n\n" + "\n".join(lines)
    )


def _losses(results: Results) -> str:
    """Where ours is slower beyond doubt, case by case."""
    cases, above, certain = _lost(results)
    reasons: dict[str, list[str]] = {}
    for case in certain:
        best = case["ours_to_fastest_other"]
        words = [
            _where(case),
            case["dtype"],
            _direction(case),
            f"{case['batch']} × {case['tokens']:,}",
        ]
        words += ["compiled"] if case.get("compiled") else []
        words += [case["section"]] if case["section"] not in ("fused", "long") else []
        why = " ".join(_why(case)).strip()
        reasons.setdefault(why, []).append(f"{', '.join(words)} ({best['median']:.2f})")
    return (
        "### Where we lose\n\n"
        f"In {len(certain)} of {len(cases)} measured cases the whole interval lies above {TIE}:\n\n"
        + "\n".join(f"- {why} {'; '.join(where)}." for why, where in reasons.items())
        + f"\n\nIn {len(above) - len(certain)} more, only the median does."
    )


def _why(case: Case) -> tuple[str, str]:
    """The reason, as far as the measurement shows it, and the kernels if they differ."""
    rows = {row["name"]: row for row in case["rows"]}
    best = rows[case["ours_to_fastest_other"]["name"]]
    ours = next(row for row in case["rows"] if row["ours"])
    if best["kernel"] != ours["kernel"]:
        theirs, own = (row["kernel"].removeprefix("aten.") for row in (best, ours))
        return "The fastest alternative runs another kernel.", f"(`{theirs}`, ours `{own}`)"
    if case["section"] in ("window", "padding"):
        return (
            "The same kernel, but the alternative keeps a dense mask between calls; ours builds it "
            "from a `Mask`.",
            "",
        )
    if best["name"].startswith(("fused QKV", "transformers")):
        return (
            "The same kernel, but the alternative projects with one matrix, ours with three, as in "
            "the book. `packed=True` has one, too.",
            "",
        )
    return "The same kernel; the difference is in the code around it.", ""


def _brief(results: Results) -> str:
    """Dropout, masks, the book's class, generation, maps and watching, one line each."""
    rows: list[tuple[str, str, str]] = []
    for name in ("dropout", "window-padding"):
        for case in results[f"attention-cpu-{name}"]["cases"]:
            if case["tokens"] == 4096 and case["direction"] != "forward":
                title = f"CPU, {_kind(case)}, 1 × 4,096, {_direction(case)}"
                rows.append((title, "the fastest alternative", _bold(case)))
    for place, dtype, tokens in (("cpu", "float32", 4096), ("h200", "bfloat16", 32768)):
        for case in cases_of(place, results):
            if (case["dtype"], case["tokens"], case["direction"]) == (dtype, tokens, "forward"):
                book = next(row for row in case["rows"] if row["name"] == BOOK)
                title = f"{_where(case)}, {dtype}, 1 × {tokens:,}, forward"
                rows.append((title, "the book's class", _inverse(book["ratio_to_ours"])))
    for name in ("generate-cpu", "generate-h200"):
        found = results[name]
        for case in found["cases"]:
            rivals = [row for row in case["rows"] if row["name"].startswith("Hugging Face")]
            best = min(rivals, key=lambda row: row["ratio_to_ours"]["median"])
            title = f"{_short(found)}, GPT-2 small, generation, batch {case['batch']}"
            rows.append((title, best["name"], _inverse(best["ratio_to_ours"])))
    for name in ("maps-cpu-16384", "maps-h200-1048576"):
        found = results[name]
        case = found["cases"][0]
        row = next(row for row in case["rows"] if row["name"] == "summary, log-sum-exp given")
        title = f"{_short(found)}, statistics of a map of {case['tokens']:,} tokens"
        rows.append((title, "one forward pass", ratio_text(row["ratio_to_ours"])))
    for name in ("watch-cpu", "watch-h200"):
        found = results[name]
        case = found["cases"][0]
        title = f"{_short(found)}, GPT-2 inside `watch`, {case['batch']} × {case['tokens']:,}"
        rows.append((title, "without `watch`", ratio_text(case["watched_over_plain"])))
    return "## The rest in brief\n\n" + _table(["", "against", "our time, × theirs"], rows)


def _book(results: Results) -> Iterator[str]:
    """The book's class, which is where most readers start."""
    cpu = [c for c in cases_of("cpu", results) if c["dtype"] == "float32" and c["tokens"] >= 2048]
    gpu = [c for c in cases_of("h200", results) if c["dtype"] == "bfloat16"]
    rows: dict[str, list[str]] = {}
    for case in (*results["attention-cpu-8x1024"]["cases"], *cpu, *gpu):
        if case["tokens"] < 1024:
            continue
        title = f"{_where(case)}, {case['dtype']}, {case['batch']} × {case['tokens']:,}"
        book, ours = (
            next(row for row in case["rows"] if row["name"] == one) for one in (BOOK, OURS)
        )
        if book["status"] == "timed":
            cells = [ratio_text(book["ratio_to_ours"], 1), f"{_mib(ours)}, {_mib(book)}"]
        else:
            need = book["note"].partition(";")[0].removeprefix("would need ")
            cells = ["not run", f"{_mib(ours)}, {need}"]
        rows.setdefault(title, []).extend(cells)
    memory = "memory: ours, book's"
    heads = ["", "forward", memory, "forward + backward", memory]
    yield (
        "## Against the book's class\n\n"
        "Its time as a multiple of ours. Not run: it would need more than the 4 GiB that a "
        "contestant gets on the CPU,\nor than the GPU has.\n\n"
        + _table(heads, ([title, *cells] for title, cells in rows.items()))
    )


def _masks(results: Results) -> Iterator[str]:
    """Dropout, windows and padding, for which SDPA needs tokens × tokens on the CPU."""
    rows: dict[str, list[str]] = {}
    for place in ("cpu", "h200"):
        for name in ("dropout", "window-padding"):
            for case in results[f"attention-{place}-{name}"]["cases"]:
                ours, sdpa = (
                    next(row for row in case["rows"] if row["name"] == one) for one in (OURS, SDPA)
                )
                title = f"{_kind(case)}, {case['batch']} × {case['tokens']:,}, {_direction(case)}"
                cells = [_bold(case), f"{_mib(ours)}, {_mib(sdpa)}"]
                rows.setdefault(title, []).extend(cells)
    heads = ["", "CPU, float32", "memory: ours, SDPA", "H200, bfloat16", "memory: ours, SDPA"]
    long = next(c for c in results["attention-cpu-long"]["cases"] if not c["dropout"])
    yield (
        "## Dropout, windows and padding\n\n"
        "Our time as a multiple of the fastest other's (SDPA; with dropout also the book's class). "
        "On the CPU, PyTorch's\nkernel builds tokens × tokens for dropout, and needs windows and "
        "padding as a mask of that size.\n\n"
        + _table(heads, ([title, *cells] for title, cells in rows.items()))
        + "\n\nAt 16,384 tokens on the CPU, forward: "
        f"{ratio_text(long['ours_to_fastest_other'])} × SDPA's time; the book's class would need "
        f"{long['book_weights_mib']:,.0f} MiB for its weights alone."
    )


def _kernels(results: Results) -> Iterator[str]:
    """What `kernel="auto"` is based on, where students train: small inputs on a CPU."""
    rows: dict[str, dict[str, str]] = {}
    for dtype in ("float32", "bfloat16"):
        for case in results[f"kernel-choice-cpu-{dtype}"]["cases"]:
            if case["window"] or case["padding"] or case["tokens"] > 256:
                continue
            times = {row["name"]: row["median_ms"] for row in case["rows"]}
            auto, *others = (
                f"{times[name] / times[BOOK]:.2f}" for name in ("auto", "eager", "sdpa", "blocked")
            )
            shape = f"{case['batch']} × {case['tokens']} × {case['d_model']}"
            title = f"{dtype}, dropout 0.1" if case["dropout"] else dtype
            rows.setdefault(title, {})[shape] = f"{auto} ({', '.join(others)})"
    heads = ["batch × tokens × width", *next(iter(rows.values()))]
    small = [_bold(case) for case in results["attention-cpu-dropout-small"]["cases"]]
    yield (
        "### Small inputs on the CPU\n\n"
        "Forward and backward as a multiple of the book's class: `auto` (eager, sdpa, blocked). "
        "Windows and padding are\nin the files. With dropout 0.1, against the fastest other: "
        f"8 × 32 × 32 {small[1]}, 8 × 128 × 128 {small[3]}.\n\n"
        + _table(heads, ([title, *row.values()] for title, row in rows.items()))
    )


def _maps(results: Results) -> Iterator[str]:
    rows, notes = [], []
    files = [found for name, found in results.items() if name.startswith("maps-")]
    for found in sorted(files, key=lambda found: found["cases"][0]["tokens"]):
        for case in found["cases"]:
            by_name = {row["name"]: row for row in case["rows"]}
            peak = case.get("peak_gib")
            rows.append(
                [
                    f"{_short(found)}, {found['dtype']}, {case['tokens']:,} tokens",
                    ratio_text(by_name["summary, log-sum-exp given"]["ratio_to_ours"]),
                    ratio_text(by_name["summary, log-sum-exp inside"]["ratio_to_ours"]),
                    f"{peak['in_all']:.1f} GiB, of which inputs "
                    f"{peak['of_it_q_k_v_and_log_sum_exp']:.1f}"
                    if peak
                    else "",
                ]
            )
        if dense := found.get("dense_weights"):
            fits = max(row["tokens"] for row in dense if row["fits"])
            fails = min(row["tokens"] for row in dense if not row["fits"])
            notes.append(
                f"\n\nDense weights, as eager code builds them, fit at {fits:,} tokens and not at "
                f"{fails:,} ({_short(found)})."
            )
    yield (
        "## Maps\n\n"
        "Entropy, received, a 256 × 256 thumbnail and previous of a whole map (causal, 12 heads × "
        "64), as a\nmultiple of one fused forward pass (cuDNN on the GPU), with the log-sum-exp "
        "given by a forward pass or\ncomputed inside.\n\n"
        + _table(["", "log-sum-exp given", "computed inside", "peak memory"], rows)
        + "".join(notes)
    )


def _generate(results: Results) -> Iterator[str]:
    heads, notes = [""], []
    rows: dict[str, dict[str, str]] = {}
    for name in ("generate-cpu", "generate-h200"):
        found = results[name]
        for case in found["cases"]:
            heads.append(f"{_short(found)}, {found['dtype']}, batch {case['batch']}")
            for row in case["rows"]:
                ratio = ratio_text(row["ratio_to_ours"])
                text = f"{row['tokens_per_second']:,.0f}" + (f"; {ratio}" if ratio else "")
                rows.setdefault(row["name"], {})[heads[-1]] = text
        limit = found["floor"]["tokens_per_second_batch_1"]
        prefill = found["prefill"]["rows"][1]["ratio_to_ours"]
        notes.append(
            f"{_short(found)}: memory bandwidth allows at most {limit:,.0f} tokens per second at "
            f"batch 1; for a prompt of {found['prefill']['tokens']:,} tokens, Hugging Face takes "
            f"{ratio_text(prefill)} × our time."
        )
    yield (
        "## Generation\n\n"
        "GPT-2 small, greedy, prompt included: tokens per second, and time as a multiple of ours. "
        f"{results['generate-cpu']['tokens']} new\ntokens on the CPU, "
        f"{results['generate-h200']['tokens']} on the GPU. In float32 all tokens equal Hugging "
        "Face's; in bfloat16 texts diverge at near\nties, and each token is checked against "
        "float32.\n\n"
        + _table(
            heads,
            ([name, *(row.get(head, "") for head in heads[1:])] for name, row in rows.items()),
        )
        + "\n\n"
        + "\n".join(notes)
    )


def _watch(results: Results) -> Iterator[str]:
    heads = [""]
    rows: dict[tuple[int, int], dict[str, str]] = {}
    for name in ("watch-cpu", "watch-h200", "watch-h200-gpt2-xl"):
        found = results[name]
        model = "GPT-2 XL" if name.endswith("-xl") else "GPT-2"
        heads.append(f"{model}, {_short(found)}, {found['dtype']}")
        for case in found["cases"]:
            ratio = case["watched_over_plain"]
            row = rows.setdefault((case["batch"], case["tokens"]), {})
            row[heads[-1]] = f"{ratio_text(ratio)} of {case['plain_ms']:,.1f} ms"
    table = (
        [f"{batch} × {tokens:,}", *(row.get(head, "") for head in heads[1:])]
        for (batch, tokens), row in sorted(rows.items())
    )
    yield (
        "## Watching a model\n\n"
        "A forward pass inside `watch()` as a multiple of the same one without it; outputs are "
        "equal bit for bit.\nOn small batches the GPU waits for Python, and watching is more of it."
        "\n\n" + _table(heads, table)
    )


def _others(results: Results) -> Iterator[str]:
    view = results["view-cpu-32768"]
    tiles = view["tiles_one_by_one_ms"]
    importing = results["import-cpu"]["cases"][0]["ours_to_fastest_other"]
    yield (
        "## The viewer, and importing\n\n"
        f"The viewer on {view['tokens']:,} tokens and {view['heads']} heads (CPU): the first "
        f"picture after {view['first_picture_s']} s, all after\n{view['all_pictures_s']} s; a tile "
        f"takes {tiles['median']} ms (95th percentile {tiles['p95']} ms). "
        "`from clearhead import MultiHeadAttention` takes\n"
        f"{ratio_text(importing)} times as long as `import torch`."
    )


def _where(case: Case) -> str:
    return "CPU" if case["device"] == "cpu" else "H200"


def _kind(case: Case) -> str:
    kinds = {"dropout": "dropout 0.1", "window": "window of 256"}
    return kinds.get(case["section"], "a quarter padding")


def _direction(case: Case) -> str:
    return str(case["direction"]).replace("+", " + ")


def _bold(case: Case) -> str:
    return _bold_ratio(case["ours_to_fastest_other"])


def _bold_ratio(ratio: dict[str, Any] | None) -> str:
    text = ratio_text(ratio)
    return f"**{text}**" if ratio and ratio["median"] > TIE else text


def _bold_median(ratio: dict[str, Any] | None) -> str:
    """Without the interval; bold if the whole interval lies above `TIE`."""
    if not ratio:
        return ""
    text = f"{ratio['median']:.2f}"
    return f"**{text}**" if ratio["interval_95"][0] > TIE else text


def _inverse(ratio: dict[str, Any]) -> str:
    low, high = ratio["interval_95"]
    return ratio_text({"median": 1 / ratio["median"], "interval_95": [1 / high, 1 / low]})


def _mib(row: dict[str, Any]) -> str:
    peak = row.get("peak_extra_mib")
    return "" if peak is None else f"{peak:,.0f} MiB"


def _short(found: dict[str, Any]) -> str:
    gpu = found.get("gpu") or found["machine"].get("gpu")
    return str(gpu).removeprefix("NVIDIA ") if gpu else f"{found['machine']['cores']} CPU cores"


def _machine(found: dict[str, Any]) -> str:
    machine = found["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    return f"{where}, torch {found['versions']['torch']}, {found['date'][:10]}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)
