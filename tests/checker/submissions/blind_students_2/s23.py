# expect: keys-viewed-not-transposed, missing-scale, mask-after-softmax
# why: Line 35: k is reshaped to (B,H,d,T) instead of transposed, mixing features and tokens. Shows always.
# why: Line 35: the scores are never divided by sqrt(head_dim). Shows always.
# why: Lines 36-38: the causal mask is multiplied in after the softmax without renormalising, so rows do not sum to 1 and the future leaks through the denominator. Shows always (T > 1).
'''
mini GPT for the Shakespeare exercise
'''
import torch
import torch.nn as nn
import torch.nn.functional as F


class Config:
    vocab = 65
    ctx = 32
    dim = 48
    heads = 4
    layers = 2


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.hdim = cfg.dim // cfg.heads
        self.Wq = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.Wk = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.Wv = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.Wo = nn.Linear(cfg.dim, cfg.dim)
        self.register_buffer('tril', torch.tril(torch.ones(cfg.ctx, cfg.ctx)))

    def forward(self, x):
        B, T, C = x.shape
        q = self.Wq(x).view(B, T, self.heads, self.hdim).transpose(1, 2)
        k = self.Wk(x).view(B, T, self.heads, self.hdim).transpose(1, 2)
        v = self.Wv(x).view(B, T, self.heads, self.hdim).transpose(1, 2)

        # B h T d  @  B h d T
        att = q @ k.reshape(B, self.heads, self.hdim, T)
        att = F.softmax(att, dim=-1)
        # no cheating: the future gets weight 0
        att = att * self.tril[:T, :T]

        out = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.Wo(out)


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1 = nn.LayerNorm(cfg.dim)
        self.ln2 = nn.LayerNorm(cfg.dim)
        self.att = Attention(cfg)
        self.ff = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim))

    def forward(self, x):
        x = x + self.att(self.ln1(x))
        return x + self.ff(self.ln2(x))


class MiniGPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.ctx, cfg.dim)
        self.blocks = nn.Sequential(*[Layer(cfg) for _ in range(cfg.layers)])
        self.ln = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.tok(idx) + self.pos(torch.arange(T, device=idx.device))
        logits = self.head(self.ln(self.blocks(x)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.reshape(B * T, -1), targets.reshape(-1))


if __name__ == '__main__':
    torch.manual_seed(1337)
    m = MiniGPT(Config)
    idx = torch.randint(0, 65, (2, 17))
    logits, loss = m(idx[:, :-1], idx[:, 1:])
    print(logits.shape, loss.item())
