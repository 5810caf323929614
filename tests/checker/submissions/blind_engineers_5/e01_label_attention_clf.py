# expect: padding-inverted
# why: the boolean mask given to scaled_dot_product_attention is inverted (True on padding, while True means attend there), so only padding is read; shows at line 48: `attn_mask = attention_mask == 0`
"""Text classification head in which every label looks at the tokens it needs."""
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LabelAttentionConfig:
    n_head: int = 4
    num_classes: int = 6
    embedding_dim: int = 32


class LabelAttentionClassifier(nn.Module):
    """
    A learnable embedding per label is used as query, the token embeddings are keys and values.
    Gives one context vector per label, of shape (batch, num_classes, embedding_dim).
    """

    def __init__(self, config: LabelAttentionConfig):
        super().__init__()
        assert config.embedding_dim % config.n_head == 0
        self.label_embeds = nn.Embedding(config.num_classes, config.embedding_dim)
        self.q_proj = nn.Linear(config.embedding_dim, config.embedding_dim, bias=False)
        self.k_proj = nn.Linear(config.embedding_dim, config.embedding_dim, bias=False)
        self.v_proj = nn.Linear(config.embedding_dim, config.embedding_dim, bias=False)
        self.c_proj = nn.Linear(config.embedding_dim, config.embedding_dim, bias=False)
        self.n_head = config.n_head
        self.num_classes = config.num_classes

    def forward(self, token_embeddings: torch.Tensor, attention_mask: Optional[torch.Tensor] = None):
        """attention_mask is the tokenizer's mask: 1 for real tokens, 0 for padding."""
        B, T, C = token_embeddings.shape
        labels = torch.arange(self.num_classes, device=token_embeddings.device)
        queries = self.label_embeds(labels).unsqueeze(0).expand(B, -1, -1)

        q = self.q_proj(queries).view(B, self.num_classes, self.n_head, C // self.n_head).transpose(1, 2)
        k = self.k_proj(token_embeddings).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.v_proj(token_embeddings).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        attn_mask = None
        if attention_mask is not None:
            attn_mask = attention_mask == 0
            attn_mask = attn_mask[:, None, None, :].expand(B, 1, self.num_classes, T)

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        y = y.transpose(1, 2).contiguous().view(B, self.num_classes, C)
        return self.c_proj(y)


class TextClassifier(nn.Module):
    def __init__(self, vocab_size: int, config: LabelAttentionConfig, pad_id: int = 0):
        super().__init__()
        self.pad_id = pad_id
        self.embed = nn.Embedding(vocab_size, config.embedding_dim, padding_idx=pad_id)
        self.label_attention = LabelAttentionClassifier(config)
        self.norm = nn.LayerNorm(config.embedding_dim)
        self.score = nn.Linear(config.embedding_dim, 1)

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = (input_ids != self.pad_id).long()
        x = self.embed(input_ids)
        x = self.label_attention(x, attention_mask)
        return self.score(self.norm(x)).squeeze(-1)
