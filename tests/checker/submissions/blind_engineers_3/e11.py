# expect: correct
"""Attentional GRU decoder (Bahdanau et al., 2015) for the transliteration baseline."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def lengths_to_mask(lengths, max_len=None):
    max_len = max_len or int(lengths.max())
    return torch.arange(max_len, device=lengths.device)[None, :] < lengths[:, None]     # True = real token


class AdditiveAttention(nn.Module):
    """score(s, h_j) = v^T tanh(W_s s + W_h h_j)"""

    def __init__(self, query_dim, key_dim, attn_dim):
        super().__init__()
        self.W_s = nn.Linear(query_dim, attn_dim, bias=False)
        self.W_h = nn.Linear(key_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def precompute(self, memory):
        # does not depend on the decoder state, so once per sentence is enough
        return self.W_h(memory)

    def forward(self, state, memory, memory_proj, mask):
        # state: B, Q    memory: B, S, K    memory_proj: B, S, A    mask: B, S
        energy = self.v(torch.tanh(self.W_s(state).unsqueeze(1) + memory_proj)).squeeze(-1)
        energy = energy.masked_fill(~mask, float("-inf"))
        alpha = F.softmax(energy, dim=1)
        context = torch.bmm(alpha.unsqueeze(1), memory).squeeze(1)
        return context, alpha


class Encoder(nn.Module):
    def __init__(self, vocab, emb, hid):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=0)
        self.rnn = nn.GRU(emb, hid, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hid, hid)

    def forward(self, src, src_len):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(src), src_len.cpu(), batch_first=True, enforce_sorted=False)
        out, h = self.rnn(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=src.size(1))
        return memory, torch.tanh(self.bridge(torch.cat([h[0], h[1]], dim=-1)))


class Decoder(nn.Module):
    def __init__(self, vocab, emb, hid, attn_dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=0)
        self.attn = AdditiveAttention(hid, 2 * hid, attn_dim)
        self.cell = nn.GRUCell(emb + 2 * hid, hid)
        self.out = nn.Linear(hid + 2 * hid + emb, vocab)

    def forward(self, tgt_in, state, memory, mask):
        memory_proj = self.attn.precompute(memory)
        logits, alphas = [], []
        for e in self.embed(tgt_in).unbind(dim=1):
            context, alpha = self.attn(state, memory, memory_proj, mask)
            state = self.cell(torch.cat([e, context], dim=-1), state)
            logits.append(self.out(torch.cat([state, context, e], dim=-1)))
            alphas.append(alpha)
        return torch.stack(logits, 1), torch.stack(alphas, 1)


class Seq2Seq(nn.Module):
    def __init__(self, src_vocab, tgt_vocab, emb=24, hid=32):
        super().__init__()
        self.encoder = Encoder(src_vocab, emb, hid)
        self.decoder = Decoder(tgt_vocab, emb, hid)

    def forward(self, src, src_len, tgt_in):
        memory, state = self.encoder(src, src_len)
        mask = lengths_to_mask(src_len, src.size(1))
        return self.decoder(tgt_in, state, memory, mask)


if __name__ == "__main__":
    src = torch.randint(1, 30, (3, 7))
    lens = torch.tensor([7, 3, 5])
    src = src * lengths_to_mask(lens, 7)
    logits, alphas = Seq2Seq(30, 40)(src, lens, torch.randint(1, 40, (3, 6)))
    print(logits.shape, alphas.sum(-1))
