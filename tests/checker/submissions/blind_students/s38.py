# expect: key-from-query-weights, scale-multiplied
# why: the keys are computed with W_q by copy-paste so W_k is unused, and the scores are multiplied by sqrt(head_dim) instead of divided.
import torch
import torch.nn as nn


def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.xavier_uniform_(m.weight)


class MHA(nn.Module):
    def __init__(self, d_model, num_heads, seq_len):
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.register_buffer('look_ahead', torch.triu(torch.ones(seq_len, seq_len), diagonal=1) == 1)
        self.apply(init_weights)

    def scaled_dot_product_attention(self, Q, K, V):
        n = Q.shape[-2]
        attn_scores = torch.matmul(Q, K.transpose(-2, -1)) * self.d_k ** 0.5
        attn_scores = attn_scores.masked_fill(self.look_ahead[:n, :n], float('-inf'))
        attn_probs = torch.softmax(attn_scores, dim=-1)
        return torch.matmul(attn_probs, V)

    def split_heads(self, x):
        batch_size, seq_length, d_model = x.size()
        return x.view(batch_size, seq_length, self.num_heads, self.d_k).transpose(1, 2)

    def combine_heads(self, x):
        batch_size, _, seq_length, d_k = x.size()
        return x.transpose(1, 2).contiguous().view(batch_size, seq_length, self.d_model)

    def forward(self, x):
        Q = self.split_heads(self.W_q(x))
        K = self.split_heads(self.W_q(x))
        V = self.split_heads(self.W_v(x))
        attn_output = self.scaled_dot_product_attention(Q, K, V)
        return self.W_o(self.combine_heads(attn_output))


if __name__ == '__main__':
    mha = MHA(24, 4, 10)
    print(mha(torch.randn(2, 10, 24)).shape)
