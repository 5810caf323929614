"""The documentation site: generated pages are current, no dead links, the notebook runs."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

import clearhead
from benchmarks import charts, speed_page

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_pages_are_up_to_date(name):
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generate.PAGES[name](), "run: python docs/generate.py"


def test_charts_show_what_was_measured():
    """Only the numbers are compared: another matplotlib may draw lines differently."""
    folder = ROOT / "docs" / "charts"
    results = speed_page.load(generate.RESULTS)
    expected = {chart.file: chart.data() for chart in charts.charts(results)}
    found = {file.name: charts.data_in(file.read_text("utf-8")) for file in folder.glob("*.svg")}
    assert found == expected, "run: python docs/generate.py"


def test_every_public_name_is_documented():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    shown = {line.removeprefix("::: clearhead.") for line in page if line.startswith(":::")}
    assert shown == set(clearhead.__all__) - {"__version__"}
    for name in shown - {"GPT2_CONFIGS"}:
        assert getattr(clearhead, name).__doc__, name


def test_links_between_the_pages_lead_somewhere():
    """A first check; the build of the site, which is slow, also checks anchors."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text):
            made_by_the_build = link.startswith("play/")
            assert made_by_the_build or (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.slow
def test_the_site_builds_without_a_dead_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    api = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    assert "<blockquote" not in api, "a doctest outside an 'Examples:' section is not shown as code"
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in index
    for page in ("index", "play"):  # the living page, where other viewers show a picture
        text = (tmp_path / "site" / f"{page}.html").read_text(encoding="utf-8")
        assert '<iframe class="live"' in text, page
        picture = re.search(r"^\[!\[.*\]\((.*?)\)\]", (ROOT / f"docs/{page}.md").read_text(), re.M)
        assert picture is not None
        assert (ROOT / "docs" / picture[1]).is_file()
    for model in ("english", "grammar"):  # the pages that run a model are part of the site
        page = (tmp_path / "site" / "play" / f"{model}.html").read_text(encoding="ascii")
        assert 'id="engine"' in page


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    book = nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)
    nbformat.validate(book)
    assert ">>>" not in "".join(cell.source for cell in book.cells)
    client = nbclient.NotebookClient(book, timeout=120, kernel_name="python3")
    client.execute(cwd=tmp_path)
    assert any(cell.cell_type == "code" and cell.outputs for cell in book.cells)
