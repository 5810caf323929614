"""What right attention may have beyond the plain form, with the numbers that were found for it.

scales    a learned temperature: every head multiplies its scores by a number of its own
unit      cosine attention: queries and keys have length one
added     a bias of positions, added to the scores: ALiBi, T5's buckets, a learned table
before    talking heads: scores are mixed between the heads
after     likewise for the weights, after the softmax
sink      a score of its own for each head, in the softmax only: weights may go nowhere
cap       scores are held below a number, by a tanh
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Terms:
    """Additions to plain attention.

    Args:
        scales: (heads,), in place of 1 / √head_dim, or None.
        unit: Over which axis queries and keys are normed: "" for none, "width" for each head's
            own vector (which is right), "heads" or "tokens" for the wrong ones.
        added: (heads, queries, keys), or None.
        before: (heads, heads): the scores of head g are the sum of scores[h] * before[h, g].
        after: The same for the weights.
        learned: Whether a parameter holds the scales.
        sink: (heads,), or None.
        cap: The largest score, or None.
    """

    scales: Tensor | None = None
    unit: str = ""
    added: Tensor | None = None
    before: Tensor | None = None
    after: Tensor | None = None
    learned: bool = False
    sink: Tensor | None = None
    cap: float | None = None

    def normed(self, x: Tensor) -> Tensor:
        """Queries or keys, (batch, heads, tokens, head_dim)."""
        return unit(x, self.unit) if self.unit else x

    def scored(self, scores: Tensor) -> Tensor | None:
        """Scores that are not scaled yet, with what comes on top; None at another length."""
        if self.scales is not None:
            scores = scores * self.scales[:, None, None]
        if self.before is not None:
            scores = torch.einsum("bhqk,hg->bgqk", scores, self.before)
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        if self.added is None:
            return scores
        return scores + self.added if self.added.shape[1:] == scores.shape[2:] else None

    def with_sink(self, scores: Tensor) -> Tensor:
        """The weights, with a part that goes nowhere if there is a sink."""
        if self.sink is None:
            return scores.softmax(-1)
        sinks = self.sink[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]

    def mixed(self, weights: Tensor) -> Tensor:
        """Weights after the softmax."""
        if self.after is None:
            return weights
        return torch.einsum("bhqk,hg->bgqk", weights, self.after)

    def in_words(self) -> list[str]:
        """One sentence for each addition."""
        said = []
        if self.unit == "width":
            said.append("Queries and keys have length one: cosine attention.")
        if self.scales is not None and self.learned:
            said.append("The scale is learned, one for each head.")
        if self.before is not None or self.after is not None:
            said.append("Heads are mixed: talking heads.")
        if self.sink is not None:
            said.append("Each head has a sink, to which weights may go instead of a token.")
        if self.cap is not None:
            said.append(f"Scores are held below {self.cap:g} by a tanh.")
        return said


def unit(x: Tensor, over: str) -> Tensor:
    """Vectors of length one, over the axis that is named."""
    axis = {"width": -1, "heads": 1, "tokens": 2}[over]
    length: Tensor = torch.linalg.vector_norm(x, dim=axis, keepdim=True)
    return x / length.clamp_min(1e-12)


def turned(x: Tensor, kind: str, base: float = 10000.0, *, mixed: bool = False) -> Tensor:
    """Rotary positions: pairs are (i, i + half) for "half", neighbours for "pairs".

    Args:
        x: Queries or keys.
        kind: How numbers are paired.
        base: The slowest angle's base.
        mixed: Whether the angles are laid out for the other kind, which is wrong.
    """
    tokens, width = x.shape[-2:]
    speeds = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angles = torch.arange(tokens, dtype=x.dtype)[:, None] * speeds
    halves = (kind == "half") != mixed
    angles = torch.cat([angles, angles], -1) if halves else angles.repeat_interleave(2, dim=-1)
    if kind == "half":
        a, b = x.chunk(2, dim=-1)
        other = torch.cat([-b, a], dim=-1)
    else:
        other = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
    return x * angles.cos() + other * angles.sin()


def is_step(added: Tensor) -> bool:
    """Whether a bias only tells the past from the future: a mask that hides too little."""
    row, column = torch.arange(added.shape[1])[:, None], torch.arange(added.shape[2])
    past, future = added - added[:, :, :1], added - added[:, :, -1:]
    sides = past[:, column <= row], future[:, column > row]
    return all(float(side.nan_to_num(0.0).abs().max()) < 1e-5 for side in sides)


def grows(added: Tensor) -> bool:
    """Whether a bias of distances grows with the distance into the past, in some head."""
    last = added[:, -1]  # the last query sees the whole past
    return bool((last.diff(dim=-1) < -1e-6).all(-1).any())


def is_relative(added: Tensor, tolerance: float = 1e-5) -> bool:
    """Whether a bias depends on the distance only, up to a number for each row.

    Examples:
        >>> distance = torch.arange(5.0) - torch.arange(5.0)[:, None]
        >>> is_relative(distance.abs()[None]), is_relative(torch.rand(1, 5, 5))
        (True, False)
    """
    steps = added.diff(dim=-1)  # a row's own number is gone
    finite = steps.isfinite()
    for offset in range(2 - added.shape[-1], added.shape[-1] - 1):
        line = steps.diagonal(offset, dim1=-2, dim2=-1)
        fine = finite.diagonal(offset, dim1=-2, dim2=-1).all(0)
        line = line[:, fine]
        if line.shape[1] > 1 and float((line - line[:, :1]).abs().max()) > tolerance:
            return False
    return True


def in_two_directions(added: Tensor, height: int, width: int) -> Tensor | None:
    """The bias of each offset (rows, columns) in a window of pixels; None if it is no such bias.

    Returns:
        (heads, offsets), up to a number for each head.
    """
    pixels = torch.arange(height * width)
    rows, columns = pixels // width, pixels % width
    down = rows[:, None] - rows + height - 1
    across = columns[:, None] - columns + width - 1
    offset = (down * (2 * width - 1) + across).flatten()
    count, cells = (2 * height - 1) * (2 * width - 1), len(offset)
    # A cell is its offset's number less its row's: the rows were centred.
    table = torch.zeros(cells, count + len(pixels), dtype=added.dtype)
    table[torch.arange(cells), offset] = 1.0
    table[torch.arange(cells), count + torch.arange(cells) // len(pixels)] = -1.0
    wanted = added.flatten(1).T  # (cells, heads)
    if added.shape[1:] != (len(pixels), len(pixels)) or not wanted.isfinite().all():
        return None
    found: Tensor = torch.linalg.pinv(table) @ wanted
    return found[:count].T if float((table @ found - wanted).abs().max()) < 1e-5 else None
