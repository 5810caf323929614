"""Checks of the whole pass: unused weights, and paths around the attention."""

from __future__ import annotations

import math
import re

import torch

from clearhead.checker.diagnosis.judgement import Judgement
from clearhead.checker.diagnosis.reading import (
    RESHAPES,
    Reading,
    changed_at,
    differs,
)
from clearhead.checker.harness.weight_roles import role_of

_NORMS = {"normalize", "norm", "vector_norm", "layer_norm", "rms_norm"}
_SUMS = {"mean", "sum", "var", "std"}


def normed_over_tokens(reading: Reading, verdict: Judgement) -> bool:
    """Whether queries or keys are divided by a norm that is taken over all tokens."""
    program = reading.program
    softmaxes = {i for i, call in enumerate(program.calls) if call.name == "softmax"}
    for index in sorted(program.before(reading.output)):
        call = program.calls[index]
        out, sources = call.out[0], [r for r in program.sources[index] if r in reading.tokens]
        if out not in reading.tokens or out in reading.tokenwise or len(sources) != 1:
            continue
        if sources[0] not in reading.tokenwise or not program.after(out) & softmaxes:
            return False
        later = [program.calls[i].name for i in sorted(program.after(out))[:3]]
        rooted = call.name in _SUMS and {"rsqrt", "sqrt"} & {*later}
        parts = program.before(sources[0])
        squared = rooted and {program.calls[i].name for i in parts} & {"pow", "square", "mul"}
        if reading.learned(sources[0]) and (call.name in _NORMS or squared):
            shape, axis = tuple(reading.values[sources[0]].shape), reading.token_axis(sources[0])
            evidence = (
                f"{call.name} on {shape} runs over axis {axis}, the tokens: every token changes "
                "the queries or keys of the others."
            )
            verdict.add("norm-over-wrong-axis", evidence, call.line)
            return True
        return False
    return False


def scrambled(reading: Reading, verdict: Judgement, *, known: bool = False) -> bool:
    """Report a reshape that makes an axis as long as the token axis, but mixes tokens along it.

    Any axis counts if it is `known` that tokens are mixed outside the attention.
    """
    program = reading.program
    for index in sorted(program.before(reading.output)):
        call, out = program.calls[index], program.calls[index].out[0]
        read = [r for r in reading.places(index) if reading.depends(r)]
        if call.name not in RESHAPES or not read or out not in reading.tokenwise:
            continue
        if _holds_scores(reading, out):
            continue
        had, has = (tuple(reading.values[r].shape) for r in (read[0], out))
        kept, keeps = (
            reading.token_axis(r) is not None or reading.has_pixels(r) for r in (read[0], out)
        )
        if kept and not keeps and (known or reading.size[0] in has):
            evidence = (
                f"{call.name} {had} -> {has} spreads the values of a token over several rows."
            )
            verdict.add("split-without-transpose", evidence, call.line)
            return True
    return False


_PRODUCTS = {"matmul", "__matmul__", "bmm", "mm", "einsum", "baddbmm", "linear"}


def _holds_scores(reading: Reading, register: int) -> bool:
    """Whether a register goes into a softmax with no product before: scores that are shifted."""
    program = reading.program
    after = program.after(register)
    for index in (i for i in after if program.calls[i].name == "softmax"):
        between = after & program.before(program.calls[index].out[0])
        if not any(program.calls[i].name in _PRODUCTS for i in between):
            return True
    return False


def _cut_across(reading: Reading, before: int, verdict: Judgement) -> bool:
    """Report a reshape before a given call that splits the width in front of batch and tokens."""
    program, source = reading.program, reading.sources[0]
    texts = reading.values[source.register].shape[source.batch or 0]
    for index in sorted(program.before(program.calls[before].out[0]) - {before}):
        call = program.calls[index]
        read = [r for r in program.sources[index] if r in reading.texts]
        if call.name not in RESHAPES or not read or call.out[0] not in reading.texts:
            continue
        had, has = (tuple(reading.values[r].shape) for r in (read[0], call.out[0]))
        lost = reading.text_axis(read[0]) == 0 and reading.text_axis(call.out[0]) is None
        named = lost and has[0] != texts and texts in has[1:] and reading.size[0] in has[1:]
        if named and len(has) > len(had) and reading.token_axis(read[0]) == 1:
            evidence = (
                f"{call.name} {had} -> {has} keeps the order of the numbers: the new first axis "
                "divides sequences, not the width. The axes must be split in place, then permuted."
            )
            verdict.add("split-without-transpose", evidence, call.line)
            return True
    return False


