# expect: dropout-unused
import torch
from torch import nn


class CausalSelfAttention(nn.Module):

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0

        self.num_heads = num_heads
        self.head_size = d_out // num_heads

        self.query_layer = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.key_layer = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.value_layer = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.output_layer = nn.Linear(d_out, d_out)
        self.attn_dropout = nn.Dropout(dropout)

        # ones above the diagonal = the future
        self.register_buffer('future', torch.ones(context_length, context_length).triu(1).bool())

    def split(self, tensor):
        batch, length, _ = tensor.size()
        tensor = tensor.reshape(batch, length, self.num_heads, self.head_size)
        return tensor.permute(0, 2, 1, 3)

    def forward(self, inputs):
        batch, length, _ = inputs.size()

        Q = self.split(self.query_layer(inputs))
        K = self.split(self.key_layer(inputs))
        V = self.split(self.value_layer(inputs))

        logits = torch.matmul(Q, K.permute(0, 1, 3, 2)) * self.head_size ** -0.5
        logits.masked_fill_(self.future[:length, :length], -torch.inf)

        # normalise, then randomly switch off some of the weights
        probs = torch.softmax(logits, dim=-1)
        self.attn_dropout(probs)

        context = torch.matmul(probs, V)
        context = context.permute(0, 2, 1, 3).reshape(batch, length, -1)
        return self.output_layer(context)
