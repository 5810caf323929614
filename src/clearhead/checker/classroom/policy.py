"""What counts in an assignment: a small TOML file.

class = "MultiHead*"          # this class must exist; others are ignored
causal = true                 # the required form
multi_head = true
fail = ["wrong", "compat"]    # which findings fail; the default is "wrong" only
adapter = "adapter.py"        # one adapter for all submissions, next to the policy
"""

import fnmatch
import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from clearhead.checker.classroom.marks_file import PASSED
from clearhead.checker.classroom.regular_files import read_text
from clearhead.checker.report import SEVERITIES, Finding, Report
from clearhead.version import __version__

_KEYS: dict[str, type] = {
    "class": str,
    "causal": bool,
    "multi_head": bool,
    "fail": list,
    "adapter": str,
}
FAILS = (*SEVERITIES, "error")  # the last one: a submission that cannot be run
PARTS = ("the version", "the policy", "the adapter")  # of a digest, separated by "-"


@dataclass(frozen=True)
class Policy:
    """What an assignment asks for.

    Args:
        cls: A pattern for the name of the class that must exist; None accepts all classes.
        causal: Whether it must be causal; None accepts both.
        multi_head: Whether it must have several heads; None accepts both.
        fail: The severities that fail; with "error", also what cannot be run.
        adapter: The source of an adapter, or None.
    """

    cls: str | None = None
    causal: bool | None = None
    multi_head: bool | None = None
    fail: tuple[str, ...] = ("wrong",)
    adapter: str | None = None

    def passed(self, verdict: str) -> str:
        """Whether this verdict passes: "yes", "no", or "unclear" if nothing could be judged.

        Examples:
            >>> Policy().passed("error"), Policy(fail=("wrong", "error")).passed("error")
            ('unclear', 'no')
        """
        if verdict == "error" and "error" in self.fail:
            return "no"
        return PASSED.get(verdict, "unclear")

    @property
    def digest(self) -> str:
        """A digest of the rules, by `PARTS`: a row judged under other rules is judged again."""
        parts = astuple(replace(self, adapter=None)), self.adapter
        hashes = (hashlib.sha256(repr(part).encode()).hexdigest()[:12] for part in parts)
        return "-".join((__version__, *hashes))

    def changes_since(self, digest: str) -> list[str]:
        """What differs from the rules of a row with this digest: "the policy", "the adapter"."""
        now, then = self.digest.rsplit("-", 2), digest.rsplit("-", 2)
        if len(then) != len(now):
            return ["the version"]
        return [name for name, a, b in zip(PARTS, now, then, strict=True) if a != b]

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """The policy in a file.

        Raises:
            ValueError: If the file is not TOML, or has an unknown key or value.
        """
        text = read_text("--policy", path)
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also for an int of too many digits
            raise ValueError(f"--policy {path}: not TOML: {error}.") from None
        unknown = sorted(set(data) - set(_KEYS))
        if unknown:
            raise ValueError(
                f"--policy {path}: unknown key {', '.join(unknown)}.\n"
                f"  Known are {', '.join(_KEYS)}."
            )
        for key, value in data.items():
            if not isinstance(value, _KEYS[key]):
                raise ValueError(
                    f"--policy {path}: {key}: expected {_KEYS[key].__name__}, got {value!r}."
                )
        fail = data.get("fail", ["wrong"])
        if not fail or not all(one in FAILS for one in fail):
            raise ValueError(
                f"--policy {path}: fail: expected some of {', '.join(FAILS)}, got {fail!r}."
            )
        adapter = None
        if "adapter" in data:
            adapter = read_text(f"--policy {path}: adapter", path.parent / data["adapter"])
        return cls(
            data.get("class"), data.get("causal"), data.get("multi_head"), tuple(fail), adapter
        )

    def judge(self, file: str, reports: Sequence[Report]) -> list[Report]:
        """The reports that count, with the verdict that this policy gives them."""
        chosen = [r for r in reports if self.cls is None or fnmatch.fnmatchcase(r.cls, self.cls)]
        if not chosen and (self.cls is None or any(r.verdict == "error" for r in reports)):
            return list(reports)  # a file that cannot be run has no classes at all
        if not chosen:
            there = ", ".join(r.cls for r in reports) or "none"
            finding = _not_asked(f"a class {self.cls}", f'class = "{self.cls}"', there)
            return [Report(file, "", "wrong", (finding,))]
        return [self._judged(report) for report in chosen]

    def _judged(self, report: Report) -> Report:
        if report.verdict in ("error", "unsure"):
            return report
        found = report.findings + tuple(self._not_met(report))
        fails = any(finding.severity in self.fail for finding in found)
        if report.verdict == "wrong" and not any(each.severity == "wrong" for each in found):
            fails = True  # wrong for a reason that has no finding
        return replace(report, findings=found, verdict="wrong" if fails else "correct")

    def _not_met(self, report: Report) -> Iterator[Finding]:
        """A finding for each requirement on the form that is not met; unknown forms pass."""
        form = report.form
        if self.causal is not None and form.hides_future == (not self.causal):
            asked = "causal attention" if self.causal else "attention that is not causal"
            found = "causal" if form.hides_future else "not causal"
            if form.takes_mask and self.causal:
                found += ", unless a mask is passed in"
            yield _not_asked(asked, f"causal = {str(self.causal).lower()}", found)
        if self.multi_head is not None and form.multi_head == (not self.multi_head):
            asked = "several heads" if self.multi_head else "one head"
            found = "several heads" if form.multi_head else "one head"
            yield _not_asked(asked, f"multi_head = {str(self.multi_head).lower()}", found)


def _not_asked(asked: str, rule: str, found: str) -> Finding:
    """The finding for a requirement that is not met: what was asked for, and what was found.

    Its text also serves as the hint, since it contains no fix.
    """
    says = f"The assignment asks for {asked}."
    evidence = f"Asked for: {rule}. Found: {found}."
    return Finding(
        "not-what-was-asked", "wrong", says, evidence, "", None, symptom=f"{says} {evidence}"
    )
