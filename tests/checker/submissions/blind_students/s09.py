# expect: wrong
# why: head i takes the columns i : i+head_dim instead of i*head_dim : (i+1)*head_dim, so the heads overlap and most columns are never used.
import torch
import torch.nn as nn
import torch.nn.functional as F


def one_head(q, k, v):
    sim = torch.bmm(q, k.transpose(1, 2))
    sim = sim / (q.size(-1) ** 0.5)
    return torch.bmm(F.softmax(sim, dim=2), v)


class MultiHeadLoop(nn.Module):
    """ I use a for loop because the reshape/permute version confuses me """

    def __init__(self, dim, n_heads):
        super().__init__()
        assert dim % n_heads == 0
        self.dim = dim
        self.n_heads = n_heads
        self.hd = dim // n_heads
        self.Wq = nn.Linear(dim, dim)
        self.Wk = nn.Linear(dim, dim)
        self.Wv = nn.Linear(dim, dim)
        self.Wo = nn.Linear(dim, dim)

    def forward(self, x):
        Q = self.Wq(x)
        K = self.Wk(x)
        V = self.Wv(x)
        outs = []
        for i in range(self.n_heads):
            q_i = Q[:, :, i:i + self.hd]
            k_i = K[:, :, i:i + self.hd]
            v_i = V[:, :, i:i + self.hd]
            outs.append(one_head(q_i, k_i, v_i))
        concat = torch.cat(outs, dim=-1)
        # print(concat.shape)
        assert concat.shape == x.shape
        return self.Wo(concat)


if __name__ == "__main__":
    net = MultiHeadLoop(20, 4)
    x = torch.randn(2, 6, 20)
    print(net(x).shape)   # torch.Size([2, 6, 20])  yes!!
