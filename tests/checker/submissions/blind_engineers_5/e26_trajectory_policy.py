# expect: window-off-by-one, scale-by-d-out
# why: two mistakes: the window lets context + 1 tokens through at line 35: `return mask.triu(diagonal=-self.cfg.context)`, and the logits are scaled by the embedding width instead of the head width at line 40: `att = (q @ k.transpose(-2, -1)) * C ** -0.5`
"""Trajectory transformer for offline RL: (return, state, action) tokens, limited context."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class PolicyConfig:
    state_dim: int = 11
    act_dim: int = 3
    n_embd: int = 48
    n_head: int = 4
    n_layer: int = 2
    max_timestep: int = 200
    context: int = 6   # tokens a position can see, itself included
    attn_pdrop: float = 0.1


class WindowedCausalAttention(nn.Module):
    """Each token attends to the last `context` tokens, its own position counted."""

    def __init__(self, cfg: PolicyConfig):
        super().__init__()
        assert cfg.n_embd % cfg.n_head == 0
        self.cfg = cfg
        self.c_attn = nn.Linear(cfg.n_embd, 3 * cfg.n_embd)
        self.c_proj = nn.Linear(cfg.n_embd, cfg.n_embd)

    def window_mask(self, T, device):
        mask = torch.ones(T, T, dtype=torch.bool, device=device).tril()
        return mask.triu(diagonal=-self.cfg.context)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.cfg.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) * C ** -0.5
        att = att.masked_fill(~self.window_mask(T, x.device), float("-inf"))
        att = F.softmax(att, dim=-1)
        att = F.dropout(att, self.cfg.attn_pdrop, training=self.training)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, cfg: PolicyConfig):
        super().__init__()
        self.ln1 = nn.LayerNorm(cfg.n_embd)
        self.attn = WindowedCausalAttention(cfg)
        self.ln2 = nn.LayerNorm(cfg.n_embd)
        self.mlp = nn.Sequential(nn.Linear(cfg.n_embd, 4 * cfg.n_embd), nn.GELU(),
                                 nn.Linear(4 * cfg.n_embd, cfg.n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class TrajectoryPolicy(nn.Module):
    def __init__(self, cfg: PolicyConfig):
        super().__init__()
        self.embed_timestep = nn.Embedding(cfg.max_timestep, cfg.n_embd)
        self.embed_return = nn.Linear(1, cfg.n_embd)
        self.embed_state = nn.Linear(cfg.state_dim, cfg.n_embd)
        self.embed_action = nn.Linear(cfg.act_dim, cfg.n_embd)
        self.embed_ln = nn.LayerNorm(cfg.n_embd)
        self.blocks = nn.ModuleList([Block(cfg) for _ in range(cfg.n_layer)])
        self.predict_action = nn.Sequential(nn.Linear(cfg.n_embd, cfg.act_dim), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps):
        B, T = states.shape[:2]
        time = self.embed_timestep(timesteps)
        tokens = torch.stack((self.embed_return(returns_to_go) + time,
                              self.embed_state(states) + time,
                              self.embed_action(actions) + time), dim=2)
        x = self.embed_ln(tokens.reshape(B, 3 * T, -1))
        for block in self.blocks:
            x = block(x)
        # predict the next action from the state token
        x = x.view(B, T, 3, -1)
        return self.predict_action(x[:, :, 1])
