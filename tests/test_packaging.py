"""The wheel holds the package and nothing else, and works in an empty environment.

Nothing is downloaded: the wheel is built with the hatchling that is installed here, and the empty
environment finds the dependencies through a `.pth` file that names this environment's folder of
packages. `.pth` files inside that folder are not read then, so the editable install of the project
is not seen there: only the wheel provides clearhead.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from clearhead.version import __version__

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the project's folder; give back what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def built(kind: str, folder: Path) -> Path:
    """Build a wheel or an sdist into this folder."""
    build = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}"]
    run(*build, "--outdir", folder, ROOT, cwd=folder.parent)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel") / "first")


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"clearhead-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"clearhead-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"clearhead", info}
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    assert {name for name in names if name.startswith("clearhead/")} == files
    assert "clearhead/py.typed" in names
    assert f"{info}/licenses/LICENSE" in names
    assert wheel.stat().st_size < 9_000_000  # the English model takes most of it


def test_the_citation_names_this_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {__version__}" in lines


def test_the_workflows_run_what_exists() -> None:
    """What is renamed here must be renamed in the workflows."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = file.read_text(encoding="utf-8")
        assert set(re.findall(r"\bmake (\w+)", text)) <= targets
        for path in re.findall(r"--ignore (\S+)|bash (\S+)", text):
            assert (ROOT / "".join(path)).exists(), path


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", with_pip=False, symlinks=True)
    python = tmp_path / "empty" / "bin" / "python"
    packages = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
    )
    assert Path(packages).is_relative_to(tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    where = run(python, "-c", "import clearhead; print(clearhead.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(packages)
    command = tmp_path / "empty" / "bin" / "clearhead"
    assert run(command, "--version", cwd=tmp_path) == f"clearhead {__version__}"
    code = "from clearhead import MultiHeadAttention as M; print(M(4, 4, 4, 0.0, 2).head_dim)"
    assert run(python, "-c", code, cwd=tmp_path) == "2"
    shown = run(command, "explain", "My dog loves quantum pizza!", cwd=tmp_path)
    assert "of the English model: " in shown


@pytest.mark.slow
def test_building_the_wheel_again_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert built("wheel", tmp_path / "again").read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_building_the_sdist_again_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (built("sdist", tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_the_licence_of_every_dependency_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.match(r"[\w.-]+", one)[0] for one in asked} - {"clearhead"}
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| ([\w.-]+) \| \w", page, re.MULTILINE))
    assert names <= listed, f"not in docs/licences.md: {sorted(names - listed)}"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_installs_from_the_index(version: str, wheel: Path, tmp_path: Path) -> None:
    """With its real dependencies, by pip, into an environment of another Python."""
    python = shutil.which(f"python{version}")
    if (
        python is None
        or subprocess.run([python, "-V"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"no Python {version} here")
    run(python, "-m", "venv", tmp_path / "fresh", cwd=tmp_path)
    pip = tmp_path / "fresh" / "bin" / "pip"
    run(pip, "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    run(pip, "check", cwd=tmp_path)
    clearhead = tmp_path / "fresh" / "bin" / "clearhead"
    assert run(clearhead, "--version", cwd=tmp_path) == f"clearhead {__version__}"
    assert "Who attends to whom" in run(clearhead, "explain", "the cat sat", cwd=tmp_path)
