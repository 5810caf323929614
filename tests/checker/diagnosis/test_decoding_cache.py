"""Caches of past keys and values, in the forms that models use."""

import pytest
from in_process_check import check
from planted_mistakes import HEAD, edited

from clearhead.checker.report import Report

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn

_START = (
    HEAD
    + """\
class Attention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.h = n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

"""
)
_END = """\
        n, seen = x.shape[1], k.shape[2]
        see = torch.ones(n, seen, dtype=torch.bool, device=x.device).tril(seen - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see)
        return self.out(y.transpose(1, 2).flatten(2))
"""

OBJECT = (
    HEAD
    + """\
class LayerCache:
    '''Keys and values of one layer.'''

    def __init__(self, keys, values):
        self.keys, self.values, self.length = keys, values, 0

    @classmethod
    def empty(cls, batch, n_heads, max_len, head_dim):
        return cls(*torch.zeros(2, batch, n_heads, max_len, head_dim))

    def append(self, k, v):
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end], self.values[:, :, self.length : end] = k, v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


"""
    + _START.removeprefix(HEAD)
    + """\
    def forward(self, x, cache=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.append(k, v)
"""
    + _END
)

NAMED = (
    _START
    + """\
    def forward(self, x, kv_cache=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        if kv_cache is not None:
            if "k" in kv_cache:
                k, v = torch.cat((kv_cache["k"], k), 2), torch.cat((kv_cache["v"], v), 2)
            kv_cache["k"], kv_cache["v"] = k, v
"""
    + _END
)

UPDATED = (
    _START
    + """\
    def forward(self, x, past_key_values=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, 0)
"""
    + _END
)

LISTED = (
    edited(_START, [("n_heads):", "n_heads, layer_idx):"),
                    ("self.h = n_heads", "self.h, self.i = n_heads, layer_idx")])
    + """\
    def forward(self, x, caches=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        if caches is not None:
            if caches[self.i] is not None:
                k, v = torch.cat((caches[self.i][0], k), 2), torch.cat((caches[self.i][1], v), 2)
            caches[self.i] = k, v
"""
    + _END
)  # fmt: skip

PLACED = (
    _START
    + """\
    def turn(self, x, place):
        speeds = 10000.0 ** -torch.linspace(0, 1, x.shape[-1] // 2 + 1)[:-1]
        angles = place[..., None] * speeds
        a, b = x.chunk(2, -1)
        c, s = angles.cos(), angles.sin()
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    def forward(self, x, position_ids=None, past_key_value=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1])[None]
        q, k = (self.turn(t, position_ids[:, None]) for t in (q, k))
        if past_key_value is not None:
            k, v = torch.cat((past_key_value[0], k), 2), torch.cat((past_key_value[1], v), 2)
"""
    + _END.replace("flatten(2))", "flatten(2)), (k, v)")
)  # fmt: skip

ALL_TURNED = (
    _START
    + """\
    def turn(self, t, angles):
        angles = angles[-t.shape[-2] :]
        half = t.shape[-1] // 2
        return t * angles.cos() + torch.cat((-t[..., half:], t[..., :half]), -1) * angles.sin()

    def forward(self, x, rotary_emb, cache=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        past = k, v
        q, k = self.turn(q, rotary_emb), self.turn(k, rotary_emb)
"""
    + _END.replace("flatten(2))", "flatten(2)), past")
)

OVERWRITES = ("        self.length = end", "        self.length = k.shape[2]")
FIRST_KEYS = (".tril(seen - n)", ".tril()")
SCALED = ('kv_cache["v"] = k, v', 'kv_cache["v"] = k.mul_(0.9), v')


def wrong(report: Report) -> set[str]:
    return {finding.id for finding in report.findings if finding.severity == "wrong"}


@pytest.mark.parametrize("source", [OBJECT, NAMED, UPDATED, LISTED, PLACED, ALL_TURNED])
def test_a_cache_that_is_right_is_driven(source):
    report = check(source)
    assert (report.verdict, wrong(report)) == ("correct", set()), report
    assert not any("could not operate" in note for note in report.notes)


@pytest.mark.parametrize(
    ("source", "change", "id"),
    [
        (OBJECT, OVERWRITES, "cache-differs"),
        (OBJECT, FIRST_KEYS, "cached-mask-misaligned"),
        (NAMED, SCALED, "cache-differs"),
        (UPDATED, FIRST_KEYS, "cached-mask-misaligned"),
        (LISTED, FIRST_KEYS, "cached-mask-misaligned"),
        (ALL_TURNED, ("angles[-t.shape[-2] :]", "angles[: t.shape[-2]]"), "cache-differs"),
    ],
)
def test_a_cache_that_gives_another_output_is_wrong(source, change, id):
    report = check(edited(source, [change]))
    assert (report.verdict, wrong(report)) == ("wrong", {id}), report


def test_a_later_piece_that_ignores_the_cache_is_a_remark():
    ignored = (
        "if past_key_value is not None:",
        "if past_key_value is not None and x.shape[1] == 1:",
    )
    report = check(edited(PLACED, [ignored]))
    assert ("cache-differs", "edge") in [(f.id, f.severity) for f in report.findings], report


def test_positions_that_the_file_itself_leaves_out_must_be_right():
    """The cache is right if positions are passed; the layer in the file passes none."""
    layer = """

class Layer(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.mixer = Attention(dim, n_heads)

    def forward(self, x, past=None):
        y, past = self.mixer(x, past_key_value=past)
        return x + y, past
"""
    report = check(PLACED + layer)
    assert (report.verdict, wrong(report)) == ("wrong", {"cache-differs"}), report
    given = edited(layer, [("(x, past_key_value=past)", "(x, None, past)")])
    assert check(PLACED + given).verdict == "correct"


def test_without_a_mask_a_decoded_token_sees_the_past_alone():
    mask = ("self, x, kv_cache", "self, x, mask=None, kv_cache")
    source = edited(NAMED, [(_END, _END.replace("attn_mask=see", "attn_mask=mask")), mask])
    source = "".join(line for line in source.splitlines(True) if "see" not in line)
    assert check(source).verdict == "correct"
    report = check(edited(source, [SCALED]))
    assert (report.verdict, wrong(report)) == ("wrong", {"cache-differs"}), report


def test_hidden_states_are_no_cache():
    plain = """\
    def forward(self, hidden_states):
        x = hidden_states
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
"""
    report = check(_START + plain + _END)
    assert report.verdict == "correct"
    assert not any("cache" in note for note in report.notes), report


def test_a_class_that_takes_the_last_token_itself_is_not_driven():
    """It gets the whole text in each call, and adds the last token to its cache."""
    source = """
import torch
from torch import nn

class CausalAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, past=None, use_cache=False):
        new = x if past is None else x[:, -1:, :]
        q, k, v = self.q(x), self.k(new), self.v(new)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v, (k, v) if use_cache else None
"""
    assert check(source).verdict == "correct"
