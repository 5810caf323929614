# expect: wrong-scale
# why: the scores are scaled by C**-0.5 where C is the embedding width, not by the head size (line 27: `wei = q @ k.transpose(-2, -1) * C**-0.5 # (B, T, hs) @ (B, hs, T) -> (B, T, T)`)
# my version of the video code, renamed some stuff so that I don't just copy
import torch
import torch.nn as nn
import torch.nn.functional as F

CTX = 16
EMB = 64
N_HEADS = 4

class AttnHead(nn.Module):

    def __init__(self, hs):
        super().__init__()
        self.key = nn.Linear(EMB, hs, bias=False)
        self.query = nn.Linear(EMB, hs, bias=False)
        self.value = nn.Linear(EMB, hs, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(CTX, CTX)))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        # compute attention scores ("affinities")
        wei = q @ k.transpose(-2, -1) * C**-0.5 # (B, T, hs) @ (B, hs, T) -> (B, T, T)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        return wei @ self.value(x)

class ManyHeads(nn.Module):

    def __init__(self, n, hs):
        super().__init__()
        self.heads = nn.ModuleList([AttnHead(hs) for _ in range(n)])
        self.proj = nn.Linear(n * hs, EMB)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([h(x) for h in self.heads], dim=-1)))

torch.manual_seed(1337)
x = torch.randn(4, 8, EMB)
mh = ManyHeads(N_HEADS, EMB // N_HEADS)
print(mh(x).shape)
print('params:', sum(p.numel() for p in mh.parameters()))
