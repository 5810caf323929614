# expect: correct
# what: einsum with 3-d Parameters, logits laid out (memory, query) and softmax over dim 2 (correct for that layout), 2-space indent
import torch
import torch.nn as nn


class EinsumAttention(nn.Module):
  """Weights are kept as 3-d tensors (head, model, key) as in the lecture slides."""

  def __init__(self, n_head, d_model, d_key, d_value):
    super().__init__()
    self.d_key = d_key
    self.P_q = nn.Parameter(torch.randn(n_head, d_model, d_key) * d_model ** -0.5)
    self.P_k = nn.Parameter(torch.randn(n_head, d_model, d_key) * d_model ** -0.5)
    self.P_v = nn.Parameter(torch.randn(n_head, d_model, d_value) * d_model ** -0.5)
    self.P_o = nn.Parameter(torch.randn(n_head, d_model, d_value) * (n_head * d_value) ** -0.5)

  def forward(self, X, M=None, mask=None):
    # X [b, n, d] queries, M [b, m, d] memory; mask [b, m, n] or [m, n], True = look
    if M is None:
      M = X
    Q = torch.einsum('bnd,hdk->bhnk', X, self.P_q)
    K = torch.einsum('bmd,hdk->bhmk', M, self.P_k)
    V = torch.einsum('bmd,hdv->bhmv', M, self.P_v)

    # memory first, then queries
    logits = torch.einsum('bhmk,bhnk->bhmn', K, Q) / self.d_key ** 0.5
    if mask is not None:
      if mask.dim() == 3:
        mask = mask[:, None]
      logits = logits.masked_fill(~mask, -1e9)
    weights = torch.softmax(logits, dim=2)

    O = torch.einsum('bhmn,bhmv->bhnv', weights, V)
    return torch.einsum('bhnv,hdv->bnd', O, self.P_o)


if __name__ == '__main__':
  att = EinsumAttention(3, 10, 4, 6)
  X, M = torch.randn(2, 5, 10), torch.randn(2, 7, 10)
  print(att(X).shape, att(X, M).shape)
  causal = torch.ones(5, 5).triu().bool()   # [m, n]: memory m <= query n
  print(att(X, mask=causal).shape)
