# expect: cached-mask-misaligned
# why: line 58: the causal mask rows are taken from 0:nd instead of ns-nd:ns, so with layer_past the new tokens see only the first positions as if they stood at the start of the sequence (hidden from most of the past and from themselves). Only with a cache (layer_past).
"""GPT-2 style decoder attention with a fused Conv1D projection."""
import math

import torch
import torch.nn as nn
from torch.nn.parameter import Parameter


class GPTConfig:
    def __init__(self, vocab_size=100, n_positions=64, n_ctx=64, n_embd=48, n_layer=2, n_head=4,
                 attn_pdrop=0.1, resid_pdrop=0.1, layer_norm_epsilon=1e-5, initializer_range=0.02):
        self.vocab_size = vocab_size
        self.n_positions = n_positions
        self.n_ctx = n_ctx
        self.n_embd = n_embd
        self.n_layer = n_layer
        self.n_head = n_head
        self.attn_pdrop = attn_pdrop
        self.resid_pdrop = resid_pdrop
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range


class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        w = torch.empty(nx, nf)
        nn.init.normal_(w, std=0.02)
        self.weight = Parameter(w)
        self.bias = Parameter(torch.zeros(nf))

    def forward(self, x):
        size_out = x.size()[:-1] + (self.nf,)
        x = torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight)
        return x.view(*size_out)


class Attention(nn.Module):
    def __init__(self, nx, n_ctx, config, scale=True):
        super().__init__()
        n_state = nx
        assert n_state % config.n_head == 0
        self.register_buffer("bias", torch.tril(torch.ones(n_ctx, n_ctx)).view(1, 1, n_ctx, n_ctx))
        self.n_head = config.n_head
        self.split_size = n_state
        self.scale = scale
        self.c_attn = Conv1D(n_state * 3, nx)
        self.c_proj = Conv1D(n_state, nx)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def _attn(self, q, k, v, attention_mask=None):
        w = torch.matmul(q, k)
        if self.scale:
            w = w / math.sqrt(v.size(-1))
        nd, ns = w.size(-2), w.size(-1)
        b = self.bias[:, :, :nd, :ns]
        w = w * b - 1e4 * (1 - b)
        if attention_mask is not None:
            w = w + attention_mask
        w = nn.functional.softmax(w, dim=-1)
        w = self.attn_dropout(w)
        return torch.matmul(w, v), w

    def merge_heads(self, x):
        x = x.permute(0, 2, 1, 3).contiguous()
        return x.view(*(x.size()[:-2] + (x.size(-2) * x.size(-1),)))

    def split_heads(self, x, k=False):
        x = x.view(*(x.size()[:-1] + (self.n_head, x.size(-1) // self.n_head)))
        if k:
            return x.permute(0, 2, 3, 1)
        return x.permute(0, 2, 1, 3)

    def forward(self, x, layer_past=None, attention_mask=None, output_attentions=False):
        x = self.c_attn(x)
        query, key, value = x.split(self.split_size, dim=2)
        query = self.split_heads(query)
        key = self.split_heads(key, k=True)
        value = self.split_heads(value)
        if layer_past is not None:
            past_key, past_value = layer_past[0].transpose(-2, -1), layer_past[1]
            key = torch.cat((past_key, key), dim=-1)
            value = torch.cat((past_value, value), dim=-2)
        present = torch.stack((key.transpose(-2, -1), value))

        a, w = self._attn(query, key, value, attention_mask)
        a = self.merge_heads(a)
        a = self.c_proj(a)
        a = self.resid_dropout(a)
        outputs = [a, present]
        if output_attentions:
            outputs.append(w)
        return outputs


class Block(nn.Module):
    def __init__(self, n_ctx, config, scale=True):
        super().__init__()
        nx = config.n_embd
        self.ln_1 = nn.LayerNorm(nx, eps=config.layer_norm_epsilon)
        self.attn = Attention(nx, n_ctx, config, scale)
        self.ln_2 = nn.LayerNorm(nx, eps=config.layer_norm_epsilon)
        self.mlp = nn.Sequential(Conv1D(4 * nx, nx), nn.GELU(), Conv1D(nx, 4 * nx))

    def forward(self, x, layer_past=None, attention_mask=None):
        a, present = self.attn(self.ln_1(x), layer_past=layer_past, attention_mask=attention_mask)
        x = x + a
        return x + self.mlp(self.ln_2(x)), present


class GPTModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList([Block(config.n_ctx, config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(self, input_ids, past=None):
        past_length = 0 if past is None else past[0][0].size(-2)
        past = [None] * len(self.h) if past is None else past
        pos = torch.arange(past_length, past_length + input_ids.size(-1), device=input_ids.device)
        x = self.wte(input_ids) + self.wpe(pos)[None]
        presents = []
        for block, layer_past in zip(self.h, past):
            x, present = block(x, layer_past)
            presents.append(present)
        return self.ln_f(x), presents
