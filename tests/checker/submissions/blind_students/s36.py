# expect: wrong
# why: the scores are divided by head_dim instead of its square root, and the padding mask is put on the query axis, so padded keys still get weight.
import torch
import torch.nn as nn


class BertStyleAttention(nn.Module):
    """
    encoder self attention
    x: (batch, seq, hidden)
    pad_mask: (batch, seq), 1 for words and 0 for [PAD]
    """

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = int(hidden_size / num_attention_heads)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        new_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(new_shape).permute(0, 2, 1, 3)

    def forward(self, x, pad_mask=None):
        q = self.transpose_for_scores(self.query(x))
        k = self.transpose_for_scores(self.key(x))
        v = self.transpose_for_scores(self.value(x))

        attention_scores = torch.matmul(q, k.transpose(-1, -2))
        attention_scores = attention_scores / self.attention_head_size
        if pad_mask is not None:
            m = pad_mask[:, None, :, None]          # broadcast over heads
            attention_scores = attention_scores.masked_fill(m == 0, torch.finfo(attention_scores.dtype).min)
        probs = nn.Softmax(dim=-1)(attention_scores)

        ctx = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        ctx = ctx.view(ctx.size()[:-2] + (-1,))
        return self.dense(ctx)


if __name__ == "__main__":
    layer = BertStyleAttention(40, 5)
    x = torch.randn(2, 6, 40)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    print(layer(x, mask).shape)
