# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F

# shapes (same letters as in the lecture)
#   b batch | p query position | m memory position | h heads | d model | k key/value size


class LectureMultihead(nn.Module):
    def __init__(self, h, d, k, causal=True):
        super().__init__()
        self.P_q = nn.Parameter(torch.empty(h, d, k))
        self.P_k = nn.Parameter(torch.empty(h, d, k))
        self.P_v = nn.Parameter(torch.empty(h, d, k))
        self.P_o = nn.Parameter(torch.empty(h, k, d))
        for w in self.parameters():
            nn.init.normal_(w, std=d ** -0.5)
        self.causal = causal
        self.k = k

    def forward(self, X, M=None):
        if M is None:
            M = X
        Q = torch.einsum("bpd,hdk->bhpk", X, self.P_q)
        K = torch.einsum("bmd,hdk->bhmk", M, self.P_k)
        V = torch.einsum("bmd,hdk->bhmk", M, self.P_v)
        logits = torch.einsum("bhpk,bhmk->bhpm", Q, K) * self.k ** -0.5
        if self.causal:
            p = torch.arange(logits.shape[-2], device=X.device).unsqueeze(1)
            m = torch.arange(logits.shape[-1], device=X.device).unsqueeze(0)
            logits = torch.where(m > p, float("-inf"), logits)
        W = F.softmax(logits, -1)
        O = torch.einsum("bhpm,bhmk->bhpk", W, V)
        return torch.einsum("bhpk,hkd->bpd", O, self.P_o)


if __name__ == "__main__":
    layer = LectureMultihead(h=3, d=14, k=5)
    print(layer(torch.randn(2, 8, 14)).shape)
