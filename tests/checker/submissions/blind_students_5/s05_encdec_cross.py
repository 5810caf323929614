# expect: correct
# why: right though unusual: k is already permuted to (b, h, d, n) so no further transpose is needed in torch.matmul(q, k)
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0


class CrossAttention(nn.Module):
    """decoder (tgt) asks, encoder output (memory) answers"""

    def __init__(self, hidden, heads):
        super().__init__()
        if hidden % heads:
            raise ValueError("hidden must be a multiple of heads")
        self.heads, self.dh = heads, hidden // heads
        self.to_q = nn.Linear(hidden, hidden)
        self.to_kv = nn.Linear(hidden, 2 * hidden)
        self.to_out = nn.Linear(hidden, hidden)

    def forward(self, tgt, memory, src_tokens):
        b, nt, _ = tgt.shape
        ns = memory.shape[1]
        q = self.to_q(tgt).reshape(b, nt, self.heads, self.dh).permute(0, 2, 1, 3)
        k, v = self.to_kv(memory).chunk(2, dim=-1)
        k = k.reshape(b, ns, self.heads, self.dh).permute(0, 2, 3, 1)   # already transposed
        v = v.reshape(b, ns, self.heads, self.dh).permute(0, 2, 1, 3)
        logits = torch.matmul(q, k) * self.dh ** -0.5                   # b h nt ns
        is_pad = src_tokens.eq(PAD)[:, None, None, :]
        logits = logits.masked_fill(is_pad, torch.finfo(logits.dtype).min)
        w = F.softmax(logits, dim=3)
        o = torch.matmul(w, v).permute(0, 2, 1, 3).reshape(b, nt, -1)
        return self.to_out(o), w


def demo():
    torch.manual_seed(0)
    src = torch.tensor([[5, 6, 7, PAD, PAD], [9, 2, 3, 4, 8]])
    mem = torch.randn(2, 5, 24)
    tgt = torch.randn(2, 3, 24)
    layer = CrossAttention(24, 3)
    out, w = layer(tgt, mem, src)
    print("out", tuple(out.shape), "weights", tuple(w.shape))
    print("attention on pads:", w[0, :, :, 3:].sum().item())


if __name__ == "__main__":
    demo()
