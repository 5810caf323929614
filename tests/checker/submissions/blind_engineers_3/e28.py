# expect: mask-result-dropped, softmax-over-queries
# why: The result of the out-of-place masked_fill is discarded (line 28), so padded encoder states are not masked.
# why: Softmax over dim=1 (line 30), the decoder steps of (B, T_dec, T_enc), instead of the encoder axis: weights of a decoder step do not sum to 1 over the encoder states.
"""Luong-style decoder with additive (concat) scores, teacher forced, all steps at once."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ConcatAttention(nn.Module):
    """For every decoder step a distribution over the encoder states, padding excluded."""

    def __init__(self, dec_dim, enc_dim, attn_dim=64):
        super().__init__()
        self.dec_proj = nn.Linear(dec_dim, attn_dim, bias=False)
        self.enc_proj = nn.Linear(enc_dim, attn_dim)
        self.score = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, dec_states, enc_states, enc_lengths):
        """
        dec_states : (B, T_dec, dec_dim)
        enc_states : (B, T_enc, enc_dim)
        returns context (B, T_dec, enc_dim) and weights (B, T_dec, T_enc)
        """
        T_enc = enc_states.size(1)
        d = self.dec_proj(dec_states).unsqueeze(2)          # B, T_dec, 1, A
        e = self.enc_proj(enc_states).unsqueeze(1)          # B, 1, T_enc, A
        scores = self.score(torch.tanh(d + e)).squeeze(-1)  # B, T_dec, T_enc

        padding = torch.arange(T_enc, device=enc_states.device)[None, :] >= enc_lengths[:, None]
        scores.masked_fill(padding.unsqueeze(1), -1e9)

        weights = F.softmax(scores, dim=1)
        context = torch.bmm(weights, enc_states)
        return context, weights


class AttentionalDecoder(nn.Module):
    def __init__(self, vocab_size, emb_dim=48, hid_dim=64, enc_dim=80, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.lstm = nn.LSTM(emb_dim, hid_dim, num_layers=2, batch_first=True, dropout=dropout)
        self.attention = ConcatAttention(hid_dim, enc_dim)
        self.combine = nn.Linear(hid_dim + enc_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)
        self.generator = nn.Linear(hid_dim, vocab_size)

    def forward(self, tgt, enc_states, enc_lengths, state=None):
        h, state = self.lstm(self.dropout(self.embedding(tgt)), state)
        context, weights = self.attention(h, enc_states, enc_lengths)
        h_tilde = torch.tanh(self.combine(torch.cat([h, context], dim=-1)))
        return self.generator(self.dropout(h_tilde)), weights, state


class SpeechEncoder(nn.Module):
    """Log-mel frames, subsampled twice in time."""

    def __init__(self, n_mels=40, hid=40):
        super().__init__()
        self.l1 = nn.LSTM(n_mels, hid, batch_first=True, bidirectional=True)
        self.l2 = nn.LSTM(4 * hid, hid, batch_first=True, bidirectional=True)

    def forward(self, feats, lengths):
        x, _ = self.l1(feats)
        B, T, D = x.shape
        x = x[:, : T // 2 * 2].reshape(B, T // 2, 2 * D)
        x, _ = self.l2(x)
        return x, lengths // 2


if __name__ == "__main__":
    enc, dec = SpeechEncoder(), AttentionalDecoder(vocab_size=50)
    states, lens = enc(torch.randn(3, 60, 40), torch.tensor([60, 44, 30]))
    logits, w, _ = dec(torch.randint(1, 50, (3, 9)), states, lens)
    print(logits.shape, w.shape)
