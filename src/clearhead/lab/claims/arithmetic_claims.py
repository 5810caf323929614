"""Claims about scores, scaling and softmax."""

from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead import ladder
from clearhead.lab.claims.claim import EQUAL, Finding, claim, does_not_hold, holds, holds_if, short


def _gap(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest expected number."""
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


@claim("rows-sum-to-one", "Each row of the attention weights sums to one.")
def rows_sum_to_one(
    softmax: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(dim=-1), *, seed: int = 0
) -> Finding:
    """Random scores; the row sums after softmax, and after the dropout of training.

    Dropout of 0.1 sets a tenth of the weights to zero and divides the others by 0.9. A row then
    sums to one only on average.
    """
    torch.manual_seed(seed)
    weights = softmax(torch.randn(8, 12, 64, 64, dtype=torch.float64))
    off = (weights.sum(-1) - 1).abs().max().item()
    dropped = F.dropout(weights, 0.1).sum(-1)
    low, high = dropped.min().item(), dropped.max().item()
    figure = f"sums are 1 ± {short(off)}; with dropout 0.1 they are {low:.2f} to {high:.2f}"
    spread = "smallest and largest of 6,144 rows"
    if off > EQUAL:
        return does_not_hold(f"sums are 1 ± {short(off)}", spread, off=off)
    return holds_if("no weight is dropped", figure, spread, off=off, dropped=[low, high])


@claim("dot-product-variance", "The variance of the dot product of a query and a key is d_k.")
def dot_product_variance(
    draw: Callable[[int, int], Tensor] = torch.randn,
    *,
    widths: Sequence[int] = (16, 64, 256, 1024),
    seed: int = 0,
) -> Finding:
    """20,000 queries and keys of each width; the variance of their dot products, divided by d_k.

    The sum of d_k independent products has d_k times the variance of one product, which is 1 if
    both entries have mean 0 and variance 1. PyTorch initialises nn.Linear with weights of variance
    1 / (3 d_in), so queries and keys have variance 1/3, and their dot products d_k / 9.
    """
    torch.manual_seed(seed)

    def ratio(queries: Tensor, keys: Tensor) -> float:
        return ((queries * keys).sum(-1).var() / queries.shape[-1]).item()

    drawn = {d: ratio(draw(20_000, d), draw(20_000, d)) for d in widths}
    with torch.no_grad():
        x, y = torch.randn(2, 20_000, 64)
        fresh = ratio(nn.Linear(64, 64, bias=False)(x), nn.Linear(64, 64, bias=False)(y))
    low, high = min(drawn.values()), max(drawn.values())
    spread = f"{low:.2f} to {high:.2f} over d_k {widths[0]} to {widths[-1]}"
    if not 0.95 < low <= high < 1.05:
        return does_not_hold(f"variance / d_k is {low:.2f} to {high:.2f}", spread, ratios=drawn)
    return holds_if(
        "the entries are independent, with mean 0 and variance 1",
        f"variance / d_k is {sum(drawn.values()) / len(drawn):.2f}; after a new nn.Linear "
        f"{fresh:.2f}",
        spread,
        ratios=drawn,
        fresh_linear=fresh,
    )


def _unscaled(d_k: int) -> float:
    """The factor on the scores when they are not scaled."""
    return 1.0


@claim("softmax-saturates", "Without the division by √d_k, softmax saturates.")
def softmax_saturates(
    scale: Callable[[int], float] = _unscaled,
    *,
    widths: Sequence[int] = (4, 16, 64, 256, 1024),
    seed: int = 0,
) -> Finding:
    """Normally distributed queries and 32 keys: the share of the weight on the largest score.

    Saturated means here that the largest weight is above 0.75 on average. With the division it
    stays near 0.17 at every width.
    """
    torch.manual_seed(seed)
    largest, error = {}, 0.0
    for d in widths:
        queries, keys = torch.randn(2000, d), torch.randn(32, d)
        weights = torch.softmax(queries @ keys.T * scale(d), dim=-1)
        first_choice = weights.max(dim=-1).values
        largest[d] = first_choice.mean().item()
        error = max(error, first_choice.std().item() / 2000**0.5)
    figure = "largest weight " + ", ".join(f"{w:.2f} at d_k {d}" for d, w in largest.items())
    spread = f"means over 2,000 queries, standard error {error:.3f} at most"
    saturated = [d for d in widths if largest[d] > 0.75]
    if not saturated:
        return does_not_hold(figure, spread, largest=largest)
    return holds_if(f"d_k is about {min(saturated)} or more", figure, spread, largest=largest)


def _softmax_derivative(d_k: int, factor: float) -> float:
    """The norm of d weights / d scores in a typical (median) row of 32 keys."""
    queries, keys = torch.randn(500, d_k), torch.randn(32, d_k)
    weights = torch.softmax(queries @ keys.T * factor, dim=-1)
    derivative = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    return float(derivative.flatten(1).norm(dim=1).median())


def _gradient_at_query(d_k: int, factor: float) -> float:
    """The norm of the gradient at W_query, in a new rung 2 trained towards random vectors."""
    x, target = torch.randn(2, 64, d_k)
    attention = ladder.SelfAttention(d_k, d_k)
    weights = torch.softmax(attention.W_query(x) @ attention.W_key(x).T * factor, dim=-1)
    loss = F.mse_loss(weights @ attention.W_value(x), target)
    return float(torch.autograd.grad(loss, attention.W_query.weight)[0].norm())


@claim("gradients-vanish", "Without the division by √d_k, gradients become tiny.")
def gradients_vanish(
    scale: Callable[[int], float] = _unscaled,
    *,
    widths: Sequence[int] = (16, 64, 256, 1024),
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
) -> Finding:
    """Two gradients, each as a ratio: without the division to with it. Tiny means below a tenth.

    The derivative of softmax itself does become tiny in a typical row. But the division is part of
    the chain rule too: without it, the rest of the chain is √d_k times as large, and the rows that
    are not saturated make up for all the others. The gradient at W_query gets larger, not smaller.
    """
    ratios: dict[str, dict[int, list[float]]] = {"softmax": {}, "W_query": {}}
    for name, size in (("softmax", _softmax_derivative), ("W_query", _gradient_at_query)):
        for d in widths:
            ratios[name][d] = []
            for seed in seeds:
                torch.manual_seed(seed)
                without = size(d, scale(d))
                torch.manual_seed(seed)
                ratios[name][d].append(without / size(d, d**-0.5))
    middle = {name: {d: median(r) for d, r in of.items()} for name, of in ratios.items()}
    tiny = {name: [d for d in widths if max(ratios[name][d]) < 0.1] for name in ratios}
    last = widths[-1]
    figure = "; ".join(
        f"{name} × " + ", ".join(f"{short(of[d])} at d_k {d}" for d in widths)
        for name, of in middle.items()
    )
    spread = f"medians of {len(seeds)} seeds; at d_k {last} " + ", ".join(
        f"{name} {short(min(of[last]))} to {short(max(of[last]))}" for name, of in ratios.items()
    )
    if tiny["W_query"] and tiny["softmax"]:
        return holds_if(f"d_k is {max(map(min, tiny.values()))} or more", figure, spread, **ratios)
    if tiny["softmax"]:
        enough = min(tiny["softmax"])
        condition = f"only softmax's own derivative counts and d_k is {enough} or more"
        return holds_if(condition, figure, spread, **ratios)
    return does_not_hold(figure, spread, **ratios)


@claim("root-of-d-out", "Multi-head scores are divided by √d_out.")
def scale_by_root_of_d_out(
    width: Callable[[int, int], int] = lambda d_out, head_dim: d_out, *, seed: int = 0
) -> Finding:
    """The output with √width, compared with PyTorch's attention, for 1 and for 12 heads of 64.

    A score is a dot product over head_dim numbers, so it has to be divided by √head_dim. With one
    head, the two are equal.
    """
    torch.manual_seed(seed)
    gaps = {}
    for heads in (1, 12):
        # Queries and keys of standard deviation 3, so that the weights are far from uniform.
        queries, keys = 3 * torch.randn(2, 2, heads, 16, 64, dtype=torch.float64)
        values = torch.randn(2, heads, 16, 64, dtype=torch.float64)
        scores = queries @ keys.transpose(-2, -1) / width(heads * 64, 64) ** 0.5
        right = F.scaled_dot_product_attention(queries, keys, values)
        gaps[heads] = _gap(torch.softmax(scores, dim=-1) @ values, right)
    figure = f"output off by {short(gaps[1])} with 1 head, by {short(gaps[12])} with 12"
    spread = "the largest difference, relative to the largest output"
    if max(gaps.values()) < EQUAL:
        return holds(figure, spread, gaps=gaps)
    if gaps[1] < EQUAL:
        return holds_if("there is one head", figure, spread, gaps=gaps)
    return does_not_hold(figure, spread, gaps=gaps)


@claim("one-matrix", "W_query and W_key could be one matrix.")
def one_matrix_for_query_and_key(
    matrices: Callable[[int, int], Tensor] = lambda d, head_dim: torch.randn(
        2, d, head_dim, dtype=torch.float64
    ),
    *,
    bias: float = 0.0,
    seed: int = 0,
) -> Finding:
    """Two interpretations: one matrix in place of their product, and one matrix used for both.

    A score is x_i W_query W_keyᵀ x_jᵀ, so only the product matters. It is d_in × d_in for each
    head, which is more parameters, not fewer: 12 × 768² instead of 2 × 768² in GPT-2 small. One
    matrix used for both makes the scores symmetric: before softmax, "cat" then attends to "sat"
    exactly as much as "sat" to "cat".
    """
    torch.manual_seed(seed)
    d, head_dim = 24, 8
    x = torch.randn(10, d, dtype=torch.float64)
    w_query, w_key = matrices(d, head_dim)
    scores = (x @ w_query + bias) @ (x @ w_key + bias).T
    product_gap = _gap(x @ (w_query @ w_key.T) @ x.T, scores)
    mirror_gap = _gap(scores.T, scores)
    rank = int(torch.linalg.matrix_rank(w_query @ w_key.T))
    figure = (
        f"their product gives the same scores (gap {short(product_gap)}, rank {rank} of {d}); "
        f"one for both forces symmetry, from which real scores differ by {short(mirror_gap)}"
    )
    spread = "largest difference over 100 scores, relative to the largest"
    numbers = {"product_gap": product_gap, "mirror_gap": mirror_gap, "rank": rank}
    if product_gap > EQUAL:
        return does_not_hold(f"scores differ by {short(product_gap)}", spread, **numbers)
    if mirror_gap > EQUAL:
        return holds_if("it is the product of the two", figure, spread, **numbers)
    return holds(figure, spread, **numbers)


@claim("blind-to-order", "Attention without positions is blind to the order of the tokens.")
def blind_to_order(
    add_positions: Callable[[Tensor], Tensor] = lambda x: x, *, seed: int = 0
) -> Finding:
    """The tokens are shuffled. Is the output the same, shuffled in the same way?

    Without a mask, it is. With a causal mask, after one layer the last token still sees the others
    as an unordered set. After a second layer it does not: the tokens it attends to have themselves
    seen different tokens, depending on what came before them.
    """
    torch.manual_seed(seed)
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    order = torch.cat([torch.randperm(8), torch.tensor([8])])  # the last token stays last
    shuffled = x[:, order]
    encoder = ladder.EncoderAttention(16, 4).double()
    first, second = (ladder.MultiHeadAttention(16, 16, 9, 0.0, 4).double() for _ in range(2))

    def last(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
        x = add_positions(x)
        for layer in layers:
            x = x + layer(x)
        return x[:, -1]

    with torch.no_grad():
        plain = encoder(add_positions(x))[0][:, order]
        unmasked = _gap(encoder(add_positions(shuffled))[0], plain)
        one = _gap(last([first], shuffled), last([first], x))
        two = _gap(last([first, second], shuffled), last([first, second], x))
    figure = (
        f"change by shuffling: {short(unmasked)} unmasked; causal, last token: "
        f"{short(one)} after one layer, {short(two)} after two"
    )
    spread = "largest difference, relative to the largest output"
    numbers = {"unmasked": unmasked, "one_causal_layer": one, "two_causal_layers": two}
    if unmasked > EQUAL:
        return does_not_hold(figure, spread, **numbers)
    if two > EQUAL:
        return holds_if("there is no causal mask", figure, spread, **numbers)
    return holds(figure, spread, **numbers)
