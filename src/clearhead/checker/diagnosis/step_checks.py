"""Compare each step of an attention with what it should be, given the step before.

So each mistake is found at its own line with its own evidence, and several mistakes in one class
are several findings.
"""

from __future__ import annotations

from clearhead.checker.diagnosis.attention_step import AttentionStep
from clearhead.checker.diagnosis.judgement import Expectation, Judgement
from clearhead.checker.diagnosis.mask_checks import MaskCheck
from clearhead.checker.diagnosis.merge_checks import MergeCheck, judge_information
from clearhead.checker.diagnosis.program import Values
from clearhead.checker.diagnosis.program_checks import (
    across_texts,
    applied_twice,
    beside,
    ignored_inputs,
    rescaled,
    unused_weights,
    whole_output,
)
from clearhead.checker.diagnosis.projection_checks import judge_parts, judge_projections
from clearhead.checker.diagnosis.reading import Reading, Unreadable
from clearhead.checker.diagnosis.score_checks import ScoreCheck
from clearhead.checker.diagnosis.token_checks import TokenCheck
from clearhead.checker.diagnosis.weight_checks import WeightCheck, judge_without_softmax
from clearhead.checker.diagnosis.whole_attention import WholeAttention


def judge(reading: Reading, runs: list[Values], expected: Expectation) -> Judgement:
    """Judge every step of every attention in a program.

    Args:
        reading: The program.
        runs: The values of every register, for at least six other random inputs.
        expected: What is known about the class.
    """
    verdict = Judgement()
    first = min((core.product for core in reading.cores), default=None)
    if across_texts(reading, verdict, first):
        return verdict
    if not reading.cores:
        judge_without_softmax(reading, runs, verdict, expected)
        return verdict
    if any(core.dots in reading.tokenwise for core in reading.cores):
        raise Unreadable("each score depends on one token only")
    contexts = []
    for core in reading.cores:
        rows = _judge_attention(AttentionStep(reading, core, runs, verdict, expected))
        contexts += [] if rows is None else [(core.context, rows)]
        if verdict.doubts:
            return verdict
    if len(reading.cores) > 1:
        verdict.heads = len(reading.cores) * max(verdict.heads, 1)
    if len(contexts) == len(reading.cores):
        judge_information(reading, contexts, verdict, expected.batch)
    judge_projections(reading, verdict, expected.fused_order)
    unused_weights(reading, verdict, angles_given=expected.angles)
    applied_twice(reading, verdict)
    rescaled(reading, reading.cores[-1].context, expected.dropout, verdict)
    beside(reading, [core.context for core in reading.cores], verdict)
    whole_output(reading, verdict)
    if not verdict.findings:
        ignored_inputs(reading, verdict)
    if any(found.id == "scale-after-softmax" for found in verdict.findings):
        verdict.findings = [found for found in verdict.findings if found.id != "missing-scale"]
    return verdict


def _judge_attention(step: AttentionStep) -> int | None:
    """Judge all steps of one attention, in the order of the code.

    Returns:
        The axis of the rows in the mixed values, if all steps could be read.
    """
    core, verdict = step.core, step.verdict
    verdict.head_dim = core.head_dim
    tokens, scores, weights = TokenCheck.of(step), ScoreCheck.of(step), WeightCheck.of(step)
    if weights.over_everything():
        return None
    keeps = [tokens.operand(register) for register in (*core.all_operands, core.mixed.values)]
    whole = all(keeps)
    before = len(verdict.findings)
    tokens.two_inputs()
    tokens.summed_letters()
    if len(verdict.findings) > before:
        return None
    a, b = scores.scale()
    if not whole:
        if b is not None and verdict.findings:
            MaskCheck.of(step).by_shape(b)
        if verdict.findings:
            weights.by_shape()
        MergeCheck.of(step).merge(None)
        return None
    weight_axes = core.weight_axes(core.axes)
    summed, rows = core.mixes_along(weight_axes)
    if summed is None:
        verdict.doubts.append("how the weights meet the values could not be read")
        return None
    queries, keys = core.axes[1 - summed], core.axes[summed]
    groups = core.canonical(step.reading.values[core.scores], core.axes).shape[0]
    verdict.heads = max(groups // max(step.batch, 1), 1)
    weights.groups()
    over_keys = weights.softmax(keys, queries)
    weights.weights((weight_axes[1 - summed], weight_axes[summed]), (queries, keys), over_keys)
    if a is not None and b is not None:  # a mask applies to scores, before weights are transposed
        transposed = any(found.id == "weights-transposed" for found in verdict.findings)
        MaskCheck.of(step).mask(a, b, 1 - summed if transposed else summed)
    MaskCheck.of(step).dropped()
    merged = MergeCheck.of(step).merge(rows)
    return rows if merged else None


def judge_whole(whole: WholeAttention) -> Judgement:
    """Judge what surrounds an attention that is correct as one piece."""
    reading = whole.reading
    verdict = Judgement(
        heads=whole.heads, head_dim=whole.head_dim, mask=whole.mask, scale=whole.scale
    )
    judge_parts(reading, whole.parts, whole.heads, verdict)
    unused_weights(reading, verdict, angles_given=False)
    applied_twice(reading, verdict)
    beside(reading, [whole.context], verdict)
    (rows,) = reading.follow(whole.context, whole.axes[-1], reading.output)
    if whole.context != reading.output and rows not in reading.sources[0].axes:
        verdict.doubts.append("the token axis is lost after the values are mixed")
    whole_output(reading, verdict)
    return verdict