def across_texts(reading: Reading, verdict: Judgement, before: int | None = None) -> bool:
    """Report the step after which one sequence affects another; whether there is one.

    Args:
        reading: The pass.
        verdict: The findings so far.
        before: Only steps before this call count.
    """
    program, texts, source = reading.program, reading.texts, reading.sources[0]
    moves = texts.get(reading.output)
    if source.batch is None or moves is None or moves.ndim <= source.batch + 1:
        return False
    if moves.shape[source.batch + 1] != len(moves):
        return False
    by = moves.movedim(source.batch + 1, 1).flatten(2).any(-1)
    if not bool((by & ~torch.eye(len(moves), dtype=torch.bool)).any()):
        return False
    for index in sorted(program.before(reading.output)):
        out, read = program.calls[index].out[0], [r for r in program.sources[index] if r in texts]
        if out not in texts or not read:
            continue
        mixed = int(texts[out].sum(0).max()) > 1
        lost = ~texts[out].flatten(1).any(1) & texts[read[0]].flatten(1).any(1)
        if mixed or bool(lost.any()):
            if before is not None and index >= before:
                return False
            if not _cut_across(reading, index, verdict):
                call, shape = program.calls[index], tuple(reading.values[read[0]].shape)
                how = "mixes several sequences" if mixed else "drops some of the sequences"
                evidence = f"{call.name} on {shape} {how}: one changes the output of another."
                verdict.add("attends-across-batch", evidence, call.line)
            return True
    return False


def ignored_inputs(reading: Reading, verdict: Judgement) -> None:
    """Report an input of tokens that does not affect the output."""
    moves = torch.split(reading.tokens[reading.output], reading.size)
    idle = [number for number, moved in enumerate(moves, 1) if not moved.any()]
    if not idle or len(idle) == len(moves):
        return
    evidence = f"Input {idle[0]} of {len(moves)} takes no part: changing it changes no output."
    line, core = None, next(iter(reading.cores), None)
    if len(moves) == 3 and core is not None:  # where the queries, keys or values are computed
        part = (*core.operands, core.mixed.values)[idle[0] - 1]
        calls = [reading.program.calls[i] for i in sorted(reading.program.before(part))]
        line = next((call.line for call in reversed(calls) if call.name == "linear"), None)
    verdict.add("input-ignored", evidence, line)


def rescaled(reading: Reading, context: int, rate: float, verdict: Judgement) -> None:
    """Report a dropout factor after the mixed values: nn.Dropout already applies it in training."""
    program = reading.program
    for index in sorted(program.after(context) & program.before(reading.output)):
        call = program.calls[index]
        factors = [v for v in call.args if isinstance(v, float)]
        if call.name not in ("mul", "div", "mul_", "div_") or not factors or not 0 < rate < 1:
            continue
        factor = 1 / factors[0] if "div" in call.name else factors[0]
        for id, right in (
            ("dropout-scaled-down", 1 - rate),
            ("dropout-rescaled-twice", 1 / (1 - rate)),
        ):
            if abs(factor - right) < 1e-6:
                evidence = f"With dropout {rate:g}, the output is multiplied by {factor:.3g}."
                verdict.add(id, evidence, call.line)


