# expect: mask-hides-self, missing-scale
# why: two mistakes: torch.triu without diagonal=1 also masks the token itself (and gives the first token a uniform look at everything), and the scores are not divided by sqrt(d) (line 19: `dot = torch.bmm(q, k.transpose(1, 2))`; line 20: `look_ahead = torch.triu(torch.ones(seq_len, seq_len)).bool().to(inp.device)`)
import torch
import torch.nn as nn


class MaskedAttentionHead(nn.Module):
    # scaled dot product attention with look-ahead mask
    def __init__(self, in_features, out_features):
        super(MaskedAttentionHead, self).__init__()
        self.Q = nn.Linear(in_features, out_features)
        self.K = nn.Linear(in_features, out_features)
        self.V = nn.Linear(in_features, out_features)

    def forward(self, inp):
        q, k, v = self.Q(inp), self.K(inp), self.V(inp)
        seq_len = inp.shape[1]

        dot = torch.bmm(q, k.transpose(1, 2))
        look_ahead = torch.triu(torch.ones(seq_len, seq_len)).bool().to(inp.device)
        dot = dot.masked_fill(look_ahead, -1e9)
        attn = torch.nn.functional.softmax(dot, dim=2)
        return torch.bmm(attn, v)


def main():
    torch.manual_seed(11)
    head = MaskedAttentionHead(16, 16)
    x = torch.randn(3, 7, 16)
    out = head(x)
    print(f"in {tuple(x.shape)} -> out {tuple(out.shape)}")
    print(out[0])


main()
