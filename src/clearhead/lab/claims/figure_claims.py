"""Claims that are numbers: what textbooks and notes print, computed again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from clearhead import attention, costs
from clearhead.configs import GPT2_CONFIGS, find_config
from clearhead.explainer.examples import BOOK_VECTORS
from clearhead.lab.claims.claim import EXACT, Finding, claim, does_not_hold, holds, holds_if

Rows = Sequence[Sequence[float]]

SCORES = ((0.5, 0.7, 0.3, 0.9), (0.4, 0.6, 0.8, 0.2), (0.3, 0.5, 0.4, 0.7), (0.6, 0.4, 0.5, 0.8))


def _compare(printed: Rows, scores: Rows, digits: int = 2) -> Finding:
    """Whether the printed rows are the softmax of the scores, to the printed digits."""
    right = [torch.tensor(row, dtype=torch.float64).softmax(0).tolist() for row in scores]
    pairs = [(p, r) for said, row in zip(printed, right, strict=True) for p, r in zip(said, row)]  # noqa: B905  # a causal row is shorter
    off = max(abs(p - r) for p, r in pairs)
    shown = " / ".join(" ".join(f"{r:.{digits}f}" for r in row) for row in right)
    sums = ", ".join(f"{sum(row):.2f}" for row in printed)
    figure = f"softmax gives {shown}: off by up to {off:.{digits + 1}f}; printed rows sum to {sums}"
    verdict = holds if off <= 0.5 * 10**-digits + 1e-12 else does_not_hold
    return verdict(figure, EXACT, off=off, right=right)


@claim("cat-weights", "The scores .1 .8 .5 on The, cat, sat become the weights .1 .7 .2.")
def cat_weights(printed: Sequence[float] = (0.1, 0.7, 0.2)) -> Finding:
    """Softmax of three numbers. The printed weights sum to one, but they are not its result."""
    return _compare([printed], [(0.1, 0.8, 0.5)])


@claim(
    "four-by-four-weights",
    "The 4 × 4 scores of the mask picture become 1.0 / .3 .7 / .2 .3 .5 / .1 .2 .3 .4.",
)
def four_by_four_weights(
    printed: Rows = ((1.0,), (0.3, 0.7), (0.2, 0.3, 0.5), (0.1, 0.2, 0.3, 0.4)),
) -> Finding:
    """Softmax of what the causal mask leaves of each row.

    The source also divides by √256 before softmax. With scores so close together, all weights are
    then nearly equal.
    """
    visible = [row[: i + 1] for i, row in enumerate(SCORES)]
    found = _compare(printed, visible)
    divided = [torch.tensor(row, dtype=torch.float64).div(256**0.5).softmax(0) for row in visible]
    uneven = max((weights - 1 / len(weights)).abs().max().item() for weights in divided)
    return replace(
        found, figure=f"{found.figure}; divided by √256, all are within {uneven:.3f} of uniform"
    )


@claim("journey-weights", 'The weights of "journey" are .14 .24 .23 .13 .11 .16.')
def journey_weights(printed: Sequence[float] = (0.14, 0.24, 0.23, 0.13, 0.11, 0.16)) -> Finding:
    """Rung 1 on the book's vectors: dot products with "journey", then softmax.

    The fourth weight is .1240, which rounds to .12. The printed weights sum to 1.01.
    """
    x = torch.tensor(BOOK_VECTORS, dtype=torch.float64)
    return _compare([printed], [(x @ x[1]).tolist()])


@claim("gpt2-parameters", "GPT-2 has 117M, 345M and 762M parameters (small, medium, large).")
def gpt2_parameters(
    printed: Mapping[str, int] = {"gpt2-small": 117, "gpt2-medium": 345, "gpt2-large": 762},
) -> Finding:
    """All parameters of the released sizes; the output head shares the token embedding's."""
    real = {name: costs.parameters(GPT2_CONFIGS[name])["total"] for name in printed}
    figure = ", ".join(f"{name.removeprefix('gpt2-')} {count:,}" for name, count in real.items())
    fits = all(round(real[name] / 1e6) == millions for name, millions in printed.items())
    return (holds if fits else does_not_hold)(figure, EXACT, **real)


@claim("attention-parameters", "Attention of width 768 has 2,359,296 parameters.")
def attention_parameters(
    build: Callable[[], nn.Module] = lambda: attention.MultiHeadAttention(
        768, 768, 1024, 0.1, num_heads=12
    ),
    *,
    printed: int = 2_359_296,
) -> Finding:
    """Counted in a module. 4 × 768² leaves out the 768 biases of the output projection."""
    module = build()
    count = sum(parameter.numel() for parameter in module.parameters())
    biases = sum(p.numel() for name, p in module.named_parameters() if name.endswith("bias"))
    with_qkv = count + 3 * 768
    figure = f"{count:,}, of them {biases:,} biases; {with_qkv:,} with qkv_bias as in GPT-2"
    return (holds if count == printed else does_not_hold)(figure, EXACT, count=count)


@claim("gpt2-24-heads", "GPT-2 medium has 24 heads and large has 36.")
def medium_has_24_heads(
    printed: Mapping[str, int] = {"gpt2-medium": 24, "gpt2-large": 36},
) -> Finding:
    """24 and 36 are the numbers of layers. Neither divides the width, so this cannot be built."""
    words, fits = [], True
    for name, heads in printed.items():
        config = find_config(name)
        width, left = config["d_model"], config["d_model"] % heads
        fits &= heads == config["num_heads"]
        words.append(
            f"{name.removeprefix('gpt2-')}: {config['num_heads']} heads, {config['num_layers']} "
            f"layers, {width} / {heads} leaves {left}"
        )
    return (holds if fits else does_not_hold)("; ".join(words), EXACT)


@claim("gpt2-qkv-bias", "GPT-2 has no bias on queries, keys and values.")
def gpt2_without_qkv_bias(qkv_bias: bool = False, *, released: int = 124_439_808) -> Finding:
    """The parameters of the small size, compared with those in the released file.

    The book's default of False is its own choice; the released weights do not fit without biases.
    """
    config = find_config("gpt2-small")
    config["qkv_bias"] = qkv_bias
    count = costs.parameters(config)["total"]
    figure = f"{count:,} parameters, the released file has {released:,}: {released - count:,} more"
    return (holds if count == released else does_not_hold)(figure, EXACT, count=count)


@claim("256-in-12-heads", "With d_in 256 and 12 heads, head_dim is 64.")
def heads_of_256(
    head_dim: Callable[[int, int], int] = lambda d_out, heads: (
        attention.MultiHeadAttention(256, d_out, 16, 0.0, heads).head_dim
    ),
) -> Finding:
    """Modules with d_in 256, built with d_out 256 and with d_out 768.

    head_dim is d_out / heads and does not depend on d_in. 256 / 12 is not an integer.
    """
    found: dict[int, int | str] = {}
    for d_out in (256, 768):
        try:
            found[d_out] = head_dim(d_out, 12)
        except ValueError as error:
            found[d_out] = f"ValueError ({str(error).splitlines()[0]})"
    figure = "; ".join(f"d_out {d_out}: {what}" for d_out, what in found.items())
    if found[256] == 64:
        return holds(figure, EXACT)
    if found[768] == 64:
        return holds_if("d_out is 768", figure, EXACT)
    return does_not_hold(figure, EXACT)
