# expect: scores-detached
import torch
import torch.nn as nn
import torch.nn.functional as F


class EntityAttention(nn.Module):
    """Policy trunk: the agent attends over the entities it can see.

    obs:      (N, E, obs_dim)  entity features, entity 0 is the agent itself
    visible:  (N, E) bool, True = can be seen (entity 0 always is)
    returns   (N, E, dim); rows of invisible entities are zero
    """

    def __init__(self, obs_dim, dim=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.embed = nn.Linear(obs_dim, dim)
        self.ln = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.post = nn.Linear(dim, dim)
        self.last_attention = None  # for the replay viewer

    def forward(self, obs, visible):
        h = self.embed(obs)
        N, E, D = h.shape
        q, k, v = self.qkv(self.ln(h)).chunk(3, -1)
        q = q.view(N, E, self.n_heads, -1).transpose(1, 2)
        k = k.view(N, E, self.n_heads, -1).permute(0, 2, 3, 1)
        v = v.view(N, E, self.n_heads, -1).transpose(1, 2)

        logits = torch.matmul(q, k) / (D // self.n_heads) ** 0.5
        logits = logits.masked_fill(~visible[:, None, None, :], torch.finfo(logits.dtype).min)
        attn = self.last_attention = F.softmax(logits, dim=-1).detach()

        z = torch.matmul(attn, v).transpose(1, 2).reshape(N, E, D)
        h = h + self.post(z)
        return h * visible.unsqueeze(-1)
