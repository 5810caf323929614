"""Parts of the HTML pages: escaped text, findings, steps, sections of the catalogue."""

import html
import re
from functools import cache

from clearhead.checker.catalogue import words_of
from clearhead.checker.report import NO_MISTAKES, Fact, Found, Pass, limited
from clearhead.drawing.page_assets import PageAssets


def text(words: str) -> str:
    """Any text as HTML: escaped, control characters visible, limited in length."""
    return html.escape(limited(words))


def page(title: str, main: str, footer: str = "") -> str:
    """A whole page: one file, without network access or scripts.

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
    """A bar that shows how large a part is; the number next to it says the same."""
    width = f"{100 * count / max(total, 1):.1f}"
    return (
        '<svg class="track" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{width}" height="1"/></svg>'
    )


def found(
    block: Found, *, link: bool = False, share: tuple[int, int] | None = None, more: str = ""
) -> str:
    """One finding with its evidence, its line and its fix.

    Args:
        block: The finding.
        link: Whether the page has a section on this mistake.
        share: How many submissions have it, and how many there are.
        more: HTML to append.
    """
    title = f"<code>{text(block.title)}</code>" if block.id else text(block.title)
    named = f" ({text(block.kind)})" if block.kind else ""
    rows = "".join(f"<dt>{fact.label}</dt><dd>{_value(fact)}</dd>" for fact in block.facts)
    if link and words_of(block.id).id:
        what = "what this verdict means" if block.id in NO_MISTAKES else "what this mistake is"
        rows += f'<dt>More</dt><dd><a href="#{text(block.id)}">{what}</a></dd>'
    facts = f"<dl>{rows}</dl>" if rows else ""
    of, bar = ("", "") if share is None else (f": {share[0]} of {share[1]}", share_bar(*share))
    says = f"<p>{text(block.says)}</p>"
    return f"<li><h3>{title}{named}{of}</h3>{bar}{says}{facts}{more}</li>"


def found_list(items: str) -> str:
    """A list of findings, if there are any."""
    return f'<ol class="found">{items}</ol>' if items else ""


def _value(fact: Fact) -> str:
    if fact.code:
        place = f"{text(fact.text)}: " if fact.text else ""
        return f"{place}<code>{text(fact.code)}</code>"
    # Several lines keep their spaces, so that a caret stays below its character.
    return f"<pre>{text(fact.text)}</pre>" if "\n" in fact.text else text(fact.text)


def steps_list(steps: Pass) -> str:
    """The forward pass: each line of code, and below it the shape of each result."""
    items = []
    for group in steps.groups:
        results = []
        for step in group:
            noted = steps.remarks and bool(step.remark)
            remark = f'<p class="remark">{text(step.remark)}</p>' if noted else ""
            results.append(
                f"<li{' class=marked' if noted else ''}><span>{text(step.operation)}</span> "
                f"<code>{text(step.shape_text)}</code>{remark}</li>"
            )
        items.append(
            f'<li><span class="number">{text(group[0].place)}</span>'
            f"<code>{text(group[0].code)}</code><ul>{''.join(results)}</ul></li>"
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
