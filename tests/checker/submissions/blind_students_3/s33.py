# expect: correct
# 作业4:用 PyTorch 自带的 scaled_dot_product_attention 实现多头注意力
import torch
import torch.nn as nn
import torch.nn.functional as F
from typing import Optional


class 多头注意力(nn.Module):
    """支持自注意力和交叉注意力"""

    def __init__(self, d_model: int, num_heads: int, p: float = 0.1):
        super().__init__()
        assert d_model % num_heads == 0
        self.h = num_heads
        self.d_k = d_model // num_heads
        self.p = p
        self.q_linear = nn.Linear(d_model, d_model)
        self.kv_linear = nn.Linear(d_model, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, context: Optional[torch.Tensor] = None,
                pad_mask: Optional[torch.Tensor] = None, causal: bool = False):
        # pad_mask: (B, S) True 表示真实的词, False 表示填充
        if context is None:
            context = x
        B, T, D = x.shape
        S = context.shape[1]
        q = self.q_linear(x).view(B, T, self.h, self.d_k).transpose(1, 2)
        kv = self.kv_linear(context).view(B, S, 2, self.h, self.d_k)
        k = kv[:, :, 0].transpose(1, 2)
        v = kv[:, :, 1].transpose(1, 2)

        mask = None
        if pad_mask is not None:
            mask = pad_mask.view(B, 1, 1, S)
        if causal:
            # 下三角, True = 可以看
            tri = torch.ones(T, S, dtype=torch.bool, device=x.device).tril()
            mask = tri if mask is None else (mask & tri)

        dropout = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        y = y.transpose(1, 2).contiguous().view(B, T, D)
        return self.out(y)


if __name__ == "__main__":
    层 = 多头注意力(32, 4)
    x = torch.randn(2, 6, 32)
    m = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()
    print(层(x, pad_mask=m).shape)
