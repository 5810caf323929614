# expect: correct
# why: right though unusual: additive location-sensitive attention (Tacotron)
import torch
from torch import nn
from torch.nn import functional as F


def get_mask_from_lengths(lengths, max_len=None):
    """True at padding."""
    max_len = int(lengths.max()) if max_len is None else max_len
    ids = torch.arange(max_len, device=lengths.device)
    return ids[None, :] >= lengths[:, None]


class LinearNorm(nn.Module):
    def __init__(self, in_dim, out_dim, bias=True, w_init_gain="linear"):
        super().__init__()
        self.linear_layer = nn.Linear(in_dim, out_dim, bias=bias)
        nn.init.xavier_uniform_(self.linear_layer.weight, gain=nn.init.calculate_gain(w_init_gain))

    def forward(self, x):
        return self.linear_layer(x)


class LocationLayer(nn.Module):
    def __init__(self, n_filters, kernel_size, attention_dim):
        super().__init__()
        self.location_conv = nn.Conv1d(2, n_filters, kernel_size, padding=(kernel_size - 1) // 2, bias=False)
        self.location_dense = LinearNorm(n_filters, attention_dim, bias=False, w_init_gain="tanh")

    def forward(self, attention_weights_cat):
        x = self.location_conv(attention_weights_cat)
        return self.location_dense(x.transpose(1, 2))


class LocationSensitiveAttention(nn.Module):
    """Additive attention that also looks at where it attended before (Chorowski et al. 2015).

        e_t = v^T tanh(W s_t + V h + U f_t),   f_t = conv([alpha_{t-1}; sum of earlier alphas])

    PARAMS
    ------
    rnn_dim:  width of the decoder state
    memory_dim: width of the encoder outputs
    attention_dim: width of the energy network
    n_filters, kernel_size: location convolution (odd kernel)
    """

    def __init__(self, rnn_dim, memory_dim, attention_dim, n_filters=32, kernel_size=31):
        super().__init__()
        assert kernel_size % 2 == 1
        self.query_layer = LinearNorm(rnn_dim, attention_dim, bias=False, w_init_gain="tanh")
        self.memory_layer = LinearNorm(memory_dim, attention_dim, bias=False, w_init_gain="tanh")
        self.v = LinearNorm(attention_dim, 1, bias=False)
        self.location_layer = LocationLayer(n_filters, kernel_size, attention_dim)

    def get_alignment_energies(self, query, processed_memory, attention_weights_cat):
        q = self.query_layer(query.unsqueeze(1))
        loc = self.location_layer(attention_weights_cat)
        return self.v(torch.tanh(q + loc + processed_memory)).squeeze(-1)

    def forward(self, query, memory, processed_memory, attention_weights_cat, mask=None):
        """
        query: (B, rnn_dim) decoder state
        memory: (B, T, memory_dim)
        processed_memory: ``memory_layer(memory)``, computed once per utterance
        attention_weights_cat: (B, 2, T) previous and cumulative weights
        mask: bool (B, T), True at padding

        returns context (B, memory_dim) and weights (B, T)
        """
        alignment = self.get_alignment_energies(query, processed_memory, attention_weights_cat)
        if mask is not None:
            alignment = alignment.masked_fill(mask, -float("inf"))
        weights = F.softmax(alignment, dim=1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        return context, weights


class AttentionDecoder(nn.Module):
    """Teacher-forced acoustic decoder: prenet -> LSTM cell -> attention -> mel frame."""

    def __init__(self, n_mels=20, memory_dim=64, rnn_dim=96, attention_dim=48):
        super().__init__()
        self.n_mels = n_mels
        self.memory_dim = memory_dim
        self.prenet = nn.Sequential(nn.Linear(n_mels, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.rnn = nn.LSTMCell(64 + memory_dim, rnn_dim)
        self.attention = LocationSensitiveAttention(rnn_dim, memory_dim, attention_dim, 8, 11)
        self.proj = nn.Linear(rnn_dim + memory_dim, n_mels)

    def forward(self, memory, memory_lengths, mels):
        """memory (B, T, D), mels (B, F, n_mels) -> (frames (B, F, n_mels), alignments (B, F, T))"""
        B, T, _ = memory.shape
        mask = get_mask_from_lengths(memory_lengths, T)
        processed = self.attention.memory_layer(memory)
        h = memory.new_zeros(B, self.rnn.hidden_size)
        c = torch.zeros_like(h)
        context = memory.new_zeros(B, self.memory_dim)
        prev, cum = memory.new_zeros(B, T), memory.new_zeros(B, T)
        go = memory.new_zeros(B, 1, self.n_mels)
        frames, aligns = [], []
        for x in self.prenet(torch.cat([go, mels[:, :-1]], dim=1)).unbind(1):
            h, c = self.rnn(torch.cat([x, context], dim=-1), (h, c))
            context, prev = self.attention(h, memory, processed, torch.stack([prev, cum], dim=1), mask)
            cum = cum + prev
            frames.append(self.proj(torch.cat([h, context], dim=-1)))
            aligns.append(prev)
        return torch.stack(frames, 1), torch.stack(aligns, 1)
