"""Maps of any length with visible patterns, made without a model."""

import torch

from clearhead import AttentionMap, Mask, Seen

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "its", "red", "box", "."]


def tokens(count: int) -> list[str]:
    """Words in a partly repeating order, each with a space before it."""
    chosen = torch.randint(0, len(WORDS), (count,), generator=torch.Generator().manual_seed(7))
    return [f" {WORDS[i]}" for i in chosen.tolist()]


def ids(labels: list[str]) -> torch.Tensor:
    known = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return torch.tensor([[known[label] for label in labels]])


def structured(
    count: int,
    heads: int = 4,
    head_dim: int = 64,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> AttentionMap:
    """A causal map. Heads attend to the previous token, the first, copies, nearby, anywhere."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(1, heads, count, head_dim, generator=g) * 0.7
    k = torch.randn(1, heads, count, head_dim, generator=g) * 0.7
    position = torch.randn(count, head_dim, generator=g)
    words = torch.randn(len(WORDS), head_dim, generator=g)[ids(tokens(count))[0] % len(WORDS)]
    # Slow waves: nearby tokens are similar, distant ones are not.
    waves = torch.outer(torch.arange(count), 400.0 ** -torch.linspace(0.2, 1, head_dim // 2))
    near = torch.cat([waves.sin(), waves.cos()], 1)
    for head in range(heads):
        match head % 5:
            case 0:
                k[0, head], q[0, head, 1:] = position, position[:-1] * 2.5
            case 1:
                k[0, head, 0], q[0, head] = 2.0, q[0, head] + 0.9
            case 2:
                k[0, head], q[0, head] = words, words * 1.3
            case 3:
                k[0, head], q[0, head] = near, near * 3.5
    return AttentionMap(q.to(dtype), k.to(dtype), Mask.causal())


def seen(count: int, layers: int = 2, **options: int) -> Seen:
    """What watching a model with this many layers would record."""
    made = Seen("a model for tests")
    for layer in range(layers):
        made.add(f"h.{layer}.attn", structured(count, seed=layer, **options))
    return made
