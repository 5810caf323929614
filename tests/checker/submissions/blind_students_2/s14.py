# expect: correct
# what: numpy functions, x @ W weights, causal flag and padding mask, returns weights
# CS-DL problem set 3 (numpy only!)
import numpy as np


def softmax(x, axis=-1):
    x = x - np.max(x, axis=axis, keepdims=True)   # numerical trick
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


def split_heads(x, num_heads):
    b, t, c = x.shape
    return x.reshape(b, t, num_heads, c // num_heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    b, h, t, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, t, h * d)


def multi_head_attention(x, Wq, Wk, Wv, Wo, num_heads, causal=False, pad_mask=None):
    """
    x        : (B, T, C)
    W*       : (C, C), used as  x @ W
    pad_mask : (B, T) with 1 for tokens and 0 for padding
    returns output (B, T, C) and the weights (B, H, T, T)
    """
    q = split_heads(x @ Wq, num_heads)
    k = split_heads(x @ Wk, num_heads)
    v = split_heads(x @ Wv, num_heads)

    logits = np.matmul(q, k.swapaxes(-1, -2)) / np.sqrt(q.shape[-1])

    T = x.shape[1]
    if causal:
        allowed = np.tril(np.ones((T, T), dtype=bool))
        logits = np.where(allowed, logits, -1e30)
    if pad_mask is not None:
        logits = np.where(pad_mask[:, None, None, :].astype(bool), logits, -1e30)

    w = softmax(logits)
    return merge_heads(w @ v) @ Wo, w


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    B, T, C, H = 2, 5, 12, 3
    x = rng.normal(size=(B, T, C))
    Ws = [rng.normal(size=(C, C)) / np.sqrt(C) for _ in range(4)]
    y, w = multi_head_attention(x, *Ws, num_heads=H, causal=True)
    print(y.shape)
    print(np.round(w[0, 0], 2))
