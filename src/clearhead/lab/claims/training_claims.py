"""Claims about training, each on a small model and on data with a known lowest possible loss.

The data of the first two are random walks over a few symbols: the next symbol depends only on the
current one, by a table of transition probabilities. No model that cannot see the future can predict
better than that table does; its loss is the floor.
"""

from collections.abc import Callable, Sequence
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention
from clearhead.embedding import Embedding
from clearhead.gpt2 import GPT2, TransformerBlock
from clearhead.lab.claims.claim import Finding, claim, does_not_hold, holds, holds_if

SYMBOLS, LENGTH, WIDTH = 16, 12, 32


def table_of_chances() -> Tensor:
    """Transition probabilities; row i is the distribution after symbol i."""
    return torch.softmax(2 * torch.randn(SYMBOLS, SYMBOLS), dim=-1)


def walks(chances: Tensor, count: int) -> Tensor:
    """Random walks, (count, LENGTH)."""
    ids = [torch.randint(SYMBOLS, (count,))]
    for _ in range(LENGTH - 1):
        ids.append(torch.multinomial(chances[ids[-1]], 1)[:, 0])
    return torch.stack(ids, dim=1)


def floor(chances: Tensor, ids: Tensor) -> float:
    """The loss of the table itself on these walks."""
    return float(-chances[ids[:, :-1], ids[:, 1:]].log().mean())


def small_model() -> GPT2:
    """One layer with two heads and no dropout."""
    sizes = {"vocab_size": SYMBOLS, "context_length": LENGTH, "d_model": WIDTH}
    return GPT2({**sizes, "num_heads": 2, "num_layers": 1, "dropout": 0.0, "qkv_bias": False})


def attention_of(model: GPT2) -> MultiHeadAttention:
    """The attention of a model's only layer."""
    block = model.blocks[0]
    assert isinstance(block, TransformerBlock)
    return block.attention


def loss(model: GPT2, ids: Tensor) -> Tensor:
    """The mean loss of predicting the next symbol."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def score(model: GPT2, ids: Tensor) -> float:
    """The same as a number, in eval mode; the model's mode is restored."""
    training = model.training
    with torch.no_grad():
        found = loss(model.eval(), ids).item()
    model.train(training)
    return found


def fit(model: nn.Module, loss_at: Callable[[int], Tensor], steps: int) -> None:
    """Adam, with a learning rate that falls to zero."""
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / steps)
        optimizer.zero_grad()
        loss_at(step).backward()  # type: ignore[no-untyped-call]  # torch gives no types here
        optimizer.step()


def _take_mask_off(attention: MultiHeadAttention) -> None:
    attention.causal = False


def _predict(chances: Tensor, change: Callable[[MultiHeadAttention], None] | None) -> GPT2:
    """A model trained to predict, with its attention changed beforehand."""
    model = small_model()
    if change is not None:
        change(attention_of(model))
    fit(model, lambda step: loss(model, walks(chances, 32)), steps=200)
    return model


@claim("mask-cheating", "Without the causal mask, a model in training copies the answer.")
def mask_prevents_cheating(
    change: Callable[[MultiHeadAttention], None] = _take_mask_off,
    *,
    quick: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
) -> Finding:
    """Two models learn to predict the next symbol, one of them without the mask.

    The next symbol is part of the input, one position to the right. Without the mask, the loss
    falls far below the floor, which is impossible for a real prediction. The model is useless: with
    the mask restored, as it must be when the next symbol does not exist yet, it is worse than a
    uniform guess.
    """
    masked, open_, put_back = [], [], []  # losses above the floor
    for seed in seeds[:1] if quick else seeds:
        torch.manual_seed(seed)
        chances = table_of_chances()
        new = walks(chances, 512)
        best = floor(chances, new)
        masked.append(score(_predict(chances, None), new) - best)
        model = _predict(chances, change)
        open_.append(score(model, new) - best)
        attention_of(model).causal = True
        put_back.append(score(model, new) - best)
    figure = (
        f"loss above the floor: {mean(masked):+.2f} with the mask, {mean(open_):+.2f} without it, "
        f"{mean(put_back):+.2f} when it is restored"
    )
    spread = ", ".join(_range(losses) for losses in (masked, open_, put_back))
    verdict = holds if max(open_) < -0.2 and min(masked) > -0.05 else does_not_hold
    numbers = {"masked": masked, "unmasked": open_, "put_back": put_back}
    return verdict(figure, f"{spread}; {len(masked)} seeds", **numbers)


def _range(numbers: Sequence[float]) -> str:
    return f"{min(numbers):+.2f} to {max(numbers):+.2f}"


def _learn_by_heart(few: Tensor, new: Tensor, dropout: float, seed: int) -> tuple[float, float]:
    """Train on a few walks repeatedly; the loss on new ones, at the end and at its minimum."""
    torch.manual_seed(seed)
    model = small_model()
    attention_of(model).dropout.p = dropout
    curve: dict[int, float] = {}

    def loss_at(step: int) -> Tensor:
        if step % 5 == 0:
            curve[step] = score(model, new)
        return loss(model, few)

    fit(model, loss_at, steps=100)
    return score(model, new), min(curve.values())


