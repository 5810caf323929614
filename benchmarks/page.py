"""Measured files -> the documentation's page about speed. Importing this file imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.charts import (
    LOSING,
    PASSES,
    Found,
    cases_of,
    charts,
    is_compiled,
    is_sweep,
    place_of,
    place_words,
)

Case = Mapping[str, Any]
_INTRODUCTION = """# Speed

Made from the files in `benchmarks/results`. Equality first: who does not compute the same is
not timed. Contestants take turns in one run, so that a busy machine slows all of them;
what counts is the ratio (median, and its 95 % interval). Memory is the peak beyond
weights and input. `clearhead bench all` measures again, `clearhead bench all --list` says what."""


def markdown(results: Mapping[str, Found], *, folder: str) -> str:
    """The page.

    Args:
        results: The measured files, by their names without the end.
        folder: Where the charts are, seen from the page.
    """
    parts = [_INTRODUCTION]
    pictures = {chart.file: f"![{chart.alt}]({folder}/{chart.file})" for chart in charts(results)}
    swept: set[tuple[object, ...]] = set()
    for place in sorted({place_of(name) for name in results if is_sweep(name)}):
        parts += _sweep(place, results, pictures)
        swept |= {_identity(case) for case in cases_of(place, results)}
    drawers = {
        "attention": lambda name, found: _attention(name, found, swept),
        "maps": _maps,
        "watch": _watch,
        "generate": _generate,
        "view": _view,
    }
    if "maps.svg" in pictures:
        parts.append(f"## Maps beside a forward pass\n\n{pictures['maps.svg']}")
    for name, found in results.items():
        drawer = drawers.get(found.get("benchmark", ""))
        if drawer is not None and not is_sweep(name) and not is_compiled(name):
            parts += drawer(name, found)
    return "\n\n".join(parts) + "\n"


def _sweep(place: str, results: Mapping[str, Found], pictures: Mapping[str, str]) -> Iterator[str]:
    """A device's sweep: ours beside the fastest, where we lose, everything by length."""
    cases = cases_of(place, results)
    compiled = cases_of(place, results, compiled=True)
    first = next(
        found for name, found in results.items() if is_sweep(name) and place_of(name) == place
    )
    yield (
        f"## All contestants, {place_words(place)}\n\n{_machine(first)}. {cases[0]['d_model']} "
        f"wide, {cases[0]['heads']} heads; {_batches(cases)}.{_checked(cases)}"
    )
    yield (
        "### Ours beside the fastest other\n\nOur time over the fastest other's: below 1 we are "
        f"faster. **Bold**: above {LOSING}.\n\n" + _ours_to_fastest(cases, compiled)
    )
    if ratio := pictures.get(f"ratio-{place}.svg"):
        yield ratio
    losses = [_loss(case) for case in (*cases, *compiled) if _loses(case)]
    if losses:
        yield "### Where we lose\n\n" + "\n".join(f"- {line}" for line in losses)
    else:
        yield f"Nowhere more than {LOSING} times the fastest other's time."
    for dtype in dict.fromkeys(case["dtype"] for case in cases):
        yield f"### {place_words(place)}, {dtype}, by length"
        for word in ("time", "memory"):
            if picture := pictures.get(f"{word}-{place}-{dtype}.svg"):
                yield picture
        for group, title in ((cases, ""), (compiled, ", compiled")):
            for direction in PASSES:
                chosen = [c for c in group if (c["dtype"], c["direction"]) == (dtype, direction)]
                if chosen:
                    yield from _by_length(f"{direction.replace('+', ' + ')}{title}", chosen)


def _batches(cases: Sequence[Case]) -> str:
    sizes = dict.fromkeys((case["batch"], case["tokens"]) for case in cases)
    return "batch × tokens: " + ", ".join(f"{b} × {n:,}" for b, n in sorted(sizes, key=_last))


def _checked(cases: Sequence[Case]) -> str:
    """Which lengths were too long to compare every row."""
    sampled = [case for case in cases if case.get("rows_checked")]
    if not sampled:
        return ""
    shortest = min(case["tokens"] for case in sampled)
    return (
        f" From {shortest:,} tokens on, {sampled[0]['rows_checked']} rows of the output, and the "
        "gradient of these rows at every token, are compared with float64."
    )


def _last(pair: tuple[int, int]) -> int:
    return pair[1]


def _ours_to_fastest(cases: Sequence[Case], compiled: Sequence[Case]) -> str:
    lengths = sorted({case["tokens"] for case in (*cases, *compiled)})
    rows: dict[str, dict[int, str]] = {}
    for case in (*cases, *compiled):
        words = [case["dtype"], case["direction"].replace("+", " + ")]
        words += ["compiled"] if case.get("compiled") else []
        text = _ratio(case["ours_to_fastest_other"])
        text = f"**{text}**" if _loses(case) else text
        rows.setdefault(", ".join(words), {})[case["tokens"]] = text
    return _table(
        ["", *(f"{length:,}" for length in lengths)],
        [[name, *(row.get(length, "") for length in lengths)] for name, row in rows.items()],
    )


