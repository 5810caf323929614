"""GPT2: the network, loaded from and saved to files, and writing text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from clearhead.foreign_names import explained
from clearhead.gpt2 import generation, weights
from clearhead.gpt2.sampling import Sampling
from clearhead.gpt2.transformer import FeedForward, Transformer, TransformerBlock

# Whole models that were pickled with 0.1.0 look for the blocks here.
__all__ = ["GPT2", "FeedForward", "TransformerBlock"]

Ids = TypeVar("Ids", list[int], list[list[int]], Tensor)


class GPT2(Transformer):
    """The whole model: token ids -> logits of the next token at every position.

    Args:
        config: The sizes: the keys of `clearhead.GPT2_CONFIGS`, or the book's.
        rope: Rotary positions instead of GPT-2's learned ones. The model then has no position
            embedding.
        tied: Whether the output head shares the token embedding's matrix, as in GPT-2. Pass False
            for the book's models, which train a separate head.
        packed: Whether one linear layer per block computes queries, keys and values; see
            `MultiHeadAttention`. Both forms load each other's weights.

    Attributes:
        config: The sizes, under Clearhead's names.
        checkpointing: Whether training keeps only the input of each block and recomputes the rest
            in the backward pass: less memory, about a third more time.

    Examples:
        >>> tiny = {"vocab_size": 97, "context_length": 16, "d_model": 12, "num_heads": 3,
        ...         "num_layers": 2, "dropout": 0.0, "qkv_bias": True}
        >>> GPT2(tiny)(torch.tensor([[3, 1, 4, 1, 5]])).shape
        torch.Size([1, 5, 97])
    """

    @classmethod
    @explained
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        num_heads: int | None = None,
        packed: bool = False,
        check_values: bool = True,
    ) -> GPT2:
        """Load a model from a file, a folder or the Hugging Face hub, in eval mode.

        Args:
            path_or_name: A folder; a file (`.safetensors`, or written by `torch.save`) with the
                key names of Hugging Face, the original release, the book or Clearhead; or a name
                on the hub, such as "gpt2-medium" or "distilbert/distilgpt2".
            dtype: The dtype of the parameters; that of the file by default.
            device: The device of the parameters; the CPU by default.
            num_heads: The number of heads. Needed only for a file without config.json whose heads
                are not 64 wide, because shapes do not reveal it.
            packed: Whether one linear layer per block computes queries, keys and values. GPT-2's
                own files store them that way.
            check_values: Whether to reject weights that contain NaN or infinity.

        Raises:
            ValueError: The file does not hold the weights of a GPT-2; the message names the tensor.
        """
        return weights.load(
            cls,
            path_or_name,
            dtype=dtype,
            device=device,
            num_heads=num_heads,
            packed=packed,
            check_values=check_values,
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, which Hugging Face's transformers loads too.

        A rotary model can be loaded by `GPT2.from_pretrained` only: GPT-2 in transformers has no
        rotary positions.

        Args:
            folder: The folder to write to; created if it does not exist.

        Raises:
            ValueError: The folder cannot be created.
        """
        weights.save(self, folder)

    @explained
    def generate(
        self,
        ids: Ids,
        max_new_tokens: int | None = None,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: int | Sequence[int] | None = None,
        cache: bool = True,
        sliding: bool = False,
    ) -> Ids:
        """Continue prompts, and return them with the new tokens appended.

        Without temperature, top_k and top_p, the most likely token is taken at each step. Dropout
        is off, whatever mode the model is in.

        Args:
            ids: One prompt as a list of ids, several as a list of such lists (of any lengths), or a
                tensor (tokens,) or (batch, tokens).
            max_new_tokens: The maximum number of new tokens; None for as many as fit into the
                context.
            temperature: Sample tokens, with the logits divided by this number: 1.0 samples from
                the model's own distribution, less is more conservative, more is more random.
            top_k: Sample from this many most likely tokens only.
            top_p: Sample from the smallest set of most likely tokens whose probabilities sum to at
                least this.
            seed: The same seed gives the same samples. None uses torch's global random state.
            stop: A token id, or several, that ends a row.
            cache: Whether to keep keys and values. False computes all tokens again at each step,
                which is slow and gives the same tokens.
            sliding: Once the context is full, continue with the last `context_length` tokens. Their
                positions change at each step, so all are computed again, which is slow. Without
                it, a text that does not fit is an error.

        Returns:
            The same type as `ids`. Lists end with their stop token; in a tensor, rows that end
            early are padded with theirs.

        Raises:
            ValueError: A prompt is empty, an id is out of range, the text does not fit, a setting
                is invalid, or the logits are not finite.

        Examples:
            >>> _ = torch.manual_seed(0)
            >>> tiny = {"vocab_size": 97, "context_length": 16, "d_model": 12, "num_heads": 3,
            ...         "num_layers": 2, "dropout": 0.0, "qkv_bias": True}
            >>> len(GPT2(tiny).generate([3, 1, 4], 5))
            8
        """
        task = generation.read_task(self.config, ids, max_new_tokens, stop, cache, sliding)
        sampling = Sampling.read(temperature, top_k, top_p, seed)
        rows = [list(prompt) for prompt in task.prompts]
        for tokens in generation.write(self, task, sampling, ahead=64):
            for row, token in zip(rows, tokens, strict=True):
                if token is not None:
                    row.append(token)
        if isinstance(ids, Tensor):
            longest = max(map(len, rows))
            padded = [row + row[-1:] * (longest - len(row)) for row in rows]
            found = torch.tensor(padded, dtype=ids.dtype, device=ids.device)
            return found[0] if ids.ndim == 1 else found
        return rows if task.several else rows[0]  # type: ignore[return-value]  # the type of ids

    @explained
    def stream(
        self,
        ids: Sequence[int] | Sequence[Sequence[int]] | Tensor,
        max_new_tokens: int | None = None,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: int | Sequence[int] | None = None,
        cache: bool = True,
        sliding: bool = False,
    ) -> Iterator[int] | Iterator[list[int | None]]:
        """Yield the tokens of `generate` one by one; the arguments are the same.

        Returns:
            For one prompt, an iterator over ids. For several, an iterator over lists with one id
            per row, or None where the row has ended. Invalid arguments raise immediately, not at
            the first token.

        Examples:
            >>> tiny = {"vocab_size": 97, "context_length": 16, "d_model": 12, "num_heads": 3,
            ...         "num_layers": 2, "dropout": 0.0, "qkv_bias": True}
            >>> sum(1 for token in GPT2(tiny).stream([3, 1, 4]))
            13
        """
        task = generation.read_task(self.config, ids, max_new_tokens, stop, cache, sliding)
        sampling = Sampling.read(temperature, top_k, top_p, seed)
        written = generation.write(self, task, sampling, ahead=4)
        if task.several:
            return written
        return (token for tokens in written for token in tokens if token is not None)
