# expect: mask-result-dropped
# why: masked_fill is not in place and its result is thrown away, so padded positions are attended; shows at line 34: `logits.masked_fill(pad[:, None, None, :], -1e9)`
import numpy as np
import torch
import torch.nn as nn


class SessionSelfAttention(nn.Module):
    """Causal self attention over the items of a session.

    `pad` has True where the session was filled up with item id 0; such positions are not read.
    """

    def __init__(self, hidden_units, num_heads, dropout_rate):
        super().__init__()
        assert hidden_units % num_heads == 0
        self.h = num_heads
        self.d = hidden_units // num_heads
        self.query = nn.Linear(hidden_units, hidden_units)
        self.key = nn.Linear(hidden_units, hidden_units)
        self.value = nn.Linear(hidden_units, hidden_units)
        self.dropout = nn.Dropout(dropout_rate)

    def _heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.h, self.d).permute(0, 2, 1, 3)

    def forward(self, q_in, kv_in, pad):
        Q, K, V = self._heads(self.query(q_in)), self._heads(self.key(kv_in)), self._heads(self.value(kv_in))
        logits = Q.matmul(K.transpose(-1, -2)) / np.sqrt(self.d)

        L = logits.shape[-1]
        future = torch.triu(torch.full((L, L), -1e9, device=logits.device), diagonal=1)
        logits = logits + future
        logits.masked_fill(pad[:, None, None, :], -1e9)

        weights = self.dropout(torch.softmax(logits, dim=-1))
        out = weights.matmul(V).permute(0, 2, 1, 3)
        return out.reshape(out.shape[0], out.shape[1], -1)


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = nn.Dropout(p=dropout_rate)
        self.conv2 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = nn.Dropout(p=dropout_rate)

    def forward(self, inputs):
        y = self.dropout2(self.conv2(torch.relu(self.dropout1(self.conv1(inputs.transpose(-1, -2))))))
        return y.transpose(-1, -2) + inputs


class SessionRec(nn.Module):
    """Next item recommendation. Sessions are padded in front with 0 up to maxlen."""

    def __init__(self, n_items, maxlen=20, hidden_units=32, num_blocks=2, num_heads=2, dropout_rate=0.2):
        super().__init__()
        self.item_emb = nn.Embedding(n_items + 1, hidden_units)
        self.pos_emb = nn.Embedding(maxlen, hidden_units)
        self.emb_dropout = nn.Dropout(dropout_rate)
        self.ln_attn = nn.ModuleList([nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks)])
        self.attn = nn.ModuleList([SessionSelfAttention(hidden_units, num_heads, dropout_rate)
                                   for _ in range(num_blocks)])
        self.ln_ffn = nn.ModuleList([nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks)])
        self.ffn = nn.ModuleList([PointWiseFeedForward(hidden_units, dropout_rate) for _ in range(num_blocks)])
        self.last_ln = nn.LayerNorm(hidden_units, eps=1e-8)

    def log2feats(self, log_seqs):
        pad = log_seqs == 0
        seqs = self.item_emb(log_seqs) * self.item_emb.embedding_dim ** 0.5
        positions = torch.arange(log_seqs.shape[1], device=log_seqs.device)
        seqs = self.emb_dropout(seqs + self.pos_emb(positions))
        for ln1, attn, ln2, ffn in zip(self.ln_attn, self.attn, self.ln_ffn, self.ffn):
            seqs = seqs + attn(ln1(seqs), seqs, pad)
            seqs = ffn(ln2(seqs))
        return self.last_ln(seqs)

    def forward(self, log_seqs, candidates):
        feats = self.log2feats(log_seqs)[:, -1]
        return torch.einsum('bd,bcd->bc', feats, self.item_emb(candidates))
