"""Sequences of other lengths: does the class compute the same attention?

A mask or table may fit only one length, blockwise code shows its mistakes when a sequence is longer
than a block, and what an object keeps from one sequence may be wrong for the next.
"""

import math
import time
from dataclasses import replace

from torch import Tensor

from clearhead.checker.diagnosis.program import MOST_NUMBERS
from clearhead.checker.diagnosis.recorded_pass import steps_of
from clearhead.checker.diagnosis.reference import AnyReference
from clearhead.checker.harness.axis_orders import PICTURES, STATES
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.constructor_arguments import (
    each_field,
    likely_meaning,
    meaning_for,
    meaning_of,
)
from clearhead.checker.harness.forward_arguments import SOURCES
from clearhead.checker.harness.subject import Inputs, Subject, call, each, inputs_for, renew
from clearhead.checker.sandbox.submission import Failure, Parameter
from clearhead.checker.source.class_text import keeps_something

LENGTHS = (1, 2, 3, 19, 67)  # one token, few, more than a usual block of 16, more than one of 64
LONG = 1000
LEAST = 263  # more than two blocks of 128; shorter sequences do not count as long
READ = 24  # tokens: longer sequences take too long to read step by step
PATIENCE = 1.5  # seconds: a loop over all pairs of tokens takes longer
DRIFT = 1e-5
BREAKS = 1e-3  # angles in float32 cause smaller differences, another mask larger ones
SPARSE = r"(?i)window|local|sliding|sparse|dilat|stride|\bband|yarn|ntk|\blog\(|log2"


def longest(case: Case, subject: Subject) -> int:
    """The longest sequence that the class promises to accept."""
    names = {meaning_for(p) for p in case.info.init if not _may_be_block(p)}
    read = {meaning_of(name.rpartition(".")[2]) for name, _ in case.info.fields}
    limited = "context" in names or ("config" in names and "context" in read)
    return subject.sizes.context if limited and not case.given else LONG


def _may_be_block(parameter: Parameter) -> bool:
    """Whether a block_size may be that of blocks of keys rather than the longest sequence."""
    return parameter.has_default and bool({"block", "chunk"} & {*parameter.name.split("_")})


def of_one_length(subject: Subject) -> bool:
    """Whether its length is fixed: a multiple of the context, a state, or a window of pixels."""
    whole = subject.sizes.tokens % subject.sizes.context == 0
    alone = subject.axes in STATES
    return whole or alone or subject.sizes.window is not None


def lengths(case: Case, subject: Subject, right: AnyReference) -> AnyReference | None:
    """Check that it runs at other lengths and computes the same attention there.

    Returns:
        The reference, with a window if a longer sequence revealed one; None if nothing is known
        about longer sequences.
    """
    if of_one_length(subject):
        return None
    known = {meaning_for(p) for p in case.info.init}
    told = bool(known & {"context", "config"}) and not case.given
    most = longest(case, subject)
    judged = not case.wrong
    for tokens in sorted({*LENGTHS, subject.sizes.context}):
        if tokens > most:
            break
        inputs = inputs_for(subject, tokens)
        got = call(case.session, subject, inputs)
        if isinstance(got, Failure):
            if not got.raised:
                return None
            if _is_new(case, subject, right, tokens, got):
                return None
            if tokens <= 3 or (tokens == subject.sizes.context and told):
                case.add_failure("fails-at-some-lengths", f"With {tokens} tokens", got)
            elif tokens > subject.sizes.context:
                return None
            continue
        if not judged:
            continue
        wanted = right.output(inputs)
        if wanted is None:
            if not _reads(case, subject, right, inputs, got):
                return None
        elif wanted.shape == got.shape and difference(got, wanted) > BREAKS:
            windowed = _windowed(case, subject, right, tokens, got)
            if windowed is None:
                if not _is_new(case, subject, right, tokens, got):
                    _name_length(case, subject, right, tokens)
                return None
            right = windowed
        elif lost := _prefix_lost(case, subject, right, inputs, got):
            _breaks(case, f"With {tokens} tokens {lost}.")
            return None
    return right


