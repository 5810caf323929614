# expect: mask-result-dropped, merge-without-transpose
# why: two mistakes: the result of the out-of-place masked_fill is thrown away, so nothing is masked, on line 36, and the heads are merged with reshape without first moving the head axis behind the tokens on line 42
import torch
import torch.nn as nn


class MaskedMultiHeadAttention(nn.Module):
    """Decoder self attention (masked)."""

    def __init__(self, d_model, num_heads, dropout=0.1):
        super(MaskedMultiHeadAttention, self).__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.depth = d_model // num_heads

        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def split_heads(self, x, batch_size):
        x = x.view(batch_size, -1, self.num_heads, self.depth)
        return x.permute(0, 2, 1, 3)

    def forward(self, x):
        batch_size, seq_len, _ = x.shape

        q = self.split_heads(self.wq(x), batch_size)
        k = self.split_heads(self.wk(x), batch_size)
        v = self.split_heads(self.wv(x), batch_size)

        logits = torch.matmul(q, k.permute(0, 1, 3, 2))
        logits = logits / torch.sqrt(torch.tensor(self.depth, dtype=torch.float32))

        look_ahead = torch.triu(torch.ones(seq_len, seq_len), diagonal=1).to(x.device)
        logits.masked_fill(look_ahead == 1, float('-inf'))

        weights = torch.softmax(logits, dim=-1)
        weights = self.dropout(weights)

        scaled_attention = torch.matmul(weights, v)
        concat = scaled_attention.reshape(batch_size, seq_len, self.d_model)
        return self.dense(concat)


if __name__ == '__main__':
    temp_mha = MaskedMultiHeadAttention(d_model=64, num_heads=8)
    y = torch.rand(1, 30, 64)
    print(temp_mha(y).shape)
