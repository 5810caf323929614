# expect: no-causal-mask, merge-without-transpose
# why: two mistakes: the causal mask buffer is registered but never applied to the scores, and the heads are merged with view without transpose(1, 2) (line 31: `att = F.softmax(att, dim=-1)`; line 34: `y = y.contiguous().view(B, T, C)`)
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

# character level GPT on tiny shakespeare

class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size, pdrop=0.1):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head = n_head
        self.key = nn.Linear(n_embd, n_embd)
        self.query = nn.Linear(n_embd, n_embd)
        self.value = nn.Linear(n_embd, n_embd)
        self.attn_drop = nn.Dropout(pdrop)
        self.resid_drop = nn.Dropout(pdrop)
        self.proj = nn.Linear(n_embd, n_embd)
        # causal mask so that attention is only applied to the left
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size))[None, None])

    def forward(self, x):
        B, T, C = x.size()
        hs = C // self.n_head
        k = self.key(x).view(B, T, self.n_head, hs).transpose(1, 2)
        q = self.query(x).view(B, T, self.n_head, hs).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, hs).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(hs)
        att = F.softmax(att, dim=-1)
        att = self.attn_drop(att)
        y = att @ v
        y = y.contiguous().view(B, T, C)
        return self.resid_drop(self.proj(y))

class CharGPT(nn.Module):
    def __init__(self, vocab, n_embd=32, n_head=4, block_size=24):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block_size)
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return self.head(x)

if __name__ == "__main__":
    text = "to be or not to be that is the question"
    chars = sorted(set(text))
    data = torch.tensor([chars.index(c) for c in text])
    model = CharGPT(len(chars))
    logits = model(data[None, :24])
    print(F.cross_entropy(logits[0], data[1:25]).item(), math.log(len(chars)))
