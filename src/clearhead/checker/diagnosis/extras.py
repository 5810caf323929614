"""What shows only in training, with a mask, in half precision, at other lengths, after loading."""

import re

import torch
from torch import Tensor

from clearhead.checker.diagnosis import decoding_cache as cached
from clearhead.checker.diagnosis import learning, lengths, long_padding, other_sizes, probes
from clearhead.checker.diagnosis import other_uses as uses
from clearhead.checker.diagnosis import side_effects as effects
from clearhead.checker.diagnosis.devices import first_meeting
from clearhead.checker.diagnosis.intent import masks_switched_off
from clearhead.checker.diagnosis.reference import AnyReference, Reference
from clearhead.checker.diagnosis.valid_lengths import valid_lengths
from clearhead.checker.harness.building import without_dropout
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.constructor_arguments import likely_meaning, meaning_for
from clearhead.checker.harness.error_messages import translate
from clearhead.checker.harness.subject import Subject, call
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.class_text import dropped_mask, made_without
from clearhead.checker.source.crossed_arguments import dropout_makes_bias

Inputs = probes.Inputs


def examine(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor, reference: AnyReference
) -> None:
    """Everything that the plain run could not show."""
    _stray(case, subject)
    uses.batch_axis(case, subject, inputs)
    longer = lengths.lengths(case, subject, reference)
    lengths.keys_apart(case, subject, reference)
    lengths.after_another(case, subject, inputs, out)
    effects.changed_inputs(case, subject, inputs)
    effects.kept_graph(case, subject, inputs, out)
    _gradients(case, subject, inputs, out)
    learning.out_of_reach(case, subject, inputs, out)
    learning.from_its_start(case, subject, inputs, out)
    training(case, subject, inputs, out, over_keys=True)
    _large_scores(case, subject, inputs, reference)
    of_tokens = uses.padding(case, subject, inputs, out, reference)
    if subject.takes_mask and not subject.polarity and subject.takes_mask not in of_tokens:
        _mask_argument(case, subject, inputs, out, reference)
    long_padding.long_padding(case, subject, reference, of_tokens)
    valid_lengths(case, subject, inputs, out)
    _alone(case, subject, inputs, out)
    other_sizes.same_elsewhere(case, subject, inputs, out)
    _device(case, reference)
    _other_dtypes(case, subject)
    if longer is not None:
        lengths.long_texts(case, subject, longer)
    cached.decoding(case, subject, inputs, out, reference, longer)  # these build anew: come last
    other_sizes.wide(case, subject)
    _bias_flag(case, subject)
    _training_differs(case, subject, inputs)


def _stray(case: Case, subject: Subject) -> None:
    for path in subject.built.stray:
        name = path.rpartition(".")[2]
        own = rf"self\.{re.escape(name)}"
        lines = [line for line in case.text.code.splitlines() if re.search(rf"{own}\b", line)]
        if not lines:
            continue
        if any(re.search(r"\.to\(|type_as|\.cuda\(|device", line) for line in lines):
            continue
        made = next((line for line in lines if re.search(rf"{own}\s*[:=]", line)), lines[0])
        line = case.text.line(rf"{own}\s*[:=]", rf"{own}\b")
        evidence = f"self.{name} is a tensor, but neither a parameter nor a buffer."
        if re.search(r"mask|tri[lu]|causal", name + made):
            case.add("mask-not-a-buffer", evidence, line)
        elif re.search(r"scale|sqrt|[tT]ensor\(\[?|temp", name + made):
            case.add("scale-is-stray-tensor", evidence, line)


