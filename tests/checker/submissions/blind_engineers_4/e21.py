# expect: correct
"""Set encoder: induced set attention blocks and pooling by attention, with padded sets."""
import torch
import torch.nn as nn


class MAB(nn.Module):
    """Multi-head attention block: rows of X ask, rows of Y answer."""

    def __init__(self, dim_x, dim_y, dim, heads, ln=True):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.fc_q = nn.Linear(dim_x, dim)
        self.fc_k = nn.Linear(dim_y, dim)
        self.fc_v = nn.Linear(dim_y, dim)
        self.fc_o = nn.Linear(dim, dim)
        self.ln0 = nn.LayerNorm(dim) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim) if ln else nn.Identity()

    def forward(self, X, Y, y_mask=None):
        """y_mask: (B, |Y|) bool, True = element exists."""
        Q, K, V = self.fc_q(X), self.fc_k(Y), self.fc_v(Y)
        # heads are stacked on the batch axis, head-major
        Q_ = torch.cat(Q.chunk(self.heads, dim=2), dim=0)
        K_ = torch.cat(K.chunk(self.heads, dim=2), dim=0)
        V_ = torch.cat(V.chunk(self.heads, dim=2), dim=0)
        A = Q_.bmm(K_.transpose(1, 2)) / (self.dim // self.heads) ** 0.5
        if y_mask is not None:
            A = A.masked_fill(~y_mask.repeat(self.heads, 1).unsqueeze(1), -1e9)
        A = A.softmax(dim=2)
        O = torch.cat((Q_ + A.bmm(V_)).chunk(self.heads, dim=0), dim=2)
        O = self.ln0(O)
        O = self.ln1(O + torch.relu(self.fc_o(O)))
        return O


class SAB(nn.Module):
    def __init__(self, dim_in, dim, heads):
        super().__init__()
        self.mab = MAB(dim_in, dim_in, dim, heads)

    def forward(self, X, mask=None):
        return self.mab(X, X, mask)


class ISAB(nn.Module):
    def __init__(self, dim_in, dim, heads, n_inducing):
        super().__init__()
        self.I = nn.Parameter(torch.empty(1, n_inducing, dim))
        nn.init.xavier_uniform_(self.I)
        self.mab0 = MAB(dim, dim_in, dim, heads)
        self.mab1 = MAB(dim_in, dim, dim, heads)

    def forward(self, X, mask=None):
        H = self.mab0(self.I.expand(X.size(0), -1, -1), X, mask)
        # all inducing points exist, so the way back needs no mask
        return self.mab1(X, H)


class PMA(nn.Module):
    def __init__(self, dim, heads, n_seeds):
        super().__init__()
        self.S = nn.Parameter(torch.empty(1, n_seeds, dim))
        nn.init.xavier_uniform_(self.S)
        self.pre = nn.Linear(dim, dim)
        self.mab = MAB(dim, dim, dim, heads)

    def forward(self, X, mask=None):
        return self.mab(self.S.expand(X.size(0), -1, -1), torch.relu(self.pre(X)), mask)


class SetTransformer(nn.Module):
    def __init__(self, dim_in=3, dim_out=5, dim=32, heads=4, n_inducing=6, n_seeds=2):
        super().__init__()
        self.enc1 = ISAB(dim_in, dim, heads, n_inducing)
        self.enc2 = ISAB(dim, dim, heads, n_inducing)
        self.pool = PMA(dim, heads, n_seeds)
        self.dec = SAB(dim, dim, heads)
        self.out = nn.Linear(dim * n_seeds, dim_out)

    def forward(self, X, lengths=None):
        mask = None
        if lengths is not None:
            mask = torch.arange(X.size(1), device=X.device)[None, :] < lengths[:, None]
        Z = self.enc2(self.enc1(X, mask), mask)
        return self.out(self.dec(self.pool(Z, mask)).flatten(1))
