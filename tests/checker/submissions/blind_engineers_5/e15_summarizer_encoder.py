# expect: padding-on-queries, merge-without-transpose
# why: two mistakes: the padding mask is put on the query axis instead of the key axis at line 91: `return (src != self.src_pad_idx).unsqueeze(1).unsqueeze(3)`, and heads are concatenated without transposing back at line 57: `return tensor.contiguous().view(batch_size, length, head * d_tensor)`
import math
import torch
from torch import nn


class ScaleDotProductAttention(nn.Module):
    """
    compute scale dot product attention

    Query : given sentence that we focused on
    Key : every sentence to check relationship with Query
    Value : every sentence same with Key
    """

    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, q, k, v, mask=None):
        batch_size, head, length, d_tensor = k.size()
        score = (q @ k.transpose(2, 3)) / math.sqrt(d_tensor)
        # score of masked positions is set to a large negative number
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000)
        score = self.softmax(score)
        return score @ v, score


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.attention = ScaleDotProductAttention()
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_concat = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        q, k, v = self.w_q(q), self.w_k(k), self.w_v(v)
        q, k, v = self.split(q), self.split(k), self.split(v)
        out, attention = self.attention(q, k, v, mask=mask)
        out = self.concat(out)
        return self.w_concat(out)

    def split(self, tensor):
        """[batch, length, d_model] -> [batch, head, length, d_tensor]"""
        batch_size, length, d_model = tensor.size()
        d_tensor = d_model // self.n_head
        return tensor.view(batch_size, length, self.n_head, d_tensor).transpose(1, 2)

    def concat(self, tensor):
        """inverse of self.split: [batch, head, length, d_tensor] -> [batch, length, d_model]"""
        batch_size, head, length, d_tensor = tensor.size()
        return tensor.contiguous().view(batch_size, length, head * d_tensor)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, ffn_hidden, n_head, drop_prob):
        super().__init__()
        self.attention = MultiHeadAttention(d_model=d_model, n_head=n_head)
        self.norm1 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(p=drop_prob)
        self.ffn = nn.Sequential(nn.Linear(d_model, ffn_hidden), nn.ReLU(), nn.Dropout(drop_prob),
                                 nn.Linear(ffn_hidden, d_model))
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout2 = nn.Dropout(p=drop_prob)

    def forward(self, x, src_mask):
        _x = x
        x = self.attention(q=x, k=x, v=x, mask=src_mask)
        x = self.norm1(self.dropout1(x) + _x)
        _x = x
        x = self.ffn(x)
        return self.norm2(self.dropout2(x) + _x)


class SummarizerEncoder(nn.Module):
    def __init__(self, src_pad_idx, enc_voc_size, max_len=50, d_model=32, ffn_hidden=64, n_head=4, n_layers=2,
                 drop_prob=0.1):
        super().__init__()
        self.src_pad_idx = src_pad_idx
        self.tok_emb = nn.Embedding(enc_voc_size, d_model, padding_idx=src_pad_idx)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([EncoderLayer(d_model, ffn_hidden, n_head, drop_prob) for _ in range(n_layers)])

    def make_src_mask(self, src):
        # no position may attend to <pad>
        return (src != self.src_pad_idx).unsqueeze(1).unsqueeze(3)

    def forward(self, src):
        src_mask = self.make_src_mask(src)
        x = self.tok_emb(src) + self.pos_emb(torch.arange(src.size(1), device=src.device))
        for layer in self.layers:
            x = layer(x, src_mask)
        return x
