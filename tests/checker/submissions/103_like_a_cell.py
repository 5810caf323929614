# expect: correct
import torch
import torch.nn as nn


class KVStore:
    """growing list of keys and values for one layer"""

    def __init__(self):
        self.ks, self.vs = [], []

    def push(self, k, v):
        self.ks.append(k)
        self.vs.append(v)

    def get(self):
        return torch.stack(self.ks, 1), torch.stack(self.vs, 1)

    def __len__(self):
        return len(self.ks)


class StepAttention(nn.Module):
    """Attention written like an RNN cell: tokens come one after another, each looks at itself
    and at what is in the store. Same weights for training (forward over a sequence) and acting (step)."""

    def __init__(self, obs_dim, n_heads, head_dim):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim
        self.lin_k = nn.Linear(obs_dim, n_heads * head_dim)
        self.lin_q = nn.Linear(obs_dim, n_heads * head_dim)
        self.lin_v = nn.Linear(obs_dim, n_heads * head_dim)
        self.lin_o = nn.Linear(n_heads * head_dim, obs_dim)

    def step(self, x_t, store):
        b = x_t.shape[0]
        hd = (b, self.n_heads, self.head_dim)
        store.push(self.lin_k(x_t).view(hd), self.lin_v(x_t).view(hd))
        K, V = store.get()                                  # b, t, heads, dim
        q = self.lin_q(x_t).view(hd)
        w = (q.unsqueeze(1) * K).sum(-1) / self.head_dim ** 0.5   # b, t, heads
        w = w.softmax(dim=1)
        out = (w.unsqueeze(-1) * V).sum(1)
        return self.lin_o(out.flatten(1))

    def forward(self, xs, store=None):
        store = KVStore() if store is None else store
        return torch.stack([self.step(xs[:, t], store) for t in range(xs.shape[1])], dim=1)
