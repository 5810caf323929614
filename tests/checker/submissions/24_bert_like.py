# expect: correct
import torch
from torch import nn


class EncoderSelfAttention(nn.Module):
    """Looks both ways; a (batch, tokens) mask says which tokens are real (1) and which only fill (0)."""

    def __init__(self, config):
        super().__init__()
        width, self.count = config.hidden_size, config.num_attention_heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.drop = nn.Dropout(getattr(config, "attention_probs_dropout_prob", 0.0))

    def by_head(self, x):
        b, n, width = x.shape
        return x.reshape(b, n, self.count, width // self.count).swapaxes(1, 2)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = map(self.by_head, (self.query(hidden_states), self.key(hidden_states), self.value(hidden_states)))
        logits = torch.einsum("bhxe,bhye->bhxy", q, k) * q.shape[-1] ** -0.5
        if attention_mask is not None:
            lowest = torch.finfo(logits.dtype).min
            logits = torch.where(attention_mask[:, None, None] != 0, logits, lowest)
        share = logits.softmax(dim=-1)
        mixed = self.drop(share) @ v
        return self.dense(mixed.swapaxes(1, 2).flatten(2)), share
