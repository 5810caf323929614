"""Findings in words: what happens, the evidence in numbers, what to write instead."""

import math

from torch import Tensor

from clearhead.checker import probes
from clearhead.checker.adapters import Session, Subject
from clearhead.checker.mistakes import MISTAKES
from clearhead.checker.report import Finding
from clearhead.checker.search import Explanation, Search
from clearhead.checker.simulator import Switches, difference

_KNOWN = {mistake.id: mistake for mistake in MISTAKES}

# Not in the catalogue, and found by reproduction all the same: severity, says, fix.
_MORE: dict[str, tuple[str, str, str]] = {
    "wrong-scale": (
        "wrong",
        "The scores are scaled by another number than 1 / √head_dim.",
        "Divide the scores by head_dim ** 0.5 before the softmax.",
    ),
    "wrong-gain": (
        "wrong",
        "The weights are multiplied by a number, so rows do not sum to one.",
        "Leave the weights as the softmax gives them.",
    ),
    "dropout-scaled-down": (
        "wrong",
        "Outputs are multiplied by 1 - p outside training; dropout has already made up for it.",
        "Leave the scaling to nn.Dropout.",
    ),
    "softmax-twice": (
        "wrong",
        "The softmax is taken two times, so the weights are nearly flat.",
        "Take the softmax once.",
    ),
    "no-softmax": (
        "wrong",
        "The scores are used as weights, without a softmax.",
        "Write weights = scores.softmax(dim=-1).",
    ),
    "softmax-over-everything": (
        "wrong",
        "The softmax runs over all cells at once: the whole table sums to one, not each row.",
        "Use dim=-1: the keys' axis.",
    ),
    "keys-viewed-not-transposed": (
        "wrong",
        "The keys get another shape by view, which mixes tokens, instead of a transpose.",
        "Write keys.transpose(-2, -1).",
    ),
    "heads-share-weights": (
        "wrong",
        "The heads are one and the same module, so all of them compute the same.",
        "Make each head anew: nn.ModuleList([Head(...) for _ in range(heads)]).",
    ),
    "softmax-over-batch": (
        "wrong",
        "The softmax runs over the batch, so one sentence changes another.",
        "Use dim=-1: the keys' axis.",
    ),
    "weights-transposed": (
        "wrong",
        "The weights are transposed before they meet the values.",
        "Write weights @ values, without a transpose.",
    ),
    "query-from-key-weights": (
        "wrong",
        "The queries are computed with the key weights, and the query weights are never used.",
        "Compute the queries with their own weights.",
    ),
    "query-from-value-weights": (
        "wrong",
        "The queries are computed with the value weights.",
        "Compute the queries with their own weights.",
    ),
    "key-from-value-weights": (
        "wrong",
        "The keys are computed with the value weights.",
        "Compute the keys with their own weights.",
    ),
    "value-from-queries": (
        "wrong",
        "The values are the queries, and the value weights are never used.",
        "Compute the values with their own weights.",
    ),
    "value-not-projected": (
        "wrong",
        "The values are the inputs themselves, and the value weights are never used.",
        "Compute the values with their own weights.",
    ),
    "key-not-projected": (
        "wrong",
        "The keys are the inputs themselves, and the key weights are never used.",
        "Compute the keys with their own weights.",
    ),
    "query-not-projected": (
        "wrong",
        "The queries are the inputs themselves, and the query weights are never used.",
        "Compute the queries with their own weights.",
    ),
    "key-value-swapped": (
        "compat",
        "Keys and values are exchanged: right after training, wrong with weights from elsewhere.",
        "Score with the keys, mix the values.",
    ),
    "query-value-swapped": (
        "compat",
        "Queries and values are exchanged: right after training, wrong with other weights.",
        "Score with the queries, mix the values.",
    ),
    "projections-in-other-order": (
        "compat",
        "The fused matrix is cut in another order than q, k, v: other weights do not fit.",
        "Write q, k, v = qkv.chunk(3, dim=-1).",
    ),
    "mask-added-not-filled": (
        "wrong",
        "The mask of zeros and ones is added to the scores, which hides nothing.",
        "Fill hidden cells with -inf: scores.masked_fill(mask == 0, -torch.inf).",
    ),
    "mask-hides-others": (
        "wrong",
        "Each token sees only itself.",
        "Keep the lower triangle visible: tril().",
    ),
    "mask-ignored": (
        "wrong",
        "Forward takes a mask and does nothing with it.",
        "Hide the cells that the mask marks with -inf before the softmax.",
    ),
    "no-return": (
        "wrong",
        "Forward returns nothing, or no tensor.",
        "End forward with return and the output.",
    ),
    "heads-ignored": (
        "wrong",
        "The number of heads is asked for and not used: there is one head.",
        "Split queries, keys and values into that many heads.",
    ),
    "wrong-width": (
        "wrong",
        "A layer has the wrong width, so that it fails when d_in and d_out differ.",
        "Write nn.Linear(d_in, d_out) for queries, keys and values.",
    ),
    "values-detached": (
        "wrong",
        "The output is right, but no gradient reaches the weights of values or output.",
        "Leave out detach(), .data and no_grad.",
    ),
    "one-head-only": (
        "wrong",
        "Only one of the heads reaches the output.",
        "Concatenate all heads along the last axis.",
    ),
    "kv-heads-in-other-order": (
        "compat",
        "Query heads are given to key heads in another order: weights from elsewhere do not fit.",
        "Use repeat_interleave(groups, dim=1), not repeat.",
    ),
    "random-in-eval": (
        "wrong",
        "The same input gives different outputs in evaluation.",
        "Make all layers in __init__, and draw no random numbers in forward.",
    ),
    "fails-at-some-lengths": (
        "edge",
        "It fails for some numbers of tokens.",
        "Take the sizes from the input's shape, and name the axes that you squeeze.",
    ),
    "backward-fails": (
        "wrong",
        "The forward pass works, but no gradient can be computed.",
        "Look at the error: it names the operation.",
    ),
    "unexplained": (
        "wrong",
        "Something is wrong that is in no list: a property fails that every attention has.",
        "Compare with a plain attention, step by step, from the step that is named.",
    ),
    "unsure": (
        "edge",
        "The checker does not know whether this is right.",
        "If the class is called in an unusual way, write an adapter.",
    ),
}


