# expect: softmax-over-queries
# why: softmax(dim=0) on the (queries, keys) matrix normalises over the queries, so the columns sum to one and not the rows.
import torch
import torch.nn as nn
import math


class SelfAttention(nn.Module):
    # input: one sentence, (tokens, d)
    def __init__(self, d, dk, dv):
        super().__init__()
        self.wq = nn.Parameter(torch.randn(d, dk) / math.sqrt(d))
        self.wk = nn.Parameter(torch.randn(d, dk) / math.sqrt(d))
        self.wv = nn.Parameter(torch.randn(d, dv) / math.sqrt(d))
        self.dk = dk

    def forward(self, sentence):
        q = sentence.matmul(self.wq)
        k = sentence.matmul(self.wk)
        v = sentence.matmul(self.wv)
        omega = q.matmul(k.t())
        alpha = torch.softmax(omega / math.sqrt(self.dk), dim=0)
        z = alpha.matmul(v)
        return z


sentence = 'my dog does not like the vacuum cleaner'
dc = {s: i for i, s in enumerate(sorted(set(sentence.split())))}
ints = torch.tensor([dc[s] for s in sentence.split()])
torch.manual_seed(123)
embed = torch.nn.Embedding(len(dc), 16)
embedded = embed(ints).detach()
sa = SelfAttention(16, 10, 14)
print(sa(embedded).shape)
