# expect: correct
import torch
import torch.nn as nn

# my version of the CausalAttention class, section 3.5

class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.d_out = d_out
        self.W_querys = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_keys = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_vals = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("msk", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        _, n_tok, _ = x.shape
        querys = self.W_querys(x)
        keys = self.W_keys(x)
        vals = self.W_vals(x)

        tmp1 = querys @ keys.transpose(1, 2)
        tmp1.masked_fill_(self.msk.bool()[:n_tok, :n_tok], -torch.inf)   # the _ is important
        tmp2 = torch.softmax(tmp1 / keys.shape[-1] ** 0.5, dim=-1)
        tmp2 = self.drop(tmp2)
        return tmp2 @ vals


inputs = torch.tensor(
    [[0.1, 0.9, 0.3],   # I
     [0.7, 0.2, 0.5],   # like
     [0.4, 0.4, 0.8],   # green
     [0.9, 0.6, 0.0]]   # tea
)
torch.manual_seed(123)
batch = torch.stack((inputs, inputs))
ca = CausalAttention(3, 2, batch.shape[1], 0.0)
context_vecs = ca(batch)
print(context_vecs)
print("context_vecs.shape:", context_vecs.shape)
