"""Faults in the layout of a page: text that is cut or overlaps, and what axe finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Every visible line of text with its position, and every text that is wider than its box.
LINES = """() => {
    const lines = [], cut = [], page = document.documentElement;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const unseen = ".unseen, script, style, option, .skip, noscript";
    for (let node; (node = walker.nextNode()); ) {
        const parent = node.parentElement, text = node.data.trim();
        if (!text || !parent.checkVisibility() || parent.closest(unseen)) continue;
        const scrolls = parent.closest(".wide, .scroller, .tokens.plain, .flow, .tabs");
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const { left, top, right, bottom, width, height } of range.getClientRects()) {
            if (width < 1 || height < 1) continue;
            lines.push({ text, x: left, y: top, right, bottom });
            const outside = left < -1 || right > page.clientWidth + 1;
            if (outside && !scrolls) cut.push(`outside: ${text}`);
        }
        const wider = parent.clientWidth && parent.scrollWidth > parent.clientWidth + 1;
        if (wider && !scrolls) cut.push(`cut: ${text}`);
    }
    return { lines, cut, wide: page.scrollWidth > page.clientWidth };
}"""


def overlaps(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of lines that overlap by more than a few pixels."""
    found = []
    for i, a in enumerate(lines):
        for b in lines[i + 1 :]:
            wide = min(a["right"], b["right"]) - max(a["x"], b["x"])
            high = min(a["bottom"], b["bottom"]) - max(a["y"], b["y"])
            if wide > 3 and high > 5:
                found.append((a["text"], b["text"]))
    return found


def serious_faults(page: Page) -> list[tuple[str, str, list[str]]]:
    """The faults of accessibility that axe calls serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        (fault["id"], fault["help"], [node["html"][:120] for node in fault["nodes"][:3]])
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
