"""Claims about masks: when to apply them, what they prevent, and what -1e9 does."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead import ladder
from clearhead.kernels import attend
from clearhead.lab.claims.claim import EQUAL, Finding, claim, does_not_hold, holds, holds_if, short
from clearhead.masks import Mask


def _future(tokens: int) -> Tensor:
    """True above the diagonal: what a causal mask hides."""
    return torch.ones(tokens, tokens, dtype=torch.bool).triu(diagonal=1)


@claim("mask-and-scaling", "Masking before or after scaling gives the same result.")
def mask_before_or_after_scaling(fill: float = -torch.inf, *, seed: int = 0) -> Finding:
    """Both orders on the same scores, masked with -inf and with -1e9.

    -inf / √d_k is -inf. A finite number shrinks: -1e9 / 8 is still far below every score, -20 / 8
    is not.
    """
    torch.manual_seed(seed)
    scores = 8 * torch.randn(4, 12, 32, 32, dtype=torch.float64)  # about what d_k = 64 gives
    future, root = _future(32), 64**0.5

    def gap(fill: float) -> float:
        before = torch.softmax(scores.masked_fill(future, fill) / root, dim=-1)
        after = torch.softmax((scores / root).masked_fill(future, fill), dim=-1)
        return (before - after).abs().max().item()

    exact, finite = gap(fill), gap(-1e9)
    figure = f"largest difference {short(exact)} with {fill:g}, {short(finite)} with -1e9"
    spread = "over 49,152 weights"
    if exact > EQUAL:
        return does_not_hold(f"largest difference {short(exact)} with {fill:g}", spread, gap=exact)
    return holds(figure, spread, gap=exact, gap_of_1e9=finite)


def _cut_off(weights: Tensor, future: Tensor) -> Tensor:
    """Mask after softmax: set the hidden weights to zero."""
    return weights.masked_fill(future, 0.0)


@claim("mask-after-softmax", "Masking after softmax gives the same result as masking before it.")
def mask_after_softmax(
    mask: Callable[[Tensor, Tensor], Tensor] = _cut_off, *, seed: int = 0
) -> Finding:
    """Weights set to zero after softmax, then also divided by their new sum.

    Softmax divides by a sum that includes the hidden scores. So the rows do not sum to one, and a
    later token still changes an earlier output: through that sum. Dividing each row by its new sum
    fixes both.
    """
    torch.manual_seed(seed)
    scores = torch.randn(4, 12, 32, 32, dtype=torch.float64)
    future = _future(32)
    right = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
    late = mask(torch.softmax(scores, dim=-1), future)
    sums = late.sum(-1)
    changed = scores.clone()
    changed[..., -1] += 3.0  # the last token's key, which only the last query may see
    leak = (mask(torch.softmax(changed, dim=-1), future) - late)[..., :-1, :].abs().max().item()
    gap = (late - right).abs().max().item()
    divided = (late / sums[..., None] - right).abs().max().item()
    figure = (
        f"weights off by up to {short(gap)}, rows sum to {sums.min():.2f} or more, a later token "
        f"changes an earlier weight by {short(leak)}; divided by their sums, they are off by "
        f"{short(divided)}"
    )
    spread = "over 49,152 weights"
    # "mended" is a key of the first edition's JSON, which programs may read.
    numbers = {"gap": gap, "smallest_sum": sums.min().item(), "leak": leak, "mended": divided}
    if gap < EQUAL:
        return holds(f"largest difference {short(gap)}", spread, **numbers)
    if divided < EQUAL:
        return holds_if("each row is divided by its sum again", figure, spread, **numbers)
    return does_not_hold(figure, spread, **numbers)


def _causal(tokens: int) -> nn.Module:
    return ladder.MultiHeadAttention(16, 16, tokens, 0.0, num_heads=4)


@claim("mask-future", "With the causal mask, no output depends on a later token.")
def mask_hides_the_future(
    build: Callable[[int], nn.Module] = _causal, *, seeds: Sequence[int] = range(10)
) -> Finding:
    """One token is replaced by another; the outputs before it must not change by a single bit."""
    moved, later = 0.0, []
    for seed in seeds:
        torch.manual_seed(seed)
        attention = build(20).double()
        x = torch.randn(1, 20, 16, dtype=torch.float64)
        position = int(torch.randint(1, 20, ()))
        changed = x.clone()
        changed[:, position] = torch.randn(16, dtype=torch.float64)
        with torch.no_grad():
            change = (attention(changed) - attention(x)).abs()
        moved = max(moved, change[:, :position].max().item())
        later.append(change[:, position:].max().item())
    figure = f"earlier outputs change by {short(moved)}, the others by {short(min(later))} or more"
    spread = f"the largest over {len(seeds)} seeds, each with its own module and position"
    verdict = does_not_hold if moved > 0 else holds
    return verdict(figure, spread, moved=moved, later=later)


@claim("minus-1e9", "-1e9 is as good as -inf.")
def minus_1e9(fill: float = -1e9, *, seed: int = 0) -> Finding:
    """Compared with -inf: ordinary rows in float32, in float16, and a row with all keys hidden.

    The largest float16 is 65,504, and PyTorch refuses to mask with a larger number. In a row with
    all keys hidden, all scores are -1e9, so softmax spreads the weight evenly over keys that should
    be hidden. -inf gives NaN there, which at least gets noticed.
    """
    torch.manual_seed(seed)
    scores, future = torch.randn(4, 12, 32, 32), _future(32)

    def weights(scores: Tensor, hidden: Tensor, fill: float) -> Tensor:
        return torch.softmax(scores.masked_fill(hidden, fill), dim=-1)

    gap = (weights(scores, future, fill) - weights(scores, future, -torch.inf)).abs().max().item()
    try:
        weights(scores.half(), future, fill)
        half = "works"
    except RuntimeError as error:
        half = f"raises RuntimeError ({error})"
    everything = torch.ones(32, 32, dtype=torch.bool)
    empty = weights(scores, everything, fill).max().item()  # NaN with -inf
    figure = (
        f"float32: weights differ by {short(gap)}; float16: {half}; "
        f"a fully hidden row gets weights up to {empty:.2f}"
    )
    spread = "over 49,152 weights"
    numbers = {"gap": gap, "float16": half, "largest_weight_in_hidden_row": str(empty)}
    if gap > EQUAL:
        return does_not_hold(figure, spread, **numbers)
    if half != "works" or not math.isnan(empty):
        condition = "the numbers are not float16 and every row keeps a key"
        return holds_if(condition, figure, spread, **numbers)
    return holds(figure, spread, **numbers)


def _written_out(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1) @ v


def _fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def _ours(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return attend(q, k, v, Mask.custom(visible))


Way = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
WAYS: dict[str, Way] = {
    "softmax written out": _written_out,
    "PyTorch's fused kernel": _fused,
    "Clearhead": _ours,
}


@claim("fully-masked-row", "A query that may attend to nothing gets NaN.")
def fully_masked_row(ways: dict[str, Way] = WAYS, *, seed: int = 0) -> Finding:
    """One query of five sees no key: its output, and the gradient of a loss that ignores it.

    Softmax of a row of -inf is 0 / 0. One such row, for instance from padding, makes the gradient
    of all values NaN even if the loss ignores its output, because NaN × 0 is NaN.
    """
    torch.manual_seed(seed)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    visible[3] = False
    found = {}
    for name, way in ways.items():
        q, k, v = torch.randn(3, 1, 2, 5, 8).unbind()
        v.requires_grad_()
        output = way(q, k, v, visible)
        gradient = torch.autograd.grad(output[:, :, :3].sum(), v)[0]
        row = output[:, :, 3]
        what = "NaN" if row.isnan().any() else "zeros" if not row.any() else "numbers"
        found[name] = what + (", gradients NaN" if gradient.isnan().any() else "")
    figure = "; ".join(f"{name}: {what}" for name, what in found.items())
    spread = f"{len(found)} implementations; which of them fail is not random"
    nan = [name for name, what in found.items() if what.startswith("NaN")]
    if len(nan) == len(found):
        return holds(figure, spread, **found)
    if nan:
        return holds_if(f"computed by {' or '.join(nan)}", figure, spread, **found)
    return does_not_hold(figure, spread, **found)
