# expect: correct
# Multi-query attention: many query heads share a single key head and a single value head.
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiQueryAttention(nn.Module):
    def __init__(self, d_model: int, n_head: int, max_positions: int = 64):
        super().__init__()
        assert d_model % n_head == 0
        self.n_head = n_head
        self.hd = d_model // n_head
        # one big layer: d_model for the queries, hd for the key, hd for the value
        self.in_proj = nn.Linear(d_model, d_model + 2 * self.hd)
        self.out_proj = nn.Linear(d_model, d_model)
        self.register_buffer(
            "causal", torch.ones(max_positions, max_positions).tril().bool(), persistent=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.in_proj(x).split([c, self.hd, self.hd], dim=-1)

        # the shared key means all (token, head) pairs can be rows of one matrix
        q = q.reshape(b, t * self.n_head, self.hd)
        scores = torch.bmm(q, k.transpose(1, 2)) / self.hd ** 0.5
        scores = scores.view(b, t, self.n_head, t)

        keep = self.causal[:t, :t].unsqueeze(1)          # (t, 1, t)
        scores = scores.masked_fill(~keep, float("-inf"))
        weights = F.softmax(scores, dim=-1)

        y = torch.bmm(weights.view(b, t * self.n_head, t), v)
        return self.out_proj(y.view(b, t, c))


def parameter_savings(d_model: int, n_head: int) -> int:
    full = nn.Linear(d_model, 3 * d_model)
    mqa = MultiQueryAttention(d_model, n_head).in_proj
    count = lambda m: sum(p.numel() for p in m.parameters())
    return count(full) - count(mqa)


if __name__ == "__main__":
    layer = MultiQueryAttention(40, 5)
    print(layer(torch.randn(3, 8, 40)).shape)
    print("saved parameters:", parameter_savings(40, 5))
