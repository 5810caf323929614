# expect: wrong
# why: Adj[b, src, dst] is used directly as a [query, key] mask without transposing, so on directed graphs nodes read from their out-neighbours.
"""Dense graph transformer layer for batches of small directed graphs."""
import torch
import torch.nn as nn


class GraphAttention(nn.Module):
    """
    adj[b, i, j]  is True when there is an edge i -> j.
    edge[b, i, j] holds the features of that edge.

    Every node aggregates from its in-neighbours and from itself.
    """

    def __init__(self, node_dim: int, edge_dim: int, num_heads: int, attn_dropout: float = 0.0):
        super().__init__()
        assert node_dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = node_dim // num_heads
        self.W_q = nn.Linear(node_dim, node_dim)
        self.W_k = nn.Linear(node_dim, node_dim)
        self.W_v = nn.Linear(node_dim, node_dim)
        self.W_e = nn.Linear(edge_dim, num_heads)
        self.W_o = nn.Linear(node_dim, node_dim)
        self.attn_dropout = nn.Dropout(attn_dropout)

    def forward(self, h: torch.Tensor, adj: torch.Tensor, edge: torch.Tensor, node_mask: torch.Tensor):
        B, N, D = h.shape
        q = self.W_q(h).view(B, N, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.W_k(h).view(B, N, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.W_v(h).view(B, N, self.num_heads, self.head_dim).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.head_dim ** -0.5
        # (B, src, dst, H) -> (B, H, dst, src): queries are the receiving nodes
        scores = scores + self.W_e(edge).permute(0, 3, 2, 1)

        loops = torch.eye(N, dtype=torch.bool, device=h.device)
        allowed = adj.bool() | loops
        allowed = allowed & node_mask[:, None, :]
        # rows of padded nodes may be empty; keep the diagonal so that softmax stays finite
        allowed = allowed | loops
        scores = scores.masked_fill(~allowed[:, None], float("-inf"))

        alpha = self.attn_dropout(torch.softmax(scores, dim=-1))
        out = torch.matmul(alpha, v).transpose(1, 2).reshape(B, N, D)
        return self.W_o(out) * node_mask[..., None]


class GraphTransformerLayer(nn.Module):
    def __init__(self, node_dim: int = 32, edge_dim: int = 8, num_heads: int = 4):
        super().__init__()
        self.attn = GraphAttention(node_dim, edge_dim, num_heads)
        self.norm_a = nn.LayerNorm(node_dim)
        self.norm_f = nn.LayerNorm(node_dim)
        self.ff = nn.Sequential(nn.Linear(node_dim, 2 * node_dim), nn.ReLU(), nn.Linear(2 * node_dim, node_dim))

    def forward(self, h, adj, edge, node_mask):
        h = h + self.attn(self.norm_a(h), adj, edge, node_mask)
        h = h + self.ff(self.norm_f(h)) * node_mask[..., None]
        return h


def readout(h: torch.Tensor, node_mask: torch.Tensor) -> torch.Tensor:
    w = node_mask[..., None].to(h.dtype)
    return (h * w).sum(1) / w.sum(1).clamp(min=1.0)
