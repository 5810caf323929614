"""The mistakes as settings of the simulator's switches, the usual ones first."""

import itertools
from dataclasses import dataclass

from clearhead.checker.diagnosis.simulator import Switches


@dataclass(frozen=True)
class Option:
    """One mistake: what it changes, and its id. Earlier in the list is more usual."""

    id: str
    change: tuple[tuple[str, str | float], ...]

    def applied(self, switches: Switches) -> Switches:
        """The switches with this mistake made."""
        return Switches(**{**switches._asdict(), **dict(self.change)})

    def touches(self) -> set[str]:
        """The switches it sets."""
        return {name for name, _ in self.change}


def _option(id: str, **change: str | float) -> Option:
    return Option(id, tuple(change.items()))


# What is computed with whose weights: queries, keys, values.
_TAKEN = (
    {"k": "query-from-key-weights", "v": "query-from-value-weights"},
    {"q": "key-from-query-weights", "v": "key-from-value-weights"},
    {"k": "value-from-keys", "q": "value-from-queries"},
)


def _several_roles() -> list[Option]:
    """Every mixture of weights in which more than one of the three is wrong."""
    made = []
    for roles in map("".join, itertools.product("qkv", repeat=3)):
        wrong = [_TAKEN[i][r] for i, r in enumerate(roles) if r != "qkv"[i]]
        if len(wrong) > 1 and roles not in ("kqv", "qvk", "vkq"):
            distinct = len(set(roles)) == 3
            made.append(
                _option("projections-in-other-order" if distinct else "+".join(wrong), roles=roles)
            )
    return made


OPTIONS = (
    _option("missing-scale", scale="none"),
    _option("scale-by-d-out", scale="d_out"),
    _option("no-causal-mask", mask="none"),
    _option("split-without-transpose", split="untransposed"),
    _option("merge-without-transpose", merge="untransposed"),
    _option("softmax-over-queries", softmax="queries"),
    _option("softmax-over-heads", softmax="heads"),
    _option("mask-off-by-one", mask="ahead"),
    _option("mask-hides-self", mask="strict"),
    _option("mask-hides-self", mask="strict", empty="uniform"),
    _option("mask-hides-self", mask="strict", empty="zero"),
    _option("mask-inverted", mask="future-and-self"),
    _option("mask-inverted", mask="future"),
    _option("mask-inverted", mask="future", empty="uniform"),
    _option("mask-inverted", mask="future", empty="zero"),
    _option("mask-fill-not-inf", fill="zero"),
    _option("mask-after-softmax", fill="after"),
    _option("scale-multiplied", scale="multiplied"),
    _option("scale-twice", scale="twice"),
    _option("scale-after-softmax", scale="after"),
    _option("scale-after-softmax", scale="after-d_out"),
    _option("out-proj-unused", out="unused"),
    _option("query-key-swapped", roles="kqv"),
    _option("key-from-query-weights", roles="qqv"),
    _option("value-from-keys", roles="qkk"),
    _option("heads-folded-into-batch", split="untransposed", merge="untransposed"),
    _option("heads-interleaved", merge="interleaved"),
    _option("heads-interleaved", split="strided"),
    _option("heads-summed", merge="sum"),
    _option("heads-summed", merge="mean"),
    _option("concat-on-wrong-axis", merge="tokens"),
    _option("dropout-rescaled-twice", gain="rescaled"),
    _option("query-from-key-weights", roles="kkv"),
    _option("value-from-queries", roles="qkq"),
    _option("key-from-value-weights", roles="qvv"),
    _option("key-value-swapped", roles="qvk"),
    _option("query-value-swapped", roles="vkq"),
    _option("value-not-projected", roles="qkx"),
    _option("key-not-projected", roles="qxv"),
    _option("query-not-projected", roles="xkv"),
    _option("keys-viewed-not-transposed", keyed="viewed"),
    _option("split-without-transpose", split="token-heads"),
    _option("weights-transposed", mix="transposed"),
    _option("softmax-over-queries", softmax="queries-calm"),
    _option("softmax-no-keepdim", softmax="no-keepdim-calm"),
    _option("softmax-no-keepdim", softmax="no-keepdim"),
    _option("no-softmax", softmax="sum"),
    _option("no-softmax", softmax="exp"),
    _option("no-softmax", softmax="sigmoid"),
    _option("no-softmax", softmax="relu"),
    _option("no-softmax", softmax="log"),
    _option("softmax-over-everything", softmax="all"),
    _option("mask-fill-not-inf", fill="plus-inf"),
    _option("no-softmax", softmax="none"),
    _option("softmax-twice", softmax="twice"),
    _option("softmax-over-batch", softmax="batch"),
    _option("mask-fill-not-inf", fill="huge"),
    _option("mask-added-not-filled", fill="added-to-kept"),
    _option("mask-added-not-filled", fill="added-to-hidden"),
    _option("mask-after-softmax", fill="after-inf"),
    _option("mask-after-softmax", fill="after-big"),
    _option("mask-off-by-one", mask="ahead2"),
    _option("mask-inverted", mask="far-future"),
    _option("mask-inverted", mask="future", empty="unmasked"),
    _option("mask-hides-self", mask="strict", empty="unmasked"),
    _option("mask-inverted", mask="far-future", empty="uniform"),
    _option("mask-inverted", mask="far-future", empty="zero"),
    _option("mask-hides-others", mask="self"),
    _option("values-not-mixed", mix="own"),
    _option("wrong-scale", scale="d_in"),
    _option("wrong-scale", scale="heads"),
    _option("wrong-scale", scale="tokens"),
    _option("merge-without-transpose", merge="dims"),
    _option("merge-without-transpose", merge="reversed"),
    _option("merge-without-transpose", merge="batch"),
    _option("one-head-only", merge="first"),
    _option("one-head-only", merge="last"),
    _option("kv-heads-in-other-order", group="tile"),
    _option("kv-heads-do-not-match", group="tile-k"),
    _option("kv-heads-do-not-match", group="tile-v"),
    _option("dropout-scaled-down", gain="kept"),
    *(
        _option("split-without-transpose", split=f"untransposed-{which}")
        for which in ("v", "k", "q", "kv", "qk", "qv")
    ),
    _option("split-without-transpose", split="scrambled"),
    _option("split-without-transpose", split="channels"),
    _option("merge-without-transpose", merge="channels"),
    *(
        _option(id, turn=turn)
        for id, turn in (
            ("rotary-pairs-mixed", "half-mixed"),
            ("rotary-pairs-mixed", "pairs-mixed"),
            ("rotary-on-one-side", "half-q"),
            ("rotary-on-one-side", "half-k"),
            ("rotary-on-values", "half-qkv"),
            ("rotary-on-one-side", "pairs-q"),
            ("rotary-on-one-side", "pairs-k"),
            ("rotary-on-values", "pairs-qkv"),
            ("rotary-unused", "none"),
        )
    ),
    *_several_roles(),
)
# Too seldom to be tried together with others, which takes time.
ALONE = frozenset(
    option
    for option in OPTIONS
    if option.change in ((("softmax", "queries-calm"),), (("mix", "own"),))
)