def _loses(case: Case) -> bool:
    best = case.get("ours_to_fastest_other")
    return best is not None and bool(best["median"] > LOSING)


def _loss(case: Case) -> str:
    """Where, by how much, against whom, and why."""
    best = case["ours_to_fastest_other"]
    form = ", compiled" if case.get("compiled") else ""
    return (
        f"{case['dtype']}, {case['direction'].replace('+', ' + ')}{form}, {case['batch']} × "
        f"{case['tokens']:,} tokens: {_ratio(best)} times {best['name']}. {_why(case)}"
    )


def _why(case: Case) -> str:
    """What the measurement itself says about a loss."""
    best = case["ours_to_fastest_other"]
    rows = {row["name"]: row for row in case["rows"]}
    ours = next(row for row in case["rows"] if row["ours"])
    other = rows[best["name"]]
    if best["interval_95"][0] <= LOSING:
        return f"Not certain: the interval reaches down to {best['interval_95'][0]:.2f}."
    if ours["kernel"] != other["kernel"]:
        return f"Another kernel: `{_kernel(other)}`, ours ran `{_kernel(ours)}`."
    if best["name"].startswith(("fused QKV", "transformers")):
        if case["device"] == "cuda":
            return (
                "The same kernel; its weights for Q, K and V are one matrix. Ours are three, as in "
                "the book: three products, or one for which they are put together in each call. "
                "The shorter the call, the more its Python counts: ours checks shapes and masks."
            )
        return "The same kernel; it projects Q, K and V in one product of matrices."
    return "The same kernel; the difference is in what is done around it."


def _by_length(title: str, cases: Sequence[Case]) -> Iterator[str]:
    """Times as multiples of ours, memory, and who was not run, in one table each."""
    head = ["", *(f"{case['tokens']:,}" for case in cases)]
    names = list(dict.fromkeys(row["name"] for case in cases for row in case["rows"]))
    times, memory, reasons = [], [], []
    for name in names:
        rows = [next(row for row in case["rows"] if row["name"] == name) for case in cases]
        shown = f"**{name}**" if rows[0]["ours"] else name
        times.append([shown, *map(_time, rows)])
        memory.append([shown, *map(_memory, rows)])
        for case, row in zip(cases, rows, strict=True):
            if row["status"] != "timed":
                reasons.append(f"- {name}, {case['tokens']:,}: {row.get('note') or row['status']}.")
    yield f"**{title}**: ms, and × ours\n\n" + _table(head, times)
    if any(cell for row in memory for cell in row[1:]):
        yield f"**{title}**: MiB\n\n" + _table(head, memory)
    yield "Kernels: " + "; ".join(
        f"`{kernel}`: {', '.join(names)}" for kernel, names in _kernels(cases).items()
    )
    if reasons:
        yield "Not run, or not equal:\n\n" + "\n".join(reasons)


def _kernels(cases: Sequence[Case]) -> dict[str, list[str]]:
    """Who ran which kernel; the lengths besides, where it was not always the same one."""
    ran: dict[str, dict[str, list[int]]] = {}
    for case in cases:
        for row in case["rows"]:
            if row["status"] == "timed":
                ran.setdefault(row["name"], {}).setdefault(_kernel(row), []).append(case["tokens"])
    found: dict[str, list[str]] = {}
    for name, kernels in ran.items():
        for kernel, lengths in kernels.items():
            where = "" if len(kernels) == 1 else f" ({', '.join(f'{n:,}' for n in lengths)})"
            found.setdefault(kernel, []).append(name + where)
    return found


def _time(row: Mapping[str, Any]) -> str:
    if row["status"] != "timed":
        return "not equal" if row["status"] == "different" else "not run"
    ratio = "" if row["ours"] else f" ({row['ratio_to_ours']['median']:.2f})"
    compiling = f"; {row['compile_s']:.0f} s to compile" if row.get("compile_s") else ""
    return f"{row['median_ms']:,.2f}{ratio}{compiling}"


def _memory(row: Mapping[str, Any]) -> str:
    peak = row.get("peak_extra_mib")
    return "" if peak is None else f"{peak:,.0f}"


def _identity(case: Case) -> tuple[object, ...]:
    """Two cases with the same one measure the same thing."""
    keys = ("section", "device", "dtype", "direction", "dropout", "window", "padding", "compiled")
    return (*(case.get(key) or None for key in keys), *case["shape"])


def _kernel(row: Mapping[str, Any]) -> str:
    return (row["kernel"] or "").removeprefix("aten.")


def _machine(found: Found) -> str:
    machine = found.get("machine", {})
    where = found.get("gpu") or machine.get("gpu")
    where = where or f"{machine['cpu']}, {machine['cores']} cores"
    return f"{where}; torch {found['versions']['torch']}; {found.get('date', '')[:10]}"


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    if not ratio:
        return ""
    low, high = ratio["interval_95"]
    return f"{ratio['median']:.2f} [{low:.2f}, {high:.2f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in lines
    )


