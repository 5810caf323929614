"""A page for the teacher to project: one file, no network, light and dark.

It begins with the most frequent mistakes, with evidence and lines of code but without names. The
files are below, in collapsed sections.
"""

from collections.abc import Iterator, Sequence

from clearhead.checker.catalogue import words_of
from clearhead.checker.classroom import html_parts as parts
from clearhead.checker.classroom.class_summary import (
    FAIL,
    Counted,
    Tally,
    findings_of,
    reason,
    tally,
    verdict_of,
)
from clearhead.checker.classroom.marks_file import Detail, Row, unpack
from clearhead.checker.report import MEANS, in_words

_EXAMPLES = 2  # of one mistake


def html(
    rows: Sequence[Row],
    fail: Sequence[str] = FAIL,
    *,
    hint: bool = False,
    title: str = "What the class found hard",
    contained: str = "",
) -> str:
    """The page, with every text from outside escaped.

    Args:
        rows: One for each submission.
        fail: The severities that fail.
        hint: Show symptoms, without causes and fixes.
        title: The heading.
        contained: What the submissions could reach when they ran.
    """
    seen = tally(rows, fail, hint=hint)
    tiles = "".join(
        f"<li><strong>{count}</strong>{parts.text(_tile(verdict, seen))}</li>"
        for verdict, count in seen.verdicts
    )
    details = [detail for row in rows for detail in unpack(row.details)]
    mistakes = _counted(seen.fails, len(rows), details, hint) or "<li>None.</li>"
    remarks = _counted(seen.remarks, len(rows), details, hint)
    if remarks:
        remarks = f'<h2>Remarks: what does not fail</h2>\n<ol class="found">{remarks}</ol>'
    lost = _lost("could not be run", seen.not_run) + _lost("unsure", seen.unsure)
    files = "".join(_file(row, hint) for row in sorted(rows, key=lambda row: row.file))
    main = f"""<ul class="tiles"><li><strong>{len(rows)}</strong>submissions</li>{tiles}</ul>
<h2>The mistakes, most frequent first</h2>
<ol class="found">{mistakes}</ol>
{remarks}
<h2>The files</h2>
{lost}<details><summary>Every submission</summary><div class="files">{files}</div></details>
"""
    footer = f'<footer class="quiet">{parts.text(contained)}</footer>' if contained else ""
    return parts.page(title, main, footer)


def _tile(verdict: str, seen: Tally) -> str:
    remarked = f", {seen.remarked} with a remark" if seen.remarked else ""
    return in_words(verdict, ()) + (remarked if verdict == "correct" else "")


def _counted(found: Sequence[Counted], total: int, details: Sequence[Detail], hint: bool) -> str:
    """One item for each finding: how many have it, what it is, and what it looks like."""
    items = []
    for each in found:
        share = f"{each.count} of {total}"
        bar = parts.share_bar(each.count, total)
        if hint:
            items.append(f"<li>{share}: {parts.text(each.title)}{bar}</li>")
            continue
        known = words_of(each.name)
        kind = f" ({parts.text(each.kind)})" if each.kind else ""
        examples = [d for d in details if d.id == each.name and (d.code or d.evidence)]
        more = parts.section(each.name)
        if more:
            more = f"<details><summary>What this mistake is</summary>\n{more}</details>"
        items.append(
            f"<li><h3><code>{parts.text(each.name)}</code>{kind}: {share}</h3>{bar}"
            f"<p>{parts.text(known.says)}</p>"
            + parts.facts([*_examples(examples), ("Fix", parts.text(known.fix))])
            + f"{more}</li>"
        )
    return "".join(items)


def _distinct(details: Sequence[Detail]) -> list[Detail]:
    """One detail for each line of code, those with code first."""
    by_code = {detail.code: detail for detail in reversed(details)}
    return sorted(by_code.values(), key=lambda detail: not detail.code)


def _examples(details: Sequence[Detail]) -> Iterator[tuple[str, str]]:
    """Lines of code with this mistake, each with its evidence, from different submissions."""
    for detail in _distinct(details)[:_EXAMPLES]:
        code = f"<code>{parts.text(detail.code)}</code>" if detail.code else ""
        yield "Wrong line, from a submission", code
        yield "Evidence", parts.evidence(detail.evidence)


def _file(row: Row, hint: bool) -> str:
    """One submission: its verdict, and below it what was found."""
    judged = parts.text(verdict_of(row))
    kind = row.verdict if row.verdict in ("correct", "wrong", "error", "unsure") else ""
    name = f"{parts.text(row.file)} {parts.text(row.cls)}".rstrip()
    title = f'{name}: <span class="verdict {kind}">{judged}</span>'
    noted = row.note and (hint or not unpack(row.details))  # else the evidence says it
    inside = f"<p>{parts.text(row.note)}</p>" if noted else ""
    inside += f'<ol class="found">{_found_in(row, hint)}</ol>' if row.findings else ""
    if not inside:
        inside = '<p class="quiet">Nothing was found.</p>'
    return f"<details><summary>{title}</summary>{inside}</details>\n"


def _found_in(row: Row, hint: bool) -> str:
    """The findings of a row, with evidence and code where the row has them."""
    details = unpack(row.details)
    places = row.places.split("; ")
    items = []
    kinds = dict(findings_of(row))
    for index, id in enumerate(row.findings.split()):
        place = places[index] if index < len(places) and places[index] != "-" else ""
        detail = details[index] if index < len(details) else Detail(id, place, "", "")
        kind = MEANS.get(kinds.get(id, ""), "")
        where = parts.location(place, detail.code)
        if hint:  # an id tells the cause, and so does the evidence
            items.append(f"<li>{parts.text(place) or 'The line is not known.'}</li>")
            continue
        named = f" ({parts.text(kind)})" if kind else ""
        items.append(
            f"<li><h3><code>{parts.text(id)}</code>{named}</h3>"
            + parts.facts([("Where", where), ("Evidence", parts.evidence(detail.evidence))])
            + "</li>"
        )
    return "".join(items)


def _lost(what: str, rows: Sequence[Row]) -> str:
    """The files that could not be judged, with the reason."""
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td>{parts.text(row.file)}</td><td>{parts.text(reason(row))}</td></tr>"
        for row in rows
    )
    return (
        f"<details><summary>{len(rows)} {what}: which, and why</summary>"
        '<div class="wide" tabindex="0" role="region" aria-label="Files and reasons">'
        f"<table><thead><tr><th>file</th><th>why</th></tr></thead><tbody>{cells}</tbody></table>"
        "</div></details>\n"
    )
