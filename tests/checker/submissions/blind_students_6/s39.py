# expect: padding-in-other-texts
# why: valid_lens is tiled with repeat, not repeat_interleave: samples get other lengths
# zuoye: duotou zhuyili (multi-head attention), batch * heads he bing
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def yanma_softmax(fenshu, changdu):
    """fenshu: (n, q, k); changdu: (n,) youxiao changdu huozhe None"""
    if changdu is not None:
        k = fenshu.size(-1)
        weizhi = torch.arange(k, device=fenshu.device).view(1, 1, k)
        fenshu = fenshu.masked_fill(weizhi >= changdu.view(-1, 1, 1), -1e6)
    return F.softmax(fenshu, dim=-1)


class DuoTouZhuYiLi(nn.Module):
    def __init__(self, weidu, toushu, dropout=0.0):
        super().__init__()
        assert weidu % toushu == 0
        self.toushu = toushu
        self.W_q = nn.Linear(weidu, weidu, bias=False)
        self.W_k = nn.Linear(weidu, weidu, bias=False)
        self.W_v = nn.Linear(weidu, weidu, bias=False)
        self.W_o = nn.Linear(weidu, weidu, bias=False)
        self.dropout = nn.Dropout(dropout)

    def chaifen(self, X):
        # (b, t, d) -> (b*h, t, d/h)
        b, t, d = X.shape
        X = X.view(b, t, self.toushu, d // self.toushu).permute(0, 2, 1, 3)
        return X.reshape(b * self.toushu, t, d // self.toushu)

    def hebing(self, X):
        # (b*h, t, d/h) -> (b, t, d)
        n, t, dh = X.shape
        X = X.view(n // self.toushu, self.toushu, t, dh).permute(0, 2, 1, 3)
        return X.reshape(n // self.toushu, t, self.toushu * dh)

    def forward(self, queries, keys, values, valid_lens=None):
        """valid_lens: (batch,) mei ge juzi de zhenshi changdu"""
        q = self.chaifen(self.W_q(queries))
        k = self.chaifen(self.W_k(keys))
        v = self.chaifen(self.W_v(values))
        if valid_lens is not None:
            # mei ge tou dou yong tong yang de changdu
            valid_lens = valid_lens.repeat(self.toushu)
        fenshu = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
        quanzhong = yanma_softmax(fenshu, valid_lens)
        shuchu = torch.bmm(self.dropout(quanzhong), v)
        return self.W_o(self.hebing(shuchu))
