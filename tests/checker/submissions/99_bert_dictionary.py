# expect: dropout-in-eval
import math
import torch
from torch import nn
import torch.nn.functional as F


class BertishSelfAttention(nn.Module):
    def __init__(self, config):
        # config: dict with "hidden", "heads", "attn_dropout"
        super().__init__()
        self.H = config["heads"]
        self.A = config["hidden"] // config["heads"]
        self.attn_dropout = config.get("attn_dropout", 0.1)
        self.query = nn.Linear(config["hidden"], config["hidden"])
        self.key = nn.Linear(config["hidden"], config["hidden"])
        self.value = nn.Linear(config["hidden"], config["hidden"])
        self.dense = nn.Linear(config["hidden"], config["hidden"])

    def split(self, t):
        return t.view(*t.shape[:-1], self.H, self.A).movedim(-2, -3)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask is the extended additive one, [B, 1, 1, T] with 0 / -10000."""
        q = self.split(self.query(hidden_states))
        k = self.split(self.key(hidden_states))
        v = self.split(self.value(hidden_states))

        scores = q @ k.transpose(-1, -2) / math.sqrt(self.A)
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = F.softmax(scores, dim=-1)
        probs = F.dropout(probs, p=self.attn_dropout)

        ctx = (probs @ v).movedim(-3, -2).flatten(-2)
        return self.dense(ctx)
