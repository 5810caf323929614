# expect: correct
#!/usr/bin/env python
# coding: utf-8

# # ViT from scratch on CIFAR10 🚀
# (exported from kaggle notebook)

# In[1]:

import torch
import torch.nn as nn
from einops import rearrange
# import matplotlib.pyplot as plt
# import torchvision

DIM, HEADS, PATCHES = 24, 3, 16

# In[2]:


class MHSA(nn.Module):
    def __init__(self, dim=DIM, heads=HEADS, drop=0.0):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=True)
        self.attn_drop = nn.Dropout(drop)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(drop))

    def forward(self, x):
        qkv = self.to_qkv(x)
        q, k, v = rearrange(qkv, 'b n (three h d) -> three b h n d', three=3, h=self.heads)
        sim = torch.einsum('b h i d, b h j d -> b h i j', q * self.scale, k)
        A = self.attn_drop(sim.softmax(dim=-1))
        z = torch.einsum('b h i j, b h j d -> b h i d', A, v)
        z = rearrange(z, 'b h n d -> b n (h d)')
        return self.to_out(z)


# In[3]:


class ViTBlock(nn.Module):
    def __init__(self, dim, heads, mlp_ratio=2):
        super().__init__()
        self.n1 = nn.LayerNorm(dim)
        self.att = MHSA(dim, heads)
        self.n2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Linear(dim * mlp_ratio, dim))

    def forward(self, x):
        x = self.att(self.n1(x)) + x
        return self.mlp(self.n2(x)) + x


# In[4]:

x = torch.randn(2, PATCHES + 1, DIM)
print(ViTBlock(DIM, HEADS)(x).shape)

# In[ ]:
