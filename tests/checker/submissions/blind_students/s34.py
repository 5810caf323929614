# expect: scores-detached
# why: the weights are detached for plotting and the detached tensor is used for the output, so query and key get no gradient and never learn.
import torch
import torch.nn as nn
import torch.nn.functional as F


class VizAttention(nn.Module):
    """multi head attention that remembers its last attention map, so I can plot the heatmap later"""

    def __init__(self, d_model=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.depth = d_model // num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)
        self.attn_map = None

    def split_heads(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, x):
        q = self.split_heads(self.wq(x))
        k = self.split_heads(self.wk(x))
        v = self.split_heads(self.wv(x))

        logits = torch.matmul(q, k.transpose(-1, -2)) / (self.depth ** 0.5)
        self.attn_map = F.softmax(logits, dim=-1).detach()
        out = torch.matmul(self.attn_map, v)

        out = out.permute(0, 2, 1, 3).contiguous().flatten(2)
        return self.dense(out)


def plot(attn_map, words):
    import matplotlib.pyplot as plt
    plt.imshow(attn_map.cpu().numpy())
    plt.xticks(range(len(words)), words)
    plt.yticks(range(len(words)), words)
    plt.show()


if __name__ == "__main__":
    att = VizAttention()
    y = att(torch.randn(1, 6, 32))
    print(y.shape, att.attn_map.shape)
    # plot(att.attn_map[0, 0], "the cat sat on the mat".split())
