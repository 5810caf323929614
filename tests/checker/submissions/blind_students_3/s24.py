# expect: wrong
# why: Line 28: the softmax backward uses only the diagonal of the Jacobian, dout * p * (1 - p), instead of p * (dout - sum(dout * p)); the gradients of Wq, Wk and of the input are wrong (forward, dWv, dWo are right).
"""Neural nets from scratch, week 9: attention forward + backward in numpy"""
import numpy as np


class Linear:
    def __init__(self, n_in, n_out, seed):
        rng = np.random.RandomState(seed)
        self.W = rng.randn(n_in, n_out) / np.sqrt(n_in)
        self.dW = np.zeros_like(self.W)

    def forward(self, x):
        self.x = x
        return x @ self.W

    def backward(self, dout):
        self.dW = np.tensordot(self.x, dout, axes=([0, 1], [0, 1]))
        return dout @ self.W.T


class Softmax:
    def forward(self, x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        self.p = e / e.sum(axis=-1, keepdims=True)
        return self.p

    def backward(self, dout):
        # derivative of softmax: p * (1 - p)
        return dout * self.p * (1.0 - self.p)


class SelfAttention:
    def __init__(self, dim):
        self.q = Linear(dim, dim, 0)
        self.k = Linear(dim, dim, 1)
        self.v = Linear(dim, dim, 2)
        self.o = Linear(dim, dim, 3)
        self.softmax = Softmax()
        self.dim = dim

    def forward(self, x):
        self.Q, self.K, self.V = self.q.forward(x), self.k.forward(x), self.v.forward(x)
        scores = np.matmul(self.Q, self.K.swapaxes(1, 2)) / np.sqrt(self.dim)
        self.A = self.softmax.forward(scores)
        return self.o.forward(np.matmul(self.A, self.V))

    def backward(self, dout):
        dctx = self.o.backward(dout)
        dA = np.matmul(dctx, self.V.swapaxes(1, 2))
        dV = np.matmul(self.A.swapaxes(1, 2), dctx)
        dscores = self.softmax.backward(dA) / np.sqrt(self.dim)
        dQ = np.matmul(dscores, self.K)
        dK = np.matmul(dscores.swapaxes(1, 2), self.Q)
        return self.q.backward(dQ) + self.k.backward(dK) + self.v.backward(dV)

    def layers(self):
        return [self.q, self.k, self.v, self.o]


def train(steps=200, lr=0.05):
    # toy task: output the mean of the sequence at each position
    rng = np.random.RandomState(7)
    net = SelfAttention(8)
    for i in range(steps):
        x = rng.randn(16, 5, 8)
        target = np.repeat(x.mean(axis=1, keepdims=True), 5, axis=1)
        y = net.forward(x)
        loss = ((y - target) ** 2).mean()
        net.backward(2 * (y - target) / y.size)
        for l in net.layers():
            l.W -= lr * l.dW
        if i % 50 == 0:
            print(i, loss)


if __name__ == "__main__":
    train()
