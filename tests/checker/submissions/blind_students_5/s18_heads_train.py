# expect: heads-in-python-list
# why: the heads are kept in a plain Python list instead of nn.ModuleList, so their parameters are not registered and never trained (the forward values themselves are right) (line 28: `self.heads = [SingleHead(d_model, d_head) for _ in range(n_heads)]`)
import torch
import torch.nn as nn
import torch.nn.functional as F


class SingleHead(nn.Module):
    def __init__(self, d_model, d_head, max_len=64):
        super().__init__()
        self.Wq = nn.Linear(d_model, d_head, bias=False)
        self.Wk = nn.Linear(d_model, d_head, bias=False)
        self.Wv = nn.Linear(d_model, d_head, bias=False)
        self.d_head = d_head
        self.register_buffer("mask", torch.tril(torch.ones(max_len, max_len)).bool())

    def forward(self, x):
        T = x.size(1)
        scores = self.Wq(x) @ self.Wk(x).transpose(1, 2) / self.d_head ** 0.5
        scores = scores.masked_fill(~self.mask[:T, :T], float("-inf"))
        return F.softmax(scores, dim=-1) @ self.Wv(x)


class MultiHead(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        d_head = d_model // n_heads
        self.heads = [SingleHead(d_model, d_head) for _ in range(n_heads)]
        self.linear = nn.Linear(n_heads * d_head, d_model)

    def forward(self, x):
        z = torch.cat([head(x) for head in self.heads], dim=-1)
        return self.linear(z)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = MultiHead(32, 4)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(8, 10, 32)
    target = torch.roll(x, 1, dims=1)  # copy the previous token
    for step in range(30):
        loss = F.mse_loss(model(x)[:, 1:], target[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(step, loss.item())