def finding(id: str, evidence: str, line: int | None, severity: str = "") -> Finding:
    """A finding with the catalogue's words."""
    if id in _KNOWN:
        known = _KNOWN[id]
        return Finding(id, severity or known.severity, known.says, evidence, known.fix, line)
    default, says, fix = _MORE[id]
    return Finding(id, severity or default, says, evidence, fix, line)


_WHEN = {
    "missing-scale": "the scores are not scaled",
    "scale-by-d-out": "the scores are divided by √d_out",
    "scale-multiplied": "the scores are multiplied by √head_dim",
    "scale-twice": "the scores are divided by head_dim, which is √head_dim two times",
    "scale-after-softmax": "the weights are divided by √head_dim after the softmax",
    "softmax-over-queries": "the softmax runs over the queries",
    "softmax-over-heads": "the softmax runs over the heads",
    "mask-result-dropped": "nothing is masked",
    "no-causal-mask": "nothing is masked",
    "mask-off-by-one": "each token sees the next one too",
    "mask-hides-self": "no token sees itself",
    "mask-inverted": "the past is hidden and the future seen",
    "sdpa-mask-polarity": "the past is hidden and the future seen",
    "mask-after-softmax": "the mask comes after the softmax",
    "split-without-transpose": "view makes (batch, heads, tokens, head_dim) straight away",
    "merge-without-transpose": "the heads are merged without a transpose",
    "heads-folded-into-batch": "view makes (batch * heads, tokens, head_dim) straight away",
    "heads-interleaved": "the heads are merged in the order (head_dim, heads)",
    "heads-summed": "the heads are added or averaged",
    "concat-on-wrong-axis": "the heads stand one after the other as more tokens",
    "query-key-swapped": "queries and keys change places",
    "key-from-query-weights": "the keys come from the query weights",
    "value-from-keys": "the values are the keys",
    "out-proj-unused": "the output projection is left out",
    "dropout-rescaled-twice": "the weights are divided by 1 - p",
}


