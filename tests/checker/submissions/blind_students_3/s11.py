# expect: heads-in-python-list
# why: Line 38: the heads are in a plain Python list rather than nn.ModuleList, so their query/key/value weights are not registered: not in parameters() / state_dict, not trained by the optimizer, not moved by .to(device).
# bigram -> GPT, following the lecture but with my own names
import torch
import torch.nn as nn
from torch.nn import functional as F

torch.manual_seed(1337)
block_size = 32
n_embd = 48
n_head = 4
dropout = 0.0


class Head(nn.Module):
    """ one head of masked self-attention """

    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        return wei @ self.value(x)


class MultiHead(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = [Head(head_size) for _ in range(num_heads)]
        self.proj = nn.Linear(num_heads * head_size, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa = MultiHead(n_head, n_embd // n_head)
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout))
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        x = x + self.ffwd(self.ln2(x))
        return x


if __name__ == '__main__':
    text = "hello world, this is a tiny little training text for my tiny gpt. " * 20
    chars = sorted(set(text))
    data = torch.tensor([chars.index(c) for c in text])
    emb = nn.Embedding(len(chars), n_embd)
    pos = nn.Embedding(block_size, n_embd)
    net = nn.Sequential(Block(), Block(), nn.LayerNorm(n_embd), nn.Linear(n_embd, len(chars)))
    opt = torch.optim.AdamW(list(emb.parameters()) + list(pos.parameters()) + list(net.parameters()), lr=1e-3)
    for step in range(50):
        ix = torch.randint(len(data) - block_size - 1, (8,))
        xb = torch.stack([data[i:i + block_size] for i in ix])
        yb = torch.stack([data[i + 1:i + block_size + 1] for i in ix])
        logits = net(emb(xb) + pos(torch.arange(block_size)))
        loss = F.cross_entropy(logits.view(-1, len(chars)), yb.view(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
