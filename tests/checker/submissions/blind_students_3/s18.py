# expect: correct
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class KVCache:
    """keeps the keys/values of one layer"""

    def __init__(self):
        self.k = None
        self.v = None

    @property
    def length(self):
        return 0 if self.k is None else self.k.size(2)

    def update(self, k, v):
        if self.k is None:
            self.k, self.v = k, v
        else:
            self.k = torch.cat([self.k, k], dim=2)
            self.v = torch.cat([self.v, v], dim=2)
        return self.k, self.v


class CachedAttention(nn.Module):
    def __init__(self, d, n_heads):
        super().__init__()
        assert d % n_heads == 0
        self.n_heads = n_heads
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.o = nn.Linear(d, d)

    def _heads(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x, cache=None):
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        if cache is not None:
            k, v = cache.update(k, v)
        T, S = q.size(2), k.size(2)
        # the last query lines up with the last key
        allowed = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(diagonal=S - T)
        att = (q @ k.mT) / math.sqrt(q.size(-1))
        att = att.masked_fill(~allowed, float("-inf")).softmax(-1)
        return self.o((att @ v).transpose(1, 2).flatten(2))


class TinyLM(nn.Module):
    def __init__(self, vocab=50, d=32, n_heads=4, n_layers=2, max_len=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(max_len, d)
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(n_layers)])
        self.atts = nn.ModuleList([CachedAttention(d, n_heads) for _ in range(n_layers)])
        self.head = nn.Linear(d, vocab)

    def forward(self, ids, caches=None):
        past = caches[0].length if caches is not None else 0
        p = torch.arange(past, past + ids.size(1), device=ids.device)
        x = self.tok(ids) + self.pos(p)
        for i, (n, a) in enumerate(zip(self.norms, self.atts)):
            x = x + a(n(x), caches[i] if caches is not None else None)
        return self.head(x)

    @torch.inference_mode()
    def generate(self, ids, steps):
        caches = [KVCache() for _ in self.atts]
        cur = ids
        for _ in range(steps):
            logits = self(cur, caches)
            cur = logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, cur], dim=1)
        return ids


if __name__ == "__main__":
    lm = TinyLM()
    print(lm.generate(torch.randint(0, 50, (2, 5)), 10))
