"""`--data DIR`, and modules in the same folder as a submission."""

from pathlib import Path

import pytest

from clearhead.checker.classroom import batch
from clearhead.checker.classroom.check_command import Options, check
from clearhead.checker.classroom.data_folder import staged
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.process import choose_way
from clearhead.checker.sandbox.submission import Failure, Isolated

READS = """
import torch
from helpers import split
first, again = open("sizes.txt").read(), open("data/sizes.txt").read()
assert first == again == "3\\n"
for name in ("sizes.txt", "data/sizes.txt"):
    try:
        open(name, "w")
    except OSError:
        continue
    raise SystemExit("it could be written")
open("own.txt", "w").write("x")

class Attention(torch.nn.Module):
    def forward(self, x):
        return split(x)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "sizes.txt").write_text("3\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("way", ["bwrap", "plain"])
def test_data_can_be_read_and_not_written(data, way):
    try:
        choose_way(way)
    except RuntimeError as error:
        pytest.skip(str(error).splitlines()[0])
    helpers = {"helpers": "def split(x): return x"}
    with staged(data) as given:
        limits = Limits(data=given.folder)
        with Isolated(READS, "file.py", limits=limits, way=way, siblings=helpers) as session:
            classes = session.classes()
            assert not isinstance(classes, Failure), classes
            assert session.notes == ()
    assert (data / "sizes.txt").read_text(encoding="utf-8") == "3\n"


def test_data_that_cannot_be_given_is_refused(data, tmp_path):
    with (
        pytest.raises(ValueError, match=r"--data .*sizes\.txt: expected a folder"),
        staged(data / "sizes.txt"),
    ):
        pass
    (data / "link").symlink_to("/etc/passwd")
    with (
        pytest.raises(ValueError, match=r"link is not a regular file"),
        staged(data),
    ):
        pass


def test_too_much_data_is_refused(data, monkeypatch):
    monkeypatch.setattr("clearhead.checker.classroom.data_folder.MOST_FILES", 0)
    with (
        pytest.raises(ValueError, match=r"1 files of 0\.0 MiB together; the most is 0 files"),
        staged(data),
    ):
        pass


def noted(source, file, only=None, adapter=None, siblings=None, data=""):
    """A judge that records its arguments."""
    seen.append((Path(file).name, sorted(siblings or {}), Path(data).name))
    return []


seen: list[tuple[str, list[str], str]] = []


def test_a_single_file_gets_its_neighbours_and_the_data(data, tmp_path, capsys):
    seen.clear()
    (tmp_path / "mine.py").write_text("import helpers\n", encoding="utf-8")
    (tmp_path / "helpers.py").write_text("", encoding="utf-8")
    check(str(tmp_path / "mine.py"), Options(data=data), judge=noted)
    assert seen == [("mine.py", ["helpers"], "data")]


def test_in_a_folder_of_submissions_only_an_own_folder_is_reached(data, tmp_path):
    root = tmp_path / "submissions"
    (root / "alice").mkdir(parents=True)
    files = {
        "alice/a.py": "import b\nimport carol\n",
        "alice/b.py": "",
        "carol.py": "import dave\n",
    }
    for name, text in {**files, "dave.py": ""}.items():
        (root / name).write_text(text, encoding="utf-8")
    for name, wanted in (("alice/a.py", {"siblings": {"b": ""}}), ("carol.py", {})):
        path = root / name
        first = name.partition("/")[0]
        inside = root / first if first != name else None
        assert batch.beside(path, files[name], inside, None) == wanted
    rows = {
        row.file: row.sha256 for row, _ in batch.run([root / "alice" / "a.py"], root, check=none)
    }
    (root / "alice" / "b.py").write_text("# changed\n", encoding="utf-8")
    again = {
        row.file: row.sha256 for row, _ in batch.run([root / "alice" / "a.py"], root, check=none)
    }
    assert rows != again  # a row is updated when a module in its folder changes


def none(source, file, only=None, adapter=None, siblings=None, data=""):
    return []
