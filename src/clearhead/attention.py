"""MultiHeadAttention, the fast module: the book's constructor on fused kernels, memory O(tokens).

It computes the same function as `ladder.MultiHeadAttention`; `tests/test_attention.py` proves it.
In addition it supports fewer key heads than query heads (GQA, MQA), windows, rotary positions,
normalised queries and keys, cross-attention, padding, and a cache for token-by-token decoding.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead import checkpoint_keys, ladder
from clearhead.cache import KVCache
from clearhead.configs import GPT2_CONFIGS
from clearhead.embedding import Rope
from clearhead.foreign_names import explained, no_attribute
from clearhead.kernels import Choice, Kernel, attend, attend_with_lse, check_kernel, choose
from clearhead.maps import AttentionMap
from clearhead.masks import Mask, as_mask
from clearhead.validation import (
    ShapeError,
    check_dropout,
    check_heads,
    check_length,
    check_sizes,
    check_vectors,
    describe,
    dtype_name,
)

_CAUSAL = Mask.causal()
_PACK_UP_TO = 8192  # tokens in a batch, see `packing_pays`
_NO_SHAPE = torch.Size()  # of what is no tensor; `_check` explains
_find_in_module = nn.Module.__getattr__


class MultiHeadAttention(nn.Module):
    """Multi-head attention with the book's constructor, on fused kernels.

    Args:
        d_in: The width of the input vectors.
        d_out: The width of the output: heads × head_dim.
        context_length: The maximum number of tokens. It costs no memory.
        dropout: The probability of dropping an attention weight during training.
        num_heads: The number of heads; must divide d_out.
        qkv_bias: Whether W_query, W_key and W_value have a bias, as in GPT-2.
        num_kv_heads: The number of key and value heads; must divide num_heads. Default: num_heads.
        causal: Whether later tokens are hidden.
        window: How many keys each query attends to, its own included; None = all. Without `causal`,
            it extends equally far in both directions.
        rope: Rotary positions, or None.
        qk_norm: Whether queries and keys are RMS-normalised over head_dim.
        packed: Whether one linear layer, `qkv`, computes queries, keys and values. It is faster for
            small batches on a GPU, and supports self-attention only. By default there are three, as
            in the book: W_query, W_key and W_value. Either form loads checkpoints of the other.
        kernel: "auto", or the name of the kernel that must run.

    Examples:
        >>> attention = MultiHeadAttention(768, 768, 1024, 0.1, num_heads=12).eval()
        >>> attention(torch.rand(2, 6, 768)).shape
        torch.Size([2, 6, 768])
    """

    @explained
    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
        *,
        num_kv_heads: int | None = None,
        causal: bool = True,
        window: int | None = None,
        rope: Rope | None = None,
        qk_norm: bool = False,
        packed: bool = False,
        kernel: Kernel = "auto",
    ) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out, context_length=context_length)
        check_dropout(dropout)
        check_kernel(kernel)
        self.head_dim = check_heads(d_out, num_heads)
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_sizes(num_kv_heads=num_kv_heads)
        if num_heads % num_kv_heads:
            raise ValueError(
                f"num_heads ({num_heads}) must be divisible by num_kv_heads ({num_kv_heads}).\n"
                "  Each key head serves the same number of query heads."
            )
        if window is not None:
            check_sizes(window=window)
        if rope is not None and not isinstance(rope, Rope):
            raise TypeError(
                f"rope: expected a clearhead.Rope or None, got {rope!r}.\n"
                "  Try rope=Rope(), or Rope(base=500000.0) for another base."
            )
        if rope is not None and self.head_dim % 2:
            raise ValueError(
                f"rope rotates pairs of numbers: head_dim must be even, got {self.head_dim} "
                f"(d_out {d_out} / num_heads {num_heads})."
            )
        self.d_in = d_in
        self.d_out = d_out
        self.context_length = context_length
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.causal = causal
        self.window = window
        self.rope = rope
        self.qk_norm = qk_norm
        self.packed = packed
        self.kernel: Kernel = kernel
        # Created in the book's order, so that one seed gives the book's weights in both forms.
        layers = [nn.Linear(d_in, width, bias=qkv_bias) for width in self._widths()]
        if packed:
            self.qkv = _packed_linear(layers)
        else:
            self.W_query, self.W_key, self.W_value = layers
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        if qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim)
            self.k_norm = nn.RMSNorm(self.head_dim)
        self.register_load_state_dict_pre_hook(self._rename_keys)  # type: ignore[no-untyped-call]  # torch is untyped here

    @explained
    def forward(
        self,
        x: Float[Tensor, "batch tokens d_in"],
        context: Float[Tensor, "batch seen d_in"] | None = None,
        *,
        mask: Mask | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch tokens d_out"]:
        """Context vectors.

        Args:
            x: The source of the queries, and of keys and values unless `context` is given.
            context: The source of keys and values in cross-attention; requires `causal=False`.
            mask: Who may attend to whom, in addition to causality and window. With a cache, its
                keys are all tokens seen so far.
            cache: Keys and values of earlier tokens. Those of x are appended, without gradients.
        """
        queries, keys, values, combined = self.project(x, context, mask=mask, cache=cache)
        context_vec = attend(
            queries,
            keys,
            values,
            combined,
            dropout=self.dropout.p if self.training else 0.0,
            kernel=self.kernel,
            growing=cache is not None,
        )
        output: Tensor = self.out_proj(context_vec.transpose(1, 2).flatten(2))  # steps 5 and 6
        return output

    @explained
    def with_map(
        self,
        x: Float[Tensor, "batch tokens d_in"],
        context: Float[Tensor, "batch seen d_in"] | None = None,
        *,
        mask: Mask | None = None,
        cache: KVCache | None = None,
        detach: bool = True,
    ) -> tuple[Float[Tensor, "batch tokens d_out"], AttentionMap]:
        """The output of `forward`, and the map of its attention weights (before dropout).

        Examples:
            >>> attention = MultiHeadAttention(8, 8, 16, 0.0, num_heads=2)
            >>> output, weights = attention.with_map(torch.rand(1, 6, 8))
            >>> weights[0, 1, 0, :3]
            tensor([1., 0., 0.])
        """
        queries, keys, values, combined = self.project(x, context, mask=mask, cache=cache)
        context_vec, lse = attend_with_lse(
            queries,
            keys,
            values,
            combined,
            dropout=self._dropout(),
            kernel=self.kernel,
            growing=cache is not None,
        )
        if cache is not None:  # later calls overwrite its memory
            keys = keys.clone()
        elif self.packed and detach:  # views would keep the values in memory
            queries, keys = queries.clone(), keys.clone()
        if torch.compiler.is_compiling():  # a compiled graph cannot return these views
            queries, keys = queries.contiguous(), keys.contiguous()
        weights = AttentionMap(queries, keys, combined, lse=lse if detach else None, detach=detach)
        return self.out_proj(context_vec.transpose(1, 2).flatten(2)), weights

    def project(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: KVCache | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Mask | None]:
        """Steps 1 to 3: queries, keys and values (batch, heads, tokens, head_dim), and the mask."""
        first = self.qkv if self.packed else self.W_query
        weight, shape = getattr(first, "weight", None), getattr(x, "shape", _NO_SHAPE)
        if not (  # what `_check` accepts, in the usual case
            (context is None and mask is None and cache is None and isinstance(weight, Tensor))
            and len(shape) == 3
            and shape[1] <= self.context_length
            and shape[2] == self.d_in
            and x.dtype == weight.dtype
            and x.device == weight.device
            and x.is_floating_point()
        ):
            self._check(x, context, mask, cache)
        batch, tokens, _ = shape
        heads, kv_heads, head_dim = self.num_heads, self.num_kv_heads, self.head_dim
        if self.packed:
            together = first(x).view(batch, tokens, heads + 2 * kv_heads, head_dim)
            # Split before the transpose: the gradients are then joined in the layout of `together`.
            queries, keys, values = together.split_with_sizes((heads, kv_heads, kv_heads), 2)
            queries, keys = queries.transpose(1, 2), keys.transpose(1, 2)
            values = values.transpose(1, 2)
        else:
            source = x if context is None else context
            seen = (batch, source.shape[1], kv_heads, head_dim)
            queries = first(x).view(batch, tokens, heads, head_dim).transpose(1, 2)
            keys = self.W_key(source).view(seen).transpose(1, 2)
            values = self.W_value(source).view(seen).transpose(1, 2)
        if self.qk_norm:
            queries, keys = _normalise(self.q_norm, queries), _normalise(self.k_norm, keys)
        if self.rope is not None:
            here = (
                torch.arange(tokens, device=x.device) if cache is None else cache.positions(tokens)
            )
            there = here if context is None else torch.arange(context.shape[1], device=x.device)
            queries, keys = self.rope.rotate(queries, here), self.rope.rotate(keys, there)
        combined = self.mask_for(mask)
        if cache is None:
            return queries, keys, values, combined
        if mask is not None:  # checked before anything is stored, so a failed call changes nothing
            mask.check(queries.shape[0], queries.shape[1], tokens, cache._keys_after(tokens))
        if cache.static:  # its keys span the whole capacity
            assert combined is not None  # only causal modules support a cache
            combined = Mask.custom(combined.over(tokens, cache.length + tokens, cache.capacity))
        keys, values = cache.append(keys, values)
        return queries, keys, values, combined

    def mask_for(self, mask: Mask | None = None) -> Mask | None:
        """The module's causality and window, combined with `mask`."""
        own = _CAUSAL if self.causal else None
        if self.window is not None:
            window = Mask.window(self.window, 0 if self.causal else self.window - 1)
            own = window if own is None else own & window
        if own is None or mask is None:
            return own if mask is None else mask
        return own & mask

    @explained
    def new_cache(
        self, batch: int, capacity: int | None = None, *, static: bool = False
    ) -> KVCache:
        """An empty cache for this module; `capacity` is context_length by default."""
        weight = self._projection_weight()
        return KVCache(
            batch,
            self.num_kv_heads,
            self.context_length if capacity is None else capacity,
            self.head_dim,
            device=None if weight is None else weight.device,
            dtype=None if weight is None else weight.dtype,
            static=static,
        )

    def explain_kernel(self, x: Tensor, *, mask: Mask | None = None) -> str:
        """Which kernel would run for this input, and why.

        Examples:
            >>> attention = MultiHeadAttention(8, 8, 16, 0.1, num_heads=2)
            >>> attention.eval().explain_kernel(torch.rand(1, 6, 8))
            "sdpa: PyTorch's fused kernel applies this mask without building it"
        """
        self._check(x, None, mask, None)
        if self.kernel != "auto":
            return f'{self.kernel}: requested with kernel="{self.kernel}"'
        shape = (x.shape[0], self.num_heads, x.shape[1], self.head_dim)
        q = x.new_empty(()).expand(shape)
        choice: Choice = choose(q, q, self.mask_for(mask), self._dropout())
        reason = f"{choice.kernel}: {choice.reason}"
        if not self.packed and packing_pays(x.device.type, x.shape[0] * x.shape[1]):
            reason += "; packed=True would be faster: one projection instead of three"
        return reason

    # Conversion to and from the ladder and the book's class

    @classmethod
    def from_ladder(
        cls, plain: ladder.MultiHeadAttention, *, packed: bool = False, kernel: Kernel = "auto"
    ) -> "MultiHeadAttention":
        """The same function as the readable form, with its weights and mode."""
        _check_source("from_ladder", plain, ladder.MultiHeadAttention)
        fast = cls(
            plain.d_in,
            plain.d_out,
            plain.context_length,
            plain.dropout.p,
            plain.num_heads,
            qkv_bias=plain.W_query.bias is not None,
            packed=packed,
            kernel=kernel,
        ).to(plain.W_query.weight)
        fast.load_state_dict(plain.state_dict())
        _freeze_as(plain, fast, fast._widths(), packed=packed)
        return fast.train(plain.training)

    @classmethod
    @explained
    def from_torch(
        cls,
        module: nn.MultiheadAttention,
        context_length: int,
        *,
        causal: bool = False,
        packed: bool = False,
        kernel: Kernel = "auto",
    ) -> "MultiHeadAttention":
        """The self-attention of PyTorch's module, with its weights and mode.

        The input is (batch, tokens, d_in), whatever the module's `batch_first` is. Frozen
        parameters stay frozen.

        Args:
            module: PyTorch's module.
            context_length: The maximum number of tokens. It costs no memory.
            causal: Whether later tokens are hidden. PyTorch's module hides them only if each call
                passes a mask; pass True if yours do.
            packed: As in the constructor.
            kernel: As in the constructor.

        Raises:
            ValueError: The module has an option that is not supported.
        """
        _check_source("from_torch", module, nn.MultiheadAttention)
        one_width = f"keys and values have the width of the queries here, {module.embed_dim}"
        for present, option, reason in (
            (module.kdim != module.embed_dim, f"kdim={module.kdim}", one_width),
            (module.vdim != module.embed_dim, f"vdim={module.vdim}", one_width),
            (module.bias_k is not None, "add_bias_kv=True", "it appends a learned key"),
            (module.add_zero_attn, "add_zero_attn=True", "it appends a key of zeros"),
        ):
            if present:
                raise ValueError(f"nn.MultiheadAttention with {option} is not supported: {reason}.")
        if not module.batch_first:
            warnings.warn(
                "The nn.MultiheadAttention has batch_first=False and takes (tokens, batch, "
                f"{module.embed_dim}); the converted module takes (batch, tokens, d_in).\n"
                "  Pass x.transpose(0, 1), and transpose the output back.",
                stacklevel=3,  # the caller's line; `explained` is between
            )
        fast = cls(
            module.embed_dim,
            module.embed_dim,
            context_length,
            module.dropout,
            module.num_heads,
            qkv_bias=module.in_proj_bias is not None,
            causal=causal,
            packed=packed,
            kernel=kernel,
        ).to(module.out_proj.weight)
        state = module.state_dict()
        state.setdefault("out_proj.bias", torch.zeros_like(fast.out_proj.bias))
        fast.load_state_dict(state)
        _freeze_as(module, fast, fast._widths(), packed=packed)
        return fast.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """PyTorch's module with the same weights, `batch_first=True`; raises if it lacks an option.

        A causal module becomes one to which the mask must be passed with each call:
        `Mask.causal().to_nn_multihead(num_heads, tokens)`.
        """
        self._must_be_plain("nn.MultiheadAttention", causal=self.causal)
        if self.d_in != self.d_out:
            raise ValueError(
                "nn.MultiheadAttention has one width for input and output: "
                f"expected d_in = d_out, got {self.d_in} and {self.d_out}."
            )
        module = nn.MultiheadAttention(
            self.d_out, self.num_heads, self.dropout.p, batch_first=True
        ).to(self.out_proj.weight)
        state = self.state_dict()
        checkpoint_keys.rename(state, "", self._widths(), packed=True)
        bias = state.pop("qkv.bias", torch.zeros_like(module.in_proj_bias))
        state |= {"in_proj_weight": state.pop("qkv.weight"), "in_proj_bias": bias}
        module.load_state_dict(state)
        _freeze_as(self, module, self._widths(), packed=True)
        return module.train(self.training)

    def to_ladder(self) -> ladder.MultiHeadAttention:
        """The readable form with the same weights; raises if it does not support an option."""
        self._must_be_plain("The ladder")
        plain = ladder.MultiHeadAttention(
            self.d_in,
            self.d_out,
            self.context_length,
            self.dropout.p,
            self.num_heads,
            qkv_bias=(self.qkv if self.packed else self.W_query).bias is not None,
        ).to(self.out_proj.weight)
        plain.load_state_dict(self.book_state_dict())
        _freeze_as(self, plain, self._widths(), packed=False)
        return plain.train(self.training)

    def book_state_dict(self) -> dict[str, Tensor]:
        """The state dict with the names and the `mask` buffer of the book's class."""
        self._must_be_plain("The book's class")
        state = self.state_dict()
        checkpoint_keys.rename(state, "", self._widths(), packed=False)
        return {**state, "mask": self.mask}

    @property
    def mask(self) -> Float[Tensor, "context_length context_length"]:
        """The buffer that the book's class stores, 1 = hidden; computed on access."""
        size = (self.context_length, self.context_length)
        weight = self.out_proj.weight
        if not self.causal:
            return torch.zeros(size, device=weight.device, dtype=weight.dtype)
        return torch.ones(size, device=weight.device, dtype=weight.dtype).triu(diagonal=1)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides the submodules."""
        words = [f"heads={self.num_heads}", f"head_dim={self.head_dim}"]
        words += [f"kv_heads={self.num_kv_heads}"] if self.num_kv_heads != self.num_heads else []
        words += [f"context_length={self.context_length}", f"causal={self.causal}"]
        words += [f"window={self.window}"] if self.window is not None else []
        words += [str(self.rope)] if self.rope is not None else []
        words += ["packed=True"] if self.packed else []
        words += [f'kernel="{self.kernel}"'] if self.kernel != "auto" else []
        return ", ".join(words)

    def __getattr__(self, name: str) -> Any:
        try:
            return _find_in_module(self, name)
        except AttributeError:
            if name in ("W_query", "W_key", "W_value") and self.__dict__.get("packed"):
                raise AttributeError(
                    f"{name}: this module was built with packed=True and has one projection, "
                    "`qkv`.\n"
                    "  Build it with packed=False and load this module's state_dict() into it."
                ) from None
            raise no_attribute(self, name, "MultiHeadAttention") from None

    def _widths(self) -> tuple[int, int, int]:
        """The widths of queries, keys and values."""
        d_kv = self.num_kv_heads * self.head_dim
        return self.d_out, d_kv, d_kv

    def _projection_weight(self) -> Tensor | None:
        return _any_weight(self.qkv if self.packed else self.W_query)

    def _dropout(self) -> float:
        return self.dropout.p if self.training else 0.0

    def _check(
        self, x: Tensor, context: Tensor | None, mask: Mask | None, cache: KVCache | None
    ) -> None:
        check_vectors(x, self.d_in, self._projection_weight())
        if cache is not None and not isinstance(cache, KVCache):
            got = f"{cache}" if isinstance(cache, bool) else type(cache).__name__
            raise TypeError(
                f"cache: expected a KVCache or None, got {got}.\n"
                f"  Create one, cache = attention.new_cache(batch={x.shape[0]}), and pass it to "
                "each call, which fills it. Without a cache: cache=None."
            )
        if cache is not None and (not self.causal or context is not None):
            raise ValueError(
                "cache: only causal self-attention can be cached. Otherwise new tokens would "
                "change the outputs of earlier ones."
            )
        before = 0 if cache is None else cache._known()
        if before + x.shape[1] > self.context_length:
            check_length(x.shape[1], self.context_length, before=before)
        if context is not None:
            if isinstance(context, Mask):
                raise TypeError("context: expected vectors, got a Mask.\n  Pass it as mask=...")
            if isinstance(context, Tensor) and not context.is_floating_point():
                raise TypeError(
                    f"context: expected vectors, got {dtype_name(context)} {describe(context)}.\n"
                    "  A mask? Pass mask=Mask.custom(may_attend), or mask=Mask.padding(real)."
                )
            if self.packed:
                raise ValueError(
                    "context: a packed module computes queries, keys and values from one input.\n"
                    "  Build it with packed=False for cross-attention."
                )
            if self.causal:
                raise ValueError(
                    "context: a causal module cannot attend to another sequence, whose positions "
                    "are unrelated to those of x.\n  Build it with causal=False."
                )
            check_vectors(context, self.d_in, _any_weight(self.W_key), name="context")
            check_length(context.shape[1], self.context_length, name="context")
            if context.shape[0] != x.shape[0]:
                raise ShapeError(
                    f"context: expected the batch of x ({x.shape[0]}), got {context.shape[0]}."
                )
        if mask is not None:
            as_mask(mask)

    def _must_be_plain(self, who: str, *, causal: bool = True) -> None:
        extras = {
            f"num_kv_heads={self.num_kv_heads}": self.num_kv_heads != self.num_heads,
            f"window={self.window}": self.window is not None,
            f"rope={self.rope}": self.rope is not None,
            "qk_norm=True": self.qk_norm,
            f"causal={self.causal}": self.causal != causal,
        }
        for extra, present in extras.items():
            if present:
                raise ValueError(f"{who} does not support {extra}.")

    @staticmethod
    def _rename_keys(
        module: "MultiHeadAttention", state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        """Before loading: rename other forms' keys, and drop the mask of the book's class."""
        state_dict.pop(prefix + "mask", None)
        checkpoint_keys.rename(state_dict, prefix, module._widths(), packed=module.packed)


def _packed_linear(layers: Sequence[nn.Linear]) -> nn.Linear:
    """One layer that computes what these compute, side by side."""
    width = sum(layer.out_features for layer in layers)
    has_bias = layers[0].bias is not None
    with torch.random.fork_rng(devices=[]):  # its own first weights are not used
        packed = nn.Linear(layers[0].in_features, width, bias=has_bias)
    with torch.no_grad():
        packed.weight.copy_(torch.cat([layer.weight for layer in layers]))
        if has_bias:
            packed.bias.copy_(torch.cat([layer.bias for layer in layers]))
    return packed


def _check_source(who: str, module: nn.Module, expected: type[nn.Module]) -> None:
    """Raise a TypeError that names the right converter unless the module is of this class."""
    if isinstance(module, expected):
        return
    hint = "Weights of the book's class? Build a module, and load_state_dict(module.state_dict())."
    if isinstance(module, nn.MultiheadAttention):
        hint = "Use MultiHeadAttention.from_torch(module, context_length)."
    elif isinstance(module, ladder.MultiHeadAttention):
        hint = "Use MultiHeadAttention.from_ladder(module)."
    library = "nn" if expected is nn.MultiheadAttention else "ladder"
    raise TypeError(
        f"{who}: expected {library}.{expected.__name__}, got {type(module).__name__}.\n  {hint}"
    )


def _freeze_as(
    source: nn.Module, target: nn.Module, widths: Sequence[int], *, packed: bool
) -> None:
    """Freeze in `target` what is frozen in `source`; of a packed matrix, all parts must be.

    A bias that the source does not have is treated as its matrix.
    """
    trained: dict[str, Any] = {
        name: torch.tensor(parameter.requires_grad, device="cpu").expand(parameter.shape)
        for name, parameter in source.named_parameters()
    }
    checkpoint_keys.rename(trained, "", widths, packed=packed)
    for name, parameter in target.named_parameters():
        key = name.replace("in_proj_", "qkv.")  # the name in nn.MultiheadAttention
        found = trained.get(key, trained[key.replace("bias", "weight")])
        parameter.requires_grad_(bool(found.any()))


def _any_weight(linear: nn.Module) -> Tensor | None:
    """A floating-point weight, for its dtype and device.

    Adapters have their weights further down; quantised layers may have none.
    """
    weight = getattr(linear, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point():
        return weight
    return next((p for p in linear.parameters() if p.is_floating_point()), None)


def _normalise(norm: nn.Module, x: Tensor) -> Tensor:
    """Normalise in the norm's own dtype: under autocast, x has a lower precision."""
    weight = _any_weight(norm)
    normalised: Tensor = norm(x if weight is None else x.to(weight.dtype))
    return normalised.to(x.dtype)


