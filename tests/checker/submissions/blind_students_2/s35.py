# expect: wrong
# why: Line 18: the hand-written dropout does not divide by (1-p), so attention output is too small in training and does not match inference. Shows only in training with p > 0.
import torch

# Functional style, the weights live in a dict (like in the jax lecture)


def init_weights(size):
    w = {}
    for name in ('q', 'k', 'v', 'out'):
        w[name] = torch.nn.Parameter(torch.empty(size, size))
        torch.nn.init.xavier_uniform_(w[name])
    return w


def dropout(t, p, training):
    # own dropout, because we had to implement it in exercise 2
    if training and p > 0:
        keep = (torch.rand_like(t) > p).float()
        t = t * keep
    return t


def multi_head(x, w, n, pad=None, p=0.2, training=False):
    """
    Multi head self-attention, looping over the heads.
    Every head looks at its own slice of the projected vectors.

    x: (B, T, size)   pad: (B, T) True = padding
    """
    hs = x.shape[-1] // n
    q = x @ w['q']
    k = x @ w['k']
    v = x @ w['v']

    outs = []
    for i in range(n):
        s = slice(i * hs, (i + 1) * hs)
        score = q[..., s] @ k[..., s].transpose(1, 2)
        score = score / hs ** 0.5
        if pad is not None:
            score = score.masked_fill(pad[:, None, :], -1e9)
        prob = torch.softmax(score, dim=2)
        prob = dropout(prob, p, training)
        outs.append(prob @ v[..., s])
    # print([o.shape for o in outs])
    return torch.cat(outs, dim=2) @ w['out']


if __name__ == "__main__":
    w = init_weights(24)
    x = torch.randn(2, 6, 24)
    print(multi_head(x, w, 4).shape)
    print(multi_head(x, w, 4, training=True).shape)
