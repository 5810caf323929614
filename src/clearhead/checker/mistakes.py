"""The catalogue of mistakes. Each id is stable, and each mistake can be planted in our own code.

A plant is an edit: a text that occurs exactly once in a module of this package, and what to write
instead. `tests/test_mistakes.py` plants them one by one in a copy, and each must turn a test red.

>>> find("missing-scale").fix
'Divide the scores by head_dim ** 0.5 before the softmax.'
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Severity = Literal["wrong", "compat", "edge"]


@dataclass(frozen=True)
class Plant:
    """One edit that puts a mistake into our own code.

    Args:
        module: The module inside the package, for example "ladder" or "kernels.sdpa".
        old: A text that occurs exactly once in it.
        new: What stands there after planting.
    """

    module: str
    old: str
    new: str

    def apply(self, package: Path) -> None:
        """Edit the module in `package`, which is a copy of this package's folder.

        Raises:
            ValueError: If the old text does not occur exactly once: the module has changed, and
                the plant must be written again.
        """
        parts = self.module.split(".")
        file = package.joinpath(*parts).with_suffix(".py")
        if not file.exists():
            file = package.joinpath(*parts, "__init__.py")
        source = file.read_text(encoding="utf-8")
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.module}: expected this text once, found it {count} times:\n{self.old}\n"
                "  The module has changed? Write the plant again in checker/mistakes.py."
            )
        file.write_text(source.replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Mistake:
    """One mistake that people make.

    Args:
        id: The name that never changes.
        says: What happens, in one sentence.
        fix: What to write instead.
        severity: "wrong" computes something else; "compat" computes the same function, but with
            the weights in other places, so that only loaded weights break; "edge" goes wrong in
            some situations only.
        plants: Where the mistake is planted in our own code, to prove that our tests see it.
    """

    id: str
    says: str
    fix: str
    severity: Severity
    plants: tuple[Plant, ...]


def find(id: str) -> Mistake:
    """The mistake with this id."""
    for mistake in MISTAKES:
        if mistake.id == id:
            return mistake
    raise ValueError(f"No mistake has the id {id!r}.")


# Texts of rung 4 that several mistakes change.
_SCALED = "attn_scores / self.head_dim**0.5"
_HIDE = "attn_scores = attn_scores.masked_fill(future, -torch.inf)\n        "
_SOFTMAX = f"attn_weights = torch.softmax({_SCALED}, dim=-1)"
_STORE = 'Dropout(dropout)\n        self.register_buffer("mask", torch.ones(context_length, '
_STORE += "context_length).triu(diagonal=1)"
_DROP = "attn_weights = self.dropout(attn_weights)\n        context_vec = "
_TRANSPOSE = """\
queries = queries.transpose(1, 2)  # -> (batch, heads, tokens, head_dim)
        keys = keys.transpose(1, 2)
        values = values.transpose(1, 2)"""
_RESHAPE = """\
queries = queries.reshape(batch, self.num_heads, tokens, self.head_dim)
        keys = keys.reshape(batch, self.num_heads, tokens, self.head_dim)
        values = values.reshape(batch, self.num_heads, tokens, self.head_dim)"""

# Texts of the fast module and the kernels.
_SCALE = "q.shape[-1] ** -0.5 if scale is None"
_MERGE = "context_vec.transpose(1, 2).flatten(2)"

MISTAKES: tuple[Mistake, ...] = (
    # Scale.
    Mistake(
        "missing-scale",
        "The scores are not divided, so the softmax is too sharp and nearly picks one key.",
        "Divide the scores by head_dim ** 0.5 before the softmax.",
        "wrong",
        (
            Plant("ladder", _SCALED, "attn_scores"),
            Plant("kernels", _SCALE, "1.0 if scale is None"),
            Plant("kernels.blocked", ".to(_accumulator(q)).mul_(scale)", ".to(_accumulator(q))"),
        ),
    ),
    Mistake(
        "scale-by-d-out",
        "The scores are divided by the root of all heads' width, so the softmax is too flat.",
        "Divide by head_dim ** 0.5, the width of one head, and not by d_out ** 0.5.",
        "wrong",
        (
            Plant("ladder", _SCALED, "attn_scores / self.d_out**0.5"),
            Plant("kernels", _SCALE, "(q.shape[1] * q.shape[-1]) ** -0.5 if scale is None"),
        ),
    ),
    Mistake(
        "scale-multiplied",
        "The scores are multiplied by the root instead of divided, so the softmax is far too "
        "sharp.",
        "Write / head_dim ** 0.5, or * head_dim ** -0.5.",
        "wrong",
        (
            Plant("ladder", _SCALED, "attn_scores * self.head_dim**0.5"),
            Plant("kernels", _SCALE, "q.shape[-1] ** 0.5 if scale is None"),
        ),
    ),
    Mistake(
        "scale-twice",
        "The scores are divided two times, so the softmax is too flat.",
        "Scale once: scaled_dot_product_attention already divides by head_dim ** 0.5.",
        "wrong",
        (
            Plant("ladder", _SCALED, "attn_scores / self.head_dim**0.5 / self.head_dim**0.5"),
            Plant("kernels.sdpa", "        q,\n", "        q * scale,\n"),
        ),
    ),
    Mistake(
        "scale-after-softmax",
        "The weights are divided after the softmax, so a row no longer sums to one.",
        "Divide the scores before the softmax, not the weights after it.",
        "wrong",
        (
            Plant(
                "ladder",
                _SOFTMAX,
                "attn_weights = torch.softmax(attn_scores, dim=-1) / self.head_dim**0.5",
            ),
        ),
    ),
    # Softmax.
    Mistake(
        "softmax-over-queries",
        "Each key's column sums to one instead of each query's row, and the future leaks through "
        "the sum.",
        "Use dim=-1: queries are rows, keys are columns.",
        "wrong",
        (
            Plant("ladder", f"{_SCALED}, dim=-1", f"{_SCALED}, dim=-2"),
            Plant("kernels.eager", "softmax(attn_scores, dim=-1)", "softmax(attn_scores, dim=-2)"),
        ),
    ),
    Mistake(
        "softmax-over-heads",
        "The heads compete with each other instead of the keys, and hidden cells become NaN.",
        "Use dim=-1: in (batch, heads, queries, keys) the last axis is the keys.",
        "wrong",
        (
            Plant("ladder", f"{_SCALED}, dim=-1", f"{_SCALED}, dim=1"),
            Plant("kernels.eager", "softmax(attn_scores, dim=-1)", "softmax(attn_scores, dim=1)"),
        ),
    ),
    # Mask.
    Mistake(
        "mask-result-dropped",
        "The masked scores are computed and thrown away, so every token sees the future.",
        "Write scores = scores.masked_fill(...), or scores.masked_fill_(...) with an underscore.",
        "wrong",
        (
            Plant("ladder", _HIDE + _SOFTMAX, _HIDE.removeprefix("attn_scores = ") + _SOFTMAX),
            Plant("attention", "combined & part", "combined"),
            Plant(
                "kernels.eager",
                "attn_scores = attn_scores.masked_fill(~(visible",
                "attn_scores.masked_fill(~(visible",
            ),
        ),
    ),
    Mistake(
        "no-causal-mask",
        "Nothing hides the future, so every token sees the tokens after it.",
        "Hide the cells above the diagonal with -inf before the softmax.",
        "wrong",
        (
            Plant("ladder", _HIDE + _SOFTMAX, _SOFTMAX),
            Plant("attention", "[Mask.causal()] if self.causal else []", "[]"),
            Plant("kernels.sdpa", "            is_causal = True", "            is_causal = False"),
        ),
    ),
    Mistake(
        "mask-off-by-one",
        "Each token sees one token of the future.",
        "Hide from the first diagonal above the main one: triu(diagonal=1).",
        "wrong",
        (
            Plant("ladder", _STORE, _STORE.replace("diagonal=1", "diagonal=2")),
            Plant("masks", "return _Band(None, 0, align)", "return _Band(None, 1, align)"),
            Plant(
                "attention",
                "visible = key <= positions[:, None]",
                "visible = key <= positions[:, None] + 1",
            ),
        ),
    ),
    Mistake(
        "mask-hides-self",
        "No token sees itself, and the first token sees nothing at all: its row becomes NaN.",
        "Keep the main diagonal visible: triu(diagonal=1) marks what to hide.",
        "wrong",
        (
            Plant("ladder", _STORE, _STORE.replace("diagonal=1", "diagonal=0")),
            Plant("masks", "return _Band(None, 0, align)", "return _Band(None, -1, align)"),
        ),
    ),
    Mistake(
        "mask-inverted",
        "The past is hidden and the future is seen.",
        "Hide the upper triangle (triu), keep the lower one (tril).",
        "wrong",
        (
            Plant("ladder", _STORE, _STORE.replace("triu(diagonal=1", "tril(diagonal=-1")),
            Plant("masks", "(key <= position + self.ahead)", "(key >= position + self.ahead)"),
            Plant("kernels.eager", "~(visible | empty)", "visible"),
            Plant("kernels.blocked", "scores.masked_fill_(~tile", "scores.masked_fill_(tile"),
        ),
    ),
    Mistake(
        "mask-fill-not-inf",
        "Hidden cells get a score near 0, which the softmax turns into a real weight.",
        "Fill hidden cells with -inf before the softmax.",
        "wrong",
        (
            Plant("ladder", _HIDE + _SOFTMAX, _HIDE.replace("-torch.inf", "1e-9") + _SOFTMAX),
            Plant("kernels.eager", "(visible | empty), -torch.inf)", "(visible | empty), 1e-9)"),
        ),
    ),
    Mistake(
        "mask-after-softmax",
        "Hidden weights are set to zero after the softmax, so rows sum to less than one and the "
        "future leaks through the sum.",
        "Hide the scores with -inf before the softmax.",
        "wrong",
        (
            Plant(
                "ladder",
                _HIDE + _SOFTMAX,
                f"{_SOFTMAX}\n        attn_weights = attn_weights.masked_fill(future, 0)",
            ),
        ),
    ),
    Mistake(
        "sdpa-mask-polarity",
        "scaled_dot_product_attention got a mask in which True means hidden, so each token sees "
        "only what it should not.",
        "Give it the opposite, ~mask: there True means may attend.",
        "wrong",
        (
            Plant("kernels.sdpa", "attn_mask = mask.tile(", "attn_mask = ~mask.tile("),
            Plant(
                "masks", "return self.dense(queries, keys)\n", "return ~self.dense(queries, keys)\n"
            ),
        ),
    ),
    Mistake(
        "padding-inverted",
        "The filling is seen and the real tokens are hidden.",
        "Say which one True means: here a real token; give ~mask where it marks the filling.",
        "wrong",
        (
            Plant("masks", "return real[:, key]", "return ~real[:, key]"),
            Plant("masks", "key < real[:, None]", "key >= real[:, None]"),
        ),
    ),
    # Heads.
    Mistake(
        "split-without-transpose",
        "The view puts numbers of several tokens into one head; with one head nobody notices.",
        "Write view(batch, tokens, heads, head_dim), then transpose(1, 2).",
        "wrong",
        (
            Plant("ladder", _TRANSPOSE, _RESHAPE),
            Plant(
                "attention",
                "x.view(batch, tokens, -1, self.head_dim).transpose(1, 2)",
                "x.view(batch, -1, tokens, self.head_dim)",
            ),
        ),
    ),
    Mistake(
        "merge-without-transpose",
        "The heads are merged before the tokens' axis is back in place, so tokens get mixed.",
        "Write transpose(1, 2) first, then contiguous().view(batch, tokens, d_out).",
        "wrong",
        (
            Plant("ladder", "context_vec.transpose(1, 2)  #", "context_vec  #"),
            Plant(
                "attention",
                _MERGE,
                "context_vec.reshape(len(context_vec), context_vec.shape[2], -1)",
            ),
        ),
    ),
    Mistake(
        "heads-interleaved",
        "The merged vector takes one number of each head in turn: right after training, wrong "
        "with weights from elsewhere.",
        "Merge in the order (heads, head_dim): transpose(1, 2), then view.",
        "compat",
        (
            Plant("ladder", "context_vec.transpose(1, 2)  #", "context_vec.permute(0, 2, 3, 1)  #"),
            Plant("attention", _MERGE, _MERGE.replace("transpose(1, 2)", "permute(0, 2, 3, 1)")),
        ),
    ),
    Mistake(
        "concat-on-wrong-axis",
        "The heads' outputs are put behind each other as if they were more tokens.",
        "Concatenate along the last axis: torch.cat(heads, dim=-1).",
        "wrong",
        (Plant("ladder", "for head in self.heads], dim=-1)", "for head in self.heads], dim=1)"),),
    ),
    # Projections.
    Mistake(
        "query-key-swapped",
        "Queries and keys are exchanged: right after training, wrong with weights from elsewhere.",
        "Write queries @ keys.transpose(-2, -1).",
        "compat",
        (
            Plant(
                "ladder", "queries @ keys.transpose(2, 3)  #", "keys @ queries.transpose(2, 3)  #"
            ),
            Plant(
                "attention",
                "return queries, keys, values, self.mask_for(mask)\n        if",
                "return keys, queries, values, self.mask_for(mask)\n        if",
            ),
        ),
    ),
    Mistake(
        "key-from-query-weights",
        "The keys are computed with W_query, and W_key is never used.",
        "Write keys = self.W_key(x).",
        "wrong",
        (
            Plant("ladder", "keys = keys.view(", "keys = self.W_query(x).view("),
            Plant("attention", "self.W_key(source)", "self.W_query(source)"),
        ),
    ),
    Mistake(
        "value-from-keys",
        "The values are the keys, and W_value is never used.",
        "Write values = self.W_value(x).",
        "wrong",
        (
            Plant("ladder", "values = values.view(", "values = self.W_key(x).view("),
            Plant("attention", "self.W_value(source)", "self.W_key(source)"),
        ),
    ),
    Mistake(
        "out-proj-unused",
        "The output projection is built and never called, so the heads are not mixed.",
        "Return self.out_proj(context_vec).",
        "wrong",
        (
            Plant("ladder", "self.out_proj(context_vec)", "context_vec"),
            Plant("attention", f"self.out_proj({_MERGE})", _MERGE),
        ),
    ),
    Mistake(
        "scores-detached",
        "The result is right, but no gradient reaches W_query and W_key, so they never learn.",
        "Remove .detach(), .data and no_grad from the way to the scores.",
        "wrong",
        (
            Plant(
                "ladder",
                "queries @ keys.transpose(2, 3)  #",
                "(queries @ keys.transpose(2, 3)).detach()  #",
            ),
            Plant(
                "kernels.eager",
                "q @ k.transpose(-2, -1) * scale",
                "(q @ k.transpose(-2, -1) * scale).detach()",
            ),
        ),
    ),
    # Dropout.
    Mistake(
        "dropout-in-eval",
        "Weights are dropped outside training too, so the same input gives different outputs.",
        "Use nn.Dropout, or give dropout_p=p if self.training else 0.0.",
        "wrong",
        (
            Plant(
                "ladder",
                _DROP,
                _DROP.replace(
                    "self.dropout(attn_weights)",
                    "torch.dropout(attn_weights, self.dropout.p, True)",
                ),
            ),
            Plant(
                "attention",
                "return self.dropout.p if self.training else 0.0",
                "return self.dropout.p",
            ),
        ),
    ),
    Mistake(
        "dropout-unused",
        "Dropout is built and never called, so training drops nothing.",
        "Call self.dropout on the weights, after the softmax.",
        "wrong",
        (
            Plant("ladder", _DROP, "context_vec = "),
            Plant("attention", "return self.dropout.p if self.training else 0.0", "return 0.0"),
            Plant("kernels.eager", "dropout > 0) @ v", "False) @ v"),
            Plant("kernels.sdpa", "dropout_p=dropout", "dropout_p=0.0"),
            Plant("kernels.blocked", "    if kept is None:", "    if True:"),
        ),
    ),
    Mistake(
        "dropout-rescaled-twice",
        "The kept weights are scaled up two times, so outputs are too large.",
        "Leave the scaling to nn.Dropout: it divides by 1 - p in training and does nothing else.",
        "wrong",
        (
            Plant(
                "ladder",
                _DROP,
                _DROP.replace("(attn_weights)", "(attn_weights) / (1 - self.dropout.p)"),
            ),
            Plant("kernels.blocked", "2**16 / left if left", "(2**16 / left) ** 2 if left"),
        ),
    ),
)
