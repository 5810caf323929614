# expect: correct
# Week 5 lab: write causal attention WITHOUT matrix tricks so that you understand every number.
# (slow on purpose)
import math
import numpy as np


def dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total = total + a[i] * b[i]
    return total


def my_softmax(lst):
    biggest = max(lst)
    exps = [math.exp(v - biggest) for v in lst]
    s = sum(exps)
    return [e / s for e in exps]


class SlowCausalAttention:
    def __init__(self, d_in, d_out, rng=None):
        if rng is None:
            rng = np.random.RandomState(42)
        self.W_q = rng.uniform(-1, 1, (d_in, d_out))
        self.W_k = rng.uniform(-1, 1, (d_in, d_out))
        self.W_v = rng.uniform(-1, 1, (d_in, d_out))

    def __call__(self, tokens):
        # tokens is (n_tokens, d_in), no batch
        q = [t @ self.W_q for t in tokens]
        k = [t @ self.W_k for t in tokens]
        v = [t @ self.W_v for t in tokens]
        d = self.W_k.shape[1]

        result = []
        for i in range(len(tokens)):
            scores_i = []
            for j in range(i + 1):          # only the past and myself
                scores_i.append(dot(q[i], k[j]) / math.sqrt(d))
            w = my_softmax(scores_i)
            z = np.zeros(d)
            for j in range(i + 1):
                z += w[j] * v[j]
            result.append(z)
        return np.array(result)


if __name__ == "__main__":
    words = ["your", "journey", "starts", "with", "one", "step"]
    emb = np.random.RandomState(0).randn(len(words), 3)
    att = SlowCausalAttention(3, 2)
    for word, row in zip(words, att(emb)):
        print(f"{word:10s}", row)