def evidence_for(
    id: str,
    session: Session,
    subject: Subject,
    inputs: probes.Inputs,
    out: Tensor,
    best: Explanation,
    search: Search,
) -> str:
    """How we know: what the output equals, and what a change of one token did."""
    program, switches = best.program, best.switches
    right = program.run(best.base)
    parts = []
    if id in ("wrong-scale", "missing-scale", "scale-by-d-out", "scale-multiplied", "scale-twice"):
        parts.append(_scale_sentence(switches, program.head_dim, program))
    if id == "wrong-gain":
        parts.append(f"The weights are {float(switches.gain):.3g} times what they should be.")
    if id in ("mask-fill-not-inf", "mask-fill-too-small") and isinstance(switches.fill, float):
        parts.append(f"Hidden cells have the score {switches.fill:.3g} instead of -inf.")
    when = _WHEN.get(id)
    together = f" (with the other {len(best.ids) - 1} found)" if len(best.ids) > 1 else ""
    exact = f"{max(best.error, 1e-16):.0e}"
    if when:
        parts.append(f"Your output equals, to {exact}, what you get when {when}{together}.")
    else:
        parts.append(f"With this mistake{together} your output is reproduced to {exact}.")
    if right is not None and right.shape == out.shape:
        gap = difference(out, right)
        parts.append(
            f"From the right answer it differs by {gap:.2g} of its size."
            if math.isfinite(gap)
            else f"{int((~out.isfinite()).any(-1).sum())} of its rows are NaN or infinite."
        )
    elif right is not None:
        parts.append(f"Its shape is {tuple(out.shape)}, and should be {tuple(right.shape)}.")
    if best.base.mask == "causal":
        leak = probes.future_leak(session, subject, inputs, out)
        if leak.size > 1e-9:
            parts.append(
                f"Changing token {leak.changed} changed output {leak.moved} by {leak.size:.2g}."
            )
    return " ".join(parts)


def _scale_sentence(switches: Switches, head_dim: int, program: object) -> str:
    right = head_dim**-0.5
    scale = switches.scale
    known = {"none": 1.0, "multiplied": head_dim**0.5, "twice": 1 / head_dim}
    if isinstance(scale, float):
        return f"The scale is {scale:.3g} instead of {right:.3g} (1 / √head_dim)."
    if scale in known:
        return f"The scale is {known[scale]:.3g} instead of {right:.3g} (1 / √head_dim)."
    if scale == "right":
        return ""
    name = {"d_out": "d_out", "d_in": "d_in", "heads": "heads", "tokens": "tokens"}[scale]
    return f"The scale is 1 / √{name} instead of {right:.3g} (1 / √head_dim)."


def form_of(subject: Subject, best: Explanation | None, out: Tensor) -> str:
    """One line on what the class is."""
    if best is None:
        return f"d_in {subject.d_in}, output {tuple(out.shape)}"
    w, base = best.program.weights, best.base
    parts = [
        f"{w.heads} heads × {best.program.head_dim}"
        if w.heads > 1
        else f"1 head × {best.program.head_dim}"
    ]
    if w.kv_heads and w.kv_heads != w.heads:
        parts.append(f"{w.kv_heads} key and value heads")
    if base.mask.startswith("window"):
        parts.append(f"causal window of {base.mask.removeprefix('window')}")
    else:
        parts.append("causal" if base.mask == "causal" else "not causal")
    if subject.takes_mask:
        parts.append("takes a mask")
    if w.o is None:
        parts.append("no output projection")
    if base.split == "strided":
        parts.append("heads strided")
    if base.turn != "none":
        parts.append("rotary positions")
    if base.around != "nothing":
        parts.append(base.around.replace("-", " ") + " inside")
    words = {"single": "one sentence without a batch axis", "first": "tokens before batch"}
    if subject.axes in words:
        parts.append(words[subject.axes])
    return ", ".join(parts)
