# expect: correct
import torch
import torch.nn as nn


class CrossAttention(nn.Module):
    """Decoder states ask, encoder memory answers.

    x       (batch, tgt, dim)
    memory  (batch, src, mem_dim)
    memory_pad  (batch, src) bool, True where the source token is padding
    """

    def __init__(self, dim, mem_dim, num_heads, head_dim=None, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim or dim // num_heads
        inner = self.num_heads * self.head_dim
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(mem_dim, 2 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))
        self.attn_drop = nn.Dropout(dropout)

    def forward(self, x, memory, memory_pad=None):
        b, tgt, _ = x.shape
        src = memory.shape[1]
        h, d = self.num_heads, self.head_dim

        q = self.to_q(x).reshape(b, tgt, h, d).movedim(2, 1)
        kv = self.to_kv(memory).reshape(b, src, 2, h, d)
        k = kv[:, :, 0].movedim(2, 1)
        v = kv[:, :, 1].movedim(2, 1)

        sim = torch.einsum("bhid,bhjd->bhij", q, k) * d ** -0.5
        if memory_pad is not None:
            sim = sim.masked_fill(memory_pad[:, None, None, :], -torch.finfo(sim.dtype).max)
        attn = self.attn_drop(sim.softmax(dim=-1))

        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        out = out.movedim(1, 2).reshape(b, tgt, h * d)
        return self.to_out(out)


if __name__ == "__main__":
    layer = CrossAttention(dim=32, mem_dim=20, num_heads=4)
    x = torch.randn(2, 5, 32)
    memory = torch.randn(2, 9, 20)
    pad = torch.zeros(2, 9, dtype=torch.bool)
    pad[1, 6:] = True
    print(layer(x, memory, pad).shape)
