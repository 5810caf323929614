# expect: dropout-in-eval
# why: F.dropout on the attention weights is called without training=self.training, so it also drops in eval mode.
"""Interpretable multi-head attention of a temporal fusion decoder (multi-horizon forecasting)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class GatedLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.fc = nn.Linear(d_in, 2 * d_out)

    def forward(self, x):
        return F.glu(self.fc(x), dim=-1)


class GateAddNorm(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.gate = GatedLinear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = dropout

    def forward(self, x, skip):
        x = F.dropout(x, self.dropout, training=self.training)
        return self.norm(self.gate(x) + skip)


class InterpretableAttention(nn.Module):
    """All heads share the values; the head outputs are averaged, so the mean of the attention maps
    is an honest picture of what was read."""

    def __init__(self, d_model, n_head, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        self.d_k = d_model // n_head
        self.dropout = dropout
        self.q_layers = nn.ModuleList(nn.Linear(d_model, self.d_k) for _ in range(n_head))
        self.k_layers = nn.ModuleList(nn.Linear(d_model, self.d_k) for _ in range(n_head))
        self.v_layer = nn.Linear(d_model, self.d_k)
        self.w_h = nn.Linear(self.d_k, d_model, bias=False)

    def forward(self, q, k, v, mask=None):
        """mask: True where attention is not allowed, (B, Tq, Tk) or (Tq, Tk)."""
        value = self.v_layer(v)
        outputs, maps = [], []
        for q_layer, k_layer in zip(self.q_layers, self.k_layers):
            score = q_layer(q) @ k_layer(k).transpose(-1, -2) / self.d_k ** 0.5
            if mask is not None:
                score = score.masked_fill(mask, -1e9)
            attn = F.softmax(score, dim=-1)
            attn = F.dropout(attn, self.dropout)
            outputs.append(attn @ value)
            maps.append(attn)
        out = torch.stack(outputs).mean(dim=0)
        return self.w_h(out), torch.stack(maps, dim=1)


class TemporalDecoder(nn.Module):
    """The horizon steps read the encoder history and earlier horizon steps."""

    def __init__(self, d_model=32, n_head=4, dropout=0.1, quantiles=(0.1, 0.5, 0.9)):
        super().__init__()
        self.attn = InterpretableAttention(d_model, n_head, dropout)
        self.post = GateAddNorm(d_model, dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_model), nn.ELU(), nn.Linear(d_model, d_model))
        self.out_norm = GateAddNorm(d_model, dropout)
        self.head = nn.Linear(d_model, len(quantiles))

    def forward(self, history, future, history_len=None):
        """history: (B, Te, D), future: (B, Td, D), history_len: (B,) number of valid leading history steps."""
        b, te, _ = history.shape
        td = future.shape[1]
        x = torch.cat([history, future], dim=1)
        i = torch.arange(te, te + td, device=x.device)
        j = torch.arange(te + td, device=x.device)
        mask = (j[None, :] > i[:, None]).expand(b, td, te + td)
        if history_len is not None:
            gone = (j[None, :] >= history_len[:, None]) & (j[None, :] < te)
            mask = mask | gone[:, None, :]
        y, maps = self.attn(future, x, x, mask)
        y = self.post(y, future)
        y = self.out_norm(self.ff(y), y)
        return self.head(y), maps
