"""Findings that are not in the catalogue of mistakes; docs/mistakes.md has a section for each."""

from clearhead.checker.catalogue.mistakes import MISTAKES

# id -> severity, says, fix.
UNLISTED: dict[str, tuple[str, str, str]] = {
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
    "softmax-no-keepdim": (
        "wrong",
        "The exponentials are divided by sums that stand along the wrong axis, so rows do not sum "
        "to one.",
        "Keep the axis: e / e.sum(dim=-1, keepdim=True), or call softmax(dim=-1).",
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
    "arguments-crossed": (
        "wrong",
        "Two arguments change places on their way to an inner class: the dropout sets the bias, "
        "and the bias sets the dropout.",
        "Give them by name: Head(d_in, d_out, dropout=dropout, qkv_bias=qkv_bias).",
    ),
    "heads-share-projection": (
        "compat",
        "Each head projects its own part of the input, all heads with the same small weights.",
        "Project first, with nn.Linear(d, d), and split into heads afterwards.",
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
    "values-not-mixed": (
        "wrong",
        "The weights of a row are summed up before they meet the values, so that each token gets "
        "its own values back and nothing of the others.",
        "Let the weights' last axis meet the values' tokens: weights @ values, or "
        'einsum("bhij,bhjd->bhid", weights, values).',
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
    "kv-heads-do-not-match": (
        "wrong",
        "Keys and values are given to the query heads in two different orders, so that a head "
        "scores with one key head and mixes the values of another.",
        "Expand both alike: repeat_interleave(groups, dim=1) for the keys and for the values.",
    ),
    "breaks-with-length": (
        "wrong",
        "It is attention at some lengths of text, and something else at others.",
        "Count positions from the start of the text, not from the start of a block or a buffer.",
    ),
    "depends-on-earlier-call": (
        "wrong",
        "Something kept from an earlier text, as a mask that was made for its length, is used for "
        "the next one, which it does not fit.",
        "Make it anew when it does not fit: if self.mask is None or len(self.mask) < tokens.",
    ),
    "never-learns": (
        "wrong",
        "Some weights can never learn: no gradient reaches them, or it is zero at the start and "
        "stays zero while the others learn.",
        "Compute with tensors from the weights to the output, without float(), .item() and math; "
        "start with random numbers: of two weights that are multiplied, only one may start at "
        "zero.",
    ),
    "changes-its-input": (
        "wrong",
        "The caller's own tensor is changed in place, so that a residual, or whatever else reads "
        "it afterwards, gets other numbers.",
        "Make a new tensor: x = x + positions, not x += positions.",
    ),
    "keeps-its-graph": (
        "wrong",
        "A tensor that was computed from weights is kept for the next call, with its graph: the "
        "second step of training fails, and new weights are not seen.",
        "Keep only what does not depend on weights, such as indices; compute the rest anew.",
    ),
    "padding-gives-nan": (
        "wrong",
        "A text that begins with much filling gives NaN at its real tokens.",
        "A running maximum of nothing but -inf must not be subtracted: clamp it to a finite number "
        "before exp.",
    ),
    "padding-on-queries": (
        "wrong",
        "The mask of the filling is laid along the queries, so real tokens still see the filling.",
        "Lay it along the last axis, the keys: mask[:, None, None, :].",
    ),
    "padding-in-other-texts": (
        "wrong",
        "The mask of one text's filling reaches other texts of the batch: it is repeated for the "
        "heads in another order than the scores have.",
        "With scores of (batch * heads, ...), repeat each text's mask heads times in a row: "
        "mask.repeat_interleave(heads, dim=0), not mask.repeat(heads, 1).",
    ),
    "attends-across-batch": (
        "wrong",
        "Tokens see the same place of the other texts in the batch, and not their own text.",
        "Give (tokens, batch, d), or write nn.MultiheadAttention(..., batch_first=True).",
    ),
    "cached-mask-misaligned": (
        "wrong",
        "With a cache the causal mask starts at the first key again, so that a new token sees only "
        "the beginning of the text.",
        "Align the mask to the end: query i of n new ones may see key j if j <= past + i; one new "
        "token alone needs no mask.",
    ),
    "cache-differs": (
        "wrong",
        "Token by token with the cache, the output is another one than for the whole text.",
        "Append the new keys and values, and count positions and mask from the past's length.",
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
    "made-on-cpu": (
        "edge",
        "A tensor is made on the CPU, wherever the input is, so it fails on a GPU.",
        "Say where: torch.ones(n, n, device=x.device), or keep it as a buffer.",
    ),
    "one-dtype-only": (
        "edge",
        "A tensor is made in float32, whatever the input is, so other dtypes fail.",
        "Say which: dtype=x.dtype, or cast back before the next product.",
    ),
    "fails-with-one-sentence": (
        "edge",
        "A batch of one sentence fails, or gives another output than in a larger batch.",
        "Leave the batch axis alone: squeeze only an axis that you name, and never axis 0.",
    ),
    "training-differs": (
        "wrong",
        "Training computes something else than evaluation, also without dropout.",
        "Let only dropout depend on self.training.",
    ),
    "norm-over-wrong-axis": (
        "wrong",
        "Queries and keys are normed over another axis than head_dim, so that their length "
        "depends on other heads or other tokens.",
        "Write F.normalize(q, dim=-1): without dim, axis 1 is taken.",
    ),
    "rotary-pairs-mixed": (
        "wrong",
        "The angles are laid out for one way to pair numbers, and the numbers are turned in the "
        "other way, so that it is no rotation and depends on where the text begins.",
        "With rotate_half write torch.cat((angles, angles), dim=-1); repeat_interleave(2) belongs "
        "to neighbouring pairs.",
    ),
    "rotary-on-one-side": (
        "wrong",
        "Only the queries or only the keys are turned, so scores depend on where the text begins.",
        "Turn queries and keys both, by the same angles.",
    ),
    "rotary-on-values": (
        "wrong",
        "The values are turned too, so what is mixed depends on its place.",
        "Turn queries and keys only.",
    ),
    "rotary-unused": (
        "wrong",
        "Forward takes the angles of rotary positions and turns nothing.",
        "Turn queries and keys by the angles before the scores.",
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


def emitted() -> frozenset[str]:
    """Every id that a report can carry."""
    outside = {"cannot-run", "not-what-was-asked"}  # said of files, and by a policy
    return frozenset({*(mistake.id for mistake in MISTAKES), *UNLISTED, *outside})
