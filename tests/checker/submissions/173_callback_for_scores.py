# expect: correct
"""Eager attention with a user supplied score_mod, evaluated a block of queries at a time.

score_mod(score, b, h, q_idx, kv_idx) -> score

Unlike the compiled thing the callback gets whole tensors: score is (B, H, bq, S) and the
four indices broadcast against it. Return -inf to hide a pair.
"""
import math

import torch


def causal(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score, -math.inf)


def make_softcap(cap):
    def mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)
    return mod


def make_alibi(slopes):
    def mod(score, b, h, q_idx, kv_idx):
        return score - slopes[h] * (q_idx - kv_idx).abs()
    return mod


def make_prefix_lm(prefix_len):
    """prefix_len: LongTensor (B,). Bidirectional inside the prefix, causal after it."""
    def mod(score, b, h, q_idx, kv_idx):
        ok = (q_idx >= kv_idx) | (kv_idx < prefix_len[b])
        return score.masked_fill(~ok, -math.inf)
    return mod


def compose(*mods):
    """compose(f, g) applies f first, then g."""
    def mod(score, *idx):
        for m in mods:
            score = m(score, *idx)
        return score
    return mod


def attend(query, key, value, score_mod=None, *, scale=None, q_offset=0, block_q=64, return_lse=False):
    """query (B, Hq, T, D), key (B, Hk, S, D), value (B, Hk, S, Dv); Hq may be a multiple of Hk
    (consecutive query heads share a kv head). Rows with nothing visible come out as zeros."""
    B, Hq, T, D = query.shape
    Hk, S = key.shape[1], key.shape[2]
    if Hq % Hk:
        raise ValueError(f"{Hq} query heads cannot share {Hk} kv heads")
    scale = D ** -0.5 if scale is None else scale
    dev = query.device

    b_ix = torch.arange(B, device=dev).view(B, 1, 1, 1)
    h_ix = torch.arange(Hq, device=dev).view(1, Hq, 1, 1)
    kv_ix = torch.arange(S, device=dev).view(1, 1, 1, S)
    outs, lses = [], []
    for q0 in range(0, T, block_q):
        q = query[:, :, q0:q0 + block_q]
        n = q.shape[2]
        s = torch.einsum("bkgtd,bksd->bkgts", q.reshape(B, Hk, Hq // Hk, n, D), key)
        s = s.reshape(B, Hq, n, S).float() * scale
        if score_mod is not None:
            q_ix = torch.arange(q_offset + q0, q_offset + q0 + n, device=dev).view(1, 1, n, 1)
            s = score_mod(s, b_ix, h_ix, q_ix, kv_ix)
        lse = torch.logsumexp(s, dim=-1, keepdim=True)
        dead = lse == -math.inf
        p = torch.exp(s - lse.masked_fill(dead, 0.0)).to(value.dtype)
        o = torch.einsum("bkgts,bksd->bkgtd", p.reshape(B, Hk, Hq // Hk, n, S), value)
        outs.append(o.reshape(B, Hq, n, -1))
        lses.append(lse.squeeze(-1))
    out = torch.cat(outs, dim=2)
    return (out, torch.cat(lses, dim=2)) if return_lse else out
