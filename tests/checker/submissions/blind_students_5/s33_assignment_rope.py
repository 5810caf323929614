# expect: correct
# why: right though unusual: rotary embedding on q and k only, own stable softmax, boolean mask where True means attend
import torch
from torch import nn, Tensor
from einops import einsum, rearrange


def softmax(x: Tensor, dim: int) -> Tensor:
    x = x - x.amax(dim=dim, keepdim=True)
    e = x.exp()
    return e / e.sum(dim=dim, keepdim=True)


def scaled_dot_product_attention(Q, K, V, mask=None):
    """mask: True = attend, False = do not attend"""
    d_k = Q.shape[-1]
    scores = einsum(Q, K, "... q d, ... k d -> ... q k") / d_k ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    return einsum(softmax(scores, dim=-1), V, "... q k, ... k d -> ... q d")


class RotaryPositionalEmbedding(nn.Module):
    def __init__(self, theta: float, d_k: int, max_seq_len: int):
        super().__init__()
        inv_freq = theta ** (-torch.arange(0, d_k, 2).float() / d_k)
        angles = torch.outer(torch.arange(max_seq_len).float(), inv_freq)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x, token_positions):
        cos, sin = self.cos[token_positions], self.sin[token_positions]
        x1, x2 = x[..., 0::2], x[..., 1::2]
        rot = torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)
        return rearrange(rot, "... half two -> ... (half two)")


class MultiheadSelfAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, max_seq_len: int = 128, theta: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.output_proj = nn.Linear(d_model, d_model, bias=False)
        self.rope = RotaryPositionalEmbedding(theta, d_model // num_heads, max_seq_len)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[-2]
        q, k, v = (
            rearrange(p(x), "... n (h d) -> ... h n d", h=self.num_heads)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        pos = torch.arange(n, device=x.device)
        q, k = self.rope(q, pos), self.rope(k, pos)
        causal = torch.tril(torch.ones(n, n, dtype=torch.bool, device=x.device))
        out = scaled_dot_product_attention(q, k, v, causal)
        return self.output_proj(rearrange(out, "... h n d -> ... n (h d)"))


if __name__ == "__main__":
    m = MultiheadSelfAttention(32, 4)
    print(m(torch.randn(3, 10, 32)).shape)
