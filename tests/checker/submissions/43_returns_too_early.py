# expect: out-proj-unused
import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttentionLayer(nn.Module):
    def __init__(self, feature_size, head_number=2):
        super().__init__()
        self.feature_size, self.head_number = feature_size, head_number
        self.key = nn.Linear(feature_size, feature_size)
        self.query = nn.Linear(feature_size, feature_size)
        self.value = nn.Linear(feature_size, feature_size)
        self.out = nn.Linear(feature_size, feature_size)

    def forward(self, x):
        keys, queries, values = self.key(x), self.query(x), self.value(x)
        results = []
        width = self.feature_size // self.head_number
        for i in range(self.head_number):
            piece = slice(i * width, (i + 1) * width)
            scores = torch.matmul(queries[..., piece], keys[..., piece].transpose(-2, -1)) / width ** 0.5
            results.append(torch.matmul(F.softmax(scores, dim=-1), values[..., piece]))
        output = torch.cat(results, -1)
        self.out(output)
        return output
