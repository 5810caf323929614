"""Other ways to build and call a class, to be tried before it is judged wrong."""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checker.harness.axis_orders import ONE_TEXT
from clearhead.checker.harness.building import settle
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import (
    constructors,
    likely_meaning,
    meaning_for,
    meaning_of,
)
from clearhead.checker.harness.descriptions import description
from clearhead.checker.harness.forward_arguments import (
    MASK_SHAPES,
    POLARITIES,
    causal_mask,
    shaped_mask,
)
from clearhead.checker.harness.repairs import build
from clearhead.checker.harness.subject import Subject, renew
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.class_text import switches

MOST = 6
_NO_FLAGS = ("batch_first", "bias", "rope")  # their other value cannot make anything right


def alternatives(case: Case, subject: Subject) -> Iterator[Subject]:
    """The class with the other value of each flag, then with equal sizes; a handful at most.

    The session holds the object of the subject that was yielded last. To continue with the original
    one, call `renew` with it.

    Args:
        case: The class.
        subject: How it was built and called.
    """
    found = itertools.chain(_flags(case, subject), _equal_sizes(case, subject))
    yield from _settled(case, itertools.islice(found, MOST))


def other_flags(case: Case, subject: Subject) -> Iterator[Subject]:
    """The class with the other value of each flag, a few at most; see `alternatives`.

    This includes attributes that its code branches on and no argument sets: `self.flash`.
    """
    yield from _settled(case, itertools.islice(_flags(case, subject), MOST // 2))
    given = {p.name for p in case.info.init}
    own = {n: v for n, v in subject.built.plain.items() if isinstance(v, bool) and n not in given}
    for name in [n for n in switches(case.text) if n in own][: MOST // 2]:
        case.session.switches = {name: not own[name]}
        trial = replace(
            subject, switched=name, how=f"{subject.how}; with self.{name} = {not own[name]}"
        )
        if renew(case.session, trial):
            yield trial
    case.session.switches = {}


def _settled(case: Case, trials: Iterable[Subject]) -> Iterator[Subject]:
    """The trials that can be built and called."""
    for trial in trials:
        # What is found here belongs to a call that the class may not be meant for.
        scratch = replace(case, findings=[], notes=[], began=time.monotonic())
        arguments = list(trial.arguments)
        built, keywords = build(scratch, trial.sizes, arguments, trial.keywords)
        if isinstance(built, Failure):
            continue
        settled = settle(scratch, replace(trial, built=built, keywords=keywords))
        if not isinstance(settled, Failure):
            yield replace(settled, how=description(settled))


def _objects(keywords: Mapping[str, object]) -> set[str]:
    """The arguments that are objects of the file's own classes."""
    return {name for name, v in keywords.items() if isinstance(v, dict) and "__object__" in v}


def widened(case: Case, subject: Subject) -> Subject | None:
    """The class with many heads and large widths; None if it cannot be built that way.

    The session then holds that object. To continue with the original one, call `renew` with it.
    """
    sizes = case.sizes.wide
    if subject.sizes.d_in != subject.sizes.d_out:
        sizes = replace(sizes, d_in=sizes.d_in + 2)
    only = replace(case.sizes, plain=(sizes,), grouped=sizes, one_head=sizes)
    kept = {n: v for n, v in subject.keywords.items() if isinstance(v, bool | str)}
    for made, arguments, keywords in constructors(case.info, usage=case.usage, sizes=only):
        scratch = replace(case, findings=[], notes=[], began=time.monotonic())
        built, given = build(scratch, made, arguments, {**keywords, **kept})
        if isinstance(built, Failure) or made.heads != sizes.heads:
            continue
        if given.keys() != subject.keywords.keys() or _objects(given) != _objects(subject.keywords):
            continue  # its configuration is the file's own
        trial = replace(
            subject, sizes=made, arguments=tuple(arguments), keywords=given, built=built
        )
        settled = settle(scratch, trial)
        if not isinstance(settled, Failure) and settled.axes == subject.axes:
            settled = replace(
                settled, polarity=subject.polarity, mask_shape=subject.mask_shape,
                rotary=subject.rotary, marks=subject.marks,
            )  # fmt: skip
            return replace(settled, how=description(settled))
    return None


def _flags(case: Case, subject: Subject) -> Iterator[Subject]:
    """One flag at a time with its other value; first those that the file's own calls set."""
    told = {
        name
        for site in (*case.usage.built, *case.usage.called)
        for name, given in site.items()
        if given.known and isinstance(given.value, bool)
    }
    for parameter in sorted(case.info.init, key=lambda p: p.name not in told):
        value = subject.keywords.get(parameter.name, parameter.default)
        if isinstance(value, bool) and meaning_of(parameter.name) not in _NO_FLAGS:
            keywords = {**subject.keywords, parameter.name: not value}
            yield replace(subject, keywords=keywords, switched=parameter.name)
    for parameter in sorted(case.info.forward, key=lambda p: p.name not in told):
        roles = dict(subject.feed)
        value = {"true": True, "false": False}.get(roles.get(parameter.name, ""), parameter.default)
        if isinstance(value, bool):
            roles[parameter.name] = "false" if value else "true"
            yield replace(subject, feed=tuple(roles.items()), switched=parameter.name)


def _equal_sizes(case: Case, subject: Subject) -> Iterator[Subject]:
    """The class with one width for everything, and with shared keys if it supports them."""
    tried = (subject.sizes, case.sizes.plain[0])
    meanings = {*map(meaning_for, case.info.init)} | {
        likely_meaning(n) for n, _ in case.info.fields
    }
    shared = bool({"kv_heads", "kv_groups"} & meanings)
    for sizes, arguments, keywords in constructors(case.info, usage=case.usage, sizes=case.sizes):
        if shared and sizes.kv_heads == sizes.heads:
            continue
        if sizes.d_in == sizes.d_out and sizes not in tried:
            kept = {n: v for n, v in subject.keywords.items() if isinstance(v, bool)}
            yield replace(
                subject, sizes=sizes, arguments=tuple(arguments), keywords={**keywords, **kept}
            )


def mask_ways(subject: Subject) -> Iterator[Tensor]:
    """Masks for a class whose forward takes one, in the usual shapes and with all meanings.

    Some also have a head axis. A mask without two token axes hides nothing.
    """
    batch, tokens, heads = subject.sizes.batch, subject.sizes.tokens, subject.sizes.heads
    for polarity in POLARITIES:
        for shape in MASK_SHAPES if subject.axes not in ONE_TEXT else MASK_SHAPES[:1]:
            yield shaped_mask(polarity, shape, batch, tokens, subject.dtype)
        whole = causal_mask(polarity, tokens, subject.dtype).expand(batch, heads, -1, -1)
        padding = whole[:, :, -1:]  # the last token sees all
        heads_apart = (whole, whole.flatten(0, 1), whole[0], padding.flatten(0, 1), padding[:, 0])
        yield from (mask.clone() for mask in heads_apart)
        if subject.axes == "first":
            yield padding[:, 0, 0].T.contiguous()
        if subject.separate:  # the class may concatenate its own keys and those passed in
            yield from (torch.cat([mask, mask], -1) for mask in (whole[:, :1], padding[:, 0, 0]))