def _attention(name: str, found: Found, swept: set[tuple[object, ...]]) -> list[str]:
    """Every case as a table, but for those that a sweep has measured again."""
    cases = [c for c in found["cases"] if c["section"] == "import" or _identity(c) not in swept]
    if not cases:
        return []
    parts = [f"## {name}\n\n{_machine(found)}. Ratios are times of ours: above 1 we are faster."]
    for case in cases:
        if case["section"] == "import":
            title = "Importing"
        else:
            title = f"{case['batch']} × {case['tokens']:,} tokens, {case['d_model']} wide, "
            title += f"{case['heads']} heads, {case['dtype']}, {case['direction']}"
            title += f", dropout {case['dropout']}" if case["dropout"] else ""
            title += f", window {case['window']}" if case["window"] else ""
            title += f", {case['padding']} of padding" if case["padding"] else ""
        rows = []
        for row in case["rows"]:
            if row["status"] == "timed":
                memory = row["peak_extra_mib"]
                rows.append(
                    [
                        f"**{row['name']}**" if row["ours"] else row["name"],
                        f"{row['median_ms']:,.2f}",
                        "1" if row["ours"] else _ratio(row["ratio_to_ours"]),
                        "" if memory is None else f"{memory:,.0f}",
                        _kernel(row),
                    ]
                )
            else:
                rows.append([row["name"], row["status"], row.get("note") or "", "", ""])
        parts.append(f"### {title}\n\n" + _table(["", "ms", "× ours", "MiB", "kernel"], rows))
        if _loses(case):
            best = case["ours_to_fastest_other"]
            parts.append(
                f"Here we lose: ours takes {_ratio(best)} times as long as the fastest, "
                f"{best['name']}. {_why(case)}"
            )
    return parts


def _maps(name: str, found: Found) -> list[str]:
    parts = [
        f"## {name}\n\n{_machine(found)}. Statistics of a whole map beside a forward pass: "
        f"{found['heads']} heads × {found['head_dim']}, {found['dtype']}, causal."
    ]
    for case in found["cases"]:
        rows = [
            [row["name"], f"{row['median_ms']:,.1f}", _ratio(row["ratio_to_ours"])]
            for row in case["rows"]
            if row["status"] == "timed"
        ]
        parts.append(
            f"### {case['tokens']:,} tokens\n\n" + _table(["", "ms", "× the forward"], rows)
        )
        if peak := case.get("peak_gib"):
            parts.append(
                f"Peak memory {peak['in_all']:.1f} GiB, of which q, k, v and the log-sum-exp are "
                f"{peak['of_it_q_k_v_and_log_sum_exp']:.1f}."
            )
    if dense := found.get("dense_weights"):
        rows = [[f"{row['tokens']:,}", "fits" if row["fits"] else "out of memory"] for row in dense]
        parts.append(
            "The weights built instead, as eager code does:\n\n" + _table(["tokens", ""], rows)
        )
    return parts


def _watch(name: str, found: Found) -> list[str]:
    rows, spread = [], "its 95 % interval"
    for case in found["cases"]:
        size = f"{case['batch']} × {case['tokens']:,}"
        ratio = case["watched_over_plain"]
        if ratio is None:
            rows.append([size, f"{case['plain_ms']:,.1f}", case["note"]])
            continue
        if "interval_95" not in ratio:  # the first measurement kept quartiles
            ratio, spread = ratio | {"interval_95": ratio["quartiles"]}, "quartiles"
        slower = case.get("watched_in_python_over_plain")
        cells = [_ratio(ratio), _ratio(slower)] if slower else [_ratio(ratio)]
        rows.append([size, f"{case['plain_ms']:,.1f}", *cells])
    heads = ["tokens", "plain, ms", "watched, × plain", "recorded in Python, × plain"]
    return [
        f"## {name}\n\n{_machine(found)}. {found['model']}, {found['dtype']}: a forward pass "
        f"watched beside the same one plain (median, and {spread}).",
        _table(heads[: max(map(len, rows))], rows),
    ]


def _generate(name: str, found: Found) -> list[str]:
    parts = [f"## {name}\n\n{_machine(found)}. Tokens a second; equality of tokens first."]
    for case in found["cases"]:
        rows = [
            [
                f"**{row['name']}**" if row["ours"] else row["name"],
                f"{row['tokens_per_second']:,.0f}"
                if row.get("tokens_per_second")
                else row["status"],
                "1" if row["ours"] else _ratio(row.get("ratio_to_ours")),
            ]
            for row in case["rows"]
        ]
        parts.append(f"### {case['title']}\n\n" + _table(["", "tokens/s", "× ours, in time"], rows))
    return parts


def _view(name: str, found: Found) -> list[str]:
    rows = [
        [words, f"{times['median']}", f"{times['p95']}"]
        for key, words in (
            ("while_walking", "while the other heads are still computed"),
            ("one_by_one", "one request after the other"),
            ("three_at_a_time", "three at a time"),
        )
        for times in [found[f"tiles_{key}_ms"]]
    ]
    return [
        f"## {name}\n\n{_machine(found)}. The viewer on a map of {found['tokens']:,} tokens and "
        f"{found['heads']} heads: the first picture after {found['first_picture_s']} s, all after "
        f"{found['all_pictures_s']} s.",
        _table(["a tile of a finer grid", "median, ms", "95 %, ms"], rows),
    ]