def _gradients(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Whether the gradients are those of the output."""
    if not subject.built.parameters or subject.ids or subject.built.arrays:
        return
    got = probes.gradients(case.session, subject, inputs, out)
    if isinstance(got, Failure):
        if not got.raised or "expected shape" in got.message:
            return  # the result is not the first thing returned
        id = translate(got, "backward", case.text, subject.sizes) or "backward-fails"
        case.add(id, f"In the backward pass: {got.type}: {got.message}"[:300], got.line)
        return
    if not out.isfinite().all() or learning.through_numpy(case, got[1]):
        return
    if learning.detached(case, subject, inputs, out):
        return
    gap = probes.gradient_gap(case.session, subject, inputs, got[1], got[2])
    if gap > 1e-2:
        evidence = (
            "The gradient at the input does not match how the output changes with the input: "
            f"they differ by {percent(gap)}."
        )
        case.add("scores-detached", evidence)


def training(case: Case, subject: Subject, inputs: Inputs, out: Tensor, *, over_keys: bool) -> None:
    """What dropout does in training.

    Args:
        case: The class.
        subject: How it is called.
        inputs: What it was given.
        out: What it gave in evaluation.
        over_keys: Whether the weights of a row sum to one.
    """
    layers = [p for p, kind in subject.built.modules.items() if "Dropout" in kind]
    asked = any(meaning_for(p) == "p" for p in case.info.init)
    told = any(meaning_for(p) == "config" for p in case.info.init)
    read = any(likely_meaning(name.rpartition(".")[2]) == "p" for name, _ in case.info.fields)
    read |= subject.sizes.p in subject.built.plain.values()
    if subject.sizes.p == 0 or not (asked or layers or (told and read)):
        return
    if case.given or not (asked or told) or subject.built.arrays:
        return  # the layer's own rate is not known, or there is no training
    seen = probes.training(case.session, subject, inputs, out)
    if isinstance(seen, Failure):
        if seen.raised:
            case.add("training-differs", f"In training: {seen.message}"[:300], seen.line)
        return
    if not seen.varies:
        evidence = f"With dropout {subject.sizes.p}, training and evaluation give the same output."
        case.add("dropout-unused", evidence)
    elif seen.breaks:
        evidence = (
            "Some outputs are NaN or infinite in training, and none in evaluation: a hidden score "
            "of -inf was dropped, and 0 times infinity is NaN."
        )
        case.add("dropout-before-softmax", evidence)
    elif seen.only_outputs:
        if len(layers) > 1 and any("att" in path for path in layers):
            evidence = "In training, whole outputs are dropped, but no attention weights."
            case.add("dropout-unused", evidence)
    elif not seen.varies_same and over_keys:
        evidence = (
            "In training, the output varies, but not if all tokens are equal: every row still "
            "sums to one, so the scores were dropped, not the weights."
        )
        case.add("dropout-before-softmax", evidence)


def _large_scores(case: Case, subject: Subject, inputs: Inputs, reference: AnyReference) -> None:
    if reference.mask != "causal" or subject.polarity or subject.dtype != torch.float64:
        return
    leak = probes.large_score_leak(case.session, subject, inputs)
    if leak.size > 0:
        evidence = (
            f"With inputs 120 times as large, changing token {leak.changed} changed output "
            f"{leak.moved} by {leak.size:.2g}."
        )
        case.add("mask-fill-too-small", evidence)


def _other_dtypes(case: Case, subject: Subject) -> None:
    """Half precision: numbers that are too large for it, and tensors that stay in another dtype."""
    if not subject.weights:
        return
    failure = probes.dtype_failure(case.session, subject, torch.float16)
    if failure is not None and "overflow" in failure.message:
        evidence = f"In float16: {failure.type}: {failure.message}"[:300]
        case.add("mask-fill-overflows-half", evidence, failure.line)
    failure = probes.dtype_failure(case.session, subject, torch.bfloat16)
    if failure is not None and re.search(_TWO_DTYPES, failure.message) and not _left(case):
        evidence = f"In bfloat16: {failure.type}: {failure.message}"[:300]
        case.add("one-dtype-only", evidence, made_without(case.text, "dtype") or failure.line)


_TWO_DTYPES = r"same dtype|expected scalar type|expected dtype|dtypes? (do|does) not match"


def _left(case: Case) -> bool:
    """Whether something is wrong anyway, or a tensor that .to() leaves behind is named already."""
    known = ("mask-not-a-buffer", "scale-is-stray-tensor")
    return any(found.severity == "wrong" or found.id in known for found in case.findings)


def _device(case: Case, reference: AnyReference) -> None:
    """Tensors that are made on the CPU, whatever the inputs are on."""
    if _left(case) or not isinstance(reference, Reference):
        return
    reading = reference.right.reading
    found = first_meeting(reading.program, reading.values)
    if found is not None:
        evidence = (
            f"A tensor of shape {found.shape} is made without a device, so it is on the CPU. With "
            f"inputs and weights on a GPU, {found.at.name} fails in line {found.at.line}."
        )
        case.add("made-on-cpu", evidence, found.made.line)


def _alone(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """A batch of one sentence: squeeze() takes its axis away."""
    if subject.axes != "batch" or out.shape[0] != inputs[0].shape[0] or _left(case):
        return
    got = probes.alone(case.session, subject, inputs, out)
    if isinstance(got, Failure):
        if not got.raised:
            return
        evidence = f"With a batch of one sequence: {got.type}: {got.message}"[:300]
        line = None if case.text.has("squeeze") else got.line
        case.add("fails-with-one-sentence", evidence, line)
    elif got is not None:
        gap = difference(got, out[:1])
        evidence = f"Alone in its batch, a sequence gives an output that differs by {gap:.2g}."
        case.add("fails-with-one-sentence", evidence)


def _training_differs(case: Case, subject: Subject, inputs: Inputs) -> None:
    """With dropout 0, or without any, training must compute what evaluation does."""
    if case.given or any(found.severity == "wrong" for found in case.findings):
        return
    if any("BatchNorm" in kind for kind in subject.built.modules.values()):
        return  # it has other statistics in training
    meanings = {meaning_for(p) for p in case.info.init}
    layers = any("Dropout" in kind for kind in subject.built.modules.values())
    if "p" in meanings or "config" in meanings:
        calm = without_dropout(case, subject)
        if calm is None:
            return
        subject = calm
    elif layers:
        return  # the layer's own rate is not known
    still = call(case.session, subject, inputs)
    trained, again = (call(case.session, subject, inputs, train=True, seed=s) for s in (0, 1))
    if isinstance(still, Failure):
        return
    if isinstance(trained, Failure):
        if not trained.raised:
            return
        case.add("training-differs", f"In training: {trained.message}"[:300], trained.line)
        return
    if isinstance(again, Failure) or difference(trained, again) > 1e-9:
        return  # there is dropout, with a rate of its own
    gap = difference(trained, still)
    if gap > 1e-6:
        evidence = f"Without dropout, training and evaluation differ by {percent(gap)}."
        case.add("training-differs", evidence)


def _bias_flag(case: Case, subject: Subject) -> None:
    flags = [p.name for p in case.info.init if meaning_for(p) == "bias"]
    flags = [name for name in flags if name not in ("add_bias_kv", "proj_bias", "out_bias")]
    if case.given or not flags or flags[0] not in subject.keywords:
        return
    keywords = {**subject.keywords, flags[0]: False}
    built = case.session.build(case.info.name, subject.arguments, keywords)
    if isinstance(built, Failure):
        return
    before, after = set(subject.built.parameters), set(built.parameters)
    if flags[0] != "bias":
        before, after = (
            {n for n in names if role_of(n) in ("q", "k", "v", "qkv", "kv")}
            for names in (before, after)
        )
    if before == after and before and not dropout_makes_bias(case, subject, flags[0]):
        left = sorted(n for n in after if n.endswith("bias"))
        evidence = f"{flags[0]}=True and {flags[0]}=False give the same parameters" + (
            f", {', '.join(left)} among them." if left else ", without any bias."
        )
        case.add("bias-flag-ignored", evidence)


def _mask_argument(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor, reference: AnyReference
) -> None:
    """Forward takes a mask: any polarity is right, as long as it hides what it marks."""
    batch, tokens = inputs[0].shape[:2]
    keep = torch.rand(tokens, tokens, generator=torch.Generator().manual_seed(4)) < 0.6
    keep |= torch.eye(tokens, dtype=torch.bool)
    # Where it is causal by itself, a mask may come on top of that, or take its place.
    wanted = [reference.output(inputs, keep, own_mask=own) for own in (True, False)]
    if all(right is None for right in wanted):
        return
    ran: list[Tensor] = []
    for shape in ((tokens, tokens), (1, 1, tokens, tokens), (batch, tokens, tokens)):
        shaped = keep.expand(shape).contiguous() if len(shape) != 4 else keep[None, None]
        for mask in _polarities(shaped, subject.dtype):
            got = call(case.session, subject, inputs, mask=mask)
            if isinstance(got, Failure) or got.shape != out.shape:
                continue
            if any(right is not None and difference(right, got) < 1e-5 for right in wanted):
                return
            ran.append(got)
    if ran and all(difference(got, out) < 1e-9 for got in ran):
        if masks_switched_off(subject):
            return
        line = dropped_mask(case.text)
        id = "mask-ignored" if line is None else "mask-result-dropped"
        case.add(id, "A mask that hides 40 % of the entries changes nothing.", line)
    elif ran and all(right is not None for right in wanted):
        case.notes.append("forward takes a mask, but no usual meaning of it explains the output.")


def _polarities(keep: Tensor, dtype: torch.dtype) -> list[Tensor]:
    added = torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -torch.inf)
    return [keep, ~keep, keep.to(torch.int64), added, (~keep).to(torch.int64), keep.to(dtype)]
