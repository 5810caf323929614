# expect: padding-inverted
# why: the mask is True for padding but in SDPA True means attend: only padding is attended to
# Ödev 4 - Çok başlı dikkat (multi-head attention)
import torch
import torch.nn as nn
import torch.nn.functional as F


class CokBasliDikkat(nn.Module):
    """
    x           : (parti, uzunluk, boyut)
    dolgu_maske : (parti, uzunluk) bool, True = dolgu (pad) elemanı
    """

    def __init__(self, boyut, bas_sayisi, dropout=0.1):
        super().__init__()
        assert boyut % bas_sayisi == 0
        self.bas_sayisi = bas_sayisi
        self.bas_boyutu = boyut // bas_sayisi
        self.dropout = dropout
        self.sorgu = nn.Linear(boyut, boyut)
        self.anahtar = nn.Linear(boyut, boyut)
        self.deger = nn.Linear(boyut, boyut)
        self.cikis = nn.Linear(boyut, boyut)

    def baslara_bol(self, t):
        p, u, _ = t.shape
        return t.view(p, u, self.bas_sayisi, self.bas_boyutu).transpose(1, 2)

    def forward(self, x, dolgu_maske=None):
        p, u, boyut = x.shape
        s = self.baslara_bol(self.sorgu(x))
        a = self.baslara_bol(self.anahtar(x))
        d = self.baslara_bol(self.deger(x))

        maske = None
        if dolgu_maske is not None:
            # dolgu elemanlarına bakılmasın
            maske = dolgu_maske[:, None, None, :].expand(p, 1, u, u)

        y = F.scaled_dot_product_attention(
            s, a, d, attn_mask=maske,
            dropout_p=self.dropout if self.training else 0.0)
        y = y.transpose(1, 2).reshape(p, u, boyut)
        return self.cikis(y)
