# expect: mask-result-dropped
# why: Line 19: the result of scores.masked_fill(...) is thrown away (not in place and not assigned), so the causal + padding mask has no effect.
import torch
import torch.nn as nn
import torch.nn.functional as F
import math
import warnings
warnings.filterwarnings("ignore")


class scaled_dot_product(nn.Module):
    def __init__(self, dropout_rate=0.1):
        super(scaled_dot_product, self).__init__()
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, Q, K, V, mask=None):
        # Q K V : [bs, heads, len, d_k]
        d_k = Q.size(-1)
        scores = torch.matmul(Q, K.transpose(2, 3)) / math.sqrt(d_k)
        if mask is not None:
            scores.masked_fill(mask == 0, float('-inf'))
        attn = F.softmax(scores, dim=3)
        attn = self.dropout(attn)
        return torch.matmul(attn, V), attn


class multi_head_attention(nn.Module):
    def __init__(self, d_model=512, heads=8, dropout_rate=0.1):
        super(multi_head_attention, self).__init__()
        self.heads = heads
        self.d_k = d_model // heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.attention = scaled_dot_product(dropout_rate)
        self.fc = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        bs = q.size(0)
        q = self.wq(q).view(bs, -1, self.heads, self.d_k).transpose(1, 2)
        k = self.wk(k).view(bs, -1, self.heads, self.d_k).transpose(1, 2)
        v = self.wv(v).view(bs, -1, self.heads, self.d_k).transpose(1, 2)
        x, attn = self.attention(q, k, v, mask)
        x = x.transpose(1, 2).contiguous().view(bs, -1, self.heads * self.d_k)
        return self.fc(x), attn


def make_trg_mask(trg, pad_idx):
    # trg = [bs, len]
    pad_mask = (trg != pad_idx).unsqueeze(1).unsqueeze(2)
    trg_len = trg.shape[1]
    sub_mask = torch.tril(torch.ones((trg_len, trg_len), device=trg.device)).bool()
    return pad_mask & sub_mask       # [bs, 1, len, len]


if __name__ == "__main__":
    bs, L, d = 2, 6, 64
    trg = torch.tensor([[4, 5, 6, 7, 8, 9], [4, 5, 6, 7, 1, 1]])
    mask = make_trg_mask(trg, pad_idx=1)
    mha = multi_head_attention(d, 4)
    x = torch.rand(bs, L, d)
    out, attn = mha(x, x, x, mask)
    print(out.shape)
    print(attn.shape)
