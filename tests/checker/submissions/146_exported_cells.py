# expect: wrong-scale
# coding: utf-8
# exported from attention_chapter.ipynb

# In[1]:
import torch
from torch import nn


# In[4]:
class SelfAttentionV2(nn.Module):
    """Self-attention with linear layers, works on a batch (b, num_tokens, d_in)."""

    def __init__(self, d_out, d_in, bias=False):
        super().__init__()
        self.to_query = nn.Linear(d_in, d_out, bias=bias)
        self.to_key = nn.Linear(d_in, d_out, bias=bias)
        self.to_value = nn.Linear(d_in, d_out, bias=bias)

    def forward(self, inputs):
        queries = self.to_query(inputs)
        keys = self.to_key(inputs)
        values = self.to_value(inputs)

        attn_scores = queries @ keys.transpose(1, 2)
        attn_weights = torch.softmax(attn_scores / keys.shape[1] ** 0.5, dim=-1)
        context = attn_weights @ values
        return context


# In[5]:
torch.manual_seed(789)
x = torch.rand(2, 6, 3)
layer = SelfAttentionV2(d_out=2, d_in=3)
print(layer(x))


# In[6]:
print(layer(x).shape)   # should be 2, 6, 2
