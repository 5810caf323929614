# expect: correct
import torch


def local_global_layout(n_blocks, local=2, n_global=1):
    """(n_blocks, n_blocks) bool. Each block sees itself, the `local` blocks before it and the
    first `n_global` blocks."""
    i = torch.arange(n_blocks)
    d = i[:, None] - i[None, :]
    return ((d >= 0) & (d <= local)) | ((i[None, :] < n_global) & (d >= 0))


def block_sparse_attention(q, k, v, layout, block: int, causal: bool = True, sm_scale=None):
    """Attention that only touches the key blocks switched on in `layout`.

    q, k, v: (B, H, T, D), T need not be a multiple of `block`
    layout:  bool, (n, n) or (H, n, n) with n = ceil(T / block), [query block, key block]
    causal:  additionally hides later tokens (inside of diagonal blocks too)
    """
    B, H, T, D = q.shape
    n = -(-T // block)
    if layout.dim() == 2:
        layout = layout.expand(H, -1, -1)
    assert layout.shape == (H, n, n), layout.shape
    sm_scale = D ** -0.5 if sm_scale is None else sm_scale

    out = q.new_zeros(B, H, T, v.shape[-1])
    t = torch.arange(T, device=q.device)
    for h in range(H):
        for r in range(n):
            live = layout[h, r].nonzero().flatten().tolist()
            if causal:
                live = [c for c in live if c <= r]
            if not live:
                continue  # leaves zeros
            cols = torch.cat([t[c * block:(c + 1) * block] for c in live])
            rows = t[r * block:(r + 1) * block]
            s = q[:, h, rows] @ k[:, h, cols].transpose(-1, -2) * sm_scale
            if causal:
                s = s.masked_fill(rows[:, None] < cols[None, :], float("-inf"))
            s = s - s.amax(dim=-1, keepdim=True).detach()
            e = s.exp()
            out[:, h, rows] = (e @ v[:, h, cols]) / e.sum(dim=-1, keepdim=True)
    return out
