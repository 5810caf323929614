"""One class under examination, and what was found so far."""

import functools
import time
from dataclasses import dataclass, field, replace

from clearhead.checker.catalogue import finding
from clearhead.checker.harness.constructor_arguments import Attempts, attempts_for
from clearhead.checker.harness.subject import Session
from clearhead.checker.report import Finding, Form, Report, Step
from clearhead.checker.sandbox.submission import ClassInfo, Failure
from clearhead.checker.source.call_sites import Usage, usage_of
from clearhead.checker.source.class_text import Text, literal_meant, locate

# Limits on the ways to build and call a class that are tried: in all, per sizes, and in seconds.
TRIES, TRIES_OF_A_SIZE, PATIENCE = 1200, 400, 6.0


@dataclass
class Case:
    """One class under examination.

    Args:
        session: The process that runs the submission.
        info: The class.
        text: Its source.
        filename: The file's name, for the report.
        findings: What was found.
        notes: What else the reader must know.
        form: What kind of attention it is.
        doubt: Whether something was found that may be right or wrong and that decides the verdict.
        began: When the examination began.
        tries: How many ways to build and call it were tried.
        most_tries: The number of tries at which to give up on the current sizes.
        seed: The random seed for the sizes, the weights and the inputs.
        asked_from: How many questions were unanswered when the examination began.
        dropping: Whether dropout is active in evaluation, so that a pass is read without it.
        numpy: Whether an adapter passes its tensors to numpy code.
        given: Whether the arguments it was built with are unknown: an object that was already
            built, or a class inside an adapter.
    """

    session: Session
    info: ClassInfo
    text: Text
    filename: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    form: Form = field(default_factory=Form)
    given: bool = False
    doubt: bool = False
    dropping: bool = False
    numpy: bool = False
    began: float = field(default_factory=time.monotonic)
    tries: int = 0
    most_tries: int = TRIES_OF_A_SIZE
    how: str = ""
    tested: str = ""
    steps: tuple[Step, ...] = ()
    asked_from: int = 0
    seed: int = 0

    @functools.cached_property
    def sizes(self) -> Attempts:
        """The sizes to try."""
        return attempts_for(self.seed)

    @functools.cached_property
    def usage(self) -> Usage:
        """How the file uses the class."""
        return usage_of(self.text.file, self.info)

    def next_sizes(self) -> bool:
        """Move on to other sizes; return whether there is time for them."""
        self.most_tries = self.tries + TRIES_OF_A_SIZE
        return self.tries <= TRIES and time.monotonic() - self.began <= PATIENCE

    def late(self) -> bool:
        """Whether it is time to stop trying other ways with the same sizes."""
        self.tries += 1
        return self.tries > min(self.most_tries, TRIES) or time.monotonic() - self.began > PATIENCE

    def add(self, id: str, evidence: str, line: int | None = None, severity: str = "") -> None:
        """Add a finding, unless its id is already there."""
        if all(found.id != id for found in self.findings):
            place = line if line is not None else locate(id, self.text)
            if id == "mask-fill-not-inf":
                evidence += literal_meant(self.text.file, place)
            self.findings.append(finding(id, evidence, place, severity))

    def add_failure(self, id: str, when: str, failure: Failure, severity: str = "") -> None:
        """Add a finding for an error: when it occurs, and what it says."""
        evidence = f"{when}: {failure.type}: {failure.message}"[:300]
        self.add(id, evidence, failure.line, severity)

    @property
    def wrong(self) -> bool:
        """Whether a mistake was found."""
        return any(found.severity == "wrong" for found in self.findings)

    def unsure(self, evidence: str) -> Report:
        """The report of a class that cannot be judged further: wrong if a mistake was found."""
        self.findings.append(finding("unsure", evidence, None, "edge"))
        return self.report("wrong" if self.wrong else "unsure")

    def report(self, verdict: str = "") -> Report:
        """The report so far; without a verdict, the findings decide it."""
        order = {"wrong": 0, "compat": 1, "edge": 2}
        ranked = sorted(self.findings, key=lambda f: order.get(f.severity, 3))
        if not verdict:
            verdict = "wrong" if self.wrong else "unsure" if self.doubt else "correct"
        unanswered = self.session.unanswered[self.asked_from :]
        if verdict == "correct" and unanswered:
            more = len(unanswered) - 1
            rest = f", nor to {more} other question{'s' if more > 1 else ''}" if more else ""
            asked, line = unanswered[0]
            evidence = f"It gave no answer when asked for {asked}{rest}."
            ranked.insert(0, replace(finding("unsure", evidence, line, "edge"), fix=""))
            verdict = "unsure"
        return Report(
            self.filename,
            self.info.name,
            verdict,
            tuple(ranked),
            self.form,
            tuple(dict.fromkeys(self.notes)),
            tested=self.tested if verdict == "correct" else "",
            how=self.how,
            steps=self.steps,
            seed=self.seed,
        )
