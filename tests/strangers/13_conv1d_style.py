# expect: correct
import torch
import torch.nn as nn


class Conv1D(nn.Module):
    """A linear layer with its weight the other way round: (in, out)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.empty(nx, nf).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        shape = x.size()[:-1] + (self.nf,)
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(shape)


class GPTAttention(nn.Module):
    def __init__(self, nx, n_ctx, n_head):
        super().__init__()
        self.n_head, self.split_size = n_head, nx
        self.register_buffer("bias", torch.tril(torch.ones(n_ctx, n_ctx)).view(1, 1, n_ctx, n_ctx))
        self.c_attn = Conv1D(nx * 3, nx)
        self.c_proj = Conv1D(nx, nx)

    def split_heads(self, x):
        return x.view(*x.size()[:-1], self.n_head, x.size(-1) // self.n_head).permute(0, 2, 1, 3)

    def merge_heads(self, x):
        x = x.permute(0, 2, 1, 3).contiguous()
        return x.view(*x.size()[:-2], x.size(-2) * x.size(-1))

    def forward(self, x):
        query, key, value = (self.split_heads(t) for t in self.c_attn(x).split(self.split_size, dim=2))
        w = torch.matmul(query, key.transpose(-1, -2)) / (value.size(-1) ** 0.5)
        nd, ns = w.size(-2), w.size(-1)
        b = self.bias[:, :, ns - nd : ns, :ns]
        w = torch.softmax(w * b - 1e10 * (1 - b), dim=-1)
        return self.c_proj(self.merge_heads(torch.matmul(w, value)))
