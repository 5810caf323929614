# expect: rotary-pairs-mixed
# why: tables in the half layout, but adjacent channels are rotated, so it is no rotation
"""GPT-J style block: parallel attention and feed-forward, rotary on the first channels."""
import torch
from torch import nn
import torch.nn.functional as F


def fixed_pos_embedding(dim: int, seq_len: int, device=None):
    """cos / sin tables (seq_len, dim) for channel pairs (0, 1), (2, 3), ..."""
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2, device=device).float() / dim))
    sinusoid = torch.einsum("i,j->ij", torch.arange(seq_len, device=device).float(), inv_freq)
    return torch.cat((sinusoid, sinusoid), dim=-1).cos(), torch.cat((sinusoid, sinusoid), dim=-1).sin()


def rotate_every_two(x: torch.Tensor) -> torch.Tensor:
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply_rotary_pos_emb(x, cos, sin):
    """x (B, H, T, dim): rotate each pair of adjacent channels by its position times its frequency."""
    return x * cos + rotate_every_two(x) * sin


class GPTJAttention(nn.Module):
    """
    Causal self-attention with rotary position embedding on the first ``rotary_dim`` channels of
    every head (None: all of them). With rotary embeddings the logits depend on positions only
    through the distance between query and key.

    Args:
        embed_dim, num_heads, rotary_dim
        attn_pdrop, resid_pdrop: dropout rates

    x: (B, T, embed_dim); head_mask: optional (num_heads,) float, multiplies each head's weights.
    """

    def __init__(self, embed_dim, num_heads, rotary_dim=None, attn_pdrop=0.0, resid_pdrop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.rotary_dim = rotary_dim or self.head_dim
        self.scale_attn = self.head_dim ** 0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def _split_heads(self, t):
        return t.view(t.shape[0], t.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def _rotate(self, t):
        r = self.rotary_dim
        cos, sin = fixed_pos_embedding(r, t.shape[2], t.device)
        cos, sin = cos.to(t.dtype), sin.to(t.dtype)
        return torch.cat([apply_rotary_pos_emb(t[..., :r], cos, sin), t[..., r:]], dim=-1)

    def _attn(self, q, k, v, head_mask=None):
        # keep the logits in fp32, fp16 overflows
        w = torch.matmul(q.float(), k.float().transpose(-1, -2)) / self.scale_attn
        T = w.shape[-1]
        causal = torch.tril(torch.ones(T, T, dtype=torch.bool, device=w.device))
        w = torch.where(causal, w, torch.finfo(w.dtype).min)
        w = F.softmax(w, dim=-1).to(v.dtype)
        w = self.attn_dropout(w)
        if head_mask is not None:
            w = w * head_mask.view(1, -1, 1, 1)
        return torch.matmul(w, v)

    def forward(self, x, head_mask=None):
        q = self._rotate(self._split_heads(self.q_proj(x)))
        k = self._rotate(self._split_heads(self.k_proj(x)))
        v = self._split_heads(self.v_proj(x))
        y = self._attn(q, k, v, head_mask)
        y = y.transpose(1, 2).reshape(x.shape)
        return self.resid_dropout(self.out_proj(y))


class GPTJBlock(nn.Module):
    def __init__(self, embed_dim=128, num_heads=4, rotary_dim=16):
        super().__init__()
        self.ln_1 = nn.LayerNorm(embed_dim)
        self.attn = GPTJAttention(embed_dim, num_heads, rotary_dim)
        self.fc_in = nn.Linear(embed_dim, 4 * embed_dim)
        self.fc_out = nn.Linear(4 * embed_dim, embed_dim)

    def forward(self, x):
        h = self.ln_1(x)
        return x + self.attn(h) + self.fc_out(F.gelu(self.fc_in(h), approximate="tanh"))
