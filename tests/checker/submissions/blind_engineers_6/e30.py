# expect: correct
# why: right: attention pooling through F.multi_head_attention_forward
"""Modified ResNet image tower head: attention pooling instead of average pooling."""
import torch
import torch.nn.functional as F
from torch import nn


class AttentionPool2d(nn.Module):
    """QKV attention where the query is the global average of the feature map.

    The spatial positions and their mean form a sequence of HW + 1 tokens with learned position
    embeddings. Only the mean token queries.

    Args:
        spacial_dim: side of the (square) feature map.
        embed_dim: channels of the feature map.
        num_heads: attention heads.
        output_dim: width of the pooled vector, default embed_dim.

    forward: (B, C, H, W) -> (B, output_dim); with ``return_map=True`` also the attention of the mean
    token over the pixels and itself, averaged over heads, (B, HW + 1).
    """

    def __init__(self, spacial_dim: int, embed_dim: int, num_heads: int, output_dim: int = None):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(spacial_dim ** 2 + 1, embed_dim) / embed_dim ** 0.5)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.c_proj = nn.Linear(embed_dim, output_dim or embed_dim)
        self.num_heads = num_heads

    def forward(self, x, return_map: bool = False):
        x = x.flatten(start_dim=2).permute(2, 0, 1)  # NCHW -> (HW)NC
        x = torch.cat([x.mean(dim=0, keepdim=True), x], dim=0)  # (HW+1)NC
        x = x + self.positional_embedding[:, None, :].to(x.dtype)
        out, weights = F.multi_head_attention_forward(
            query=x[:1], key=x, value=x,
            embed_dim_to_check=x.shape[-1],
            num_heads=self.num_heads,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
            in_proj_weight=None,
            in_proj_bias=torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]),
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=self.c_proj.weight,
            out_proj_bias=self.c_proj.bias,
            use_separate_proj_weight=True,
            training=self.training,
            need_weights=return_map,
        )
        if return_map:
            return out.squeeze(0), weights.squeeze(1)
        return out.squeeze(0)


class Bottleneck(nn.Module):
    """Anti-aliased bottleneck: average pool before the strided part."""
    expansion = 4

    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.avgpool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or inplanes != planes * self.expansion:
            self.downsample = nn.Sequential(
                nn.AvgPool2d(stride) if stride > 1 else nn.Identity(),
                nn.Conv2d(inplanes, planes * self.expansion, 1, bias=False),
                nn.BatchNorm2d(planes * self.expansion))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(self.avgpool(out)))
        return self.relu(out + identity)


class ImageTower(nn.Module):
    def __init__(self, width=16, resolution=32, heads=4, output_dim=64):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.layer1 = Bottleneck(width, width)
        self.layer2 = Bottleneck(4 * width, 2 * width, stride=2)
        self.attnpool = AttentionPool2d(resolution // 4, 8 * width, heads, output_dim)

    def forward(self, x):
        return self.attnpool(self.layer2(self.layer1(self.stem(x))))
