"""A page for the teacher to project: one file, no network, light and dark.

What the class got wrong stands first, without names; the files are below, folded away.
"""

import html as markup
from collections.abc import Sequence

from clearhead import drawing
from clearhead.checker.catalogue import words_of
from clearhead.checker.classroom.class_summary import FAIL, Counts, Tally, reason, tally, verdict_of
from clearhead.checker.classroom.marks_file import Row
from clearhead.checker.report import in_words

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --front: #1a1a1a; --dim: #595959; --bar: #2c718e;
  --line: #d0d0d0; --card: #f4f4f4 }
@media (prefers-color-scheme: dark) { :root { --back: #16181b; --front: #eee; --dim: #b0b0b0;
  --bar: #5cc863; --line: #3a3d42; --card: #22252a } }
body { background: var(--back); color: var(--front); font: 1.25rem/1.5 system-ui, sans-serif;
  max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem }
h1 { font-size: 2rem; margin: 0 0 1rem } h2 { font-size: 1.5rem; margin: 2rem 0 .5rem }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem; padding: 0; margin: 0; list-style: none }
.tiles li { background: var(--card); border-radius: .5rem; padding: .75rem 1.25rem }
.tiles strong { display: block; font-size: 2rem; line-height: 1.2 }
ol { list-style: none; padding: 0 } ol li { margin: 0 0 1.25rem }
.bar { background: var(--card); border-radius: .25rem; overflow: hidden }
.bar div { background: var(--bar); height: .75rem }
.dim { color: var(--dim) } code { font-size: 1.1em }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 1rem; width: 100% }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top } summary { cursor: pointer } details { margin-bottom: .75rem }
"""


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
        title: What stands above.
        contained: What the submissions could reach when they ran.
    """
    seen = tally(rows, fail, hint=hint)
    tiles = "".join(
        f"<li><strong>{count}</strong>{_text(_tile(verdict, seen))}</li>"
        for verdict, count in seen.verdicts
    )
    mistakes = _bars(seen.fails, len(rows), hint) or "<li>None.</li>"
    remarks = _bars(seen.remarks, len(rows), hint)
    if remarks:
        remarks = f"<h2>Remarks: what does not fail</h2>\n<ol>{remarks}</ol>"
    columns = [("file", [row.file for row in rows]), ("class", [row.cls for row in rows])]
    columns.append(("verdict", [verdict_of(row) for row in rows]))
    if not hint:  # an id tells the cause
        columns.append(("found", [row.findings for row in rows]))
    columns += [("where", [row.places for row in rows]), ("note", [row.note for row in rows])]
    lost = _lost("could not be run", seen.not_run) + _lost("unsure", seen.unsure)
    cells = sorted(zip(*(column for _, column in columns), strict=True))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>
<h1>{_text(title)}</h1>
<ul class="tiles"><li><strong>{len(rows)}</strong>submissions</li>{tiles}</ul>
<h2>The mistakes, most frequent first</h2>
<ol>{mistakes}</ol>
{remarks}
<h2>The files</h2>
{lost}{_folded("Every submission", [name for name, _ in columns], cells)}
{f'<p class="dim">{_text(contained)}</p>' if contained else ""}
</main></body></html>
"""


def _tile(verdict: str, seen: Tally) -> str:
    remarked = f", {seen.remarked} with a remark" if seen.remarked else ""
    return in_words(verdict, ()) + (remarked if verdict == "correct" else "")


def _bars(found: Counts, total: int, hint: bool) -> str:
    """One item for each finding: how many have it, as a bar, and what it is."""
    items = []
    for name, count in found:
        id, _, severity = name.partition(" (")
        words, fix = ("", "") if hint else words_of(id)
        kind = f" ({severity}" if severity else ""
        share = f"{count} of {total}"
        named = f"<code>{_text(id)}</code>{_text(kind)}: {share}"
        items.append(
            f"<li>{f'{share}: {_text(name)}' if hint else named}"
            f'<div class="bar" aria-hidden="true"><div style="width:{count / total:.1%}"></div>'
            f'</div>{_text(words)} <span class="dim">{_text(fix)}</span></li>'
        )
    return "".join(items)


def _lost(what: str, rows: Sequence[Row]) -> str:
    """The files that could not be judged, with the reason, folded away as all names are."""
    cells = [(row.file, reason(row)) for row in rows]
    return _folded(f"{len(rows)} {what}: which, and why", ["file", "why"], cells) if rows else ""


def _folded(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = "".join(f"<th>{_text(each)}</th>" for each in head)
    cells = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f'<details><summary>{_text(title)}</summary><div class="wide" tabindex="0">'
        f"<table><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table></div></details>\n"
    )


def _text(text: str) -> str:
    return markup.escape(drawing.harmless(text))
