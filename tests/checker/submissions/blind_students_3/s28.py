# expect: scale-twice, cache-differs
# why: Line 19: q is multiplied with head_dim**-0.5 and then F.scaled_dot_product_attention (line 24) scales again, so the scores are divided by head_dim rather than sqrt(head_dim).
# why: Line 55: the positions are always arange(t) from 0; with a cache t is 1, so every generated token gets position 0 and cached generation differs from the full run.
# GPT with key/value caching - so that generation is fast!
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attn(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.scale = self.hd ** -0.5
        self.wqkv = nn.Linear(dim, dim * 3)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x, past=None):
        b, t, c = x.shape
        q, k, v = self.wqkv(x).split(c, dim=-1)
        q, k, v = [z.reshape(b, t, self.heads, self.hd).transpose(1, 2) for z in (q, k, v)]
        q = q * self.scale
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        # when past is given there is only one new token -> it may see everything
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        y = y.transpose(1, 2).reshape(b, t, c)
        return self.wo(y), (k, v)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attn(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, past=None):
        a, kv = self.attn(self.ln1(x), past)
        x = x + a
        x = x + self.mlp(self.ln2(x))
        return x, kv


class MiniGPT(nn.Module):
    def __init__(self, vocab, dim=64, heads=4, depth=2, ctx=128):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(ctx, dim)
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(depth)])
        self.lnf = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx, past=None):
        b, t = idx.shape
        assert past is None or t == 1
        x = self.wte(idx) + self.wpe(torch.arange(t, device=idx.device))
        new_past = []
        for i, layer in enumerate(self.layers):
            x, kv = layer(x, None if past is None else past[i])
            new_past.append(kv)
        return self.head(self.lnf(x)), new_past

    @torch.no_grad()
    def generate(self, idx, n_new, temperature=1.0):
        logits, past = self(idx)
        for _ in range(n_new):
            p = F.softmax(logits[:, -1] / temperature, dim=-1)
            nxt = torch.multinomial(p, 1)
            idx = torch.cat((idx, nxt), dim=1)
            logits, past = self(nxt, past)
        return idx


if __name__ == "__main__":
    g = MiniGPT(100).eval()
    print(g.generate(torch.randint(0, 100, (1, 4)), 20))