@claim("dropout-overfitting", "Dropout on the attention weights prevents overfitting.")
def dropout_prevents_overfitting(
    dropout: float = 0.1, *, quick: bool = False, seeds: Sequence[int] = (0, 1, 2, 3, 4)
) -> Finding:
    """A model memorises 32 walks, with dropout and without; the loss on 256 new ones.

    Overfitting is the rise of that loss after its minimum. Dropout on the weights reduces it.
    Stopping at the minimum helps far more.
    """
    gains, rises = [], []
    for seed in seeds[:3] if quick else seeds:
        torch.manual_seed(seed)
        chances = table_of_chances()
        few, new = walks(chances, 32), walks(chances, 256)
        end_without, _ = _learn_by_heart(few, new, 0.0, seed)
        end_with, best_with = _learn_by_heart(few, new, dropout, seed)
        gains.append(end_without - end_with)
        rises.append(end_with - best_with)
    error = stdev(gains) / len(gains) ** 0.5
    figure = (
        f"dropout {dropout} lowers the loss on new data by {mean(gains):.2f}; it still rises by "
        f"{mean(rises):.2f} after its minimum"
    )
    spread = f"{_range(gains)}; {_range(rises)}; {len(gains)} seeds"
    if mean(gains) <= 2 * error:
        return does_not_hold(figure, spread, gains=gains, rises=rises)
    if max(rises) > 0.1:
        return holds_if("reducing counts as preventing", figure, spread, gains=gains, rises=rises)
    return holds(figure, spread, gains=gains, rises=rises)


class Copier(nn.Module):
    """One layer of attention that must copy the symbols at some distances, each into its slot.

    Args:
        heads: The number of heads that share the width.
        distances: How many positions back to read; one slot for each.
    """

    def __init__(self, heads: int, distances: Sequence[int]) -> None:
        super().__init__()
        self.distances = distances
        self.embedding = Embedding(SYMBOLS, WIDTH, LENGTH)
        for table in self.embedding.parameters():
            nn.init.normal_(table)
        self.attention = MultiHeadAttention(WIDTH, WIDTH, LENGTH, 0.0, heads)
        self.slots = nn.Linear(WIDTH, len(distances) * SYMBOLS)

    def answers(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (rows, symbols) and symbols (rows,), for tokens far enough from the start."""
        begin = max(self.distances)
        logits = self.slots(self.attention(self.embedding(ids)))[:, begin:]
        right = [ids.roll(distance, dims=1)[:, begin:] for distance in self.distances]
        return logits.reshape(-1, SYMBOLS), torch.stack(right, dim=-1).flatten()


def copying_accuracy(heads: int, distances: Sequence[int], seed: int) -> float:
    """The accuracy of a trained `Copier` on random sequences."""
    torch.manual_seed(seed)
    model = Copier(heads, distances)
    fit(
        model,
        lambda step: F.cross_entropy(*model.answers(torch.randint(SYMBOLS, (64, LENGTH)))),
        steps=150,
    )
    with torch.no_grad():
        logits, right = model.answers(torch.randint(SYMBOLS, (256, LENGTH)))
    return (logits.argmax(-1) == right).float().mean().item()


@claim("more-heads", "More heads make attention richer.")
def more_heads_are_richer(
    accuracy: Callable[[int, Sequence[int], int], float] = copying_accuracy,
    *,
    quick: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
) -> Finding:
    """The same width in 1 to 16 heads: copy from one position, and from four positions at once.

    A head computes one weighted mean per token. Reading one position takes one head; keeping four
    positions apart takes four. More heads than that add nothing.
    """
    counts = (1, 4) if quick else (1, 2, 4, 8, 16)
    tasks = {"one place": (3,), "four places": (1, 2, 3, 4)}
    found = {
        task: {
            heads: [accuracy(heads, distances, seed) for seed in (seeds[:1] if quick else seeds)]
            for heads in counts
        }
        for task, distances in tasks.items()
    }
    figure = "; ".join(
        f"{task.replace('place', 'position')}: "
        + ", ".join(f"{mean(of[heads]):.2f} with {heads}" for heads in counts)
        for task, of in found.items()
    )
    widest = max(max(of[heads]) - min(of[heads]) for of in found.values() for heads in counts)
    spread = f"accuracies differ by at most {widest:.2f} over {len(found['one place'][1])} seeds"
    richer = [task for task, of in found.items() if min(of[4]) > max(of[1]) + 0.1]
    if len(richer) == len(found):
        return holds(figure, spread, **found)
    if richer:
        return holds_if("the task needs several positions at once", figure, spread, **found)
    return does_not_hold(figure, spread, **found)
