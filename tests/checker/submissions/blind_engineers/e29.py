# expect: softmax-over-queries, scale-by-d-out
# why: the softmax is normalised over the edges that leave a node instead of those that arrive at it, and the scale uses heads * channels instead of channels.
import math
from typing import Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def scatter_add(src: Tensor, index: Tensor, dim_size: int) -> Tensor:
    out = src.new_zeros((dim_size,) + src.shape[1:])
    return out.index_add_(0, index, src)


def segment_softmax(src: Tensor, index: Tensor, num_nodes: int) -> Tensor:
    """Softmax of ``src`` (E, H) over all entries that share a value in ``index`` (E,)."""
    expanded = index.view(-1, 1).expand_as(src)
    src_max = src.new_full((num_nodes, src.size(1)), float("-inf"))
    src_max = src_max.scatter_reduce(0, expanded, src.detach(), reduce="amax")
    out = (src - src_max.index_select(0, index)).exp()
    out_sum = scatter_add(out, index, num_nodes) + 1e-16
    return out / out_sum.index_select(0, index)


class TransformerConv(nn.Module):
    r"""Graph transformer operator

    .. math::
        x'_i = W_1 x_i + \sum_{j \in N(i)} \alpha_{ij} W_2 x_j, \qquad
        \alpha_{ij} = \mathrm{softmax}_j\left( \frac{(W_3 x_i)^\top (W_4 x_j)}{\sqrt{d}} \right)

    Args:
        in_channels (int or tuple): Size of each input sample, a tuple for bipartite graphs.
        out_channels (int): Size of each output sample per head (d in the formula).
        heads (int): Number of heads.
        concat (bool): If False, the heads are averaged.
    """

    def __init__(self, in_channels: Union[int, Tuple[int, int]], out_channels: int, heads: int = 1,
                 concat: bool = True, dropout: float = 0.0, edge_dim: Optional[int] = None, root_weight: bool = True):
        super().__init__()
        if isinstance(in_channels, int):
            in_channels = (in_channels, in_channels)
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.dropout = dropout
        self.lin_key = nn.Linear(in_channels[0], heads * out_channels)
        self.lin_query = nn.Linear(in_channels[1], heads * out_channels)
        self.lin_value = nn.Linear(in_channels[0], heads * out_channels)
        self.lin_edge = nn.Linear(edge_dim, heads * out_channels, bias=False) if edge_dim is not None else None
        self.lin_skip = nn.Linear(in_channels[1], heads * out_channels if concat else out_channels) \
            if root_weight else None

    def forward(self, x: Union[Tensor, Tuple[Tensor, Tensor]], edge_index: Tensor,
                edge_attr: Optional[Tensor] = None) -> Tensor:
        """edge_index: (2, E), messages flow from edge_index[0] to edge_index[1]."""
        if isinstance(x, Tensor):
            x = (x, x)
        H, C = self.heads, self.out_channels
        query = self.lin_query(x[1]).view(-1, H, C)
        key = self.lin_key(x[0]).view(-1, H, C)
        value = self.lin_value(x[0]).view(-1, H, C)

        src, dst = edge_index
        out = self.propagate(src, dst, query, key, value, edge_attr, num_dst=x[1].size(0), num_src=x[0].size(0))
        out = out.view(-1, H * C) if self.concat else out.mean(dim=1)
        if self.lin_skip is not None:
            out = out + self.lin_skip(x[1])
        return out

    def propagate(self, src, dst, query, key, value, edge_attr, num_dst, num_src):
        key_j, value_j = key[src], value[src]
        if self.lin_edge is not None:
            assert edge_attr is not None
            e = self.lin_edge(edge_attr).view(-1, self.heads, self.out_channels)
            key_j = key_j + e
            value_j = value_j + e
        alpha = (query[dst] * key_j).sum(dim=-1) / math.sqrt(self.heads * self.out_channels)
        alpha = segment_softmax(alpha, src, num_src)
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)
        return scatter_add(value_j * alpha.unsqueeze(-1), dst, num_dst)
