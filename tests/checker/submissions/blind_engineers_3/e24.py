# expect: cache-differs
# why: The rope table is passed without offset (line 113) and apply_rope takes its first T rows, so with a KV cache every decoded token is rotated as position 0 instead of input_pos; should be self.rope[input_pos].
import torch
import torch.nn as nn
from torch.nn import functional as F


def find_multiple(n, k):
    return n if n % k == 0 else n + k - (n % k)


class LLaMAConfig:
    def __init__(self, block_size=64, vocab_size=96, n_layer=2, n_head=4, n_embd=64):
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.n_layer = n_layer
        self.n_head = n_head
        self.n_embd = n_embd


def build_rope_cache(seq_len, n_elem, base=10000):
    theta = 1.0 / (base ** (torch.arange(0, n_elem, 2) / n_elem))
    idx_theta = torch.outer(torch.arange(seq_len).float(), theta)
    return torch.stack([torch.cos(idx_theta), torch.sin(idx_theta)], dim=-1)      # T, n_elem/2, 2


def apply_rope(x, rope_cache):
    # x: B, T, nh, hs
    T = x.size(1)
    rope_cache = rope_cache[:T]
    xs = x.float().reshape(*x.shape[:-1], -1, 2)
    rope_cache = rope_cache.view(1, T, 1, xs.size(3), 2)
    out = torch.stack(
        [
            xs[..., 0] * rope_cache[..., 0] - xs[..., 1] * rope_cache[..., 1],
            xs[..., 1] * rope_cache[..., 0] + xs[..., 0] * rope_cache[..., 1],
        ],
        -1,
    )
    return out.flatten(3).type_as(x)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.n_head = config.n_head

    def forward(self, x, rope, mask, input_pos=None, kv_cache=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        head_size = C // self.n_head
        q = q.view(B, T, self.n_head, head_size)
        k = k.view(B, T, self.n_head, head_size)
        v = v.view(B, T, self.n_head, head_size)

        q = apply_rope(q, rope)
        k = apply_rope(k, rope)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

        if kv_cache is not None:
            cache_k, cache_v = kv_cache
            cache_k.index_copy_(2, input_pos, k)
            cache_v.index_copy_(2, input_pos, v)
            k, v = cache_k, cache_v

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rms_1, self.rms_2 = nn.RMSNorm(config.n_embd), nn.RMSNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        hidden = find_multiple(int(8 * config.n_embd / 3), 32)
        self.c_fc1 = nn.Linear(config.n_embd, hidden, bias=False)
        self.c_fc2 = nn.Linear(config.n_embd, hidden, bias=False)
        self.c_mlp = nn.Linear(hidden, config.n_embd, bias=False)

    def forward(self, x, *args):
        x = x + self.attn(self.rms_1(x), *args)
        h = self.rms_2(x)
        return x + self.c_mlp(F.silu(self.c_fc1(h)) * self.c_fc2(h))


class LLaMA(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.RMSNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.register_buffer("rope", build_rope_cache(config.block_size, config.n_embd // config.n_head), persistent=False)
        causal = torch.ones(config.block_size, config.block_size, dtype=torch.bool).tril()
        self.register_buffer("mask", causal[None, None], persistent=False)

    def init_kv_cache(self, batch_size):
        c = self.config
        shape = (batch_size, c.n_head, c.block_size, c.n_embd // c.n_head)
        dev, dt = self.wte.weight.device, self.wte.weight.dtype
        return [(torch.zeros(shape, device=dev, dtype=dt), torch.zeros(shape, device=dev, dtype=dt)) for _ in self.h]

    def forward(self, idx, input_pos=None, kv_caches=None):
        T = idx.size(1)
        if input_pos is None:
            mask = self.mask[:, :, :T, :T]
        else:
            mask = self.mask.index_select(2, input_pos)      # T, block_size: unwritten slots stay hidden
        x = self.wte(idx)
        for i, block in enumerate(self.h):
            x = block(x, self.rope, mask, input_pos, kv_caches[i] if kv_caches is not None else None)
        return self.lm_head(self.ln_f(x))


@torch.no_grad()
def generate(model, idx, max_new_tokens):
    caches = model.init_kv_cache(idx.size(0))
    input_pos = torch.arange(idx.size(1), device=idx.device)
    cur = idx
    for _ in range(max_new_tokens):
        nxt = model(cur, input_pos, caches)[:, -1].argmax(-1, keepdim=True)
        idx = torch.cat([idx, nxt], dim=1)
        cur, input_pos = nxt, input_pos[-1:] + 1
    return idx


if __name__ == "__main__":
    print(generate(LLaMA(LLaMAConfig()), torch.randint(0, 96, (1, 6)), 10))
