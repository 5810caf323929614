# expect: mask-hides-self
# why: the causal mask is made with triu without diagonal=1, so each token is also forbidden to look at itself, on line 17
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size, dropout=0.0):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head = n_head
        self.head_size = n_embd // n_head
        self.key = nn.Linear(n_embd, n_embd, bias=False)
        self.query = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(n_embd, n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)
        future = torch.triu(torch.ones(block_size, block_size)).bool()
        self.register_buffer("future", future)

    def forward(self, x):
        B, T, C = x.shape
        shape = (B, T, self.n_head, self.head_size)
        k = self.key(x).view(shape).transpose(1, 2)
        q = self.query(x).view(shape).transpose(1, 2)
        v = self.value(x).view(shape).transpose(1, 2)
        wei = q @ k.transpose(-2, -1) * self.head_size ** -0.5
        wei = wei.masked_fill(self.future[:T, :T], -1e9)
        wei = self.dropout(wei.softmax(dim=-1))
        out = (wei @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(out)


class FeedForward(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        return self.net(x)


class Block(nn.Module):
    """communication followed by computation"""

    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.sa = MultiHeadAttention(n_embd, n_head, block_size)
        self.ffwd = FeedForward(n_embd)
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        x = x + self.ffwd(self.ln2(x))
        return x


if __name__ == "__main__":
    print(Block(32, 4, 16)(torch.randn(4, 12, 32)).shape)
