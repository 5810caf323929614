"""What reproduces an output, as evidence in words, and as a form."""

from torch import Tensor

from clearhead.checker.catalogue import find, words
from clearhead.checker.diagnosis import probes
from clearhead.checker.diagnosis.search import Explanation, Search
from clearhead.checker.diagnosis.simulator import Switches, difference
from clearhead.checker.harness.subject import Session, Subject
from clearhead.checker.report import Form

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
    when = find(id).when
    others = len(best.ids) - 1
    together = words.together(others)
    exact = f"{max(best.error, 1e-16):.0e}"
    if when:
        parts.append(f"Your output equals, to {exact}, what you get when {when}{together}.")
    else:
        parts.append(f"When this mistake is made{together}, your output is reproduced to {exact}.")
    if right is not None and right.shape == out.shape:
        gap = difference(out, right)
        rows = int((~out.isfinite()).any(-1).sum())
        parts.append(f"{rows} of its rows are NaN or infinite." if rows else words.differs(gap))
    elif right is not None:
        parts.append(f"Its shape is {tuple(out.shape)}, and should be {tuple(right.shape)}.")
    if best.base.mask == "causal" and not (others and id in _NO_LEAK):
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
