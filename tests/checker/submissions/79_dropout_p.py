# expect: dropout-in-eval
import torch
import torch.nn as nn
import torch.nn.functional as F


class BidirectionalAttention(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        self.hidden_size = config["hidden_size"]
        self.n = config["num_attention_heads"]
        self.attention_dropout = config.get("attention_dropout", 0.1)
        self.query = nn.Linear(self.hidden_size, self.hidden_size)
        self.key = nn.Linear(self.hidden_size, self.hidden_size)
        self.value = nn.Linear(self.hidden_size, self.hidden_size)
        self.dense = nn.Linear(self.hidden_size, self.hidden_size)
        self.hidden_dropout = nn.Dropout(config.get("hidden_dropout", 0.1))

    def split(self, t):
        return t.reshape(*t.shape[:-1], self.n, -1).transpose(-3, -2)

    def forward(self, hidden, attention_mask=None):
        """attention_mask: (batch, seq), 1 for tokens and 0 for padding"""
        bool_mask = None
        if attention_mask is not None:
            bool_mask = attention_mask.bool()[:, None, None, :]

        context = F.scaled_dot_product_attention(
            self.split(self.query(hidden)),
            self.split(self.key(hidden)),
            self.split(self.value(hidden)),
            attn_mask=bool_mask,
            dropout_p=self.attention_dropout,
        )
        context = context.transpose(-3, -2).reshape(hidden.shape)
        return self.hidden_dropout(self.dense(context))
