# expect: correct
# why: right: bias is (B, H, N, N), so reshaping to (B*H, N, N) is the sample-major layout nn.MultiheadAttention wants
"""Graph transformer (Graphormer-like): distances in the graph enter as an attention bias."""
import torch
import torch.nn as nn


class GraphAttentionLayer(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.attn = nn.MultiheadAttention(d_model, n_heads, dropout=dropout, batch_first=True)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.GELU(), nn.Dropout(dropout),
                                 nn.Linear(2 * d_model, d_model))

    def forward(self, x, bias):
        """bias: (B, H, N, N), added to the attention logits"""
        B, H, N, _ = bias.shape
        h = self.norm1(x)
        # MultiheadAttention wants one matrix per (sample, head), heads running fastest
        h = self.attn(h, h, h, attn_mask=bias.reshape(B * H, N, N), need_weights=False)[0]
        x = x + h
        return x + self.ffn(self.norm2(x))


class GraphTransformer(nn.Module):
    """
    node_type: (B, N) long
    dist:      (B, N, N) long, length of the shortest path, -1 if there is none
    n_nodes:   (B,) number of nodes; graphs are padded to N
    """

    def __init__(self, num_node_types, max_dist=6, d_model=32, n_heads=4, n_layers=2, n_out=1):
        super().__init__()
        self.max_dist = max_dist
        self.n_heads = n_heads
        self.node_emb = nn.Embedding(num_node_types, d_model)
        self.degree_emb = nn.Embedding(16, d_model)
        # one scalar per head for every distance; the last entry is "not connected"
        self.dist_bias = nn.Embedding(max_dist + 2, n_heads)
        self.layers = nn.ModuleList([GraphAttentionLayer(d_model, n_heads) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.readout = nn.Linear(d_model, n_out)

    def attention_bias(self, dist, pad):
        idx = dist.clamp(max=self.max_dist)
        idx = torch.where(dist < 0, torch.full_like(idx, self.max_dist + 1), idx)
        bias = self.dist_bias(idx).permute(0, 3, 1, 2)
        return bias.masked_fill(pad[:, None, None, :], float("-inf"))

    def forward(self, node_type, dist, n_nodes):
        B, N = node_type.shape
        pad = torch.arange(N, device=node_type.device)[None, :] >= n_nodes[:, None]
        degree = (dist == 1).sum(-1).clamp(max=15)
        x = self.node_emb(node_type) + self.degree_emb(degree)
        bias = self.attention_bias(dist, pad)
        for layer in self.layers:
            x = layer(x, bias)
        x = self.norm(x).masked_fill(pad[..., None], 0.0)
        pooled = x.sum(1) / n_nodes[:, None].to(x.dtype)
        return self.readout(pooled)
