"""Decoding on CUDA: a few kernels per token, captured in one graph, so that a token is one launch.

Everything that changes from token to token lives on the GPU: the index in the cache, the last
token, the random numbers of all steps. Each step is therefore the same graph, and the CPU only
launches it. Tokens are read back several steps late, in chunks, while the GPU continues.

The kernels read the model's own weights, so training the model further changes what a captured
graph computes, and no copy can become stale. A captured graph and its caches are kept for the
model's next text, as long as the model's weights stay at the same addresses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from clearhead.cache import KVCache
from clearhead.gpt2.decoding import Pair, pair, prefill_caches, projections, unusual
from clearhead.gpt2.sampling import Sampling, is_bad, raise_bad
from clearhead.gpt2.transformer import Transformer

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_STEPS = 8  # per launch of the longer graph
_ROWS = 16  # per tensor core instruction
_kept: WeakKeyDictionary[nn.Module, Captured] = WeakKeyDictionary()


def refusal(model: Transformer) -> str | None:
    """Why these kernels cannot run the model; None if they can."""
    reason = unusual(model)
    if reason is not None:
        return reason
    weight = model.embedding.token.weight
    head_dim = model.config["d_model"] // model.config["num_heads"]
    if weight.dtype not in _DTYPES:
        return f"no kernel for {weight.dtype}"
    if head_dim not in (16, 32, 64, 128, 256):
        return f"no kernel for head_dim {head_dim}"
    if not all(parameter.is_contiguous() for parameter in model.parameters()):
        return "a weight is not contiguous"
    if torch.version.hip is not None or torch.cuda.get_device_capability(weight.device) < (8, 0):
        return "the kernels need an NVIDIA GPU, Ampere or later"
    try:
        import triton  # noqa: F401  # is it installed?
    except ImportError:
        return "Triton is not installed"
    return None


def run(
    model: Transformer,
    ids: Tensor,
    lengths: Tensor | None,
    new: int,
    sampling: Sampling,
    draws: Tensor | None,
    ahead: int,
) -> Iterator[list[int]]:
    """Yield the tokens of each step, including those of rows that have ended.

    Args:
        model: A model for which `refusal` returns None.
        ids: The prompts, padded on the left.
        lengths: The number of real tokens per prompt; None if there is no padding.
        new: The number of new tokens. Together with the prompts they must fit into the context.
        sampling: How each token is chosen.
        draws: The random numbers (steps, batch), or None if nothing is sampled.
        ahead: How many steps may run before their tokens are read back.
    """
    batch, width = ids.shape
    captured = _captured(model, batch, width + new, sampling)
    captured.busy = True
    try:
        captured.start(model, ids, lengths, draws)
        # Reading back waits for the GPU, so the next steps are launched first.
        waiting: deque[tuple[Tensor, Tensor, torch.cuda.Event]] = deque()
        done = read = 0
        while read < new:
            while done < new and len(waiting) < 2:
                steps = min(ahead, new - done)
                captured.advance(steps if done else steps - 1)
                waiting.append(captured.read_back(width + done, width + done + steps))
                done += steps
            tokens, bad, event = waiting.popleft()
            event.synchronize()
            if int(bad):
                raise_bad(read, late=True)
            for column in tokens.t().tolist():
                read += 1
                yield column
    finally:
        torch.cuda.current_stream(ids.device).synchronize()
        captured.busy = False


def _captured(model: Transformer, batch: int, tokens: int, sampling: Sampling) -> Captured:
    """The graph captured for the previous text if it fits this one, else a new one."""
    context = model.config["context_length"]
    capacity = min(context, max(256, 1 << (tokens - 1).bit_length()))
    weights = tuple(parameter.data_ptr() for parameter in model.parameters())
    settings = (sampling.temperature, sampling.top_k, sampling.top_p)
    key = (batch, capacity, settings, weights)
    kept = _kept.get(model)
    if kept is not None and kept.key == key and not kept.busy:
        return kept
    if kept is not None and not kept.busy:
        del _kept[model]  # free its memory first
    _kept[model] = made = Captured(model, batch, capacity, sampling, key)
    return made


class Step:
    """The kernels that compute one token, and the buffers they share.

    Args:
        model: The model; only its weights are kept.
        batch: The number of rows.
        capacity: The number of tokens that fit into the caches.
        sampling: How each token is chosen.
        pdl: Whether a kernel may start before the previous one has finished (Hopper and later).
    """

    def __init__(
        self, model: Transformer, batch: int, capacity: int, sampling: Sampling, *, pdl: bool
    ) -> None:
        weight = model.embedding.token.weight
        config = model.config
        self.batch, self.capacity, self.sampling, self.pdl = batch, capacity, sampling, pdl
        self.heads, self.width = config["num_heads"], config["d_model"]
        self.head_dim, self.vocab_size = self.width // self.heads, config["vocab_size"]
        self.blocks = [_Weights(block) for block in model.blocks]
        self.norm = model.norm
        self.token = weight.detach()
        self.position: Any = model.embedding.position.weight.detach()  # type: ignore[union-attr]  # see unusual
        self.head = model.head_weight.detach()
        self.caches: list[KVCache] = model.new_caches(batch, capacity)

        def numbers(*shape: int, dtype: torch.dtype = weight.dtype) -> Tensor:
            return torch.zeros(shape, device=weight.device, dtype=dtype)

        self.x, self.queries = numbers(batch, self.width), numbers(batch, self.width)
        self.normed, self.wide = numbers(batch, self.width), numbers(batch, 4 * self.width)
        self.logits = numbers(batch, self.vocab_size)
        self.context = numbers(batch, self.width)
        # With one row, most of the GPU is idle unless the keys of a head are divided.
        self.pieces = 16 if batch == 1 else 1
        shares = batch * self.heads * self.pieces
        self.part = numbers(shares, self.head_dim, dtype=torch.float32)
        self.part_max = numbers(shares, dtype=torch.float32)
        self.part_sum = numbers(shares, dtype=torch.float32)
        self.head_block = 8 if batch == 1 else 64
        self.best_of = -(-self.vocab_size // self.head_block)
        self.best = numbers(batch, self.best_of, dtype=torch.float32)
        self.best_at = numbers(batch, self.best_of, dtype=torch.int32)
        self.picked = numbers(batch, dtype=torch.int64)
        self.bad = numbers(1, dtype=torch.int32)
        self.indices = numbers(batch, dtype=torch.int32)
        self.padding = numbers(batch, dtype=torch.int32)
        self.history = numbers(batch, capacity, dtype=torch.int64)
        self.draws = numbers(batch, capacity, dtype=torch.float32)

    @torch.inference_mode()
    def start(
        self, model: Transformer, ids: Tensor, lengths: Tensor | None, draws: Tensor | None
    ) -> None:
        """Read the prompts and choose the first new token."""
        width = ids.shape[1]
        self.bad.zero_()
        self.indices.fill_(width - 1)
        self.padding.zero_()
        if lengths is not None:
            self.padding.copy_(width - lengths)
        if draws is not None:
            self.draws[:, width : width + len(draws)] = draws.t().to(ids.device)
        logits = prefill_caches(model, ids, lengths, self.caches)
        if is_bad(logits):
            raise_bad(0)
        draw = None if draws is None else self.draws[:, width]
        self.picked.copy_(self.sampling.pick(logits, draw))
        self.follow(chosen=True)

    @torch.inference_mode()
    def launch(self) -> None:
        """Compute the token whose vector is in x, choose the next, and put its vector into x."""
        for weights, cache in zip(self.blocks, self.caches, strict=True):
            self._project(weights.norm1, weights.qkv, self.queries, mode=0, cache=cache)
            self._attend(cache)
            source = self.context if self.pieces == 1 else self.part
            self._mix("out", source, weights.out, pieces=self.pieces)
            self._project(weights.norm2, (weights.expand,), self.wide, mode=1)
            self._mix("project", self.wide, weights.project, pieces=1)
        self._project(self.norm, ((self.head, None),), self.logits, mode=2)
        if not self.sampling.greedy:
            draw = self.draws.gather(1, self.indices.long()[:, None] + 1)[:, 0]
            self.picked.copy_(self.sampling.pick(self.logits, draw))
        self.follow(chosen=not self.sampling.greedy)

    def follow(self, *, chosen: bool) -> None:
        """Continue with `picked`, or with the token that has the highest logit."""
        import triton

        from clearhead.gpt2 import triton_decoding

        triton_decoding.follow[(self.batch,)](
            self.best, self.best_at, self.picked, self.history, self.indices, self.padding,
            self.token, self.position, self.x, self.capacity, self.best_of,
            WIDTH=self.width, COLUMNS=triton.next_power_of_2(self.width),
            BLOCKS=triton.next_power_of_2(self.best_of), CHOSEN=chosen,
            PDL=self.pdl, num_warps=8, **self._launch(),
        )  # fmt: skip

    def _project(
        self,
        norm: nn.LayerNorm,
        products: tuple[tuple[Tensor, Tensor | None], ...],
        out: Tensor,
        *,
        mode: int,
        cache: KVCache | None = None,
    ) -> None:
        from clearhead.gpt2 import triton_decoding

        (weight_a, bias_a), (weight_b, bias_b), (weight_c, bias_c) = (
            products if len(products) == 3 else products * 3
        )
        if cache is None:  # unused, but the kernel needs a tensor
            cache = self.caches[0]
        outputs, inputs = weight_a.shape
        sizes = self._sizes(("qkv", "expand", "head")[mode], inputs)
        x = self.x
        if self.batch > 1:
            x = self.normed
            triton_decoding.norm[(self.batch,)](
                self.x, norm.weight, norm.bias, norm.eps, x,
                INPUTS=inputs, CHUNK=1 << (inputs - 1).bit_length(),
                PDL=self.pdl, num_warps=4, **self._launch(),
            )  # fmt: skip
        grid = (-(-outputs // sizes["BLOCK"]) * len(products), -(-self.batch // sizes["ROWS"]))
        triton_decoding.project[grid](
            x, norm.weight, norm.bias, norm.eps,
            weight_a, weight_b, weight_c, *(
                weight_a if bias is None else bias for bias in (bias_a, bias_b, bias_c)
            ),
            out, cache.keys, cache.values, self.indices, self.capacity,
            self.best, self.best_at, self.bad, self.batch,
            OUTPUTS=outputs, INPUTS=inputs, HEAD_DIM=self.head_dim, MODE=mode,
            BIAS=bias_a is not None, **sizes, **self._launch(),
        )  # fmt: skip

    def _attend(self, cache: KVCache) -> None:
        from clearhead.gpt2 import triton_decoding

        triton_decoding.attend[(self.batch * self.heads, self.pieces)](
            self.queries, cache.keys, cache.values, self.indices, self.padding,
            self.context, self.part, self.part_max, self.part_sum, self.capacity,
            self.head_dim**-0.5,
            HEADS=self.heads, HEAD_DIM=self.head_dim, PIECES=self.pieces, PDL=self.pdl,
            KEYS=64 if self.batch == 1 else 256, num_warps=4 if self.batch == 1 else 8,
            **self._launch(),
        )  # fmt: skip

    def _mix(self, name: str, source: Tensor, product: Pair, *, pieces: int) -> None:
        from clearhead.gpt2 import triton_decoding

        weight, bias = product
        outputs, inputs = weight.shape
        sizes = self._sizes(name, inputs)
        grid = (-(-outputs // sizes["BLOCK"]), -(-self.batch // sizes["ROWS"]))
        triton_decoding.mix[grid](
            self.x, source, self.part_max, self.part_sum, weight, bias, self.batch,
            OUTPUTS=outputs, INPUTS=inputs, HEADS=self.heads, HEAD_DIM=self.head_dim,
            PIECES=pieces, **sizes, **self._launch(),
        )  # fmt: skip

    def _sizes(self, name: str, inputs: int) -> dict[str, Any]:
        """How a product is divided among programs, so that all multiprocessors are busy."""
        wide = 1 << (inputs - 1).bit_length()
        sizes: dict[str, Any] = {"PDL": self.pdl, "ONE_ROW": self.batch == 1}
        if self.batch == 1:
            block = {"qkv": 4, "out": 4, "expand": 4, "project": 4, "head": self.head_block}[name]
            warps = 8 if wide >= 4096 else 4
            return {**sizes, "BLOCK": block, "CHUNK": wide, "ROWS": 1, "num_warps": warps}
        sizes |= {"BLOCK": 16, "CHUNK": min(wide, 2048 // self.x.element_size()), "ROWS": _ROWS}
        if name == "head":
            return {
                **sizes,
                "BLOCK": self.head_block,
                "CHUNK": 256,
                "num_warps": 4,
                "num_stages": 3,
            }
        if name == "project":
            return {**sizes, "CHUNK": 512, "num_warps": 2, "num_stages": 3}
        return {**sizes, "num_warps": 4}

    def _launch(self) -> dict[str, Any]:
        return {"launch_pdl": True} if self.pdl else {}


class Captured:
    """CUDA graphs of one step and of several steps in a row; see `Step`."""

    def __init__(
        self, model: Transformer, batch: int, capacity: int, sampling: Sampling, key: object
    ) -> None:
        self.key = key
        self.busy = False
        device = model.embedding.token.weight.device
        self._device = torch.cuda.device(device)  # Triton launches on the current device
        with torch.inference_mode(), self._device:
            self.step = Step(model, batch, capacity, sampling, pdl=_can_start_early(device))
            self.step.follow(chosen=True)  # compiles the kernels; not possible during capture
            self.step.launch()
            torch.cuda.synchronize()
            self.graphs = {steps: self._capture(steps) for steps in (_STEPS, 1)}

    def _capture(self, steps: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(steps):
                self.step.launch()
        return graph

    def start(
        self, model: Transformer, ids: Tensor, lengths: Tensor | None, draws: Tensor | None
    ) -> None:
        """Read the prompts and choose the first new token."""
        with self._device:
            self.step.start(model, ids, lengths, draws)

    def advance(self, steps: int) -> None:
        """Launch this many steps without waiting for them."""
        many, rest = divmod(steps, _STEPS)
        with self._device:
            for size in [_STEPS] * many + [1] * rest:
                self.graphs[size].replay()

    def read_back(self, begin: int, end: int) -> tuple[Tensor, Tensor, torch.cuda.Event]:
        """The tokens at these indices, and whether logits were bad; valid after the event."""
        copies = []
        for source in (self.step.history[:, begin:end], self.step.bad):
            copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            copies.append(copy.copy_(source, non_blocking=True))
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # untyped in torch
        event.record(torch.cuda.current_stream(self.step.history.device))
        return copies[0], copies[1], event


def _can_start_early(device: torch.device) -> bool:
    """Whether GPU and Triton support programmatic dependent launch."""
    from triton.language.extra import cuda

    return torch.cuda.get_device_capability(device) >= (9, 0) and hasattr(cuda, "gdc_wait")


class _Weights:
    """The weights of a block, as pairs of weight and bias."""

    def __init__(self, block: Any) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.qkv = tuple(projections(attention))
        self.out = pair(attention.out_proj)
        self.expand, self.project = pair(feed_forward.expand), pair(feed_forward.project)
