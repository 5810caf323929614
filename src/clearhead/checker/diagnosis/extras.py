"""What shows only in training, with a mask, in half precision, at other lengths, after loading."""

import re
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis import decoding_cache as cached
from clearhead.checker.diagnosis import learning, lengths, other_sizes, probes
from clearhead.checker.diagnosis import side_effects as effects
from clearhead.checker.diagnosis.devices import first_meeting
from clearhead.checker.diagnosis.padding_checks import PaddingCheck
from clearhead.checker.diagnosis.reference import AnyReference, Reference
from clearhead.checker.harness.building import without_dropout
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.constructor_arguments import likely_meaning, meaning_for
from clearhead.checker.harness.error_messages import translate
from clearhead.checker.harness.forward_arguments import POLARITIES, written_mask
from clearhead.checker.harness.subject import Inputs, Subject, call, each
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.class_text import dropped_mask, order_around, order_said
from clearhead.checker.source.stated_arguments import stated_marks


def examine(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor, reference: AnyReference
) -> set[str]:
    """Check everything that the plain run could not show.

    Returns:
        The arguments of forward that were understood as masks.
    """
    _stray(case, subject)
    _batch_axis(case, subject, inputs)
    longer = lengths.lengths(case, subject, reference)
    lengths.keys_apart(case, subject, reference)
    effects.changed_inputs(case, subject, inputs)
    effects.kept_graph(case, subject, inputs, out)
    _gradients(case, subject, inputs, out)
    learning.out_of_reach(case, subject, inputs, out)
    learning.from_its_start(case, subject, inputs, out)
    training(case, subject, inputs, out, over_keys=True)
    _large_scores(case, subject, inputs, reference)
    masks = PaddingCheck(case, subject, inputs, out, reference).judge()
    name = subject.takes_mask
    if name and not subject.polarity and name not in masks:
        masks |= {name} if _mask_argument(case, subject, inputs, out, reference) else set()
    if subject.polarity:
        _compare_with_stated(case, subject, subject.polarity)
    _alone(case, subject, inputs, out)
    other_sizes.same_elsewhere(case, subject, inputs, out)
    _device(case, reference)
    _other_dtypes(case, subject)
    if longer is not None:
        lengths.long_texts(case, subject, longer)
    # The remaining checks build new objects, so they come last.
    cached.decoding(case, subject, inputs, out, reference, longer)
    other_sizes.wide(case, subject)
    _bias_flag(case, subject)
    _training_differs(case, subject, inputs)
    return masks


_SWAPS = r"transpose\((0, 1|1, 0|-2, -3|-3, -2)\)|swapaxes\(0, 1\)|permute\(1, 0, 2\)"


def _batch_axis(case: Case, subject: Subject, inputs: Inputs) -> None:
    """Check that the source intends the first axis to be the tokens."""
    if subject.axes != "first":
        return
    said = order_said(case.text.source) or order_around(case.text)
    if said == "tokens":
        return
    plain = replace(subject, axes="batch")
    out = call(case.session, plain, inputs)
    if isinstance(out, Failure):
        return
    leak = probes.batch_leak(case.session, plain, inputs, out)
    evidence = (
        f"With an input (batch, tokens, d), changing sequence 0 changed the output of sequence 1 "
        f"by {leak:.2g}, and no token saw another one of its own sequence."
    )
    turned = len(re.findall(_SWAPS, case.text.code)) > 1 and not case.text.uses("batch_first=True")
    if said == "batch" and not turned:
        case.add("attends-across-batch", f"{evidence} In the source, the batch comes first.")
    else:
        question = "If the input is meant to be (tokens, batch, d), it is right."
        case.add("attends-across-batch", f"{evidence} {question}", severity="edge")


def _stray(case: Case, subject: Subject) -> None:
    for path in subject.built.stray:
        name = path.rpartition(".")[2]
        code = enumerate(case.text.code.splitlines(), case.text.first)
        lines = {n: line for n, line in code if re.search(rf"self\.{re.escape(name)}\b", line)}
        if any(re.search(r"\.to\(|type_as|\.cuda\(|device", line) for line in lines.values()):
            continue
        line, made = next(iter(lines.items()), (None, ""))
        evidence = f"self.{name} is a tensor, but neither a parameter nor a buffer."
        if re.search(r"mask|tri[lu]|causal", name + made):
            case.add("mask-not-a-buffer", evidence, line)
        elif re.search(r"scale|sqrt|[tT]ensor\(\[?|temp", name + made):
            case.add("scale-is-stray-tensor", evidence, line)


