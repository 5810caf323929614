"""A stand-in for the checker, in its own module because workers import it by name."""

import os
import time
from pathlib import Path

from clearhead.checker.catalogue import words_of
from clearhead.checker.classroom import check_command as runner
from clearhead.checker.report import Finding, Form, Report


def mark(folder: Path, **options: object) -> int:
    """Check a folder with the stand-in below."""
    return runner.check(str(folder), runner.Options(**options), judge=judge)


def judge(
    source: str, file: str, only: str | None, adapter: str | None, **_: object
) -> list[Report]:
    """Obey the first line: `# correct`, `# wrong ID`, `# compat`, `# crash`, `# hang`, ..."""
    counter = os.environ.get("STUB_LOG")
    if counter:
        with Path(counter).open("a", encoding="utf-8") as log:
            log.write(f"{file}\n")
    word, _, rest = source.partition("\n")[0].removeprefix("# ").partition(" ")
    form = Form(1, 8, causal="no") if "single" in source else Form(4, 8, causal="yes")
    if word == "crash":
        os._exit(7)
    if word == "hang":
        time.sleep(60)
    if word == "raise":
        raise RuntimeError("=the stub was asked to\nfail")
    if word == "none":
        return []
    if word in ("wrong", "compat", "edge"):
        id, symptom = rest or "some-id", words_of(rest).hint
        found = Finding(id, word, "It says.", "It shows.", "Do this.", 1, symptom=symptom)
        verdict = "wrong" if word == "wrong" else "correct"
        return [Report(file, only or "Attention", verdict, (found,), form)]
    if word == "error":
        found = Finding("cannot-run", "wrong", "It failed.", rest, "", 1)
        return [Report(file, "", "error", (found,))]
    notes = () if adapter is None else (adapter,)
    return [Report(file, only or "Attention", "correct", (), form, notes)]
