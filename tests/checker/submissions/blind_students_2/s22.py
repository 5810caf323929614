# expect: depends-on-earlier-call
# why: Lines 36-37: the combined causal+padding mask is kept and only rebuilt when T changes, so a later call with the same T but other lengths (or none) uses the old batch's padding; with another batch size it crashes or broadcasts. Shows only from the second call on, with padding lengths.
# 深度学习 第五次作业
# 带填充掩码的因果自注意力
import torch
from torch import nn
import torch.nn.functional as F


class ZiZhuYiLi(nn.Module):
    def __init__(self, yincang, toushu, diushi=0.1):
        super().__init__()
        self.toushu = toushu
        self.touwei = yincang // toushu
        self.qkv = nn.Linear(yincang, 3 * yincang)
        self.shuchu = nn.Linear(yincang, yincang)
        self.diushi = nn.Dropout(diushi)
        self.yanma = None      # 掩码缓存

    def zuo_yanma(self, changdu, T, shebei):
        """changdu: (B,) 每句话的真实长度"""
        yinguo = torch.tril(torch.ones(T, T, dtype=torch.bool, device=shebei))
        if changdu is None:
            return yinguo[None, None]
        youxiao = torch.arange(T, device=shebei)[None, :] < changdu[:, None]
        return yinguo[None, None] & youxiao[:, None, None, :]

    def forward(self, x, changdu=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.toushu, self.touwei).transpose(1, 2)
        k = k.view(B, T, self.toushu, self.touwei).transpose(1, 2)
        v = v.view(B, T, self.toushu, self.touwei).transpose(1, 2)

        fen = q @ k.transpose(-2, -1) / self.touwei ** 0.5

        # 长度不变就不用重新计算掩码, 更快
        if self.yanma is None or self.yanma.size(-1) != T:
            self.yanma = self.zuo_yanma(changdu, T, x.device)
        fen = fen.masked_fill(~self.yanma, float('-inf'))

        quan = self.diushi(F.softmax(fen, dim=-1))
        jieguo = (quan @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.shuchu(jieguo)


if __name__ == '__main__':
    moxing = ZiZhuYiLi(32, 4)
    x = torch.randn(3, 8, 32)
    y = moxing(x, torch.tensor([8, 5, 3]))
    print(y.shape)
