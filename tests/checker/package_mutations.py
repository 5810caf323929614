"""Mistakes planted in our own code, to prove that our tests catch them.

A plant is an edit: a text that occurs exactly once in a module of this package, and what to write
instead. `catalogue/test_catalogue.py` plants them one by one in a copy, and each must turn a test
red.

>>> [plant.module for plant in PLANTS["scale-after-softmax"]]
['ladder']
"""

# ruff: noqa: E501 - the edits must match the code

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Plant:
    """One edit that puts a mistake into our own code; the old text occurs exactly once."""

    module: str
    old: str
    new: str

    def apply(self, package: Path) -> None:
        """Edit the module in `package`, which is a copy of this package's folder."""
        parts = self.module.split(".")
        file = package.joinpath(*parts).with_suffix(".py")
        if not file.exists():
            file = package.joinpath(*parts, "__init__.py")
        source = file.read_text(encoding="utf-8")
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.module}: expected this text once, found it {count} times:\n{self.old}\n"
                "  The module has changed? Write the plant again in checker/package_mutations.py."
            )
        file.write_text(source.replace(self.old, self.new), encoding="utf-8")


# Texts of rung 4 that several mistakes change.
_SCALED = "attn_scores / self.head_dim**0.5"
_HIDE = "attn_scores = attn_scores.masked_fill(future, -torch.inf)\n        "
_SOFTMAX = f"attn_weights = torch.softmax({_SCALED}, dim=-1)"
_STORE = 'Dropout(dropout)\n        self.register_buffer("mask", torch.ones(context_length, '
_STORE += "context_length).triu(diagonal=1)"
_DROP = "attn_weights = self.dropout(attn_weights)\n        context_vec = "
_TRANSPOSE = """\
queries = queries.transpose(1, 2)  # -> (batch, heads, tokens, head_dim)
        keys = keys.transpose(1, 2)
        values = values.transpose(1, 2)"""
_RESHAPE = """\
queries = queries.reshape(batch, self.num_heads, tokens, self.head_dim)
        keys = keys.reshape(batch, self.num_heads, tokens, self.head_dim)
        values = values.reshape(batch, self.num_heads, tokens, self.head_dim)"""

# Texts of the fast module and the kernels.
_SCALE = "scale = q.shape[-1] ** -0.5\n    queries, keys"
_MERGED = "output: Tensor = self.out_proj(context_vec.transpose(1, 2).flatten(2))"

