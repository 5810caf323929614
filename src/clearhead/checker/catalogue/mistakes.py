"""The catalogue of mistakes that people make in attention code. Each id is stable.

>>> find("missing-scale").fix
'Divide the scores by head_dim ** 0.5 before the softmax.'
"""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["wrong", "compat", "edge"]


@dataclass(frozen=True)
class Mistake:
    """One mistake that people make.

    Args:
        id: The name that never changes; docs/mistakes.md has a section with this name.
        says: What happens, in one sentence.
        fix: What to write instead.
        severity: "wrong" computes something else; "compat" computes the same function, but with
            the weights in other places, so that only loaded weights break; "edge" goes wrong in
            some situations only.
        symptom: What can be seen from outside, without the cause; a hint for a student.
    """

    id: str
    says: str
    fix: str
    severity: Severity
    symptom: str


def find(id: str) -> Mistake:
    """The mistake with this id."""
    for mistake in MISTAKES:
        if mistake.id == id:
            return mistake
    raise ValueError(f"No mistake has the id {id!r}.")


MISTAKES: tuple[Mistake, ...] = (
    # Scale.
    Mistake(
        "missing-scale",
        "The scores are not divided, so the softmax is too sharp and nearly picks one key.",
        "Divide the scores by head_dim ** 0.5 before the softmax.",
        "wrong",
        "The weights are too sharp: larger scores than expected went into the softmax.",
    ),
    Mistake(
        "scale-by-d-out",
        "The scores are divided by the root of all heads' width, so the softmax is too flat.",
        "Divide by head_dim ** 0.5, the width of one head, and not by d_out ** 0.5.",
        "wrong",
        "The weights are too flat, and the more heads there are, the flatter.",
    ),
    Mistake(
        "scale-multiplied",
        "The scores are multiplied by the root instead of divided, so the softmax is far too "
        "sharp.",
        "Write / head_dim ** 0.5, or * head_dim ** -0.5.",
        "wrong",
        "The weights are far too sharp: nearly all of a row is on one key.",
    ),
    Mistake(
        "scale-twice",
        "The scores are divided two times, so the softmax is too flat.",
        "Scale once: scaled_dot_product_attention already divides by head_dim ** 0.5.",
        "wrong",
        "The weights are too flat, also with one head.",
    ),
    Mistake(
        "scale-after-softmax",
        "The weights are divided after the softmax, so a row no longer sums to one.",
        "Divide the scores before the softmax, not the weights after it.",
        "wrong",
        "The weights of a row do not sum to one.",
    ),
    Mistake(
        "scale-is-stray-tensor",
        "The scale is a plain tensor attribute, so .to() leaves it behind in another dtype or "
        "on another device.",
        "Use a Python number: head_dim ** 0.5.",
        "edge",
        "Right where it was built; after .to() two dtypes or devices meet.",
    ),
    # Softmax.
    Mistake(
        "softmax-over-queries",
        "Each key's column sums to one instead of each query's row, and the future leaks "
        "through the sum.",
        "Use dim=-1: queries are rows, keys are columns.",
        "wrong",
        "The weights of a row do not sum to one; look at what does.",
    ),
    Mistake(
        "softmax-over-heads",
        "The heads compete with each other instead of the keys, and hidden cells become NaN.",
        "Use dim=-1: in (batch, heads, queries, keys) the last axis is the keys.",
        "wrong",
        "The heads depend on each other: changing one head's weights changes another head.",
    ),
    # Mask.
    Mistake(
        "mask-result-dropped",
        "The masked scores are computed and thrown away, so every token sees the future.",
        "Write scores = scores.masked_fill(...), or scores.masked_fill_(...) with an underscore.",
        "wrong",
        "A later token changes an earlier output, although there is a mask.",
    ),
    Mistake(
        "no-causal-mask",
        "Nothing hides the future, so every token sees the tokens after it.",
        "Hide the cells above the diagonal with -inf before the softmax.",
        "wrong",
        "A later token changes an earlier output.",
    ),
    Mistake(
        "mask-off-by-one",
        "Each token sees one token of the future.",
        "Hide from the first diagonal above the main one: triu(diagonal=1).",
        "wrong",
        "The next token changes an output; the one after it does not.",
    ),
    Mistake(
        "mask-hides-self",
        "No token sees itself, and the first token sees nothing at all: its row becomes NaN.",
        "Keep the main diagonal visible: triu(diagonal=1) marks what to hide.",
        "wrong",
        "The first output is NaN.",
    ),
    Mistake(
        "mask-inverted",
        "The past is hidden and the future is seen.",
        "Hide the upper triangle (triu), keep the lower one (tril).",
        "wrong",
        "A later token changes an earlier output, and an earlier token does not change a later "
        "one.",
    ),
    Mistake(
        "mask-fill-not-inf",
        "Hidden cells get a score near 0, which the softmax turns into a real weight.",
        "Fill hidden cells with -inf before the softmax.",
        "wrong",
        "A hidden token still changes the output, a little.",
    ),
    Mistake(
        "mask-after-softmax",
        "Hidden weights are set to zero after the softmax, so rows sum to less than one and the "
        "future leaks through the sum.",
        "Hide the scores with -inf before the softmax.",
        "wrong",
        "The weights of a row sum to less than one, least in the first rows.",
    ),
    Mistake(
        "sdpa-mask-polarity",
        "scaled_dot_product_attention got a mask in which True means hidden, so each token sees "
        "only what it should not.",
        "Give it the opposite, ~mask: there True means may attend.",
        "wrong",
        "An output depends on the later tokens only.",
    ),
    Mistake(
        "padding-inverted",
        "The filling is seen and the real tokens are hidden.",
        "Say which one True means: here a real token; give ~mask where it marks the filling.",
        "wrong",
        "Changing the filling changes the output; changing a real token does not.",
    ),
    Mistake(
        "mask-fill-too-small",
        "Hidden cells get a large negative number that is not large enough: with large scores "
        "the future leaks.",
        "Fill with -inf, or with torch.finfo(scores.dtype).min.",
        "edge",
        "Right with small numbers; with large ones a later token changes an earlier output.",
    ),
    Mistake(
        "mask-fill-overflows-half",
        "The number that fills hidden cells does not fit into float16, so half precision fails.",
        "Fill with -inf, or with torch.finfo(scores.dtype).min.",
        "edge",
        "Right in float32; in float16 there is an error.",
    ),
    Mistake(
        "mask-not-sliced",
        "The mask is always context_length wide, so shorter texts fail.",
        "Cut the mask to the text: mask[:tokens, :tokens].",
        "wrong",
        "Right when the text is exactly context_length long; a shorter one fails.",
    ),
    Mistake(
        "mask-not-a-buffer",
        "The mask is a plain attribute, so .to(device) leaves it behind.",
        'Write self.register_buffer("mask", ..., persistent=False).',
        "edge",
        "Right where it was built; after .to(device) a tensor is missing there.",
    ),
    # Heads.
    Mistake(
        "split-without-transpose",
        "The view puts numbers of several tokens into one head; with one head nobody notices.",
        "Write view(batch, tokens, heads, head_dim), then transpose(1, 2).",
        "wrong",
        "Right with one head, wrong with two: tokens are mixed where heads are made.",
    ),
    Mistake(
        "merge-without-transpose",
        "The heads are merged before the tokens' axis is back in place, so tokens get mixed.",
        "Write transpose(1, 2) first, then contiguous().view(batch, tokens, d_out).",
        "wrong",
        "Right with one head, wrong with two: tokens are mixed where heads are joined.",
    ),
    Mistake(
        "heads-interleaved",
        "The merged vector takes one number of each head in turn: right after training, wrong "
        "with weights from elsewhere.",
        "Merge in the order (heads, head_dim): transpose(1, 2), then view.",
        "compat",
        "It trains well, but weights from another implementation give another output.",
    ),
    Mistake(
        "heads-folded-into-batch",
        "The view puts numbers of several tokens and heads into one row, so that heads and "
        "tokens are mixed.",
        "Transpose first, (batch, tokens, heads, head_dim) to (batch, heads, tokens, head_dim), "
        "and only then fold batch and heads together.",
        "wrong",
        "Right with one head, wrong with two: what belongs to one head is not in one place.",
    ),
    Mistake(
        "heads-summed",
        "The heads are added or averaged instead of put beside each other, so each head's own "
        "answer is lost.",
        "Put the heads beside each other: transpose(1, 2), then flatten(2), or torch.cat(heads, "
        "dim=-1).",
        "wrong",
        "The output does not change when two heads change places.",
    ),
    Mistake(
        "concat-on-wrong-axis",
        "The heads' outputs are put behind each other as if they were more tokens.",
        "Concatenate along the last axis: torch.cat(heads, dim=-1).",
        "wrong",
        "The output has more tokens than the input.",
    ),
    Mistake(
        "heads-in-python-list",
        "The heads are in a plain list, so their parameters are not the module's: no training, "
        "no saving, no moving.",
        "Write nn.ModuleList([...]).",
        "wrong",
        "The module has fewer parameters than it uses.",
    ),
    Mistake(
        "view-after-transpose",
        "view cannot join axes that transpose has moved, so the forward pass raises RuntimeError.",
        "Write .contiguous().view(...), .reshape(...) or .flatten(2) after the transpose.",
        "wrong",
        "The forward pass raises where shapes change.",
    ),
    Mistake(
        "view-with-d-in",
        "The heads' view uses d_in where d_out belongs, so it fails when the two differ.",
        "Use d_out, or heads and head_dim, after the projections.",
        "wrong",
        "Right when input and output have the same width; fails otherwise.",
    ),
    # Projections.
    Mistake(
        "query-key-swapped",
        "Queries and keys are exchanged: right after training, wrong with weights from elsewhere.",
        "Write queries @ keys.transpose(-2, -1).",
        "compat",
        "It trains well, but weights from another implementation give another output.",
    ),
    Mistake(
        "key-from-query-weights",
        "The keys are computed with W_query, and W_key is never used.",
        "Write keys = self.W_key(x).",
        "wrong",
        "One of your layers gets no gradient.",
    ),
    Mistake(
        "value-from-keys",
        "The values are the keys, and W_value is never used.",
        "Write values = self.W_value(x).",
        "wrong",
        "One of your layers gets no gradient.",
    ),
    Mistake(
        "out-proj-unused",
        "The output projection is built and never called, so the heads are not mixed.",
        "Return self.out_proj(context_vec).",
        "wrong",
        "One of your layers gets no gradient.",
    ),
    Mistake(
        "out-proj-takes-d-in",
        "The output projection expects d_in numbers and gets d_out, so it fails when the two "
        "differ.",
        "Write nn.Linear(d_out, d_out).",
        "wrong",
        "Right when input and output have the same width; fails otherwise.",
    ),
    Mistake(
        "bias-flag-ignored",
        "The projections have a bias although qkv_bias says they have none.",
        "Give it on: nn.Linear(d_in, d_out, bias=qkv_bias).",
        "compat",
        "There are more parameters than the arguments ask for.",
    ),
    Mistake(
        "scores-detached",
        "The result is right, but no gradient reaches W_query and W_key, so they never learn.",
        "Remove .detach(), .data and no_grad from the way to the scores.",
        "wrong",
        "The output is right, but two of your layers get no gradient.",
    ),
    Mistake(
        "in-place-breaks-autograd",
        "A tensor that the backward pass still needs is changed in place, so training raises "
        "RuntimeError.",
        "Write q = q * s instead of q *= s.",
        "wrong",
        "The forward pass works; the backward pass raises.",
    ),
    # Dropout.
    Mistake(
        "dropout-in-eval",
        "Weights are dropped outside training too, so the same input gives different outputs.",
        "Use nn.Dropout, or give dropout_p=p if self.training else 0.0.",
        "wrong",
        "The same input gives two different outputs in eval mode.",
    ),
    Mistake(
        "dropout-unused",
        "Dropout is built and never called, so training drops nothing.",
        "Call self.dropout on the weights, after the softmax.",
        "wrong",
        "The same input gives the same output in training mode, although dropout is on.",
    ),
    Mistake(
        "dropout-rescaled-twice",
        "The kept weights are scaled up two times, so outputs are too large.",
        "Leave the scaling to nn.Dropout: it divides by 1 - p in training and does nothing else.",
        "wrong",
        "Outputs are too large by a factor that depends on the dropout.",
    ),
    Mistake(
        "dropout-before-softmax",
        "Dropout sets scores to zero, and a score of zero is a real weight after the softmax.",
        "Call dropout on the weights, after the softmax.",
        "wrong",
        "Right in eval mode; in training the first row never loses a weight.",
    ),
    # The class itself.
    Mistake(
        "no-super-init",
        "The class sets layers before nn.Module is ready, so building it raises AttributeError.",
        "Call super().__init__() first in __init__.",
        "wrong",
        "The object cannot be built.",
    ),
    Mistake(
        "misspelled-init",
        "The constructor has another name, so Python uses nn.Module's own and its arguments do "
        "not fit.",
        "Write def __init__ with two underscores on each side.",
        "wrong",
        "The object cannot be built with its arguments.",
    ),
    Mistake(
        "misspelled-forward",
        "No method is called forward, so calling the module raises NotImplementedError.",
        "Write def forward(self, x).",
        "wrong",
        "The object can be built, but not called.",
    ),
)
