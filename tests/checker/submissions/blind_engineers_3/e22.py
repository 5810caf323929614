# expect: correct
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    """Multihead attention block of the Set Transformer (Lee et al., 2019).

    H = Q' + Multihead(Q', K', V');  out = H + ReLU(W_o H)
    """

    def __init__(self, dim_Q, dim_K, dim_V, num_heads, ln=False):
        super().__init__()
        self.dim_V = dim_V
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_Q, dim_V)
        self.fc_k = nn.Linear(dim_K, dim_V)
        self.fc_v = nn.Linear(dim_K, dim_V)
        self.ln0 = nn.LayerNorm(dim_V) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim_V) if ln else nn.Identity()
        self.fc_o = nn.Linear(dim_V, dim_V)

    def forward(self, Q, K, key_mask=None):
        """key_mask (B, n_K): True where the set element is real."""
        B = Q.size(0)
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)

        d = self.dim_V // self.num_heads
        # heads are stacked along the batch: row h * B + b
        Q_ = torch.cat(Q.split(d, 2), 0)
        K_ = torch.cat(K.split(d, 2), 0)
        V_ = torch.cat(V.split(d, 2), 0)

        S = Q_.bmm(K_.transpose(1, 2)) / math.sqrt(d)
        if key_mask is not None:
            S = S.masked_fill(~key_mask.repeat(self.num_heads, 1).unsqueeze(1), torch.finfo(S.dtype).min)
        A = torch.softmax(S, 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(B, 0), 2)
        O = self.ln0(O)
        return self.ln1(O + F.relu(self.fc_o(O)))


class SAB(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, ln=False):
        super().__init__()
        self.mab = MAB(dim_in, dim_in, dim_out, num_heads, ln=ln)

    def forward(self, X, mask=None):
        return self.mab(X, X, mask)


class ISAB(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, num_inds, ln=False):
        super().__init__()
        self.I = nn.Parameter(torch.Tensor(1, num_inds, dim_out))
        nn.init.xavier_uniform_(self.I)
        self.mab0 = MAB(dim_out, dim_in, dim_out, num_heads, ln=ln)
        self.mab1 = MAB(dim_in, dim_out, dim_out, num_heads, ln=ln)

    def forward(self, X, mask=None):
        H = self.mab0(self.I.repeat(X.size(0), 1, 1), X, mask)
        return self.mab1(X, H)          # inducing points are never padding


class PMA(nn.Module):
    def __init__(self, dim, num_heads, num_seeds, ln=False):
        super().__init__()
        self.S = nn.Parameter(torch.Tensor(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.S)
        self.mab = MAB(dim, dim, dim, num_heads, ln=ln)

    def forward(self, X, mask=None):
        return self.mab(self.S.repeat(X.size(0), 1, 1), X, mask)


class SetTransformer(nn.Module):
    def __init__(self, dim_input, num_outputs, dim_output, num_inds=16, dim_hidden=64, num_heads=4, ln=True):
        super().__init__()
        self.enc1 = ISAB(dim_input, dim_hidden, num_heads, num_inds, ln=ln)
        self.enc2 = ISAB(dim_hidden, dim_hidden, num_heads, num_inds, ln=ln)
        self.pool = PMA(dim_hidden, num_heads, num_outputs, ln=ln)
        self.dec = SAB(dim_hidden, dim_hidden, num_heads, ln=ln)
        self.head = nn.Linear(dim_hidden, dim_output)

    def forward(self, X, mask=None):
        Z = self.enc2(self.enc1(X, mask), mask)
        return self.head(self.dec(self.pool(Z, mask)))


if __name__ == "__main__":
    net = SetTransformer(3, 1, 40)
    pts = torch.rand(5, 100, 3)
    n = torch.tensor([100, 60, 77, 12, 99])
    print(net(pts, torch.arange(100)[None] < n[:, None]).shape)
