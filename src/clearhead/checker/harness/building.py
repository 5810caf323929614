"""Building a submitted class, finding how it is called, and giving it random weights."""

import ast
import itertools
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.harness.axis_orders import (
    CHANNELS_FIRST,
    HEADS_READY,
    MEMORIES,
    PICTURES,
    STATES,
    TABLES,
    height_of,
    order_named,
)
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference
from clearhead.checker.harness.constructor_arguments import (
    SQUARE,
    WINDOWS,
    Attempts,
    Constructor,
    Sizes,
    constructors,
    each_field,
    likely_meaning,
    may_be_window,
    meaning_for,
    meaning_of,
    with_objects,
)
from clearhead.checker.harness.descriptions import description
from clearhead.checker.harness.error_messages import (
    ALWAYS_OWN,
    PRODUCT,
    SIZE_MISMATCH,
    objects_wanted,
    only_with_equal_widths,
    own_fault,
    translate,
)
from clearhead.checker.harness.forward_arguments import (
    ANGLES,
    GRID,
    MARKS,
    MASK_SHAPES,
    POLARITIES,
    ROTARY,
    feeds,
)
from clearhead.checker.harness.repairs import GONE, NO_FIELD, build, changes, with_field
from clearhead.checker.harness.subject import (
    ONLY_WEIGHTS,
    Inputs,
    Subject,
    call,
    head_width,
    inputs_for,
    joined_widths,
    random_weights,
    renew,
    width_in,
    width_of_memory,
)
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.report import Finding, Report
from clearhead.checker.sandbox.submission import Built, Failure
from clearhead.checker.source.argument_flow import frames, progress_of, used_at
from clearhead.checker.source.call_sites import assigned, fields_read, method, parsed
from clearhead.checker.source.class_text import order_said

ADAPTER = (
    "If your class needs another kind of input (an image, say) or other arguments, write an "
    "adapter: clearhead check FILE --write-adapter adapter.py creates a template, and "
    "--adapter adapter.py uses it."
)
POOLS = "it pools the tokens, and pooling by several inputs is not judged."
_FIELDS = 12  # the most fields of a configuration to guess after a call
_MOST_TOKENS = 400  # for a class that takes only one number of tokens
_POOLED = "forward returned one vector"
AT_ONCE = (
    'Put code that runs at import under if __name__ == "__main__":, so that the file can be '
    "imported."
)


_ENDED = {"timeout": "timed out", "memory": "ran out of memory", "died": "was ended"}


def could_not_run(filename: str, name: str, failure: Failure, stage: str, how: str = "") -> Report:
    """A report that says why there is nothing to judge.

    Args:
        filename: The file.
        name: The class.
        failure: What happened.
        stage: "import", "build" or "forward".
        how: How it was built and called, if the checker chose that.
    """
    said = f"{failure.type}: {failure.message}" if failure.type else failure.message
    text = f"It {_ENDED.get(failure.kind, 'failed')} at {stage}: {said}"
    if stage == "import" and failure.type in ("SyntaxError", "IndentationError", "TabError"):
        text = f"Python could not read the file: {said}"
    evidence = (failure.traceback or "").strip()[-600:]
    fix = "" if stage == "import" or failure.kind != "exception" else ADAPTER
    fix = f"The checker chose this call: {how}. {fix}" if how and fix else fix
    if stage == "import" and failure.kind == "timeout":
        text += ". Code at the top level of the file may be training, or waiting for something."
        evidence, fix = "", AT_ONCE  # the line says it all
    elif stage == "import" and failure.type == "EOFError":
        text += ". Nobody answers input() here."
        evidence, fix = "", AT_ONCE
    found = Finding("cannot-run", "wrong", text, evidence, fix, failure.line)
    return Report(filename, name, "error", (found,))


def _constructors(case: Case) -> Iterator[Constructor]:
    """Ways to build the class; with a window of pixels if one number is not enough."""
    usage = case.usage
    if not any(map(may_be_window, case.info.init)):
        yield from constructors(case.info, usage=usage, sizes=case.sizes)
        return
    items = max((usage.items.get(p.name, 0) for p in case.info.init if may_be_window(p)), default=0)
    refused = False
    if not items:
        _, arguments, keywords = next(constructors(case.info, usage=usage, sizes=case.sizes))
        got = case.session.build(case.info.name, arguments, keywords)
        pair = r"unpack non-iterable int|'int' object is not (subscriptable|iterable)"
        items = 2 if isinstance(got, Failure) and re.search(pair, got.message) else 0
        refused = isinstance(got, Failure) and got.type in _REFUSES
    yield from constructors(case.info, WINDOWS.get(items), usage, case.sizes)
    if items not in WINDOWS:
        yield from constructors(case.info, SQUARE, usage, case.sizes)
    if refused:
        yield from constructors(case.info, WINDOWS[2], usage, case.sizes)


