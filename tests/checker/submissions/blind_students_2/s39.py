# expect: wrong-scale, padding-on-queries
# why: Line 32: scores are divided by d_k instead of sqrt(d_k). Shows always.
# why: Line 35: the memory padding mask is put on the query axis (B,1,S,1) instead of the key axis. Shows only when a mask is passed; crashes if target and source lengths differ.
import torch
import torch.nn as nn


class EncoderDecoderAttention(nn.Module):
    """Decoder (x) asks, encoder (memory) answers."""

    def __init__(self, dim_model, num_heads, dropout_rate=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.d_k = dim_model // num_heads
        self.query_layer = nn.Linear(dim_model, dim_model)
        self.key_layer = nn.Linear(dim_model, dim_model)
        self.value_layer = nn.Linear(dim_model, dim_model)
        self.final_layer = nn.Linear(dim_model, dim_model)
        self.dropout = nn.Dropout(dropout_rate)

    def reshape_heads(self, tensor):
        batch, length, dim = tensor.shape
        tensor = tensor.view(batch, length, self.num_heads, self.d_k)
        return tensor.permute(0, 2, 1, 3)

    def forward(self, x, memory, memory_mask=None):
        # memory_mask (batch, src_len): 1 = word, 0 = padding
        batch, tgt_len, dim = x.shape

        query = self.reshape_heads(self.query_layer(x))
        key = self.reshape_heads(self.key_layer(memory))
        value = self.reshape_heads(self.value_layer(memory))

        score = torch.matmul(query, key.transpose(-2, -1))
        score = score / self.d_k

        if memory_mask is not None:
            memory_mask = memory_mask.unsqueeze(1).unsqueeze(-1)
            score = score.masked_fill(memory_mask == 0, -1e9)

        weight = self.dropout(torch.softmax(score, dim=-1))
        result = torch.matmul(weight, value)
        result = result.permute(0, 2, 1, 3).reshape(batch, tgt_len, dim)
        return self.final_layer(result), weight


if __name__ == "__main__":
    attention = EncoderDecoderAttention(32, 4)
    decoder_states = torch.randn(2, 9, 32)
    encoder_states = torch.randn(2, 9, 32)
    mask = torch.ones(2, 9)
    mask[1, 6:] = 0
    out, w = attention(decoder_states, encoder_states, mask)
    print(out.shape, w.shape)
