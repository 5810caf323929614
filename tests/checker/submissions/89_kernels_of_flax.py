# expect: correct
"""Port of our flax attention so the checkpoints can be loaded 1:1 (kernels keep the flax shapes)."""
import torch
from torch import nn


class DenseGeneralAttention(nn.Module):
    def __init__(self, features, num_heads, qkv_features=None):
        super().__init__()
        qkv_features = qkv_features or features
        assert qkv_features % num_heads == 0
        depth = qkv_features // num_heads
        self.depth = depth

        def init(*shape, fan_in):
            return nn.Parameter(torch.randn(*shape) * fan_in ** -0.5)

        self.query_kernel = init(features, num_heads, depth, fan_in=features)
        self.key_kernel = init(features, num_heads, depth, fan_in=features)
        self.value_kernel = init(features, num_heads, depth, fan_in=features)
        self.out_kernel = init(num_heads, depth, features, fan_in=qkv_features)
        self.query_bias = nn.Parameter(torch.zeros(num_heads, depth))
        self.key_bias = nn.Parameter(torch.zeros(num_heads, depth))
        self.value_bias = nn.Parameter(torch.zeros(num_heads, depth))
        self.out_bias = nn.Parameter(torch.zeros(features))

    def forward(self, inputs_q, inputs_kv=None, mask=None):
        """inputs: [..., length, features]. mask: [..., heads or 1, q, kv], nonzero = may attend."""
        if inputs_kv is None:
            inputs_kv = inputs_q
        query = torch.einsum("...lf,fhd->...lhd", inputs_q, self.query_kernel) + self.query_bias
        key = torch.einsum("...lf,fhd->...lhd", inputs_kv, self.key_kernel) + self.key_bias
        value = torch.einsum("...lf,fhd->...lhd", inputs_kv, self.value_kernel) + self.value_bias

        query = query / torch.sqrt(torch.tensor(self.depth, dtype=query.dtype))
        weights = torch.einsum("...qhd,...khd->...hqk", query, key)
        if mask is not None:
            big_neg = torch.finfo(weights.dtype).min
            weights = torch.where(mask.bool(), weights, torch.full_like(weights, big_neg))
        weights = torch.softmax(weights, dim=-1)
        x = torch.einsum("...hqk,...khd->...qhd", weights, value)
        return torch.einsum("...qhd,hdf->...qf", x, self.out_kernel) + self.out_bias
