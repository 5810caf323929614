# expect: scale-by-d-out
# why: the scores are multiplied with C**-0.5 where C is the whole embedding width, not the size of one head.
import torch, torch.nn as nn, torch.nn.functional as F

cfg = dict(n_embd=32, n_head=4, block_size=12, drop=0.0)


class MultiHeadSelfAttention(nn.Module):

    def __init__(self, cfg):
        super().__init__()
        self.nh = cfg["n_head"]
        self.hs = cfg["n_embd"] // cfg["n_head"]
        self.key = nn.Linear(cfg["n_embd"], cfg["n_embd"], bias=False)
        self.query = nn.Linear(cfg["n_embd"], cfg["n_embd"], bias=False)
        self.value = nn.Linear(cfg["n_embd"], cfg["n_embd"], bias=False)
        self.proj = nn.Linear(cfg["n_embd"], cfg["n_embd"])
        self.attn_drop = nn.Dropout(cfg["drop"])
        self.register_buffer("tril", torch.tril(torch.ones(cfg["block_size"], cfg["block_size"])))

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x).view(B, T, self.nh, self.hs).transpose(1, 2)
        q = self.query(x).view(B, T, self.nh, self.hs).transpose(1, 2)
        v = self.value(x).view(B, T, self.nh, self.hs).transpose(1, 2)

        wei = q @ k.transpose(-2, -1) * C ** -0.5     # (B, nh, T, T), keeps the variance at 1
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.attn_drop(wei)

        out = wei @ v
        out = out.transpose(1, 2).reshape(B, T, C)
        return self.proj(out)


if __name__ == "__main__":
    x = torch.randn(2, 12, cfg["n_embd"])
    sa = MultiHeadSelfAttention(cfg)
    print(sa(x).shape)
    print(sum(p.numel() for p in sa.parameters()), "params")
