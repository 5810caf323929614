# expect: correct
# multi-query attention: many query heads look at one shared key/value head
import math
from torch import nn
import torch


class MQA(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, max_positions=64):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.d_head = hidden_size // num_attention_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.kv_proj = nn.Linear(hidden_size, 2 * self.d_head)
        self.o_proj = nn.Linear(hidden_size, hidden_size)
        keep = torch.ones(max_positions, max_positions, dtype=torch.bool).tril()
        self.register_buffer("keep", keep, persistent=False)

    def forward(self, hidden_states):
        b, t, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(b, t, self.num_attention_heads, self.d_head)
        k, v = self.kv_proj(hidden_states).chunk(2, dim=-1)  # (b, t, d_head) each
        logits = torch.einsum("bthd,bsd->bhts", q, k) / math.sqrt(self.d_head)
        logits = torch.where(self.keep[:t, :t], logits, torch.full_like(logits, float("-inf")))
        mixed = torch.einsum("bhts,bsd->bthd", logits.softmax(-1), v)
        return self.o_proj(mixed.reshape(b, t, -1))
