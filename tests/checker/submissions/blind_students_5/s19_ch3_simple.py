# expect: correct
# why: plain
import torch
import torch.nn as nn

# Ch. 3 notes + exercise 3.1
inputs = torch.tensor(
    [[0.43, 0.15, 0.89],   # Your
     [0.55, 0.87, 0.66],   # journey
     [0.57, 0.85, 0.64],   # starts
     [0.22, 0.58, 0.33],   # with
     [0.77, 0.25, 0.10],   # one
     [0.05, 0.80, 0.55]])  # step


class SelfAttention_v1(nn.Module):

    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        keys = x @ self.W_key
        queries = x @ self.W_query
        values = x @ self.W_value
        attn_scores = queries @ keys.T   # omega
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values


class SelfAttention_v2(nn.Module):

    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        attn_weights = torch.softmax(queries @ keys.T / keys.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values


if __name__ == "__main__":
    torch.manual_seed(123)
    sa1 = SelfAttention_v1(3, 2)
    print(sa1(inputs))
    torch.manual_seed(789)
    sa2 = SelfAttention_v2(3, 2)
    print(sa2(inputs))
    # exercise 3.1: Linear stores the transposed weight
    sa1.W_query = nn.Parameter(sa2.W_query.weight.T)
    sa1.W_key = nn.Parameter(sa2.W_key.weight.T)
    sa1.W_value = nn.Parameter(sa2.W_value.weight.T)
    print(torch.allclose(sa1(inputs), sa2(inputs)))
