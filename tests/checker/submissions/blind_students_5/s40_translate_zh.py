# expect: padding-on-queries
# why: the padding mask has shape (b, 1, len, 1), so it masks the padded queries and not the padded keys (line 13: `return (src != PAD_IDX).unsqueeze(1).unsqueeze(3)`)
import torch
from torch import nn
import torch.nn.functional as F

# 机器翻译作业: 编码器
PAD_IDX = 1


def make_src_mask(src):
    # src: [batch, seq_len]
    return (src != PAD_IDX).unsqueeze(1).unsqueeze(3)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_concat = nn.Linear(d_model, d_model)

    def split(self, x):
        b, l, d = x.size()
        return x.view(b, l, self.n_head, d // self.n_head).transpose(1, 2)

    def concat(self, x):
        b, h, l, d = x.size()
        return x.transpose(1, 2).contiguous().view(b, l, h * d)

    def forward(self, q, k, v, mask=None):
        # 1. 线性变换  2. 拆分成多个头
        q, k, v = self.split(self.w_q(q)), self.split(self.w_k(k)), self.split(self.w_v(v))
        # 3. 计算相似度
        score = q @ k.transpose(2, 3) / (k.size(-1) ** 0.5)
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000)
        score = F.softmax(score, dim=-1)
        # 4. 拼接
        return self.w_concat(self.concat(score @ v))


class Encoder(nn.Module):
    def __init__(self, vocab, d_model, n_head):
        super().__init__()
        self.emb = nn.Embedding(vocab, d_model)
        self.attn = MultiHeadAttention(d_model, n_head)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, src):
        mask = make_src_mask(src)
        x = self.emb(src)
        return self.norm(x + self.attn(x, x, x, mask))


if __name__ == "__main__":
    src = torch.tensor([[5, 8, 3, 1, 1], [7, 2, 9, 4, 6]])
    enc = Encoder(20, 16, 4)
    print(enc(src).shape)