def keys_apart(case: Case, subject: Subject, right: AnyReference) -> None:
    """Check with more and with fewer keys than queries, if the keys have a separate input.

    A memory or a context is another sequence; other inputs may rightly be of one length.
    """
    if not subject.separate or subject.axes != "batch" or subject.memory or right.mask != "none":
        return
    if subject.polarity or case.wrong:
        return
    elsewhere = any(role == "kv" and name.lower() in SOURCES for name, role in subject.feed)
    severity = "wrong" if elsewhere else ""
    tokens = subject.sizes.tokens
    for seen in (tokens + 4, tokens - 3):
        q, (_, k, v) = inputs_for(subject, tokens)[0], inputs_for(subject, seen, seed=5)
        got = call(case.session, subject, (q, k, v))
        if isinstance(got, Failure):
            if got.raised:
                when = f"With {tokens} queries and {seen} keys"
                case.add_failure("fails-at-some-lengths", when, got, severity)
            return
        wanted = right.output((q, k, v))
        if wanted is not None and wanted.shape == got.shape and difference(got, wanted) > BREAKS:
            gap = percent(difference(got, wanted))
            evidence = f"With {tokens} queries and {seen} keys it differs from attention by {gap}."
            case.add("breaks-with-length", evidence)
            return


def _reads(case: Case, subject: Subject, right: AnyReference, inputs: Inputs, got: Tensor) -> bool:
    """Whether the class is also right at a length where other code runs than was read before."""
    tokens = inputs[0].shape[1]
    if tokens <= READ:
        other = replace(subject, sizes=replace(subject.sizes, tokens=tokens))
        steps = steps_of(case, other)
        if steps is not None and steps.wrong:
            found = next(one for one in steps.findings if one.is_wrong)
            evidence = f"With {tokens} tokens it takes a different path. {found.evidence}"
            case.add("breaks-with-length", evidence, found.line)
            return False
        if steps is not None and not steps.doubts:
            return True
    wrong = _property_lost(case, subject, right, inputs, got)
    if wrong:
        case.add("breaks-with-length", f"With {tokens} tokens {wrong}.")
    return not wrong


def _property_lost(
    case: Case, subject: Subject, right: AnyReference, inputs: Inputs, got: Tensor
) -> str:
    """A property of every attention that fails at this length; "" if none was found."""
    if subject.axes in PICTURES or any(role.startswith("tensor") for _, role in subject.feed):
        return ""
    gap = _stretched(case, subject, right, inputs[0].shape[1])
    if gap > BREAKS:
        return (
            "where each token is repeated several times, the output differs by "
            f"{percent(gap)} from the output for each token once, which must be the same"
        )
    return _prefix_lost(case, subject, right, inputs, got)


def _prefix_lost(
    case: Case, subject: Subject, right: AnyReference, inputs: Inputs, got: Tensor
) -> str:
    """How the first outputs of causal attention change with later tokens; "" if they do not."""
    few = subject.sizes.tokens
    if not right.mask.startswith(("causal", "window")) or few >= inputs[0].shape[1]:
        return ""
    if any(role.startswith("tensor") for _, role in subject.feed):
        return ""  # it is random, and different for each length
    short = call(case.session, subject, each(inputs, lambda t: t[:, :few].contiguous()))
    if isinstance(short, Failure) or short.shape[1] != few:
        return ""
    gap = difference(got[:, :few], short)
    if gap <= BREAKS:
        return ""
    return f"the first {few} outputs differ by {percent(gap)} from those without the rest"


