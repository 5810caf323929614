"""A page for the teacher to project: one file, no network, light and dark, and no names.

It shows the most frequent mistakes with evidence and lines of code, then why files could not be
judged. The CSV file and the feedback say who handed in what.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from clearhead.checker.catalogue import words_of
from clearhead.checker.classroom import html_parts as parts
from clearhead.checker.classroom.class_summary import FAIL, Counted, reason, tally
from clearhead.checker.classroom.marks_file import Detail, Row, unpack
from clearhead.checker.report import Fact, Found, in_words

_EXAMPLES = 2  # per mistake


def html(
    rows: Sequence[Row],
    fail: Sequence[str] = FAIL,
    *,
    hint: bool = False,
    title: str = "What the class found hard",
    contained: str = "",
) -> str:
    """The page, with all untrusted text escaped.

    Args:
        rows: One for each submission.
        fail: The severities that fail.
        hint: Show symptoms, without causes and fixes.
        title: The heading.
        contained: What the submissions could reach when they ran.
    """
    seen = tally(rows, fail, hint=hint)
    remarked = f", {seen.remarked} with a remark" if seen.remarked else ""
    tiles = "".join(
        f"<li><strong>{count}</strong>{parts.text(in_words(verdict, ()))}"
        f"{remarked if verdict == 'correct' else ''}</li>"
        for verdict, count in seen.verdicts
    )
    mistakes, remarks = (
        parts.found_list("".join(_counted(each, rows, hint) for each in found))
        for found in (seen.fails, seen.remarks)
    )
    lost = _lost("Could not be run", seen.not_run) + _lost("Unsure", seen.unsure)
    main = (
        f'<ul class="tiles"><li><strong>{len(rows)}</strong>submissions</li>{tiles}</ul>\n'
        f"<h2>The mistakes, most frequent first</h2>\n{mistakes or '<p>None.</p>'}\n"
        + (f"<h2>Remarks: what does not fail</h2>\n{remarks}\n" if remarks else "")
        + lost
    )
    footer = f'<footer class="quiet">{parts.text(contained)}</footer>' if contained else ""
    return parts.page(title, main, footer)


def _counted(each: Counted, rows: Sequence[Row], hint: bool) -> str:
    """One kind of finding: how many submissions have it, what it is, and what it looks like."""
    share = each.count, len(rows)
    if hint:
        title = f"{each.count} of {len(rows)}: {parts.text(each.title)}"
        return f"<li>{title}{parts.share_bar(*share)}</li>"
    known, more = words_of(each.name), parts.section(each.name)
    if more:
        more = f"<details><summary>What this mistake is</summary>\n{more}</details>"
    details = [
        detail._replace(evidence=_unnamed(detail.evidence, row))
        for row in rows
        for detail in unpack(row.details)
        if detail.id == each.name and (detail.code or detail.evidence)
    ]
    facts = [*_examples(details), Fact("Fix", known.fix)]
    block = Found(
        each.name, each.kind, known.says, tuple(f for f in facts if any(f[1:])), each.name
    )
    return parts.found(block, share=share, more=more)


def _examples(details: Sequence[Detail]) -> Iterator[Fact]:
    """Different lines of code with this mistake, each with its evidence; those with code first."""
    by_code = {detail.code: detail for detail in reversed(details)}
    for detail in sorted(by_code.values(), key=lambda detail: not detail.code)[:_EXAMPLES]:
        yield Fact("Wrong line", "", detail.code)
        yield Fact("Evidence", detail.evidence)


def _lost(title: str, rows: Sequence[Row]) -> str:
    """Why files could not be judged: each reason once, with the number of files."""
    if not rows:
        return ""
    reasons = [_unnamed(reason(row), row) for row in rows]
    items = "".join(
        f"<li>{parts.text(one)}{f' ({count} files)' if count > 1 else ''}</li>"
        for one in dict.fromkeys(reasons)
        if (count := reasons.count(one))
    )
    return f"<h2>{title}: {len(rows)}</h2>\n<ul>{items}</ul>\n"


def _unnamed(words: str, row: Row) -> str:
    """Text about a file without the file's name, which may be a student's."""
    for name in filter(None, (row.file, Path(row.file).name)):
        words = re.sub(rf"(?<![\w.-]){re.escape(name)}(?!\w)", "the file", words)
    return words
