# expect: wrong
# why: the values are computed from the decoder input instead of the encoder memory, which crashes for different lengths and mixes the wrong tokens for equal ones.
# Assignment 4: seq2seq transformer (translation en->de)
import torch
import torch.nn as nn


class EncDecAttention(nn.Module):
    def __init__(self, hid_dim, n_heads, dropout=0.0):
        super().__init__()
        assert hid_dim % n_heads == 0
        self.hid_dim = hid_dim
        self.n_heads = n_heads
        self.head_dim = hid_dim // n_heads
        self.fc_q = nn.Linear(hid_dim, hid_dim)
        self.fc_k = nn.Linear(hid_dim, hid_dim)
        self.fc_v = nn.Linear(hid_dim, hid_dim)
        self.fc_o = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, trg, memory):
        # trg = [batch, trg len, hid]   memory = [batch, src len, hid]
        bs = trg.shape[0]
        Q = self.fc_q(trg)
        K = self.fc_k(memory)
        V = self.fc_v(trg)

        Q = Q.view(bs, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = K.view(bs, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = V.view(bs, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)

        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / self.head_dim ** 0.5
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), V)
        x = x.permute(0, 2, 1, 3).contiguous()
        x = x.view(bs, -1, self.hid_dim)
        return self.fc_o(x), attention


if __name__ == "__main__":
    attn = EncDecAttention(16, 4)
    trg = torch.randn(2, 6, 16)
    mem = torch.randn(2, 6, 16)
    print(attn(trg, mem)[0].shape)