def packing_pays(device: str, tokens: int) -> bool:
    """Whether one projection is faster than three for this many tokens in a batch.

    On a GPU, three small products take longer than one large one. At 8,192 tokens in a batch of 8,
    a forward pass on an H200 takes 1.4 times as long with three; at 32,768 tokens there is no
    difference, and on a CPU there is none at any size (benchmarks/results/attention-*.json).
    """
    return device == "cuda" and tokens <= _PACK_UP_TO


def _gpt2_attention(name: str, dropout: float) -> MultiHeadAttention:
    config = GPT2_CONFIGS[name]
    return MultiHeadAttention(
        config["d_model"],
        config["d_model"],
        config["context_length"],
        dropout,
        config["num_heads"],
        qkv_bias=config["qkv_bias"],
    )


def create_gpt2_small_attention(dropout: float = 0.1) -> MultiHeadAttention:
    """One attention layer of GPT-2 small: 768 wide, 12 heads, with random weights.

    Args:
        dropout: The probability of dropping an attention weight during training.

    Examples:
        >>> create_gpt2_small_attention().eval()(torch.rand(1, 5, 768)).shape
        torch.Size([1, 5, 768])
    """
    return _gpt2_attention("gpt2-small", dropout)


def create_gpt2_medium_attention(dropout: float = 0.1) -> MultiHeadAttention:
    """One attention layer of GPT-2 medium: 1024 wide, 16 heads."""
    return _gpt2_attention("gpt2-medium", dropout)


def create_gpt2_large_attention(dropout: float = 0.1) -> MultiHeadAttention:
    """One attention layer of GPT-2 large: 1280 wide, 20 heads."""
    return _gpt2_attention("gpt2-large", dropout)


def create_gpt2_xl_attention(dropout: float = 0.1) -> MultiHeadAttention:
    """One attention layer of GPT-2 XL: 1600 wide, 25 heads."""
    return _gpt2_attention("gpt2-xl", dropout)