def unused_weights(reading: Reading, verdict: Judgement, *, angles_given: bool) -> None:
    """Report projections and passed-in angles that do not affect the output."""
    program = reading.program
    before = program.before(reading.output)
    used = {r for i in before for r in reading.places(i)}
    idle = set(program.inputs.values()) - used - {source.register for source in reading.sources}
    complex_ones = any(leaf.kind == "complex" for leaf in program.recording.leaves)
    if angles_given and idle and not verdict.rotary and not complex_ones:
        evidence = "The angles that are passed in have no effect on the output."
        verdict.add("rotary-unused", evidence, None)
    names = program.parameters
    takes = {name: register in used for register, name in names.items()}
    for register, name in ((r, name) for r, name in names.items() if not takes[name]):
        both = {"q", "k"}
        partners = [n for n in takes if "norm" in n and {role_of(n), role_of(name)} == both]
        if "norm" in name and any(takes[n] for n in partners):
            evidence = f"{name} has no effect on the output, but {min(partners)} does."
            verdict.add("norm-on-one-side", evidence, None)
        for call in (program.calls[i] for i in program.users.get(register, ())):
            kept = program.users.get(call.out[0]) or call.out[0] in program.recording.outputs
            if call.name.endswith("_norm") and not kept:
                evidence = f"The result of {call.name} with {name} is never used."
                verdict.add("unexplained", evidence, call.line)
        if program.weights[name].ndim < 2 or "bias" in name:
            continue
        evidence = f"{name} has no effect on the output."
        alike = [n for n in takes if _unnumbered(n) == _unnumbered(name)]
        others = [n for n in alike if takes[n]]
        if role_of(name) in ("q", "k", "v") and others and len(alike) == verdict.heads:
            evidence = f"{name} has no effect on the output; {others[0]} is used in its place."
            verdict.add("heads-share-weights", evidence, None)
        elif role_of(name) == "o":
            dropped = (program.calls[i].line for i in program.users.get(register, ()))
            verdict.add("out-proj-unused", evidence, next(dropped, None))
        else:
            verdict.notes.append(evidence)


def _unnumbered(name: str) -> str:
    """`heads.0.value.weight` and `heads.1.value.weight` belong to one list."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def applied_twice(reading: Reading, verdict: Judgement) -> None:
    """Report a projection that is applied to its own result."""
    program = reading.program
    for register, name in program.parameters.items():
        if program.weights[name].ndim < 2 or role_of(name) not in ("q", "k", "v", "o"):
            continue
        calls = [i for i in program.users.get(register, ()) if program.calls[i].name == "linear"]
        for one in calls:
            later = program.after(program.calls[one].out[0])
            again = [i for i in calls if i in later and i in program.before(reading.output)]
            if again:
                evidence = f"{name} is applied again to its own output."
                verdict.add("unexplained", evidence, program.calls[again[0]].line)
                return


def whole_output(reading: Reading, verdict: Judgement) -> None:
    """Check that no sequence affects another and, if causal, that no output sees later tokens."""
    output, source = reading.output, reading.sources[0]
    if any(found.is_wrong or found.id == "mask-fill-too-small" for found in verdict.findings):
        return  # that may be the cause
    across_texts(reading, verdict)
    if not verdict.mask.startswith(("causal", "window")) or len(source.axes) != 1:
        return
    moves, axis = reading.tokens[output][: reading.size[0]], source.axes[0]
    if moves.ndim > axis + 1 and moves.shape[axis + 1] == len(moves):
        by = moves.movedim(axis + 1, 1).flatten(2).any(-1)  # (token, output)
        if bool(by.tril(-1).any()):
            verdict.doubts.append("a later token changes an earlier output")


def beside(reading: Reading, contexts: list[int], verdict: Judgement) -> None:
    """Check that paths around the attention, a gate or a residual, reach only their own token."""
    if verdict.findings or verdict.doubts:
        return
    program, output = reading.program, reading.values[reading.output]
    frozen = {context: reading.values[context] for context in contexts}
    axes = reading.sources[0].axes
    if reading.output in frozen or output.ndim <= max(axes):
        return
    if math.prod(output.shape[axis] for axis in axes) != reading.size[0]:
        return
    source = reading.sources[0]
    for token in range(reading.size[0]):
        x = changed_at(reading.values[source.register], source.axes, token)
        new = program.again(reading.values, {source.register: x, **frozen})
        if reading.output not in new:
            return
        moved = differs(new[reading.output], output).movedim(axes, tuple(range(len(axes))))
        rows = moved.flatten(0, len(axes) - 1).flatten(1).any(1).nonzero().flatten().tolist()
        if any(row != token for row in rows):
            break
    else:
        return
    if any(program.calls[i].name.startswith("conv") for i in program.before(reading.output)):
        verdict.notes.append("A convolution mixes neighbouring tokens beside the attention.")
        return
    if not scrambled(reading, verdict, known=True):
        verdict.doubts.append("something other than the attention mixes tokens")
