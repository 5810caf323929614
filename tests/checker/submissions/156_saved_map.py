# expect: scores-detached
# 第三章作业：多头注意力（权重拆分版）
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """因果多头注意力。

    参数:
        d_model         输入和输出维度
        heads           头数
        max_len         最大序列长度
        drop            注意力权重上的 dropout
    """

    def __init__(self, d_model, heads, max_len, drop=0.1, bias=False):
        super().__init__()
        assert d_model % heads == 0, "d_model 必须能被 heads 整除"
        self.heads = heads
        self.d_head = d_model // heads
        self.wq = nn.Linear(d_model, d_model, bias=bias)
        self.wk = nn.Linear(d_model, d_model, bias=bias)
        self.wv = nn.Linear(d_model, d_model, bias=bias)
        self.wo = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(drop)
        self.register_buffer("mask", torch.tril(torch.ones(max_len, max_len)))
        self.attn_map = None  # 画热力图用

    def forward(self, x):
        b, t, d = x.shape
        # 拆成多个头: (b, t, d) -> (b, heads, t, d_head)
        q = self.wq(x).view(b, t, self.heads, self.d_head).transpose(1, 2)
        k = self.wk(x).view(b, t, self.heads, self.d_head).transpose(1, 2)
        v = self.wv(x).view(b, t, self.heads, self.d_head).transpose(1, 2)

        scores = q @ k.transpose(2, 3) / self.d_head ** 0.5
        scores = scores.masked_fill(self.mask[:t, :t] == 0, float("-inf"))

        # 保存一份权重，之后画图
        self.attn_map = attn = torch.softmax(scores, dim=-1).detach()

        out = self.drop(attn) @ v
        out = out.transpose(1, 2).contiguous().view(b, t, d)  # 合并各个头
        return self.wo(out)


if __name__ == "__main__":
    torch.manual_seed(2024)
    mha = MultiHeadAttention(d_model=8, heads=2, max_len=16, drop=0.0)
    y = mha(torch.randn(2, 5, 8))
    print("输出形状:", y.shape)
    print(mha.attn_map[0, 0])
    y.sum().backward()
    print("wv 的梯度:", mha.wv.weight.grad.norm())
