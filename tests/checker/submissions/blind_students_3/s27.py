# expect: correct
import torch
import torch.nn as nn


class GlobalAttention(nn.Module):
    """
    Luong et al. 2015. Layout is [seq, batch, hidden].
    score: 'dot', 'general' or 'concat'
    """
    def __init__(self, hidden, score='dot'):
        super(GlobalAttention, self).__init__()
        self.score_type = score
        if score == 'general':
            self.Wa = nn.Linear(hidden, hidden, bias=False)
        elif score == 'concat':
            self.Wa = nn.Linear(2 * hidden, hidden, bias=False)
            self.va = nn.Parameter(torch.empty(hidden).uniform_(-0.1, 0.1))

    def score(self, ht, hs):
        # ht [1,B,H]  hs [S,B,H]  ->  [S,B]
        if self.score_type == 'dot':
            return (ht * hs).sum(-1)
        if self.score_type == 'general':
            return (ht * self.Wa(hs)).sum(-1)
        cat = torch.cat([ht.expand(hs.size(0), -1, -1), hs], dim=-1)
        return torch.tanh(self.Wa(cat)) @ self.va

    def forward(self, ht, hs, src_mask=None):
        # src_mask [S,B], True for padding
        e = self.score(ht, hs)
        if src_mask is not None:
            e = e.masked_fill(src_mask, -1e10)
        a = torch.softmax(e, dim=0)                    # over the source positions
        c = torch.einsum('sb,sbh->bh', a, hs)
        return c, a.t()


class AttnDecoder(nn.Module):
    def __init__(self, vocab, emb, hidden, score='general', p=0.2):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(vocab, emb)
        # input feeding: concatenate the last attentional vector
        self.lstm = nn.LSTMCell(emb + hidden, hidden)
        self.attn = GlobalAttention(hidden, score)
        self.Wc = nn.Linear(2 * hidden, hidden, bias=False)
        self.Ws = nn.Linear(hidden, vocab)
        self.dropout = nn.Dropout(p)

    def forward(self, tgt, state, hs, src_mask=None):
        B = tgt.size(1)
        feed = hs.new_zeros(B, self.hidden)
        h, c = state
        outs, aligns = [], []
        for tok in tgt:                                 # tgt [T,B]
            x = torch.cat([self.dropout(self.embed(tok)), feed], dim=1)
            h, c = self.lstm(x, (h, c))
            ctx, a = self.attn(h.unsqueeze(0), hs, src_mask)
            feed = torch.tanh(self.Wc(torch.cat([ctx, h], dim=1)))
            outs.append(self.Ws(self.dropout(feed)))
            aligns.append(a)
        return torch.stack(outs), torch.stack(aligns), (h, c)


if __name__ == '__main__':
    S, B, T, H = 8, 3, 5, 20
    hs = torch.randn(S, B, H)
    m = torch.zeros(S, B, dtype=torch.bool)
    m[6:, 1] = True
    for kind in ('dot', 'general', 'concat'):
        d = AttnDecoder(30, 12, H, kind)
        o, a, _ = d(torch.randint(30, (T, B)), (hs[-1], torch.zeros(B, H)), hs, m)
        print(kind, o.shape, a.shape)
