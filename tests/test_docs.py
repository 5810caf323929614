"""README and docs tell the truth: their Python is executed, their commands give what is shown.

Every ```python block runs, in order, the blocks of one file in one namespace. In a ```console block
each line `$ clearhead ...` is run (a backslash continues it), and what stands below it must be its
output; a line `...` stands for any number of lines, and a command with nothing below it must only
succeed.
"""

import ast
import doctest
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from clearhead import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# The first line of a command that ends with another status than 0.
FAILURE = r"Error:|Wrong:|\d+ submissions: .*(wrong|error)"


class Block(NamedTuple):
    language: str
    line: int  # of the first line inside the fence, counted from 1
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found = []
    for fence in re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", page, re.MULTILINE | re.DOTALL):
        indent, language, text = fence.groups()
        line = page.count("\n", 0, fence.start(3)) + 1
        lines = [each.removeprefix(indent) for each in text.splitlines(keepends=True)]
        found.append(Block(language, line, "".join(lines)))
    return found


def run_python(block: Block, page: str, namespace: dict[str, object]) -> None:
    """Execute a block; what looks like a Python session is compared with the output it shows."""
    if block.text.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(
            block.text, {}, f"{page}, line {block.line}", page, block.line - 1
        )
        test.globs = namespace
        log: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=log.append, clear_globs=False)
        assert not log, "".join(log)
        return
    tree = ast.parse(block.text, page)
    ast.increment_lineno(tree, block.line - 1)
    exec(compile(tree, page, "exec"), namespace)


def sessions(block: Block) -> Iterator[tuple[list[str], list[str]]]:
    """(the words after `clearhead`, the lines shown below) for each command of ours."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").replace("\\\n", "").split("\n")
        words = shlex.split(command, comments=True)
        if words[0] == "clearhead":
            yield words[1:], [line.rstrip() for line in shown]


def fits(shown: list[str], real: list[str]) -> bool:
    """Whether the lines are those shown, where `...` stands for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in real)) is not None


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


@pytest.fixture
def quiet_terminal(monkeypatch, tmp_path):
    """A terminal without colours, 80 columns wide, in a folder that may be written to."""
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


def check_page(page: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(block, name, namespace)
        elif block.language == "console":
            for words, shown in sessions(block):
                capsys.readouterr()
                with pytest.raises(SystemExit) as end:
                    cli.main(words)
                out, err = capsys.readouterr()
                where = f"{name}, line {block.line}: clearhead {shlex.join(words)}"
                failure_shown = bool(shown) and re.match(FAILURE, shown[0]) is not None
                assert (end.value.code == 0) != failure_shown, f"{where}\n{out}{err}"
                if shown:
                    assert fits(shown, stripped(out + err)), f"{where} gives\n{out}{err}"


@pytest.mark.usefixtures("quiet_terminal")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_tells_the_truth(page, capsys):
    check_page(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix(), capsys)


# The checker of pages itself can fail.


@pytest.mark.usefixtures("quiet_terminal")
@pytest.mark.parametrize(
    "body",
    [
        "```python\na = 1\n```\ntext\n```python\nassert a == 2\n```",
        "```python\n>>> 1 + 1\n3\n```",
        "```console\n$ clearhead --version\nclearhead 0.0\n```",
        "```console\n$ clearhead --version\n```\n```console\n$ clearhead nonsense\n```",
        "- a list\n  ```console\n  $ clearhead info gpt2-small\n  ...\n  no such line\n  ```",
    ],
)
def test_wrong_pages_are_found_out(body, capsys):
    with pytest.raises(AssertionError):
        check_page(body, "page.md", capsys)


@pytest.mark.usefixtures("quiet_terminal")
def test_right_pages_pass(capsys):
    page = (
        "```python\na = 1\n```\n```python\n>>> a + 1\n2\n```\n```text\n$ clearhead nonsense\n```\n"
        "```console\n$ make test\n$ clearhead info gpt2-small\ngpt2-small\n...\n"
        "$ clearhead nonsense\nError: No such command 'nonsense'.\n...\n```\n"
    )
    check_page(page, "page.md", capsys)


def test_errors_name_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as caught:
        run_python(blocks("one\n\n```python\nx = 1\nx / 0\n```\n")[0], "page.md", {})
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno + 1) == ("page.md", 5)
