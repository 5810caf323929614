# expect: correct
# what: pinyin names, Chinese comments, heads stacked into the batch axis as H*B (TF style), (B,Tk) 1=keep mask, cross lengths
# -*- coding: utf-8 -*-
# 作业三：多头注意力  (按照 TF 版 transformer 的写法, 把头拼到 batch 维)
import torch
import torch.nn as nn


class DuoTouZhuYiLi(nn.Module):
    """多头注意力 / multi head attention"""

    def __init__(self, weidu, tou_shu, diuqi=0.0):
        super().__init__()
        assert weidu % tou_shu == 0
        self.weidu = weidu          # 模型维度
        self.tou_shu = tou_shu      # 头数
        self.tou_wei = weidu // tou_shu
        self.W_chaxun = nn.Linear(weidu, weidu)
        self.W_jian = nn.Linear(weidu, weidu)
        self.W_zhi = nn.Linear(weidu, weidu)
        self.W_shuchu = nn.Linear(weidu, weidu)
        self.diuqi = nn.Dropout(diuqi)

    def forward(self, chaxun, jian, zhi, yanma=None):
        # chaxun: (B, Tq, C)   jian, zhi: (B, Tk, C)
        # yanma:  (B, Tk)  1=有效 0=填充
        piliang = chaxun.size(0)

        Q = self.W_chaxun(chaxun)
        K = self.W_jian(jian)
        V = self.W_zhi(zhi)

        # (tou_shu*B, T, tou_wei)
        Q_ = torch.cat(torch.split(Q, self.tou_wei, dim=2), dim=0)
        K_ = torch.cat(torch.split(K, self.tou_wei, dim=2), dim=0)
        V_ = torch.cat(torch.split(V, self.tou_wei, dim=2), dim=0)

        fenshu = torch.bmm(Q_, K_.transpose(1, 2)) / (self.tou_wei ** 0.5)

        if yanma is not None:
            ym = yanma.repeat(self.tou_shu, 1)              # (tou_shu*B, Tk)
            ym = ym.unsqueeze(1).expand(-1, Q_.size(1), -1)
            fenshu = torch.where(ym == 0, torch.full_like(fenshu, -2 ** 32 + 1), fenshu)

        quanzhong = torch.softmax(fenshu, dim=2)
        quanzhong = self.diuqi(quanzhong)

        shuchu = torch.bmm(quanzhong, V_)
        shuchu = torch.cat(torch.split(shuchu, piliang, dim=0), dim=2)  # 还原
        return self.W_shuchu(shuchu)


def ceshi():
    m = DuoTouZhuYiLi(16, 4)
    x = torch.randn(3, 5, 16)
    ym = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    print('shuchu:', m(x, x, x, ym).shape)


if __name__ == '__main__':
    ceshi()
