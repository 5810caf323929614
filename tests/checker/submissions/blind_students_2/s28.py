# expect: correct
# what: pure functions with a parameter dict, four nested loops
# I wanted to really understand it so I wrote everything with loops.
# It is very slow but readable.
import math
import torch


def init_params(d_model, seed=0):
    g = torch.Generator().manual_seed(seed)
    names = ["Wq", "Wk", "Wv", "Wo"]
    params = {n: torch.randn(d_model, d_model, generator=g) / math.sqrt(d_model) for n in names}
    params["bo"] = torch.zeros(d_model)
    for p in params.values():
        p.requires_grad_(True)
    return params


def slow_multi_head_attention(x, params, n_heads, causal=False):
    """x is (B, T, C), matrices are used as x @ W"""
    B, T, C = x.shape
    dh = C // n_heads
    q_all = x @ params["Wq"]
    k_all = x @ params["Wk"]
    v_all = x @ params["Wv"]

    batch_out = []
    for b in range(B):
        time_out = []
        for t in range(T):
            last = t + 1 if causal else T
            head_out = []
            for h in range(n_heads):
                lo, hi = h * dh, (h + 1) * dh
                q = q_all[b, t, lo:hi]
                weights = []
                for s in range(last):
                    score = torch.dot(q, k_all[b, s, lo:hi]) / math.sqrt(dh)
                    weights.append(score)
                weights = torch.stack(weights)
                weights = torch.exp(weights - weights.max())
                weights = weights / weights.sum()
                z = torch.zeros(dh, dtype=x.dtype, device=x.device)
                for s in range(last):
                    z = z + weights[s] * v_all[b, s, lo:hi]
                head_out.append(z)
            time_out.append(torch.cat(head_out))
        batch_out.append(torch.stack(time_out))
    return torch.stack(batch_out) @ params["Wo"] + params["bo"]


if __name__ == "__main__":
    import time
    t0 = time.time()
    params = init_params(12)
    y = slow_multi_head_attention(torch.randn(2, 5, 12), params, n_heads=3, causal=True)
    print(y.shape, "took", time.time() - t0, "s")
