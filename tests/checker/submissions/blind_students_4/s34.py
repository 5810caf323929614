# expect: keys-and-values-apart
# why: in cross-attention the values are projected from the decoder input x instead of from the encoder output, on line 37
import math
import torch
import torch.nn as nn


class CrossAttention(nn.Module):
    """Encoder-decoder attention.

    :param x: decoder states, (B, T, d_model)
    :param enc_out: encoder output, (B, S, d_model)
    :param src_mask: (B, 1, 1, S), 0 for padding
    """

    def __init__(self, d_model=64, n_head=4, drop_prob=0.1):
        super().__init__()
        self.n_head = n_head
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_concat = nn.Linear(d_model, d_model)
        self.softmax = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(drop_prob)

    def split(self, tensor):
        batch_size, length, d_model = tensor.size()
        d_tensor = d_model // self.n_head
        return tensor.view(batch_size, length, self.n_head, d_tensor).transpose(1, 2)

    def concat(self, tensor):
        batch_size, head, length, d_tensor = tensor.size()
        return tensor.transpose(1, 2).contiguous().view(batch_size, length, head * d_tensor)

    def forward(self, x, enc_out, src_mask=None):
        q = self.split(self.w_q(x))
        k = self.split(self.w_k(enc_out))
        v = self.split(self.w_v(x))

        d_tensor = k.size(-1)
        score = (q @ k.transpose(2, 3)) / math.sqrt(d_tensor)
        if src_mask is not None:
            score = score.masked_fill(src_mask == 0, -10000)
        score = self.dropout(self.softmax(score))

        out = self.concat(score @ v)
        return self.w_concat(out)


if __name__ == "__main__":
    ca = CrossAttention()
    src = torch.randn(2, 10, 64)
    tgt = torch.randn(2, 10, 64)
    print(ca(tgt, src).size())