def prepare(case: Case) -> Subject | Report:
    """Build and run the class; return a report if that is impossible."""
    case.notes += case.session.notes
    case.session.applies = None
    first: _Failed | None = None
    furthest: _Failed | None = None
    same = True  # whether every attempt failed with the same error on the same line
    over = False
    shared: list[_Failed] = []  # attempts with fewer key heads than query heads
    for sizes, arguments, keywords in _constructors(case):
        for got in _attempts(case, sizes, arguments, keywords):
            if isinstance(got, Subject):
                if sizes.kv_heads == sizes.heads:
                    _note_shared_keys(case, shared)
                if first is not None and sizes.d_in == sizes.d_out and sizes.window is None:
                    _note_equal_widths(case, first)
                return replace(got, how=description(got))
            if isinstance(got, Report):
                return got
            same &= first is None or got.error == first.error
            shared += [got] if sizes.kv_heads != sizes.heads else []
            if first is None or (first.stage == "build" and got.stage == "forward"):
                first = got
            if furthest is None or got.progress > furthest.progress:
                furthest = got
            over = got.failure.kind in GONE or got.id is not None
        if over or not case.next_sizes():
            break
    assert first is not None
    assert furthest is not None
    fixed = _with_other_sizes(case, furthest.failure)
    if fixed is not None:
        return replace(fixed, how=description(fixed))
    if first.id is None and first.failure.message.startswith(_POOLED):
        says = f"{first.failure.message}: {POOLS}"
        return case.unsure(says)
    failure = first.failure
    others = [n for n in case.info.methods if not n.startswith("_")]
    if first.id == "misspelled-forward" and others and not case.usage.called:
        message = f"it has no forward, only {', '.join(others[:5])}"  # which nobody calls
        failure = replace(failure, type="", message=message)
        return could_not_run(case.filename, case.info.name, failure, "forward")
    if first.id is not None:
        case.add(first.id, f"{failure.type}: {failure.message}"[:400], failure.line)
        return case.report()
    always = same or failure.type in ALWAYS_OWN
    own = own_fault(failure, case.text.file, case.info, case.session.missing) if always else ""
    if own:
        case.how = first.how
        case.add("crashes", own, failure.line)
        return case.report()
    failure, stage = furthest.failure, furthest.stage
    chosen = furthest.how if stage == "forward" else ""
    report = could_not_run(case.filename, case.info.name, failure, stage, chosen)
    wanted = objects_wanted(failure, case.text.file, case.info)
    if wanted:
        told = replace(report.findings[0], evidence=f"{wanted} {report.findings[0].evidence}")
        report = replace(report, findings=(told,))
    findings = (*case.findings, *report.findings)
    return replace(report, findings=findings, notes=tuple(case.notes))


