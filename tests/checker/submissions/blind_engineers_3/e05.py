# expect: wrong
# why: Tokens are interleaved per step (r0,s0,a0,r1,...) by stack(dim=2), but the padding mask is concatenated block-wise (line 76: m,m,m) instead of repeat_interleave(3): padded tokens are visible and real tokens hidden.
"""Decision Transformer backbone: (return-to-go, state, action) triplets, causal GPT on top."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskedCausalAttention(nn.Module):
    def __init__(self, h_dim, max_T, n_heads, drop_p):
        super().__init__()
        self.n_heads = n_heads
        self.q_net = nn.Linear(h_dim, h_dim)
        self.k_net = nn.Linear(h_dim, h_dim)
        self.v_net = nn.Linear(h_dim, h_dim)
        self.proj_net = nn.Linear(h_dim, h_dim)
        self.att_drop = nn.Dropout(drop_p)
        self.proj_drop = nn.Dropout(drop_p)
        mask = torch.tril(torch.ones((max_T, max_T))).view(1, 1, max_T, max_T)
        self.register_buffer("mask", mask)

    def forward(self, x, key_mask=None):
        B, T, C = x.shape
        N, D = self.n_heads, C // self.n_heads
        q = self.q_net(x).view(B, T, N, D).transpose(1, 2)
        k = self.k_net(x).view(B, T, N, D).transpose(1, 2)
        v = self.v_net(x).view(B, T, N, D).transpose(1, 2)

        weights = q @ k.transpose(2, 3) / math.sqrt(D)
        weights = weights.masked_fill(self.mask[..., :T, :T] == 0, -1e9)
        if key_mask is not None:
            weights = weights.masked_fill(key_mask[:, None, None, :] == 0, -1e9)
        attention = self.att_drop(F.softmax(weights, dim=-1)) @ v
        attention = attention.transpose(1, 2).contiguous().view(B, T, C)
        return self.proj_drop(self.proj_net(attention))


class Block(nn.Module):
    def __init__(self, h_dim, max_T, n_heads, drop_p):
        super().__init__()
        self.attention = MaskedCausalAttention(h_dim, max_T, n_heads, drop_p)
        self.mlp = nn.Sequential(nn.Linear(h_dim, 4 * h_dim), nn.GELU(), nn.Linear(4 * h_dim, h_dim), nn.Dropout(drop_p))
        self.ln1, self.ln2 = nn.LayerNorm(h_dim), nn.LayerNorm(h_dim)

    def forward(self, x, key_mask):
        x = x + self.attention(self.ln1(x), key_mask)
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    def __init__(self, state_dim, act_dim, n_blocks=2, h_dim=64, context_len=20, n_heads=4, drop_p=0.1, max_timestep=1000):
        super().__init__()
        self.h_dim = h_dim
        self.embed_timestep = nn.Embedding(max_timestep, h_dim)
        self.embed_rtg = nn.Linear(1, h_dim)
        self.embed_state = nn.Linear(state_dim, h_dim)
        self.embed_action = nn.Linear(act_dim, h_dim)
        self.embed_ln = nn.LayerNorm(h_dim)
        self.blocks = nn.ModuleList([Block(h_dim, 3 * context_len, n_heads, drop_p) for _ in range(n_blocks)])
        self.predict_action = nn.Sequential(nn.Linear(h_dim, act_dim), nn.Tanh())

    def forward(self, states, actions, rtgs, timesteps, traj_mask=None):
        """traj_mask: (B, T), 1 for real steps, 0 for the left padding of short trajectories."""
        B, T, _ = states.shape
        if traj_mask is None:
            traj_mask = torch.ones(B, T, device=states.device)
        t_emb = self.embed_timestep(timesteps)
        s = self.embed_state(states) + t_emb
        a = self.embed_action(actions) + t_emb
        r = self.embed_rtg(rtgs) + t_emb

        # sequence is (r_0, s_0, a_0, r_1, s_1, a_1, ...)
        h = torch.stack((r, s, a), dim=2).reshape(B, 3 * T, self.h_dim)
        h = self.embed_ln(h)
        # every token of a step shares the mask of that step
        token_mask = torch.cat((traj_mask, traj_mask, traj_mask), dim=1)

        for block in self.blocks:
            h = block(h, token_mask)

        h = h.reshape(B, T, 3, self.h_dim).permute(0, 2, 1, 3)
        return self.predict_action(h[:, 1])     # from s_t (and everything before it)


if __name__ == "__main__":
    dt = DecisionTransformer(state_dim=11, act_dim=3)
    B, T = 4, 20
    mask = torch.ones(B, T)
    mask[0, :8] = 0
    out = dt(torch.randn(B, T, 11), torch.randn(B, T, 3), torch.randn(B, T, 1), torch.arange(T).repeat(B, 1), mask)
    print(out.shape)
