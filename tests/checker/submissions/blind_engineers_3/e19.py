# expect: depends-on-earlier-call
# why: The memoised mask contains the padding of the batch but the key is only shape and device (line 19), so every later batch of the same shape gets the padding mask of the first batch (stale mask).
"""Small GPT used by the data team for perplexity filtering.

Building the mask was 8% of the step time in the profile, so it is memoised.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskBuilder(nn.Module):
    """Combines the causal mask with the padding mask of the batch."""

    def __init__(self):
        super().__init__()
        self._memo = {}

    def forward(self, attention_mask):
        # attention_mask: (B, T), 1 for tokens and 0 for padding
        key = (tuple(attention_mask.shape), attention_mask.device)
        if key not in self._memo:
            B, T = attention_mask.shape
            causal = torch.ones(T, T, dtype=torch.bool, device=attention_mask.device).tril()
            keep = causal[None, None] & attention_mask.bool()[:, None, None, :]
            # a padded query must not end up with an empty row
            keep = keep | torch.eye(T, dtype=torch.bool, device=attention_mask.device)
            self._memo[key] = keep
        return self._memo[key]


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, keep):
        B, T, C = x.shape
        q, k, v = self.to_qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=self.dropout if self.training else 0.0)
        return self.to_out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, keep):
        x = x + self.attn(self.ln1(x), keep)
        return x + self.mlp(self.ln2(x))


class FilterLM(nn.Module):
    def __init__(self, vocab=256, dim=64, heads=4, depth=3, max_len=512):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.masks = MaskBuilder()

    def forward(self, ids, attention_mask):
        pos = (attention_mask.long().cumsum(1) - 1).clamp(min=0)      # batches are left padded
        x = self.tok(ids) + self.pos(pos)
        keep = self.masks(attention_mask)
        for blk in self.blocks:
            x = blk(x, keep)
        return self.head(self.ln(x))

    @torch.no_grad()
    def perplexity(self, ids, attention_mask):
        logits = self(ids, attention_mask)[:, :-1]
        nll = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        w = (attention_mask[:, 1:] * attention_mask[:, :-1]).to(nll.dtype)
        return ((nll * w).sum(1) / w.sum(1).clamp(min=1)).exp()


if __name__ == "__main__":
    lm = FilterLM().eval()
    for _ in range(3):
        ids = torch.randint(0, 256, (4, 16))
        mask = (torch.arange(16)[None] >= torch.randint(0, 8, (4, 1))).long()
        print(lm.perplexity(ids, mask))
