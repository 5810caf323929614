# expect: correct
# what: notebook turned script, single head without output projection, top-level prints, wrong remark about the purpose of the scale
#!/usr/bin/env python
# coding: utf-8

# # Exercise 7 - Attention is all you need
# exported from notebook

# In[1]:


import torch
import torch.nn as nn
import math

torch.manual_seed(42)


# ## 7.1 The attention function
# $$ softmax(QK^T / \sqrt{d_k}) V $$
# We divide by sqrt(d_k) so that the softmax sums to one.

# In[2]:


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


# In[3]:


# quick test
_q, _k, _v = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 4)
_o, _w = attention(_q, _k, _v)
print(_o.shape, _w.sum(-1))


# ## 7.2 Single head layer

# In[4]:


class SingleHeadAttention(nn.Module):
    def __init__(self, d_in, d_k, d_v, p=0.1):
        super().__init__()
        self.q = nn.Linear(d_in, d_k)
        self.k = nn.Linear(d_in, d_k)
        self.v = nn.Linear(d_in, d_v)
        self.drop = nn.Dropout(p)

    def forward(self, x, mask=None):
        out, w = attention(self.q(x), self.k(x), self.v(x), mask, self.drop)
        self.last_weights = w.detach()
        return out


# In[5]:


def subsequent_mask(size):
    "Mask out the future (1 = allowed)."
    return torch.triu(torch.ones(1, size, size), diagonal=1) == 0


layer = SingleHeadAttention(16, 8, 12)
x = torch.randn(2, 6, 16)
y = layer(x, subsequent_mask(6))
print(y.shape)


# In[6]:


# print(layer.last_weights[0])   # plt.imshow(layer.last_weights[0])
