"""A page for the teacher to project: one file, no network, light and dark.

What the class got wrong stands first, without names; the files are below, folded away.
"""

import html as markup
from collections.abc import Sequence

from clearhead import drawing
from clearhead.checker.batch import counts
from clearhead.checker.marks import Row
from clearhead.checker.mistakes import MISTAKES

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
  vertical-align: top } summary { cursor: pointer }
"""

_COLUMNS = ("file", "class", "verdict", "found", "where", "note")


def html(rows: Sequence[Row], title: str = "What the class found hard") -> str:
    """The page, with every text from outside escaped."""
    verdicts, findings = counts(rows)
    tiles = "".join(
        f"<li><strong>{count}</strong>{_text(verdict)}</li>" for verdict, count in verdicts
    )
    says = {mistake.id: (mistake.says, mistake.fix) for mistake in MISTAKES}
    items = []
    for id, count in findings:
        words, fix = says.get(id, ("", ""))
        share = count / max(len(rows), 1)
        items.append(
            f"<li><code>{_text(id)}</code>: {count} of {len(rows)}"
            f'<div class="bar" aria-hidden="true"><div style="width:{share:.1%}"></div></div>'
            f'{_text(words)} <span class="dim">{_text(fix)}</span></li>'
        )
    cells = "".join(
        "<tr>"
        + "".join(
            f"<td>{_text(cell)}</td>"
            for cell in (row.file, row.cls, row.verdict, row.findings, row.places, row.note)
        )
        + "</tr>"
        for row in sorted(rows, key=lambda row: row.file)
    )
    head = "".join(f"<th>{each}</th>" for each in _COLUMNS)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>
<h1>{_text(title)}</h1>
<ul class="tiles"><li><strong>{len(rows)}</strong>submissions</li>{tiles}</ul>
<h2>The mistakes, most frequent first</h2>
<ol>{"".join(items) or "<li>None.</li>"}</ol>
<details><summary>Every submission</summary><div class="wide" tabindex="0">
<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table></div></details>
</main></body></html>
"""


def _text(text: str) -> str:
    return markup.escape(drawing.harmless(text))
