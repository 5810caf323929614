"""Findings in words: what happens, the evidence in numbers, what to write instead."""

import math

from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.diagnosis.search import Explanation, Search
from clearhead.checker.diagnosis.simulator import Switches, difference
from clearhead.checker.harness.subject import Session, Subject
from clearhead.checker.report import Form

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
    "rotary-on-one-side": "only queries or only keys are turned",
    "rotary-on-values": "the values are turned too",
    "rotary-unused": "nothing is turned",
    "rotary-pairs-mixed": "the angles of one layout turn the pairs of the other",
    "norm-over-wrong-axis": "queries and keys are normed over heads or tokens",
    "softmax-no-keepdim": "each column is divided by the sum of another row",
}
# These show no token the future: beside another mistake, that is not their doing.
_NO_LEAK = {
    "missing-scale", "wrong-scale", "scale-by-d-out", "scale-multiplied", "scale-twice",
    "scale-after-softmax", "wrong-gain", "heads-interleaved", "heads-summed", "out-proj-unused",
    "query-key-swapped", "key-from-query-weights", "value-from-keys",
}  # fmt: skip


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
    more = {1: "", 2: "the other mistake is"}.get(len(best.ids), "the other mistakes are")
    together = f" and {more} made too" if more else ""
    exact = f"{max(best.error, 1e-16):.0e}"
    if when:
        parts.append(f"Your output equals, to {exact}, what you get when {when}{together}.")
    else:
        parts.append(f"When this mistake is made{together}, your output is reproduced to {exact}.")
    if right is not None and right.shape == out.shape:
        gap = difference(out, right)
        if gap < 1e-9:  # the mistake is not in the switches: see terms.py
            return " ".join(parts)
        parts.append(
            f"From the right answer it differs by {gap:.2g} of its size."
            if math.isfinite(gap)
            else f"{int((~out.isfinite()).any(-1).sum())} of its rows are NaN or infinite."
        )
    elif right is not None:
        parts.append(f"Its shape is {tuple(out.shape)}, and should be {tuple(right.shape)}.")
    if best.base.mask == "causal" and not (more and id in _NO_LEAK):
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


def form_of(subject: Subject, best: Explanation | None, out: Tensor) -> Form:
    """What the class is, by the form that reproduces its output."""
    axes = {
        "single": "one sentence without a batch axis",
        "first": "tokens before batch",
        "channels": "channels before tokens",
        "picture": "pictures",
    }.get(subject.axes, "")
    if best is None:
        width, shape = f"inputs of width {subject.d_in}", f"an output of shape {tuple(out.shape)}"
        return Form(takes_mask=bool(subject.takes_mask), axes=axes, extra=(f"{width} and {shape}",))
    w, base = best.program.weights, best.base
    windowed = base.mask.startswith("window")
    causal = {"causal": "yes", "given": "part"}.get(base.mask, "no")
    extra = []
    if base.split == "strided":
        extra.append("strided heads")
    if base.around != "nothing":
        extra.append(base.around.replace("-", " ") + " inside")
    return Form(
        heads=w.heads,
        head_dim=best.program.head_dim,
        kv_heads=w.kv_heads or None,
        causal="window" if windowed else causal,
        window=int(base.mask.removeprefix("window")) if windowed else None,
        takes_mask=bool(subject.takes_mask),
        out_proj=w.o is not None,
        positions="rotary positions" if base.turn != "none" else "",
        axes=axes,
        extra=tuple(extra),
    )
