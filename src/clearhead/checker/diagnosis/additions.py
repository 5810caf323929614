"""Right additions to attention that the source lets us expect: sinks, and a cap on the scores."""

import re
from dataclasses import replace

from clearhead.checker.diagnosis.naming import scale_set_by
from clearhead.checker.diagnosis.search import Explanation
from clearhead.checker.diagnosis.terms import Terms
from clearhead.checker.diagnosis.weight_layouts import Candidate
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.subject import Subject, others

_MORE_SCORES = r"(?i)\b(?:cat|concat|concatenate|pad|hstack)\(|logsumexp|logaddexp|sink"
_CAPPED = r"(?i)cap"
_NUMBER = (
    r"(\d+(?:\.\d*)?(?:e\d+)?)\s*\*\s*(?:torch\.|F\.)?tanh|tanh\([^\n]*\)\s*\*\s*(\d+(?:\.\d*)?)"
)


def additions(case: Case, subject: Subject, candidate: Candidate) -> list[Candidate]:
    """The same weights with a sink for each head, or with capped scores, where there may be one."""
    weights = candidate.weights
    made = []
    # A sink is one more score. Without a sign of one, every reading would be searched twice.
    for name in others(subject) if case.text.has(_MORE_SCORES) else ():
        if subject.weights[name].numel() == weights.heads and "bias" not in name:
            made.append(Terms(sink=subject.weights[name].flatten()))
    if case.text.has(r"tanh\("):
        made += [Terms(cap=number) for number in _caps(case, subject)]
    return [replace(candidate, weights=replace(weights, terms=terms)) for terms in made]


def _caps(case: Case, subject: Subject) -> list[float]:
    """Numbers that may cap the scores: attributes and fields of that name, or beside a tanh."""
    named = [*subject.built.plain.items(), *case.info.fields, *subject.keywords.items()]
    found = [value for name, value in named if re.search(_CAPPED, name)]
    found += [float(one or other) for one, other in re.findall(_NUMBER, case.text.code)]
    numbers = [float(n) for n in found if isinstance(n, int | float) and not isinstance(n, bool)]
    return [number for number in dict.fromkeys(numbers) if number > 0]


def strange_cap(case: Case, subject: Subject, best: Explanation) -> bool:
    """Whether capped scores have a scale that nobody has given: another kind of cap, perhaps."""
    terms = best.program.weights.terms
    if terms is None or terms.cap is None or "wrong-scale" not in best.ids:
        return False
    return scale_set_by(case.text, subject, best) != "an argument"
