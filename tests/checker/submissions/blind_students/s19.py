# expect: correct
import torch
import torch.nn as nn


class CrossAttention(nn.Module):
    """
    Decoder looks at encoder output.
      dec_x    (B, T, dec_dim)
      enc_out  (B, S, enc_dim)
      enc_pad  (B, S) bool, True = this is padding, ignore it
    """

    def __init__(self, dec_dim, enc_dim, num_heads, head_dim):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.q_proj = nn.Linear(dec_dim, num_heads * head_dim)
        self.kv_proj = nn.Linear(enc_dim, 2 * num_heads * head_dim)
        self.o_proj = nn.Linear(num_heads * head_dim, dec_dim)

    def forward(self, dec_x, enc_out, enc_pad=None, return_weights=False):
        B, T, _ = dec_x.shape
        S = enc_out.shape[1]
        q = self.q_proj(dec_x).reshape(B, T, self.num_heads, self.head_dim)
        kv = self.kv_proj(enc_out).reshape(B, S, 2, self.num_heads, self.head_dim)
        k = kv[:, :, 0]
        v = kv[:, :, 1]

        logits = torch.einsum("bthd,bshd->bhts", q, k)
        logits = logits.div(self.head_dim ** 0.5)
        if enc_pad is not None:
            big_negative = torch.finfo(logits.dtype).min
            logits = logits.masked_fill(enc_pad[:, None, None, :], big_negative)
        w = logits.softmax(-1)

        mixed = torch.einsum("bhts,bshd->bthd", w, v)
        out = self.o_proj(mixed.flatten(-2))
        if return_weights:
            return out, w
        return out


if __name__ == "__main__":
    ca = CrossAttention(12, 20, 2, 5)
    pad = torch.zeros(3, 7, dtype=torch.bool)
    pad[0, 5:] = True
    o, w = ca(torch.randn(3, 4, 12), torch.randn(3, 7, 20), pad, return_weights=True)
    print(o.shape, w.sum(-1).min().item(), w[0, 0, 0, 5:].tolist())
