# expect: padding-in-other-texts
# why: Heads are put in the batch head-major (row h*N+b, torch.cat of splits), but the padding mask is expanded with repeat_interleave (line 45; row b*h+...), so samples get the padding mask of other samples; needs repeat(head_num, 1).
"""SASRec in PyTorch (self-attentive sequential recommendation), item id 0 = padding."""
import argparse

import torch
import torch.nn as nn


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = nn.Dropout(dropout_rate)
        self.conv2 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = nn.Dropout(dropout_rate)

    def forward(self, inputs):
        h = torch.relu(self.dropout1(self.conv1(inputs.transpose(-1, -2))))
        return inputs + self.dropout2(self.conv2(h)).transpose(-1, -2)


class MultiHeadSelfAttention(nn.Module):
    """Port of the TF implementation: heads are moved into the batch dimension."""

    def __init__(self, hidden_size, head_num, dropout_rate):
        super().__init__()
        self.head_num = head_num
        self.head_size = hidden_size // head_num
        self.Q_w = nn.Linear(hidden_size, hidden_size)
        self.K_w = nn.Linear(hidden_size, hidden_size)
        self.V_w = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, queries, keys, key_padding, attn_mask):
        # key_padding: (N, T) True at padded items;  attn_mask: (T, T) True = not allowed
        Q, K, V = self.Q_w(queries), self.K_w(keys), self.V_w(keys)

        # (N, T, C) -> (h*N, T, C/h)
        Q_ = torch.cat(torch.split(Q, self.head_size, dim=2), dim=0)
        K_ = torch.cat(torch.split(K, self.head_size, dim=2), dim=0)
        V_ = torch.cat(torch.split(V, self.head_size, dim=2), dim=0)

        attn_weights = Q_.matmul(K_.transpose(1, 2)) / self.head_size ** 0.5

        # one copy of the padding mask per head
        key_padding = key_padding.repeat_interleave(self.head_num, dim=0).unsqueeze(1)      # (h*N, 1, T)
        paddings = torch.full_like(attn_weights, -2 ** 32 + 1)
        attn_weights = torch.where(key_padding, paddings, attn_weights)
        attn_weights = torch.where(attn_mask.unsqueeze(0), paddings, attn_weights)

        attn_weights = self.dropout(torch.softmax(attn_weights, dim=-1))
        outputs = attn_weights.matmul(V_)
        # back to (N, T, C)
        return torch.cat(torch.split(outputs, queries.shape[0], dim=0), dim=2)


class SASRec(nn.Module):
    def __init__(self, item_num, args):
        super().__init__()
        self.item_emb = nn.Embedding(item_num + 1, args.hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(args.maxlen, args.hidden_units)
        self.emb_dropout = nn.Dropout(args.dropout_rate)
        self.attn_norms = nn.ModuleList(nn.LayerNorm(args.hidden_units, eps=1e-8) for _ in range(args.num_blocks))
        self.attns = nn.ModuleList(MultiHeadSelfAttention(args.hidden_units, args.num_heads, args.dropout_rate) for _ in range(args.num_blocks))
        self.ffn_norms = nn.ModuleList(nn.LayerNorm(args.hidden_units, eps=1e-8) for _ in range(args.num_blocks))
        self.ffns = nn.ModuleList(PointWiseFeedForward(args.hidden_units, args.dropout_rate) for _ in range(args.num_blocks))
        self.last_norm = nn.LayerNorm(args.hidden_units, eps=1e-8)

    def log2feats(self, log_seqs):
        N, T = log_seqs.shape
        seqs = self.item_emb(log_seqs) * self.item_emb.embedding_dim ** 0.5
        seqs = seqs + self.pos_emb(torch.arange(T, device=log_seqs.device))
        timeline_mask = log_seqs == 0
        seqs = self.emb_dropout(seqs) * ~timeline_mask.unsqueeze(-1)
        attention_mask = ~torch.tril(torch.ones((T, T), dtype=torch.bool, device=log_seqs.device))
        for n1, attn, n2, ffn in zip(self.attn_norms, self.attns, self.ffn_norms, self.ffns):
            q = n1(seqs)
            seqs = q + attn(q, seqs, timeline_mask, attention_mask)
            seqs = ffn(n2(seqs)) * ~timeline_mask.unsqueeze(-1)
        return self.last_norm(seqs)

    def forward(self, log_seqs, pos_seqs, neg_seqs):
        feats = self.log2feats(log_seqs)
        pos_logits = (feats * self.item_emb(pos_seqs)).sum(-1)
        neg_logits = (feats * self.item_emb(neg_seqs)).sum(-1)
        return pos_logits, neg_logits


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--maxlen", default=50, type=int)
    parser.add_argument("--hidden_units", default=48, type=int)
    parser.add_argument("--num_blocks", default=2, type=int)
    parser.add_argument("--num_heads", default=4, type=int)
    parser.add_argument("--dropout_rate", default=0.2, type=float)
    args = parser.parse_args()
    seqs = torch.randint(1, 1000, (8, args.maxlen))
    seqs[::2, :30] = 0          # left padding
    pos, neg = SASRec(1000, args)(seqs, torch.randint(1, 1000, seqs.shape), torch.randint(1, 1000, seqs.shape))
    print(pos.shape, neg.shape)
