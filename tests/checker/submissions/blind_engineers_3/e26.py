# expect: correct
"""Graph transformer convolution (Shi et al., 2021) without torch_geometric.

edge_index follows the PyG convention: row 0 = source j, row 1 = target i, messages flow j -> i.
"""
import math

import torch
import torch.nn as nn


def segment_softmax(scores, index, num_segments):
    """Softmax of `scores` (E, H) over all edges that share the same index (E,)."""
    H = scores.size(1)
    idx = index[:, None].expand(-1, H)
    peak = scores.new_full((num_segments, H), float("-inf")).scatter_reduce(0, idx, scores, reduce="amax")
    ex = torch.exp(scores - peak.detach().gather(0, idx))
    total = scores.new_zeros(num_segments, H).index_add(0, index, ex)
    return ex / total.gather(0, idx)


class TransformerConv(nn.Module):
    def __init__(self, in_dim, out_dim, heads=4, edge_dim=None, dropout=0.0, beta=True):
        super().__init__()
        self.heads, self.out_dim = heads, out_dim
        self.lin_query = nn.Linear(in_dim, heads * out_dim)
        self.lin_key = nn.Linear(in_dim, heads * out_dim)
        self.lin_value = nn.Linear(in_dim, heads * out_dim)
        self.lin_edge = nn.Linear(edge_dim, heads * out_dim, bias=False) if edge_dim else None
        self.lin_skip = nn.Linear(in_dim, heads * out_dim)
        self.lin_beta = nn.Linear(3 * heads * out_dim, 1, bias=False) if beta else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, edge_index, edge_attr=None):
        N = x.size(0)
        src, dst = edge_index
        q = self.lin_query(x).view(N, self.heads, self.out_dim)[dst]
        k = self.lin_key(x).view(N, self.heads, self.out_dim)[src]
        v = self.lin_value(x).view(N, self.heads, self.out_dim)[src]
        if self.lin_edge is not None:
            e = self.lin_edge(edge_attr).view(-1, self.heads, self.out_dim)
            k, v = k + e, v + e

        alpha = (q * k).sum(-1) / math.sqrt(self.out_dim)               # E, H
        alpha = self.dropout(segment_softmax(alpha, dst, N))
        msg = (alpha.unsqueeze(-1) * v).flatten(1)                      # E, H * D
        out = msg.new_zeros(N, msg.size(1)).index_add(0, dst, msg)

        skip = self.lin_skip(x)
        if self.lin_beta is None:
            return out + skip
        gate = torch.sigmoid(self.lin_beta(torch.cat([out, skip, out - skip], dim=-1)))
        return gate * skip + (1 - gate) * out


class GraphTransformer(nn.Module):
    def __init__(self, node_dim, edge_dim, hidden=16, heads=4, layers=3, n_classes=5):
        super().__init__()
        width = hidden * heads
        self.inp = nn.Linear(node_dim, width)
        self.convs = nn.ModuleList(TransformerConv(width, hidden, heads, edge_dim, dropout=0.1) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.cls = nn.Linear(width, n_classes)

    def forward(self, x, edge_index, edge_attr):
        h = self.inp(x)
        for conv, norm in zip(self.convs, self.norms):
            h = torch.relu(norm(conv(h, edge_index, edge_attr)))
        return self.cls(h)


if __name__ == "__main__":
    n, e = 12, 40
    edge_index = torch.stack([torch.randint(0, n, (e,)), torch.randint(0, n, (e,))])
    net = GraphTransformer(8, 6)
    print(net(torch.randn(n, 8), edge_index, torch.randn(e, 6)).shape)
