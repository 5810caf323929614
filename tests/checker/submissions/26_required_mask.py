# expect: correct
import torch
import torch.nn as nn


class MaskedMultiHeadAttention(nn.Module):
    """The caller must say what is visible: mask is (tokens, tokens), True = visible."""

    def __init__(self, *, model_dim: int, head_count: int):
        super().__init__()
        self.head_count = head_count
        self.projections = nn.ModuleDict({
            "query": nn.Linear(model_dim, model_dim),
            "key": nn.Linear(model_dim, model_dim),
            "value": nn.Linear(model_dim, model_dim),
            "output": nn.Linear(model_dim, model_dim),
        })

    def _to_heads(self, name, tensor):
        projected = self.projections[name](tensor)
        return torch.stack(projected.chunk(self.head_count, dim=-1), dim=1)

    def forward(self, x, mask):
        q, k, v = self._to_heads("query", x), self._to_heads("key", x), self._to_heads("value", x)
        logits = torch.einsum("...id,...jd->...ij", q, k) / (q.shape[-1] ** 0.5)
        logits = logits.masked_fill(~mask.bool(), float("-inf"))
        per_head = logits.softmax(dim=-1) @ v
        return self.projections["output"](torch.cat(per_head.unbind(1), dim=-1))
