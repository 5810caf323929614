# expect: breaks-with-length
import torch


def blockwise_attention(q, k, v, block=16, scale=None):
    """
    Memory friendly softmax attention: the keys are visited block by block and the
    running maximum / running sum are kept per query (non causal).

    q: (B, H, N, D)   k, v: (B, H, M, D)   ->   (B, H, N, D)
    """
    B, H, N, D = q.shape
    M = k.shape[2]
    if scale is None:
        scale = D ** -0.5

    run_max = q.new_full((B, H, N, 1), float("-inf"))
    run_sum = q.new_zeros((B, H, N, 1))
    acc = torch.zeros_like(q)

    for lo in range(0, M, block):
        kb = k[:, :, lo:lo + block]
        vb = v[:, :, lo:lo + block]
        s = (q @ kb.transpose(-1, -2)) * scale
        new_max = torch.maximum(run_max, s.amax(-1, keepdim=True))
        p = (s - new_max).exp()
        corr = (run_max - new_max).exp()
        run_sum = run_sum * corr + p.sum(-1, keepdim=True)
        acc = acc + p @ vb
        run_max = new_max

    return acc / run_sum
