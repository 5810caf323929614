# expect: wrong
# why: Lines 31-32: the key/value heads are repeated along the sequence axis (repeat_interleave(group_size, dim=2)) and then viewed as (batch, q_heads, seq, d), which mixes time steps, and the causal mask no longer holds (must be dim=1).
import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedQueryAttention(nn.Module):
    """GQA: several query heads use the same key/value head (Llama 2 70B, Mistral)."""

    def __init__(self, hidden_size: int, num_q_heads: int, num_kv_heads: int):
        super().__init__()
        assert hidden_size % num_q_heads == 0
        assert num_q_heads % num_kv_heads == 0
        self.num_q_heads = num_q_heads
        self.num_kv_heads = num_kv_heads
        self.group_size = num_q_heads // num_kv_heads
        self.head_dim = hidden_size // num_q_heads

        self.q_proj = nn.Linear(hidden_size, num_q_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_q_heads * self.head_dim, hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        bsz, seq_len, _ = hidden_states.size()

        q = self.q_proj(hidden_states).view(bsz, seq_len, self.num_q_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, seq_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, seq_len, self.num_kv_heads, self.head_dim).transpose(1, 2)

        # copy the kv heads so that every query head has a partner
        k = k.repeat_interleave(self.group_size, dim=2).view(bsz, self.num_q_heads, seq_len, self.head_dim)
        v = v.repeat_interleave(self.group_size, dim=2).view(bsz, self.num_q_heads, seq_len, self.head_dim)

        attn = torch.matmul(q, k.transpose(2, 3)) / (self.head_dim ** 0.5)
        causal_mask = torch.triu(
            torch.full((seq_len, seq_len), float("-inf"), device=hidden_states.device), diagonal=1
        )
        attn = attn + causal_mask
        attn = F.softmax(attn, dim=-1, dtype=torch.float32).to(q.dtype)

        out = torch.matmul(attn, v)
        out = out.transpose(1, 2).reshape(bsz, seq_len, -1)
        return self.o_proj(out)
