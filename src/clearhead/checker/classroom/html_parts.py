"""Parts of the pages for a class: escaped text, findings, steps, sections of the catalogue."""

import html
import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby

from clearhead import drawing
from clearhead.checker.catalogue import words_of
from clearhead.checker.report import NO_MISTAKES, Finding, Step
from clearhead.drawing.page_assets import PageAssets

_LONGEST = 4000  # characters of one text


def text(words: str) -> str:
    """Any text as HTML: escaped, control characters visible, limited in length."""
    if len(words) > _LONGEST:
        words = f"{words[:_LONGEST]} ... ({len(words) - _LONGEST:,} characters more)"
    return html.escape(drawing.harmless(words.expandtabs(4)))


def page(title: str, main: str, footer: str = "") -> str:
    """A whole page: one file, without a network, without scripts.

    Args:
        title: Text.
        main: HTML.
        footer: HTML.
    """
    return _assets().page({"title": text(title), "main": main, "footer": footer})


@cache
def _assets() -> PageAssets:
    return PageAssets(
        "clearhead.checker.classroom",
        html="classroom.html",
        css=("classroom.css",),
        scripts=None,
        sources="img-src 'none'",
    )


def share_bar(count: int, total: int) -> str:
    """How large a part is; the number beside it says the same."""
    width = f"{100 * count / max(total, 1):.1f}"
    return (
        '<svg class="track" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{width}" height="1"/></svg>'
    )


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Labels with HTML beside them, as a list of terms; empty ones are left out."""
    items = "".join(f"<dt>{label}</dt><dd>{value}</dd>" for label, value in rows if value)
    return f"<dl>{items}</dl>" if items else ""


def location(place: str, code: str) -> str:
    """A line of a submission: where it is, and what it says."""
    shown = f"<code>{text(code)}</code>" if code else ""
    return f"{text(place)}: {shown}" if place and shown else text(place) or shown


def evidence(words: str) -> str:
    """Evidence; several lines keep their spaces, so that a caret stands below its character."""
    return f"<pre>{text(words)}</pre>" if "\n" in words else text(words)


def finding(found: Finding, kind: str, *, link: bool) -> str:
    """One finding with its evidence, its line and its fix.

    Args:
        found: The finding.
        kind: Its severity in words.
        link: Whether the page has the section of this mistake.
    """
    named = f" ({text(kind)})" if kind else ""
    what = "what this verdict means" if found.id in NO_MISTAKES else "what this mistake is"
    more = f'<a href="#{text(found.id)}">{what}</a>' if link else ""
    return (
        f"<li><h3><code>{text(found.id)}</code>{named}</h3><p>{text(found.says)}</p>"
        + facts(
            [
                ("Evidence", evidence(found.evidence)),
                _where(found),
                ("Fix", text(found.fix)),
                ("More", more),
            ]
        )
        + "</li>"
    )


def _where(found: Finding) -> tuple[str, str]:
    """The label and the text for the line of a finding."""
    if found.cell:
        return "Cell", location(found.place, found.code)
    return "Line", location("" if found.line is None else str(found.line), found.code)


def hint(number: int, found: Finding) -> str:
    """One finding without its name, its cause and its fix."""
    where = facts([_where(found)])
    return f"<li><h3>Hint {number}</h3><p>{text(found.hint)}</p>{where}</li>"


def steps_list(steps: Sequence[Step], *, remarks: bool) -> str:
    """The forward pass: each line of code, and below it the shape of each result."""
    items = []
    for _, group in groupby(steps, key=lambda step: (step.cell, step.line, step.code)):
        same = list(group)
        results = []
        for step in same:
            noted = remarks and bool(step.remark)
            remark = f'<p class="remark">{text(step.remark)}</p>' if noted else ""
            results.append(
                f"<li{' class=marked' if noted else ''}><span>{text(step.operation)}</span> "
                f"<code>{text(step.shape_text)}</code>{remark}</li>"
            )
        items.append(
            f'<li><span class="number">{text(same[0].place)}</span>'
            f"<code>{text(same[0].code)}</code><ul>{''.join(results)}</ul></li>"
        )
    return f'<ol class="steps">{"".join(items)}</ol>'


def section(id: str) -> str:
    """The catalogue's section on a mistake as HTML; "" if there is none.

    The Markdown is our own: paragraphs, fenced code, `code`, **bold**, *emphasis* and links.
    """
    parts = re.split(r"^```\w*\n(.*?)^```$\n?", words_of(id).section, flags=re.M | re.S)
    made = []
    for index, part in enumerate(parts):
        if index % 2:
            code = html.escape(part.rstrip())
            made.append(f'<pre class="wide" tabindex="0"><code>{code}</code></pre>')  # it scrolls
        else:
            made += [f"<p>{_inline(p)}</p>" for p in re.split(r"\n\s*\n", part) if p.strip()]
    return "\n".join(made)


def _inline(paragraph: str) -> str:
    parts = re.split(r"`([^`]+)`", html.escape(" ".join(paragraph.split()), quote=False))
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = f"<code>{part}</code>"
            continue
        part = re.sub(r"\[([^\]]+)\]\(#[\w-]+\)", r"<em>\1</em>", part)
        part = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", part)
        parts[index] = re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", part)
    return "".join(parts)