def _stretched(case: Case, subject: Subject, right: AnyReference, tokens: int) -> float:
    """How far a sequence is from a short one whose tokens it repeats; 0 if not applicable.

    If each token is repeated r times in a row, its last copy sees every visible token r times, so
    the output is that of the short sequence. That holds with and without a causal mask, as long
    as positions play no role, which is first tested on a sequence of few tokens.
    """
    if right.mask not in ("none", "causal") or subject.polarity or subject.marks:
        return 0.0

    def gap(few: int, times: int) -> float | None:
        short = inputs_for(subject, few)
        long = each(short, lambda t: t.repeat_interleave(times, 1))
        one, many = call(case.session, subject, short), call(case.session, subject, long)
        if isinstance(one, Failure) or isinstance(many, Failure):
            return None
        last = many[:, times - 1 :: times]
        return difference(last, one) if last.shape == one.shape else None

    few = subject.sizes.tokens
    placeless = gap(3, 2)
    if placeless is None or placeless > 1e-6:
        return 0.0
    return gap(few, -(-tokens // few)) or 0.0


def _is_new(
    case: Case, subject: Subject, right: AnyReference, tokens: int, got: Tensor | Failure
) -> bool:
    """Whether a new object is right at this length, so that an earlier sequence is to blame."""
    before = [n for n in {*LENGTHS, subject.sizes.context} if n < tokens]
    seen = max(subject.sizes.tokens, *before, 1)
    if not keeps_something(case.text) or not renew(case.session, subject):
        return False
    inputs = inputs_for(subject, tokens)
    fresh = call(case.session, subject, inputs)
    renew(case.session, subject)
    call(case.session, subject, inputs_for(subject, subject.sizes.tokens))  # restore the state
    if isinstance(fresh, Failure) or _parts(right, inputs, fresh) > BREAKS:
        return False
    start = f"After inputs of up to {seen} tokens, one of {tokens} tokens"
    if isinstance(got, Failure):
        evidence = f"{start} fails: {got.type}: {got.message}"[:300] + ". A new object accepts it."
        case.add("depends-on-earlier-call", evidence, got.line)
    else:
        gap = percent(difference(got, fresh))
        evidence = f"{start} gives an output that differs by {gap} from that of a new object."
        case.add("depends-on-earlier-call", evidence)
    return True


def long_texts(case: Case, subject: Subject, right: AnyReference) -> None:
    """Check a sequence of about a thousand tokens, longer than the usual blocks.

    The sequence is shorter if the class is slow or has many heads.
    """
    if "Lazy" in case.text.file or case.wrong:
        return
    limited = longest(case, subject) < LONG
    roomy = _with_room(case, subject) if limited else subject
    # Use a new object: a buffer that was once cast to half precision is no longer exact.
    if roomy is None or not renew(case.session, roomy):
        return
    tokens = _affordable(case, roomy)
    if tokens < LEAST:
        case.notes.append(f"It is slow, so it was not tested beyond {max(LENGTHS)} tokens.")
    else:
        inputs = inputs_for(roomy, tokens, batch=1)
        with case.session.optional() as unanswered:
            got = call(case.session, roomy, inputs)
            wanted = right.output(inputs) if isinstance(got, Tensor) else None
            lost = ""
            if isinstance(got, Tensor) and wanted is None:
                lost = _property_lost(case, roomy, right, inputs, got)
        if unanswered:
            case.notes.append(f"Not tested beyond {max(LENGTHS)} tokens: it did not answer.")
        if lost:
            case.add("breaks-with-length", f"With {tokens} tokens {lost}.")
        elif isinstance(got, Tensor) and wanted is not None:
            breaks = wanted.shape == got.shape and difference(got, wanted) > BREAKS
            if breaks and _windowed(case, roomy, right, tokens, got) is None:
                _name_length(case, roomy, right, tokens)
    if limited:
        renew(case.session, subject)


def _affordable(case: Case, subject: Subject) -> int:
    """The longest sequence for which the class answers quickly enough."""
    few = max(LENGTHS)
    inputs = inputs_for(subject, few, batch=1)
    seconds = math.inf
    for _ in range(4):  # the fastest counts: the first call may build something, others may wait
        began = time.monotonic()
        call(case.session, subject, inputs)
        seconds = min(seconds, max(time.monotonic() - began, 1e-4))
        if seconds > PATIENCE:
            break
    pairs = [role.split() for _, role in subject.feed if role.count(" n") > 1]
    wide = max([subject.sizes.heads, 1, *(int(one[-1]) for one in pairs if one[-1].isdigit())])
    tokens = int(few * math.sqrt(PATIENCE / seconds))
    if tokens < LEAST and seconds * (LEAST / few) ** 2 < PATIENCE:
        tokens = LEAST  # worth a longer wait
    return min(LONG, tokens, int(math.sqrt(MOST_NUMBERS / wide)))


def _with_room(case: Case, subject: Subject) -> Subject | None:
    """The same class with the same weights and a longer context; None if that is impossible."""

    def longer(name: str, value: object) -> object:
        context = likely_meaning(name.lower()) == "context" and value == subject.sizes.context
        return LONG + 8 if context else value

    keywords = {name: each_field(value, longer, name) for name, value in subject.keywords.items()}
    roomy = replace(subject, keywords=keywords)
    built = case.session.build(case.info.name, subject.arguments, keywords)
    if isinstance(built, Failure) or built.parameters != subject.built.parameters:
        renew(case.session, subject)
        return None  # perhaps a table of positions
    return roomy


def _parts(right: AnyReference, inputs: Inputs, got: Tensor) -> float:
    """How far the output for these inputs is from correct attention."""
    wanted = right.output(inputs)
    return difference(got, wanted) if wanted is not None and wanted.shape == got.shape else 0.0


def _windowed(
    case: Case, subject: Subject, right: AnyReference, tokens: int, got: Tensor
) -> AnyReference | None:
    """The same form with a window too wide to show in the plain run; None if no width fits."""
    kinds = {"causal": "window", "none": "band"}
    if right.mask not in kinds:
        return None
    widths = [v for n, v in subject.keywords.items() if not meaning_of(n) and type(v) is int]
    kept = [v for v in subject.built.plain.values() if type(v) is int and 1 < v < tokens]
    if tokens >= LEAST:
        widths += kept  # an attribute may be the width too
    elif case.text.has(r"(?i)window|local|sliding"):
        widths = list(range(subject.sizes.tokens, tokens))
    inputs = inputs_for(subject, tokens, batch=got.shape[0])
    for width in dict.fromkeys(widths):  # an argument with an unknown name may be it
        trial = right.with_mask(f"{kinds[right.mask]}{width}")
        if _parts(trial, inputs, got) < BREAKS:
            window_asked(case, subject, trial, width)
            case.notes.append(f"In longer sequences, each token sees a window of {width} tokens.")
            return trial
    return None


def window_asked(case: Case, subject: Subject, right: AnyReference, width: int) -> None:
    """Check whether a window is one token narrower or two tokens wider than an argument says.

    A window of w may be w tokens including the token itself, or w tokens before it. The argument
    that sets it is found by trial: another value must give another window.
    """
    told = {p.name: subject.keywords.get(p.name, p.default) for p in case.info.init}
    plain = {n: v for n, v in told.items() if type(v) is int and meaning_of(n) != "heads"}
    if case.given or {width, width - 1} & {*plain.values()}:
        return
    kind = right.mask.removesuffix(str(width))
    for name, value in plain.items():
        if value not in (width + 1, width - 2):
            continue
        more = replace(subject, keywords={**subject.keywords, name: value + 2})
        inputs = inputs_for(more, max(subject.sizes.tokens, width + 6))
        got = call(case.session, more, inputs) if renew(case.session, more) else None
        wider = right.with_mask(f"{kind}{width + 2}")
        asked = isinstance(got, Tensor) and (
            _parts(wider, inputs, got) < BREAKS < _parts(right, inputs, got)
        )
        renew(case.session, subject)
        if asked:
            evidence = f"With {name}={value} a token attends to {width} tokens."
            case.add("window-off-by-one", evidence)


def _name_length(case: Case, subject: Subject, right: AnyReference, tokens: int) -> None:
    """Report the length from which on the class breaks."""
    fine, bad = subject.sizes.tokens, tokens

    def gap_at(length: int) -> float:
        inputs = inputs_for(subject, length, batch=1 if tokens >= LEAST else 0)
        got = call(case.session, subject, inputs)
        return math.inf if isinstance(got, Failure) else _parts(right, inputs, got)

    while abs(bad - fine) > 1:
        middle = (fine + bad) // 2
        fine, bad = (fine, middle) if gap_at(middle) > BREAKS else (middle, bad)
    if gap_at(fine) > DRIFT:
        return  # it drifts gradually: values are rounded somewhere
    where = f"from {bad} tokens on" if bad > fine else f"with {bad} or fewer"
    evidence = (
        f"With {fine} tokens, the output is that of attention; {where}, it differs by "
        f"{percent(gap_at(bad))}."
    )
    _breaks(case, evidence)


def _breaks(case: Case, evidence: str) -> None:
    sparse = case.text.has(SPARSE)
    evidence += " If it is meant to see only part of a long sequence, it is right." * sparse
    case.add("breaks-with-length", evidence, severity="edge" if sparse else "")