def _gradients(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Check that there are gradients, and that they reach every projection."""
    if not subject.built.parameters or subject.built.arrays:
        return
    got = probes.backward(case.session, subject, inputs, out)
    if isinstance(got, Failure):
        if not got.raised or "expected shape" in got.message:
            return  # the output is not the first tensor returned
        id = translate(got, "backward", case.text, subject.sizes) or "backward-fails"
        case.add_failure(id, "In the backward pass", got)
        return
    if out.isfinite().all() and not learning.through_numpy(case, got.inputs):
        learning.detached(case, subject, inputs, out)


def training(case: Case, subject: Subject, inputs: Inputs, out: Tensor, *, over_keys: bool) -> None:
    """Check what dropout does in training.

    Args:
        case: The class.
        subject: How it is called.
        inputs: Its inputs.
        out: Its output in evaluation.
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
        return  # the layer's own rate is unknown, or there is no training mode
    same = probes.alike(inputs)
    runs = [
        call(case.session, subject, given, train=True, seed=seed)
        for given in (inputs, same)
        for seed in (1, 2, 3)
    ]
    still = call(case.session, subject, same)
    for failed in (still, *runs):
        if isinstance(failed, Failure):
            if failed.raised:
                case.add_failure("training-differs", "In training", failed)
            return
    first, second = torch.stack([run for run in runs if isinstance(run, Tensor)]).chunk(2)
    assert isinstance(still, Tensor)
    multiples = (0.0, 1 / (1 - subject.sizes.p))  # if whole outputs are dropped or scaled up
    if not _varies(first, out):
        evidence = f"With dropout {subject.sizes.p}, training and evaluation give the same output."
        case.add("dropout-unused", evidence)
    elif not first[:, out.isfinite()].isfinite().all():
        evidence = (
            "Some outputs are NaN or infinite in training, and none in evaluation: a hidden score "
            "of -inf was dropped, and 0 times infinity is NaN."
        )
        case.add("dropout-before-softmax", evidence)
    elif not _varies(first, out, *multiples):
        if len(layers) > 1 and any("att" in path for path in layers):
            evidence = "In training, whole outputs are dropped, but no attention weights."
            case.add("dropout-unused", evidence)
    elif over_keys and not _varies(second, still, *multiples):
        evidence = (
            "In training, the output varies, but not if all tokens are equal: every row still "
            "sums to one, so the scores were dropped, not the weights."
        )
        case.add("dropout-before-softmax", evidence)


def _varies(runs: Tensor, still: Tensor, *multiples: float) -> bool:
    """Whether any entry of a run is neither the one in `still` nor one of its multiples."""
    fine = still.isfinite()
    if not fine.any():
        return False
    runs, still = runs[:, fine], still[fine]
    small = 1e-6 * float(still.abs().max())
    known = [(runs - factor * still).abs() <= small for factor in (1.0, *multiples)]
    return not bool(torch.stack(known).any(0).all())


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
    """Check half precision: values that overflow, and tensors that stay in another dtype."""
    if not subject.weights:
        return
    ways = POLARITIES if subject.takes_mask and not subject.polarity else ()
    for way in ("", *ways):
        trial = replace(subject, polarity=way or subject.polarity)
        failure = probes.dtype_failure(case.session, trial, torch.float16)
        if failure is not None and "overflow" in failure.message:
            case.add_failure("mask-fill-overflows-half", "In float16", failure)
            break
    failure = probes.dtype_failure(case.session, subject, torch.bfloat16)
    if failure is not None and re.search(_TWO_DTYPES, failure.message) and not _left(case):
        says = f"In bfloat16: {failure.type}: {failure.message}"[:300]
        case.add("one-dtype-only", says)  # the failing line does not create the tensor


_TWO_DTYPES = r"same dtype|expected scalar type|expected dtype|dtypes? (do|does) not match"


def _left(case: Case) -> bool:
    """Whether the class is wrong anyway, or a tensor that .to() leaves behind was reported."""
    known = ("mask-not-a-buffer", "scale-is-stray-tensor")
    return case.wrong or any(found.id in known for found in case.findings)


def _device(case: Case, reference: AnyReference) -> None:
    """Report tensors that are created on the CPU regardless of the inputs' device."""
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
    """Check a batch of one sequence, whose batch axis squeeze() would remove."""
    if subject.axes != "batch" or out.shape[0] != inputs[0].shape[0] or _left(case):
        return
    got = call(case.session, subject, each(inputs, lambda t: t[:1].contiguous()))
    if isinstance(got, Failure):
        if not got.raised:
            return
        evidence = f"With a batch of one sequence: {got.type}: {got.message}"[:300]
        line = None if case.text.has("squeeze") else got.line
        case.add("fails-with-one-sentence", evidence, line)
    elif (gap := difference(got, out[:1])) > 1e-6:
        evidence = f"Alone in its batch, a sequence gives an output that differs by {gap:.2g}."
        case.add("fails-with-one-sentence", evidence)


def _training_differs(case: Case, subject: Subject, inputs: Inputs) -> None:
    """Check that, without dropout, training mode computes the same as evaluation mode."""
    if case.given or case.wrong:
        return
    if any("BatchNorm" in kind for kind in subject.built.modules.values()):
        return  # it uses other statistics in training
    meanings = {meaning_for(p) for p in case.info.init}
    layers = any("Dropout" in kind for kind in subject.built.modules.values())
    if "p" in meanings or "config" in meanings:
        calm = without_dropout(case, subject)
        if calm is None:
            return
        subject = calm
    elif layers:
        return  # the layer's own rate is unknown
    still = call(case.session, subject, inputs)
    trained, again = (call(case.session, subject, inputs, train=True, seed=s) for s in (0, 1))
    if isinstance(still, Failure):
        return
    if isinstance(trained, Failure):
        if not trained.raised:
            return
        case.add_failure("training-differs", "In training", trained)
        return
    if isinstance(again, Failure) or difference(trained, again) > 1e-9:
        return  # there is dropout with its own rate
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
    if before == after and before and not _dropout_makes_bias(case, subject, flags[0]):
        left = sorted(n for n in after if n.endswith("bias"))
        evidence = f"{flags[0]}=True and {flags[0]}=False give the same parameters" + (
            f", {', '.join(left)} among them." if left else ", without any bias."
        )
        case.add("bias-flag-ignored", evidence)


def _dropout_makes_bias(case: Case, subject: Subject, flag: str) -> bool:
    """Whether dropout switches the bias on, because two arguments were swapped on the way."""
    off = replace(subject, keywords={**subject.keywords, flag: False})
    calm = without_dropout(case, off) if subject.sizes.p else None
    if calm is None:
        return False
    dropped = case.session.build(case.info.name, off.arguments, off.keywords)
    gone = sorted(set(subject.built.parameters) - set(calm.built.parameters))
    stays = not isinstance(dropped, Failure) and set(gone) <= set(dropped.parameters)
    if not gone or not stays or not all("bias" in name for name in gone):
        return False
    evidence = (
        f"With {flag}=False and dropout {subject.sizes.p} there is {', '.join(gone[:3])}; with "
        f"{flag}=False and dropout 0 there is not: the dropout sets the bias."
    )
    case.add("arguments-crossed", evidence)
    return True


def _mask_argument(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor, reference: AnyReference
) -> bool:
    """Whether the mask argument hides what it marks, whichever meaning True has."""
    batch, tokens = inputs[0].shape[:2]
    keeps = torch.rand(batch, tokens, tokens, generator=torch.Generator().manual_seed(4)) < 0.6
    keeps |= torch.eye(tokens, dtype=torch.bool)  # a different mask for each sequence
    keep = keeps[0]

    def right_with(seen: Tensor) -> list[Tensor | None]:
        """Correct outputs: a mask may add to the class's own causal mask, or replace it."""
        return [reference.output(inputs, seen, own_mask=own) for own in (True, False)]

    wanted = alike = right_with(keep)
    if all(right is None for right in wanted):
        return False
    ran: list[Tensor] = []
    as_booleans = False  # whether a boolean mask ran: integer masks run almost anywhere
    same = False  # whether the mask has a batch axis along which it is constant
    for shaped in (keep, keep[None, None], keeps, keep.expand(batch, -1, -1).contiguous()):
        wanted = right_with(keeps[:, None]) if shaped is keeps else alike
        same = shaped.shape == keeps.shape and shaped is not keeps
        for polarity in POLARITIES:
            mask = written_mask(shaped, polarity, subject.dtype)
            got = call(case.session, subject, inputs, mask=mask)
            if isinstance(got, Failure) or got.shape != out.shape:
                continue
            if any(right is not None and difference(right, got) < 1e-5 for right in wanted):
                if same:
                    evidence = (
                        "A mask (batch, tokens, tokens) is right only if all sequences share it."
                    )
                    case.add("padding-in-other-texts", evidence)
                _compare_with_stated(case, subject, polarity)
                return True
            ran.append(got)
            as_booleans |= mask.dtype == torch.bool
    if ran and all(difference(got, out) < 1e-9 for got in ran):
        line = dropped_mask(case.text)
        if line is None and not as_booleans:
            return False
        id = "mask-ignored" if line is None else "mask-result-dropped"
        case.add(id, "A mask that hides 40 % of the entries changes nothing.", line)
    elif ran and all(right is not None for right in wanted) and not case.wrong:
        case.notes.append("forward takes a mask, but no usual meaning of it explains the output.")
    return False


def _compare_with_stated(case: Case, subject: Subject, polarity: str) -> None:
    """Check that a working mask has the meaning that the source states."""
    meant = {"keep": "keep", "int": "keep", "hide": "hide", "int-hide": "hide"}.get(polarity)
    stated = stated_marks(case.text.source, subject.takes_mask)
    if meant is not None and stated not in ("", "?", meant):
        does = "may be attended to" if meant == "keep" else "are hidden"
        evidence = (
            f"Where {subject.takes_mask} is True, tokens {does}; the source says the opposite."
        )
        fused = meant == "keep" and case.text.uses("scaled_dot_product_attention(")
        id = "sdpa-mask-polarity" if fused else "mask-inverted"
        id = "padding-inverted" if subject.mask_shape in ("bn", "b11n") else id
        case.add(id, evidence)
