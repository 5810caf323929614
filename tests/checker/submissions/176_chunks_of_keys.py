# expect: padding-gives-nan
import torch


def chunked_attention(q, k, v, key_padding_mask=None, causal=False, q_chunk=256, kv_chunk=256):
    """Exact softmax attention without the T x S score matrix.

    q (B, T, H, D), k and v (B, S, H, D) -> (B, T, H, D)
    key_padding_mask (B, S): True marks padding (may be on the left or on the right).
    causal=True aligns the last query with the last key.
    Queries that can see no key at all return zeros.
    """
    B, T, H, D = q.shape
    S = k.shape[1]
    q = q.transpose(1, 2) * D ** -0.5
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    out = []

    for i in range(0, T, q_chunk):
        qi = q[:, :, i:i + q_chunk]
        n = qi.shape[2]
        rows = torch.arange(i, i + n, device=q.device) + (S - T)

        acc = torch.zeros_like(qi, dtype=torch.float32)
        m = torch.full((B, H, n, 1), float("-inf"), device=q.device)
        l = torch.zeros(B, H, n, 1, device=q.device)

        for j in range(0, S, kv_chunk):
            if causal and j > rows[-1]:
                break
            kj, vj = k[:, :, j:j + kv_chunk], v[:, :, j:j + kv_chunk]
            s = (qi @ kj.transpose(-1, -2)).float()
            if causal:
                cols = torch.arange(j, j + kj.shape[2], device=q.device)
                s = s.masked_fill(cols[None, :] > rows[:, None], float("-inf"))
            if key_padding_mask is not None:
                s = s.masked_fill(key_padding_mask[:, None, None, j:j + kv_chunk], float("-inf"))

            m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - m_new)
            corr = torch.exp(m - m_new)
            l = l * corr + p.sum(dim=-1, keepdim=True)
            acc = acc * corr + p @ vj.float()
            m = m_new

        out.append(acc / l.clamp(min=1e-20))

    return torch.cat(out, dim=2).transpose(1, 2).to(v.dtype)
