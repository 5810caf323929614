# expect: correct
import torch
import torch.nn as nn

# my first causal head :)


class LookBackHead(nn.Module):
    def __init__(self, d_in, d_out, dropout=0.2):
        super().__init__()
        self.W_q = nn.Linear(d_in, d_out, bias=False)
        self.W_k = nn.Linear(d_in, d_out, bias=False)
        self.W_v = nn.Linear(d_in, d_out, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, inputs):
        T = inputs.shape[-2]
        Q = self.W_q(inputs)
        K = self.W_k(inputs)
        V = self.W_v(inputs)

        # additive mask: 0 on and below the diagonal, -inf above
        bias = torch.full((T, T), float("-inf"), device=inputs.device, dtype=Q.dtype).triu(diagonal=1)

        S = Q @ K.transpose(-1, -2) / K.shape[-1] ** 0.5 + bias
        P = self.drop(S.softmax(-1))
        return P @ V
