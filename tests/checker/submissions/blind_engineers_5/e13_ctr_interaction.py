# expect: heads-folded-into-batch
# why: heads are split (and merged again) by a bare view without transposing fields and heads, so with num_heads > 1 each 'head' holds slices of only some of the fields; shows at line 35: `query = query.view(batch_size * self.num_heads, -1, self.attention_dim)` and the three views after it
# Feature interaction with multi-head self attention for CTR prediction (AutoInt flavour).
import torch
from torch import nn


class InteractingLayer(nn.Module):
    """
    Input:  (batch, num_fields, input_dim)  -- one embedding per categorical field
    Output: (batch, num_fields, num_heads * attention_dim)
    Fields of the same sample interact with each other, once per head.
    """

    def __init__(self, input_dim, attention_dim=8, num_heads=2, use_residual=True, use_scale=True, layer_norm=False):
        super(InteractingLayer, self).__init__()
        self.output_dim = attention_dim * num_heads
        self.attention_dim = attention_dim
        self.num_heads = num_heads
        self.W_q = nn.Linear(input_dim, self.output_dim, bias=False)
        self.W_k = nn.Linear(input_dim, self.output_dim, bias=False)
        self.W_v = nn.Linear(input_dim, self.output_dim, bias=False)
        self.W_res = nn.Linear(input_dim, self.output_dim, bias=False) if use_residual else None
        self.scale = attention_dim ** 0.5 if use_scale else None
        self.layer_norm = nn.LayerNorm(self.output_dim) if layer_norm else None

    def forward(self, X):
        batch_size = X.size(0)
        residual = X if self.W_res is None else self.W_res(X)
        query = self.W_q(X)
        key = self.W_k(X)
        value = self.W_v(X)

        # split by heads
        query = query.view(batch_size * self.num_heads, -1, self.attention_dim)
        key = key.view(batch_size * self.num_heads, -1, self.attention_dim)
        value = value.view(batch_size * self.num_heads, -1, self.attention_dim)

        scores = torch.bmm(query, key.transpose(1, 2))
        if self.scale is not None:
            scores = scores / self.scale
        output = torch.bmm(scores.softmax(dim=-1), value)

        # concat heads
        output = output.view(batch_size, -1, self.output_dim)
        output = output + residual
        if self.layer_norm is not None:
            output = self.layer_norm(output)
        return output.relu()


class AutoInt(nn.Module):
    def __init__(self, field_dims, embedding_dim=8, attention_layers=2, num_heads=2, attention_dim=8,
                 dnn_hidden=(32, 16)):
        super(AutoInt, self).__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(n, embedding_dim) for n in field_dims])
        width = num_heads * attention_dim
        self.interactions = nn.Sequential(*[
            InteractingLayer(embedding_dim if i == 0 else width, attention_dim, num_heads)
            for i in range(attention_layers)
        ])
        self.fc = nn.Linear(len(field_dims) * width, 1)
        layers, last = [], len(field_dims) * embedding_dim
        for h in dnn_hidden:
            layers += [nn.Linear(last, h), nn.ReLU()]
            last = h
        self.dnn = nn.Sequential(*layers, nn.Linear(last, 1))

    def forward(self, fields):
        emb = torch.stack([e(fields[:, i]) for i, e in enumerate(self.embeddings)], dim=1)
        cross = self.interactions(emb)
        logit = self.fc(cross.flatten(start_dim=1)) + self.dnn(emb.flatten(start_dim=1))
        return torch.sigmoid(logit).squeeze(-1)
