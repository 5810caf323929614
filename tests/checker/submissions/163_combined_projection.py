# expect: correct
# coding: utf-8
# # 注意力机制 练习笔记（由 notebook 导出）

# In[1]:
import torch
import torch.nn as nn
import torch.nn.functional as F


# In[2]:
# 一个大的 Linear 同时算出 q, k, v；注意力部分用 PyTorch 自带的函数
class CombinedQKVAttention(nn.Module):
    """因果多头注意力, x: (batch, 序列长度, d_in) -> (batch, 序列长度, d_out)"""

    def __init__(self, d_in, d_out, num_heads, context_length, dropout=0.0, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0, "d_out 必须能被 num_heads 整除"
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.context_length = context_length
        self.dropout = dropout
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=qkv_bias)
        self.proj = nn.Linear(d_out, d_out)

    def forward(self, x):
        b, t, _ = x.shape
        if t > self.context_length:
            raise ValueError(f"序列太长: {t} > {self.context_length}")
        qkv = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim)
        # (3, b, 头, t, head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        out = out.transpose(1, 2).reshape(b, t, self.num_heads * self.head_dim)
        return self.proj(out)


# In[3]:
torch.manual_seed(123)
x = torch.randn(2, 6, 12)
mha = CombinedQKVAttention(12, 12, num_heads=3, context_length=32)
print(mha(x).shape)


# In[4]:
# 改动最后一个 token, 前面的输出不应该变
x_new = x.clone()
x_new[:, -1] += 1.0
print(torch.allclose(mha(x)[:, :-1], mha(x_new)[:, :-1], atol=1e-6))
