"""Measure `clearhead check` on the attention of published packages: how often it is right.

`published_code.json` lists classes and functions of packages on PyPI. Each was labelled by reading
it, before the checker ran on it: "right", "wrong", or "unusual" (not softmax attention over
tokens). The packages are downloaded, never installed or imported; the command runs on each file
where it lies, with stand-ins for what the file imports. Its verdicts are counted by label.

    python -m benchmarks.published_code benchmarks/results/check-published-code.json

`repository_code.json` lists classes of repositories on GitHub in the same way: "version" is the
commit, and "package" its first characters, in place of the names of the authors. Put the files of
a commit below FOLDER/PACKAGE; those that are marked "trimmed" were cut to their attention and the
blocks around it.

    python -m benchmarks.published_code FILE --labels benchmarks/repository_code.json --files FOLDER
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from clearhead import timing

LABELS = Path(__file__).with_name("published_code.json")
FILE_SECONDS = 150.0  # for all classes of a file; the checker has limits of its own for each
CLASS_SECONDS = 90.0  # for one class that the file's own run did not judge
DOWNLOAD_SECONDS = 300.0
SEED = 0


@dataclass(frozen=True)
class Answer:
    """What the command said about one file or class.

    Args:
        reports: Its reports by the name of the class.
        problem: Why there is no report; "" if there is one.
        seconds: How long it took.
    """

    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0


def download(package: str, version: str, folder: Path) -> Path:
    """Download a wheel and unpack its Python files below a folder of its own.

    Raises:
        OSError: If there is no such wheel, or it cannot be downloaded or unpacked.
    """
    place = folder / package
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check"]
    wanted = f"{package}=={version}"
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(place), wanted]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{wanted}: the download took longer than {DOWNLOAD_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        raise OSError(f"{wanted}: {error.stderr.strip().rpartition('ERROR: ')[2]}") from None
    (wheel,) = place.glob("*.whl")
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place, [name for name in archive.namelist() if name.endswith(".py")])
    except zipfile.BadZipFile as error:
        raise OSError(f"{wanted}: {error}") from None
    return place


def check(target: str, seconds: float) -> Answer:
    """Run the command on FILE or FILE:CLASS."""
    command = [sys.executable, "-m", "clearhead", "check", "--json", "--seed", str(SEED), target]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Answer(problem=f"took longer than {seconds:g} s", seconds=seconds)
    lines = (line for line in done.stdout.splitlines() if line.startswith("{"))
    reports = {report["class"]: report for report in map(json.loads, lines) if report["class"]}
    said = "" if reports else (done.stderr.strip().splitlines() or ["no report"])[0]
    return Answer(reports, said, time.monotonic() - started)


def check_all(file: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The verdict on each named class of a file: from the file's own run, else from FILE:CLASS."""
    if not file.is_file():
        return {name: _no_verdict("not in the package", str(file.name)) for name in names}
    whole = check(str(file), FILE_SECONDS)
    found = {}
    for name in names:
        answer, asked = whole, "file"
        if name not in whole.reports:
            answer, asked = check(f"{file}:{name}", CLASS_SECONDS), "class"
        report = answer.reports.get(name)
        verdict = _no_verdict("no report", answer.problem) if report is None else _verdict(report)
        found[name] = {**verdict, "asked": asked, "seconds": round(answer.seconds, 1)}
    return found


def _verdict(report: dict[str, Any]) -> dict[str, Any]:
    findings = [
        {key: one[key] for key in ("id", "severity", "line", "evidence")}
        for one in report["findings"]
    ]
    unsure = report["verdict"] == "error" and any(one["id"] == "unsure" for one in findings)
    verdict = "unsure" if unsure else report["verdict"]
    return {
        "verdict": verdict,
        "findings": findings,
        "notes": report["notes"],
        "how": report["how"],
    }


def _no_verdict(verdict: str, why: str) -> dict[str, Any]:
    return {"verdict": verdict, "findings": [], "notes": [why], "asked": None, "seconds": None}


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many classes of each label got which verdict."""
    labels = sorted({row["label"] for row in rows})
    return {
        label: dict(Counter(row["verdict"] for row in rows if row["label"] == label))
        for label in labels
    }


def measure(
    labels: Sequence[dict[str, Any]],
    jobs: int,
    *,
    fetch: Callable[[str, str, Path], Path] = download,
) -> dict[str, Any]:
    """Download the packages, run the command on each file, and put labels and verdicts together."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        packages = sorted({(row["package"], row["version"]) for row in labels})
        places: dict[str, Path | None] = {}
        problems = {}
        tries = [pool.submit(fetch, *one, Path(folder)) for one in packages]
        for done, ((package, _), trial) in enumerate(zip(packages, tries, strict=True), 1):
            try:
                places[package] = trial.result()
            except OSError as error:
                places[package] = None
                problems[package] = str(error)
            _say(f"{done} of {len(packages)} packages")
        files: dict[tuple[str, str], list[str]] = {}
        for row in labels:
            if places[row["package"]] is not None and row["file"] is not None:
                files.setdefault((row["package"], row["file"]), []).append(row["class"])
        answers = pool.map(partial(_check_file, places), files.items())
        found = {}
        for done, (key, answer) in enumerate(zip(files, answers, strict=True), 1):
            found[key] = answer
            _say(f"{done} of {len(files)} files")
    rows = [{**row, **_result(row, found, problems)} for row in labels]
    return {
        "schema": 1,
        "benchmark": "published-code",
        **timing.environment(["torch", "einops", "timm", "clearhead"]),
        "settings": {"jobs": jobs, "seed": SEED},
        "wall_seconds": round(time.monotonic() - started, 1),
        "packages": len(packages),
        "not_downloaded": problems,
        "figures": figures(rows),
        "classes": rows,
    }


def _check_file(
    places: dict[str, Path | None], item: tuple[tuple[str, str], list[str]]
) -> dict[str, dict[str, Any]]:
    (package, file), names = item
    place = places[package]
    assert place is not None  # only files of downloaded packages are checked
    return check_all(place / file, names)


def _result(
    row: dict[str, Any],
    found: dict[tuple[str, str], dict[str, dict[str, Any]]],
    problems: dict[str, str],
) -> dict[str, Any]:
    """The verdict on a labelled class, or why there is none."""
    if row["package"] in problems:
        return _no_verdict("not downloaded", problems[row["package"]])
    if row["file"] is None:
        return _no_verdict("not in the package", "no file is given")
    return found[row["package"], row["file"]][row["class"]]


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The results as text."""
    for label, counts in found["figures"].items():
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        yield f"{label:10} {sum(counts.values()):4} classes: {told}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, write the JSON and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path, help="the JSON file to write")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time (default: 2)")
    parser.add_argument(
        "--labels", type=Path, default=LABELS, help="the labelled classes (default: %(default)s)"
    )
    parser.add_argument(
        "--files",
        type=Path,
        help="where the files of each package are, which are not downloaded then",
    )
    options = parser.parse_args(arguments)

    def there(package: str, version: str, folder: Path) -> Path:
        return options.files / package if options.files else download(package, version, folder)

    labels = json.loads(options.labels.read_text(encoding="utf-8"))
    found = measure(labels, options.jobs, fetch=there)
    timing.write_json(options.output, found)
    print(*lines(found), sep="\n")


if __name__ == "__main__":
    main()