PLANTS: dict[str, tuple[Plant, ...]] = {
    "missing-scale": (
        Plant("ladder", _SCALED, "attn_scores"),
        Plant("kernels", _SCALE, "scale = 1.0\n    queries, keys"),
        Plant("kernels.blocked", ".to(_accumulator(q)).mul_(scale)", ".to(_accumulator(q))"),
    ),
    "scale-by-d-out": (
        Plant("ladder", _SCALED, "attn_scores / self.d_out**0.5"),
        Plant("kernels", _SCALE, _SCALE.replace("q.shape[-1]", "(q.shape[1] * q.shape[-1])")),
    ),
    "scale-multiplied": (
        Plant("ladder", _SCALED, "attn_scores * self.head_dim**0.5"),
        Plant("kernels", _SCALE, _SCALE.replace("-0.5", "0.5")),
    ),
    "scale-twice": (
        Plant("ladder", _SCALED, "attn_scores / self.head_dim**0.5 / self.head_dim**0.5"),
        Plant("kernels.sdpa", "        q, k, v, attn_mask,", "        q * scale, k, v, attn_mask,"),
    ),
    "scale-after-softmax": (
        Plant("ladder", _SOFTMAX, "attn_weights = torch.softmax(attn_scores, dim=-1) / self.head_dim**0.5"),
    ),
    "softmax-over-queries": (
        Plant("ladder", f"{_SCALED}, dim=-1", f"{_SCALED}, dim=-2"),
        Plant("kernels.eager", "softmax(attn_scores, dim=-1)", "softmax(attn_scores, dim=-2)"),
    ),
    "softmax-over-heads": (
        Plant("ladder", f"{_SCALED}, dim=-1", f"{_SCALED}, dim=1"),
        Plant("kernels.eager", "softmax(attn_scores, dim=-1)", "softmax(attn_scores, dim=1)"),
    ),
    "mask-result-dropped": (
        Plant("ladder", _HIDE + _SOFTMAX, _HIDE.removeprefix("attn_scores = ") + _SOFTMAX),
        Plant("attention", "return own & mask", "return own"),
        Plant("kernels.eager", "attn_scores = attn_scores.masked_fill(~visible", "attn_scores.masked_fill(~visible"),
    ),
    "no-causal-mask": (
        Plant("ladder", _HIDE + _SOFTMAX, _SOFTMAX),
        Plant("attention", "own = _CAUSAL if self.causal else None", "own = None"),
        Plant("kernels.sdpa", "            is_causal = True", "            is_causal = False"),
    ),
    "mask-off-by-one": (
        Plant("ladder", _STORE, _STORE.replace("diagonal=1", "diagonal=2")),
        Plant("masks.mask", "Band(None, 0, align)", "Band(None, 1, align)"),
        Plant("masks.mask", "position = position + (seen - queries)", "position = position + (seen - queries + 1)"),
    ),
    "mask-hides-self": (
        Plant("ladder", _STORE, _STORE.replace("diagonal=1", "diagonal=0")),
        Plant("masks.mask", "Band(None, 0, align)", "Band(None, -1, align)"),
    ),
    "mask-inverted": (
        Plant("ladder", _STORE, _STORE.replace("triu(diagonal=1", "tril(diagonal=-1")),
        Plant("masks.mask", "(key <= position + self.ahead)", "(key >= position + self.ahead)"),
        Plant("kernels.eager", "masked_fill(~visible", "masked_fill(visible"),
        Plant("kernels.blocked", "scores.masked_fill_(~tile", "scores.masked_fill_(tile"),
    ),
    "mask-fill-not-inf": (
        Plant("ladder", _HIDE + _SOFTMAX, _HIDE.replace("-torch.inf", "1e-9") + _SOFTMAX),
        Plant("kernels.eager", "~visible, -torch.inf)", "~visible, 1e-9)"),
    ),
    "mask-after-softmax": (
        Plant("ladder", _HIDE + _SOFTMAX, f"{_SOFTMAX}\n        attn_weights = attn_weights.masked_fill(future, 0)"),
    ),
    "sdpa-mask-polarity": (
        Plant("kernels.sdpa", "attn_mask = mask.tile(", "attn_mask = ~mask.tile("),
        Plant("masks.mask", "return self.dense(queries, keys)\n", "return ~self.dense(queries, keys)\n"),
    ),
    "padding-inverted": (
        Plant("masks.mask", "return real[:, key]", "return ~real[:, key]"),
        Plant("masks.mask", "key < real[:, None]", "key >= real[:, None]"),
    ),
    "split-without-transpose": (
        Plant("ladder", _TRANSPOSE, _RESHAPE),
        Plant("attention", "first(x).view(batch, tokens, heads, head_dim).transpose(1, 2)", "first(x).view(batch, heads, tokens, head_dim)"),
    ),
    "merge-without-transpose": (
        Plant("ladder", "context_vec.transpose(1, 2)  #", "context_vec  #"),
        Plant("attention", _MERGED, _MERGED.replace("transpose(1, 2).flatten(2)", "reshape(*x.shape[:2], -1)")),
    ),
    "heads-interleaved": (
        Plant("ladder", "context_vec.transpose(1, 2)  #", "context_vec.permute(0, 2, 3, 1)  #"),
        Plant("attention", _MERGED, _MERGED.replace("transpose(1, 2)", "permute(0, 2, 3, 1)")),
    ),
    "concat-on-wrong-axis": (
        Plant("ladder", "for head in self.heads], dim=-1)", "for head in self.heads], dim=1)"),
    ),
    "query-key-swapped": (
        Plant("ladder", "queries @ keys.transpose(2, 3)  #", "keys @ queries.transpose(2, 3)  #"),
        Plant("attention", "if self.qk_norm:\n            queries, keys = _n", "queries, keys = keys, queries\n" "        if self.qk_norm:\n            queries, keys = _n"),
    ),
    "key-from-query-weights": (
        Plant("ladder", "keys = keys.view(", "keys = self.W_query(x).view("),
        Plant("attention", "keys = self.W_key(source)", "keys = self.W_query(source)"),
    ),
    "value-from-keys": (
        Plant("ladder", "values = values.view(", "values = self.W_key(x).view("),
        Plant("attention", "values = self.W_value(source)", "values = self.W_key(source)"),
    ),
    "out-proj-unused": (
        Plant("ladder", "self.out_proj(context_vec)", "context_vec"),
        Plant("attention", _MERGED, _MERGED.replace("self.out_proj", "")),
    ),
    "scores-detached": (
        Plant("ladder", "queries @ keys.transpose(2, 3)  #", "(queries @ keys.transpose(2, 3)).detach()  #"),
        Plant("kernels.eager", "q @ k.transpose(-2, -1) * scale", "(q @ k.transpose(-2, -1) * scale).detach()"),
    ),
    "dropout-in-eval": (
        Plant("ladder", _DROP, _DROP.replace("self.dropout(attn_weights)", "torch.dropout(attn_weights, self.dropout.p, True)")),
        Plant("attention", "dropout=self.dropout.p if self.training else 0.0", "dropout=self.dropout.p"),
    ),
    "dropout-unused": (
        Plant("ladder", _DROP, "context_vec = "),
        Plant("attention", "dropout=self.dropout.p if self.training else 0.0", "dropout=0.0"),
        Plant("kernels.eager", "dropout > 0) @ v", "False) @ v"),
        Plant("kernels.sdpa", "attn_mask, dropout, is_causal", "attn_mask, 0.0, is_causal"),
        Plant("kernels.blocked", "    if kept is None:", "    if True:"),
    ),
    "dropout-rescaled-twice": (
        Plant("ladder", _DROP, _DROP.replace("(attn_weights)", "(attn_weights) / (1 - self.dropout.p)")),
        Plant("kernels.blocked", "2**16 / left if left", "(2**16 / left) ** 2 if left"),
    ),
}  # fmt: skip
