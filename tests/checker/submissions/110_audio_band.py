# expect: correct
import torch
import torch.nn as nn


class BandedAttention1d(nn.Module):
    """Attention temporelle locale et causale pour l'audio, entrée (batch, canaux, trames).

    Chaque trame regarde elle-même et les `portee - 1` trames précédentes.
    """

    def __init__(self, canaux, tetes, portee):
        super().__init__()
        self.tetes = tetes
        self.portee = portee
        self.conv_q = nn.Conv1d(canaux, canaux, 1)
        self.conv_k = nn.Conv1d(canaux, canaux, 1)
        self.conv_v = nn.Conv1d(canaux, canaux, 1)
        self.conv_s = nn.Conv1d(canaux, canaux, 1)

    def forward(self, x):
        B, C, T = x.shape
        q = self.conv_q(x).view(B, self.tetes, -1, T)
        k = self.conv_k(x).view(B, self.tetes, -1, T)
        v = self.conv_v(x).view(B, self.tetes, -1, T)

        # t = requête, s = clé
        scores = torch.einsum("bhct,bhcs->bhts", q, k) / q.shape[2] ** 0.5
        idx = torch.arange(T, device=x.device)
        retard = idx[:, None] - idx[None, :]
        permis = (retard >= 0) & (retard < self.portee)
        scores = scores.masked_fill(~permis, float("-inf"))
        poids = torch.softmax(scores, dim=-1)

        y = torch.einsum("bhts,bhcs->bhct", poids, v).reshape(B, C, T)
        return self.conv_s(y)
