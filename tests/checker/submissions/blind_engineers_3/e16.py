# expect: attends-across-batch
# why: nn.MultiheadAttention is built without batch_first=True (line 30) but fed (num_envs, T, d_model), so attention runs across environments (batch) for each time step instead of over time.
"""Trajectory encoder for the multi-task SAC agent.

A short history of observations is embedded, mixed over time with self-attention, and
pooled into one context vector per environment.
"""
import math

import torch
import torch.nn as nn


class SinusoidalPE(nn.Module):
    def __init__(self, d_model, max_len=500):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(max_len).unsqueeze(1).float()
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        # x: batch, time, d_model
        return x + self.pe[: x.size(1)]


class AttentionLayer(nn.Module):
    def __init__(self, d_model, n_head, p=0.1):
        super().__init__()
        self.mha = nn.MultiheadAttention(d_model, n_head, dropout=p)
        self.ff = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.ReLU(), nn.Linear(2 * d_model, d_model))
        self.n1 = nn.LayerNorm(d_model)
        self.n2 = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        h = self.n1(x)
        h, _ = self.mha(h, h, h, need_weights=False)
        x = x + self.drop(h)
        return x + self.drop(self.ff(self.n2(x)))


class TrajectoryEncoder(nn.Module):
    def __init__(self, obs_dim, d_model=64, n_head=4, n_layers=2):
        super().__init__()
        self.inp = nn.Linear(obs_dim, d_model)
        self.pe = SinusoidalPE(d_model)
        self.layers = nn.ModuleList([AttentionLayer(d_model, n_head) for _ in range(n_layers)])
        self.out_norm = nn.LayerNorm(d_model)

    def forward(self, history):
        """history: (num_envs, T, obs_dim) -> (num_envs, d_model)"""
        x = self.pe(self.inp(history))
        for layer in self.layers:
            x = layer(x)
        return self.out_norm(x).mean(dim=1)


class GaussianActor(nn.Module):
    LOG_STD_MIN, LOG_STD_MAX = -5, 2

    def __init__(self, obs_dim, act_dim, d_model=64):
        super().__init__()
        self.encoder = TrajectoryEncoder(obs_dim, d_model)
        self.trunk = nn.Sequential(nn.Linear(obs_dim + d_model, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.mu = nn.Linear(256, act_dim)
        self.log_std = nn.Linear(256, act_dim)

    def forward(self, obs, history):
        h = self.trunk(torch.cat([obs, self.encoder(history)], dim=-1))
        log_std = self.log_std(h).clamp(self.LOG_STD_MIN, self.LOG_STD_MAX)
        dist = torch.distributions.Normal(self.mu(h), log_std.exp())
        raw = dist.rsample()
        action = torch.tanh(raw)
        logp = (dist.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(-1)
        return action, logp


if __name__ == "__main__":
    actor = GaussianActor(obs_dim=17, act_dim=6)
    a, lp = actor(torch.randn(32, 17), torch.randn(32, 10, 17))
    print(a.shape, lp.shape)
