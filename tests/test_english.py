"""Words of the first edition that the house style replaces."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "clearhead"
# The word, and what to write instead.
BANNED = {
    r"\bstrangers?\b": "submission, user code, third-party model",
    r"\bmended\b": "fixed",
    r"\bforetell": "predict",
    r"\bfilling\b": "padding",
    r"\bthe house\b": "the architecture",
    r"\ba row a student\b": "one row per student",
}
# A key in the JSON of a claim, which programs may read, and texts that models read.
ALLOWED = {'"mended"', "in front of the house", "ran to the house"}
# It is rebuilt next; until then it keeps its words.
NOT_YET = ("checker",)
TEXTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.py")),
    *sorted((ROOT / "benchmarks").rglob("*.py")),
    *(
        file
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if file.name != "test_english.py" and "submissions" not in file.parts
    ),
    *(
        file
        for end in ("py", "md", "js", "css", "html")
        for file in sorted(PACKAGE.rglob(f"*.{end}"))
        if file.relative_to(PACKAGE).parts[0] not in NOT_YET
    ),
]


def banned(text: str) -> list[str]:
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    return [
        f"{found[0]!r}: write {instead}"
        for word, instead in BANNED.items()
        for found in re.finditer(word, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_the_words_of_the_first_edition_are_gone(file):
    assert banned(file.read_text(encoding="utf-8")) == []


def test_the_search_finds_them():
    assert len(banned("A stranger mended the filling of the house.")) == 4
    assert banned("A strange house was fixed; the padding stays.") == []