def _with_other_sizes(case: Case, failure: Failure) -> Subject | None:
    """The class with a width that is set at the top of the file, or with blocks of an image."""
    product = re.search(PRODUCT, failure.message)
    tops = ast.Module([n for n in parsed(case.text.file).body if isinstance(n, ast.Assign)], [])
    if product is not None and product[3] in map(ast.unparse, assigned(tops).values()):
        width = int(product[3])
        heads = next((n for n in (4, 3, 5, 7) if width % n == 0), 1)
        sizes = Sizes(d_in=width, heads=heads, head_dim=width // heads, kv_heads=heads)
    elif "divi" in failure.message:
        sizes = replace(case.sizes.plain[1], context=4, tokens=8)
    else:
        return None
    one = Attempts((sizes,), sizes, sizes, sizes)
    for made, arguments, keywords in constructors(case.info, usage=case.usage, sizes=one):
        for got in _attempts(case, made, arguments, keywords):
            if isinstance(got, Subject):
                return got
    return None


@dataclass(frozen=True)
class _Failed:
    """One attempt to build and call the class that failed.

    Args:
        stage: "build" or "forward".
        failure: The failure.
        sizes: The sizes it was built with.
        how: How it was built and called.
        id: The mistake that causes this error, if it is a known one.
        progress: How far it got.
    """

    stage: str
    failure: Failure
    sizes: Sizes
    how: str
    id: str | None
    progress: tuple[int, ...]

    @property
    def error(self) -> tuple[str, str, int | None]:
        """The error and its line."""
        return self.failure.type, self.failure.message, self.failure.line


def _attempts(
    case: Case, sizes: Sizes, arguments: list[object], keywords: dict[str, object]
) -> Iterator[Subject | Report | _Failed]:
    """Try these arguments, then configurations of the file's own classes."""
    tries = deque([(sizes, keywords)])
    objects = with_objects(case.info, case.text.file, sizes, keywords)
    tries += [] if objects is None else [objects]
    fields = 0  # that were missing
    other_flags: list[tuple[Sizes, dict[str, object]]] = []
    while tries:
        sizes, given = tries.popleft()
        built, given = build(case, sizes, arguments, given)
        if isinstance(built, Failure):
            if not other_flags:
                tries += (other_flags := _other_flags(case, sizes, given, built))
            id = translate(built, "build", case.text, sizes)
            progress = (0, len(frames(built)), built.line or 0)
            yield _Failed("build", built, sizes, "", id, progress)
            continue
        if _unregistered(built):
            names = ", ".join(_unregistered(built)[:3])
            case.add("heads-in-python-list", f"Not among the parameters: {names}, ...")
            yield case.report()
            return
        told = dict.fromkeys(case.usage.called_in, "none") | dict.fromkeys(
            case.usage.listed, "list"
        )
        feed = tuple((name, told.get(name, role)) for name, role in feeds(case.info))
        subject = Subject(
            case.info, sizes, given, built, feed=feed, arguments=tuple(arguments), seed=case.seed
        )
        subject = replace(subject, mask_field=_mask_field(case, subject))
        settled = settle(case, subject)
        if not isinstance(settled, Failure):
            yield settled
            return
        more = with_field(case, settled, sizes, given)
        if more is not None and (fields := fields + 1) < _FIELDS:
            tries.appendleft((sizes, more))
            continue
        if not other_flags:
            tries += (other_flags := _other_flags(case, sizes, given, settled))
        id = translate(settled, "forward", case.text, sizes)
        far = (1, *progress_of(case.text.file, case.info.name, settled))
        yield _Failed("forward", settled, sizes, description(subject), id, far)
        if settled.kind in GONE or case.late():
            return


def _mask_field(case: Case, subject: Subject) -> str:
    """The field that holds the mask, if the file reads it from what forward gets: `mask.mask`."""
    file, name = case.text.file, subject.takes_mask
    forwards = (method(n, "forward") for n in parsed(file).body if isinstance(n, ast.ClassDef))
    own = [f for f in forwards if f is not None and name in {a.arg for a in f.args.args}]
    read = [field for one in own for field in fields_read(file, one, name)]
    return next((field for field in read if "mask" in field and not hasattr(Tensor, field)), "")


_REFUSES = ("AssertionError", "ValueError")


def _other_flags(
    case: Case, sizes: Sizes, keywords: dict[str, object], failure: Failure
) -> list[tuple[Sizes, dict[str, object]]]:
    """The arguments with the other value of one flag, for a class that rejects its arguments.

    Also for a class that lacks one of its own attributes: a layer that exists only with another
    value of a flag.
    """
    values = {p.name: keywords.get(p.name, p.default) for p in case.info.init}
    lacks = f"'{case.info.name}' object has no attribute" in failure.message
    refuses = failure.type in (*_REFUSES, "ImportError") or lacks
    flags = [n for n, v in values.items() if isinstance(v, bool) and refuses]
    others = [{name: not values[name]} for name in flags]
    others += [dict.fromkeys(flags, False)] if sum(map(bool, map(values.get, flags))) > 1 else []
    return [(sizes, keywords | other) for other in others]


def _note_equal_widths(case: Case, first: _Failed) -> None:
    """Add a mistake that shows only if d_in and d_out differ."""
    failure, sizes = first.failure, first.sizes
    id = only_with_equal_widths(failure, case.text, case.info)
    if id is not None:
        evidence = f"With d_in={sizes.d_in} and d_out={sizes.d_out}: {failure.message}"
        defined = id == "out-proj-takes-d-in"  # the error occurs where it is used
        case.add(id, evidence, None if defined else failure.line)


def _note_shared_keys(case: Case, failed: Sequence[_Failed]) -> None:
    """Add a finding if a class that takes a number of key heads fails with fewer of them."""
    fields = (meaning_of(name.rpartition(".")[2]) for name, _ in case.info.fields)
    takes = "kv_heads" in {*map(meaning_for, case.info.init), *fields}
    if takes and len({(one.stage, one.failure.type, one.failure.line) for one in failed}) == 1:
        failure, sizes = failed[-1].failure, failed[-1].sizes
        if failure.type == "RuntimeError" and failure.line is not None:
            evidence = (
                f"With {sizes.heads} heads of queries and {sizes.kv_heads} of keys: "
                f"{failure.message}"[:300]
                + ". With equal numbers it works."
            )
            case.add("breaks-with-size", evidence, failure.line)


def _unregistered(built: Built) -> list[str]:
    """Weights of modules in a plain list or dict, where PyTorch does not find them."""
    return [path for path in built.stray if re.search(r"\.(weight|bias)$", path)]


def settle(case: Case, subject: Subject) -> Subject | Failure:
    """Give the object random weights and find out how to call it."""
    session = case.session
    d_in, d_kv = joined_widths(subject.built, subject.sizes, subject.keywords)
    if not (d_in and subject.separate):
        d_in = width_in(subject.built, subject.sizes, subject.keywords)
        d_kv = width_of_memory(subject.built, d_in)
    if (
        not subject.built.parameters
        and role_of(subject.feed[0][0] if subject.feed else "") == "qkv"
    ):
        d_in = 3 * subject.sizes.d_out  # queries, keys and values side by side
    subject = replace(subject, d_in=d_in, d_kv=d_kv)
    if any("Lazy" in kind for kind in subject.built.modules.values()):
        calm = replace(subject, dtype=torch.float32)
        call(session, calm, inputs_for(calm, subject.sizes.tokens))
        built = session.describe()
        if not isinstance(built, Failure):
            subject = replace(subject, built=built)
    subject = replace(subject, weights=random_weights(subject.built, 1 + 1009 * case.seed))
    first: Failure | None = None
    for dtype in (torch.float64, torch.float32):
        weights = {name: w.to(dtype) for name, w in subject.weights.items()}
        failed = session.load(weights) if weights else None
        if failed is not None:
            return failed
        trial = _tied(case, replace(subject, dtype=dtype))
        got = _ways(case, trial)
        if isinstance(got, Failure) and ("NoneType" in got.message or got.type in _REFUSES):
            fed = replace(trial, feed=feeds(case.info, optional=True))
            got = _ways(case, fed) if fed.feed != trial.feed else got
        wide = dtype == torch.float64
        if wide and isinstance(got, Failure) and re.search(_FLOAT32_ONLY, got.message):
            continue
        if isinstance(got, Failure) and not _ends(got):
            got = _repaired(case, trial, got)
        if isinstance(got, Failure) and got.raised:
            got = _with_its_tokens(case, trial, got) or got
        if not isinstance(got, Failure):
            return got
        first = first or got
        if not _of_dtype(got):
            break
    assert first is not None
    return first


_FLOAT32_ONLY = r"(?i)float\b.*\bdouble|double\b.*\bfloat"


def _of_dtype(failure: Failure) -> bool:
    """Whether an error is about the dtype: the class may need another one."""
    said = r"dtype|Double|Float|Long|scalar type|without overflow"
    return re.search(said, failure.message) is not None


def _repaired(case: Case, subject: Subject, failure: Failure) -> Subject | Failure:
    """Try other widths and arguments, as long as that gets it further than before."""
    first = failure
    if failure.message.startswith(_POOLED) and all(p.has_default for p in case.info.forward[1:]):
        return first  # no required argument was left out
    for _ in range(6):
        for trial in changes(case, subject, failure):
            if case.late():
                return first
            got = _ways(case, trial)
            if not isinstance(got, Failure):
                return got
            if got.kind not in GONE and _came_further(case, got, failure):
                subject, failure = trial, got
                break
        else:
            break
    return first


def without_dropout(case: Case, subject: Subject) -> Subject | None:
    """The same class with dropout 0 and the same weights; None if it cannot be built that way."""

    def calm(name: str, value: object) -> object:
        return 0.0 if likely_meaning(name) == "p" else value

    keywords = {name: each_field(value, calm, name) for name, value in subject.keywords.items()}
    built = case.session.build(case.info.name, subject.arguments, keywords)
    if isinstance(built, Failure):
        return None
    sizes = replace(subject.sizes, p=0.0)
    settled = settle(case, replace(subject, sizes=sizes, keywords=keywords, built=built))
    return None if isinstance(settled, Failure) else settled


def _tied(case: Case, subject: Subject) -> Subject:
    """The class with its actual weights: those with two names hold what was loaded last."""
    now = case.session.describe()
    if isinstance(now, Failure):
        return subject
    real = {n: now.weights[n].to(torch.float64) for n in subject.weights if n in now.weights}
    changed = [n for n, w in real.items() if difference(w, subject.weights[n]) > 1e-6]
    if not changed:
        return subject
    if any(re.search(r"\.\d+\.", name) and role_of(name) for name in changed):
        names = ", ".join(changed[:2])
        case.add("heads-share-weights", f"Loading the weights of other heads changed {names} too.")
    return replace(subject, weights={**subject.weights, **real})


# The axis orders to try, in sequence. Pixels: 3 × 4, so that no other size is the same; or 8 × 8.
WITH_WEIGHTS = ("batch", "channels", "picture", "single")
WITHOUT_WEIGHTS = ("batch", *HEADS_READY, "single")
PIXELS = (12, 64)
_BY_RANK = {
    2: ("single",), 3: ("batch",), 4: (*PICTURES, *TABLES, *HEADS_READY), 5: ("frames", "volume"),
}  # fmt: skip
_RANK = r"to unpack \(expected (\d)|expected (\d) dims|len\(dims\) = (\d)|in the equation \((\d)\)"
_WANTS_MASK = r"None|not bool|must be Tensor|got \(bool, "  # a mask that was not given


def _orders(case: Case, subject: Subject) -> list[str]:
    """The axis orders to try; first those that the file's own code and calls suggest."""
    likely: list[str] = []
    fed = sorted((role not in ("x", "q"), n) for n, role in subject.feed if role in _INPUTS)
    told = [n for _, n in fed if n in case.usage.unpacked or n in case.usage.ranks]
    for name in (told or [n for _, n in fed])[:1]:
        likely.append(order_named(case.usage.unpacked.get(name, ())))
        shapes = [site[name].shape for site in case.usage.called if name in site]
        ranks = [case.usage.ranks.get(name, 0), *map(len, shapes)]
        likely += [order for rank in ranks if rank != 3 for order in _BY_RANK.get(rank, ())]
    if "Conv2d" in subject.built.modules.values():  # it would take three axes for one image
        likely.append("picture")
    if "Conv3d" in subject.built.modules.values():
        likely.append("volume")
    weights = any(len(shape) > 1 for shape in subject.built.parameters.values())
    likely += WITH_WEIGHTS if weights else WITHOUT_WEIGHTS
    likely = ["batch" if order == "first" else order for order in likely]
    return list(dict.fromkeys(filter(None, likely)))


def _ways(case: Case, subject: Subject) -> Subject | Failure:
    """The first way to call it that works; else the failure of the way that got furthest."""
    furthest: Failure | None = None
    spare: Subject | None = None
    in_blocks = False
    tried: list[tuple[str, str]] = []
    orders = _orders(case, subject)
    roles = {role for _, role in subject.feed}
    if "cumulative" in roles:
        orders = ["packed"]
    if roles & {"grid", "rows"}:
        return _in_a_grid(case, subject)
    apart = [(axes, "batch") for axes in orders if axes in CHANNELS_FIRST and subject.separate]
    tables = [n for n, role in subject.feed if role == "kv" and case.usage.ranks.get(n) == 4]
    apart += [("batch", "rows")] if tables else []
    # A decoder's state attends to the encoder's outputs.
    if subject.separate and not {"k", "v"} <= roles:
        apart += itertools.product(STATES, MEMORIES)
    apart += [("heads", "turned")] if "heads" in orders and "k" in roles else []
    tries = [*((axes, "") for axes in orders), *apart]
    if apart and orders[0] == "batch":
        tries.sort(key=lambda one: one[0] not in ("batch", *STATES))
    for axes, memory in tries:  # grows during iteration
        trial = replace(subject, axes=axes, memory=memory)
        if axes in PICTURES:
            window, again = trial.sizes.window, tried.count((axes, memory))
            pixels = PIXELS[again] if again or not window else trial.sizes.tokens
            if again:
                renew(case.session, trial)  # it may keep what it created for the first size
            trial = replace(trial, sizes=replace(trial.sizes, tokens=pixels))
        tried.append((axes, memory))
        if axes in HEADS_READY and subject.built.parameters:
            trial = replace(trial, sizes=replace(trial.sizes, batch=trial.sizes.heads))
        got = _in_order(case, trial)
        if not isinstance(got, Failure):
            turned = got.axes == "first" and order_said(case.text.source) == "batch"
            states = [one for one in apart if one[0] in STATES and turned]
            trials = (replace(trial, axes=axes, memory=memory) for axes, memory in states)
            ways = (_in_order(case, one) for one in trials)  # a state may broadcast as a sequence
            got = next((way for way in ways if not isinstance(way, Failure)), got)
            if got.axes not in STATES or _asks_alone(case, got):
                return got
            spare = spare or got  # or broadcast along the tokens, if there are as many of them
            continue
        if got.type == "NoNumbers":
            continue
        in_blocks |= axes == "batch" and re.search(_MULTIPLE, got.message) is not None
        if got.message.startswith(_POOLED) and not subject.separate:
            return _in_order(case, replace(trial, axes="pooled"))
        far = progress_of(case.text.file, case.info.name, got)
        if furthest is None or (
            furthest.type in _OF_SHAPES
            and (far, _of_dtype(got))
            > (progress_of(case.text.file, case.info.name, furthest), _of_dtype(furthest))
        ):
            furthest = got
        if _ends(got):
            return got
        if case.late():
            return furthest
        wanted = re.search(_RANK, got.message)
        rank = int(next(filter(None, wanted.groups()))) if wanted and axes == "batch" else 0
        if not _blames(case, got, [n for n, role in subject.feed if role in _INPUTS]):
            return spare or furthest  # another axis order would change nothing
        queries = [n for n, role in subject.feed if role in ("x", "q", "list")]
        more = _BY_RANK.get(rank, ()) if _blames(case, got, queries) else ()
        tries += [(order, "") for order in more if order not in orders]
        again = tried.count((axes, memory)) < len(PIXELS)
        if axes in PICTURES and again:
            tries.append((axes, memory))  # it may scale the image down, and up again
    if spare is not None:
        return spare
    if furthest is None:
        return Failure("exception", "NoNumbers", "forward gave NaN or infinity")
    lengths = (n for n in subject.keywords if in_blocks and likely_meaning(n) in ("", "context"))
    for length in (value for value in map(subject.keywords.get, lengths) if type(value) is int):
        if not 1 < length <= subject.d_in / 2:
            continue  # no more tokens than the width of each
        blocks = replace(subject, sizes=replace(subject.sizes, tokens=2 * length))
        if not isinstance(call(case.session, blocks, inputs_for(blocks, 2 * length)), Failure):
            return blocks  # it takes whole blocks only
    return furthest


def _asks_alone(case: Case, subject: Subject) -> bool:
    """Whether the first state affects no output but its own."""
    inputs = inputs_for(subject, subject.sizes.tokens)
    out = call(case.session, subject, inputs)
    return isinstance(out, Failure) or probes.queries_apart(case.session, subject, inputs, out)


def _with_its_tokens(case: Case, subject: Subject, failure: Failure) -> Subject | None:
    """The class with the only number of tokens that it takes, if the error states it."""
    told = {int(number) for number in re.findall(r"\((\d+)\)", failure.message)}
    others = told - {subject.sizes.tokens}
    if subject.sizes.tokens not in told or len(others) != 1:
        return None
    (tokens,) = others
    if not 1 < tokens <= _MOST_TOKENS or tokens in subject.keywords.values():
        return None  # a context that is not sliced is a mistake
    if any(map(may_be_window, case.info.init)):
        return None  # other windows are tried
    sizes = replace(subject.sizes, tokens=tokens, window=(tokens,))
    got = _in_order(case, replace(subject, sizes=sizes))
    return None if isinstance(got, Failure) else got


def _in_order(case: Case, subject: Subject) -> Subject | Failure:
    """The first way to call it with its axes in this order; else the failure of a plain way."""
    first: Failure | None = None
    furthest: Failure | None = None
    spare: Subject | None = None
    polarities = [("", "nn"), *itertools.product(POLARITIES, ["nn"])]
    polarities += itertools.product(POLARITIES, MASK_SHAPES[1:])
    rank = case.usage.ranks.get(subject.takes_mask, 0)
    polarities[1:] = sorted(polarities[1:], key=lambda one: rank > 0 and len(one[1]) != rank)
    must = any(p.name == subject.takes_mask and not p.has_default for p in case.info.forward)
    for polarity, shape in polarities if subject.takes_mask else polarities[:1]:
        wants = first is None or must or re.search(_WANTS_MASK, first.message)
        if polarity and not wants:
            break
        if polarity and first is not None and not _blames(case, first, [subject.takes_mask]):
            break
        for rotary, marks in itertools.product(rotary_ways(subject), mark_ways(subject)):
            trial = replace(
                subject, polarity=polarity, mask_shape=shape, rotary=rotary, marks=marks
            )
            inputs = inputs_for(trial, trial.sizes.tokens)
            out = call(case.session, trial, inputs)
            if isinstance(out, Failure) and out.message == ONLY_WEIGHTS:
                out = _with_memory(case, trial)
            if isinstance(out, Failure):
                first = first or out
                if furthest is None or (must and _came_further(case, out, furthest)):
                    furthest = out
                if _ends(out):
                    return out
                if case.late():
                    return furthest
                whole = _with_whole_context(case, trial, out)
                if whole is not None:
                    return whole
            elif _fits(case, trial, inputs, out):
                if polarity and not out.isfinite().all():
                    spare = spare or trial  # the mask may mean the opposite
                    continue
                sequence = trial.axes == "batch" and probes.is_sequence_first(
                    case.session, trial, inputs, out
                )
                return replace(trial, axes="first") if sequence else trial
    return spare or furthest or Failure("exception", "NoNumbers", "forward gave NaN or infinity")


def _with_memory(case: Case, subject: Subject) -> Tensor | Failure:
    """The memory weighted by what forward returns, if that is the weights alone."""
    name = next(name for name, role in subject.feed if role in ("kv", "k"))
    case.session.applies = (name, subject.memory == "each-first")
    out = call(case.session, subject, inputs_for(subject, subject.sizes.tokens))
    if isinstance(out, Tensor) and bool((out - out[:, :1]).abs().max() < 1e-9):
        out = Failure("exception", "ShapeError", "all queries have the same weights")
    if isinstance(out, Failure):  # the memory's axes stand in another order
        case.session.applies = None
        return out
    case.notes.append(f"{ONLY_WEIGHTS}; they were applied to {name} here.".capitalize())
    return out


def _came_further(case: Case, failure: Failure, other: Failure) -> bool:
    """Whether a call got further in forward than another one before it failed."""
    now, before = (progress_of(case.text.file, case.info.name, one) for one in (failure, other))
    return now > before


def _ends(failure: Failure) -> bool:
    """Whether no other call helps: no process, a missing field, or only weights are returned."""
    last = re.search(f"{NO_FIELD.pattern}|^{ONLY_WEIGHTS}", failure.message)
    return failure.kind in GONE or last is not None


_INPUTS = ("x", "q", "k", "v", "kv", "list")


def _blames(case: Case, failure: Failure, names: Sequence[str]) -> bool:
    """Whether one of these arguments of forward may be the reason for a failure."""
    used = used_at(case.text.file, case.info.name, frames(failure))
    return not used or bool(used & set(names))


def _fits(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Whether an output shows that the class was called as intended."""
    axes = subject.axes
    hidden = subject.marks or subject.mask_shape in ("bn", "b11n")
    if hidden and subject.takes_mask + subject.marks and not out.isfinite().all():
        return False  # all tokens are hidden: the marks mean padding
    if axes in HEADS_READY and probes.batch_leak(case.session, subject, inputs, out) > 1e-9:
        return False  # the axes are in another order
    if axes == "batch" and subject.separate and not {*inputs[0].shape[:2]} <= {*out.shape[:2]}:
        return False  # the sequences became something else, or there is only one query
    if axes in (*TABLES, *STATES):
        return probes.sees_others(case.session, subject, inputs, out)
    if axes not in (*CHANNELS_FIRST, *PICTURES):
        return True
    if out.shape[:2] != inputs[0].shape[:2]:
        return False
    return axes not in PICTURES or not _in_one_line(case, subject, inputs, out)


def _in_one_line(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Whether a pixel is seen only in its own row or its own column: a table, not an image."""
    got = call(case.session, subject, probes.changed(inputs, 0, 0))
    if isinstance(got, Failure) or got.shape != out.shape:
        return False
    height = height_of(out.shape[1])
    moved = ((got - out).abs().amax(-1)[0] > 1e-9).view(height, -1)
    rows, columns = moved.any(1), moved.any(0)
    return int(moved.sum()) > 1 and (not rows[1:].any() or not columns[1:].any())


def _with_whole_context(case: Case, subject: Subject, failure: Failure) -> Subject | None:
    """The class with as many tokens as its context, if it takes no fewer: a mistake."""
    plain = subject.axes == "batch" and not subject.polarity
    fixed = re.search(r"shape '\[[\d, -]+\]' is invalid for input", failure.message)
    if not plain or not (fixed or re.search(SIZE_MISMATCH, failure.message)):
        return None
    full = replace(subject, sizes=replace(subject.sizes, tokens=subject.sizes.context))
    if isinstance(call(case.session, full, inputs_for(full, full.sizes.tokens)), Failure):
        return None
    if fixed and isinstance(
        call(case.session, full, inputs_for(full, 2 * full.sizes.tokens)), Tensor
    ):
        return None  # it takes whole blocks
    if not {"context", "config"} & {*map(meaning_for, case.info.init)}:
        sizes = replace(full.sizes, window=(full.sizes.tokens,))
        return replace(full, sizes=sizes)  # nothing says that this number is a maximum
    evidence = (
        f"{subject.sizes.tokens} tokens with a context of {full.sizes.tokens}: {failure.message}; "
        f"{full.sizes.tokens} tokens work."
    )
    case.add("fails-at-some-lengths" if fixed else "mask-not-sliced", evidence, failure.line)
    return full


def _in_a_grid(case: Case, subject: Subject) -> Subject | Failure:
    """Call it with pixels as tokens, given their height and width, with or without extra tokens.

    Extra tokens come before the pixels; a class may treat one or more of them separately.
    """
    first: Failure | None = None
    extra = [v for n, v in subject.built.plain.items() if "prefix" in n or "num_" in n]
    for more in dict.fromkeys([0, 1, *(v for v in extra if type(v) is int and 0 < v < 9)]):
        sizes = replace(subject.sizes, tokens=GRID[0] * GRID[1] + more, window=GRID)
        trial = replace(subject, sizes=sizes)
        out = call(case.session, trial, inputs_for(trial, sizes.tokens))
        if not isinstance(out, Failure):
            return trial
        first = first or out
    assert first is not None
    return first


_OF_SHAPES = ("RuntimeError", "ValueError", "IndexError", "EinopsError")
_MULTIPLE = r"(?i)divi|multiple|chunk|shape '\[|evenly"


def rotary_ways(subject: Subject) -> tuple[str, ...]:
    """The ways to pass rotary angles; one empty way if forward takes none."""
    return ROTARY if any(role in ANGLES.values() for _, role in subject.feed) else ("",)


def mark_ways(subject: Subject) -> tuple[str, ...]:
    """The ways to mark real tokens; one empty way if forward takes no marks."""
    return tuple(MARKS) if any(role == "marks" for _, role in subject.feed) else ("",)


def head_counts(subject: Subject) -> list[int]:
    """How many heads the class may have: one number if it is stated, else the likely ones."""
    meanings = {meaning_for(p) for p in subject.info.init}
    attributes = subject.built.plain.items()
    told = [v for n, v in attributes if meaning_of(n) == "heads" and isinstance(v, int) and v > 0]
    if told:
        return told[:1]
    derived = _derived_heads(subject)
    if subject.keywords and meanings & {"heads", "config"}:
        return list(dict.fromkeys([subject.sizes.heads, *derived]))
    passed = [v for v in subject.keywords.values() if v == subject.sizes.heads]
    others = [v for _, v in attributes if isinstance(v, int) and 1 < v <= 64]
    return list(dict.fromkeys([*([subject.sizes.heads] if passed else []), *derived, 1, *others]))


def _derived_heads(subject: Subject) -> list[int]:
    """The number of heads, derived from the width of one if the object stores it."""
    if "head_dim" not in map(meaning_of, subject.built.plain):
        return []
    head = head_width(subject)
    widths = [
        shape[0]
        for name, shape in subject.built.parameters.items()
        if role_of(name) == "q" and len(shape) == 2
    ]
    return [widths[0] // head] if widths and widths[0] % head == 0 else []
