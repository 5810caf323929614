"""The order of a submission's axes; the checker itself always uses (batch, tokens, width).

"batch"      (batch, tokens, width)
"first"      (tokens, batch, width)
"channels"   (batch, width, tokens), as in convolutions
"picture"    (batch, width, height, breadth): the tokens are pixels, row by row
"pixels"     (batch, height, breadth, width), likewise
"rows"       (batch, 1, tokens, width): attention within each row of a table
"columns"    (batch, tokens, 1, width), likewise within each column
"frames"     (batch, tokens, width, 1, 1): a sequence of one-pixel images
"volume"     (batch, width, tokens, 1, 1), likewise
"heads"      (batch, heads, tokens, width), for functions whose inputs are already split into heads
"spread"     (batch, tokens, heads, width), likewise
"crossed"    (batch, tokens, heads, width), returned as (batch, heads, tokens, width)
"turned"     (batch, heads, width, tokens), for keys whose values are as in "heads"
"single"     (tokens, width), one sequence at a time
"packed"     (batch * tokens, width), all sequences in one row
"pooled"     (batch, tokens, width), reduced to one vector per sequence: (batch, width)

The decoder of a translation model queries with one vector per sequence, its state. Such a class
gets the queries of one sequence as if each belonged to a separate sequence with the same memory:

"state"      (queries, width)
"states"     (1, queries, width), as a recurrent layer returns it
"column"     (queries, 1, width)
"each"       (queries, tokens, width), the memory, once for each query
"each-first" (tokens, queries, width), likewise
"""

from collections.abc import Callable, Sequence

from torch import Tensor

CHANNELS_FIRST = ("channels", "picture", "volume")
PICTURES = ("picture", "pixels")
TABLES = ("rows", "columns")
HEADS_READY = ("heads", "spread", "crossed")
STATES = ("state", "states", "column")
MEMORIES = ("each", "each-first")
ONE_TEXT = ("single", "packed", *STATES)  # one sequence at a time


def height_of(tokens: int) -> int:
    """The height of an image with this many pixels, as close to a square as possible.

    Examples:
        >>> [height_of(n) for n in (12, 7, 16)]
        [3, 1, 4]
    """
    return next(n for n in range(int(tokens**0.5), 0, -1) if tokens % n == 0)


# How an input (batch, tokens, width) is converted, and how an output is converted back.
_WAYS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "batch": (lambda x: x, lambda out: out),
    "first": (lambda x: x.transpose(0, 1), lambda out: out.transpose(0, 1)),
    "channels": (lambda x: x.transpose(1, 2), lambda out: out.transpose(1, 2)),
    "picture": (
        lambda x: x.transpose(1, 2).reshape(len(x), x.shape[2], height_of(x.shape[1]), -1),
        lambda out: out.flatten(2).transpose(1, 2),
    ),
    "pixels": (
        lambda x: x.reshape(len(x), height_of(x.shape[1]), -1, x.shape[2]),
        lambda out: out.flatten(1, 2),
    ),
    "rows": (lambda x: x.unsqueeze(1), lambda out: out.squeeze(1)),
    "columns": (lambda x: x.unsqueeze(2), lambda out: out.squeeze(2)),
    "frames": (lambda x: x[..., None, None], lambda out: out.flatten(2)),
    "volume": (
        lambda x: x.transpose(1, 2)[..., None, None],
        lambda out: out.flatten(2).transpose(1, 2),
    ),
    "heads": (lambda x: x[None], lambda out: out[0]),
    "crossed": (lambda x: x.transpose(0, 1)[None], lambda out: out[0]),
    "spread": (lambda x: x.transpose(0, 1)[None], lambda out: out[0].transpose(0, 1)),
    "turned": (lambda x: x[None].transpose(2, 3), lambda out: out[0].transpose(1, 2)),
    "single": (lambda x: x[0], lambda out: out),
    "packed": (lambda x: x.flatten(0, 1), lambda out: out),
    "pooled": (lambda x: x, lambda out: out),
    "state": (lambda x: x[0], lambda out: out),
    "states": (lambda x: x[:1], lambda out: out),
    "column": (lambda x: x[0][:, None], lambda out: out),
    "each": (lambda x: x[:1].expand(x.shape[1], -1, -1), lambda out: out),
    "each-first": (lambda x: x[0][:, None].expand(-1, x.shape[1], -1), lambda out: out),
}


def given(x: Tensor, axes: str) -> Tensor:
    """An input (batch, tokens, width) as the submission expects it, or one sequence of it."""
    return _WAYS[axes][0](x).contiguous()


def taken(out: Tensor, axes: str) -> Tensor:
    """The submission's output as (batch, tokens, width), except for that of one sequence."""
    return _WAYS[axes][1](out)


_AXES = {
    "batch": "b bs bsz batch batch_size bz n_batch batchsize b_size nbatches",
    "tokens": "n t l s m seq seq_len length len tokens n_tokens num_tokens tgt_len src_len q_len "
    "seq_length time i j k nk nq lq lk timesteps sequence_length n_seq seqlen frames",
    "width": "c d e dim embed_dim channels channel emb_dim d_model hidden hidden_size hidden_dim "
    "embed d_in n_embd ch nc width_ model_dim in_channels embed_size feat features dmodel",
    "heads": "heads nh n_heads num_heads n_head head num_head nhead",
    "height": "h height hh hp ht",
    "breadth": "w width ww wp wd",
}
_MEANT = {name: axis for axis, names in _AXES.items() for name in names.split()}


def letter_named(name: str) -> str:
    """The letter for an axis name: b for batch, n for tokens, h for heads, w for the width.

    Examples:
        >>> [letter_named(name) for name in ("bsz", "seq_len", "H", "d_model", "1", "colour")]
        ['b', 'n', 'h', 'w', '1', '']
    """
    letters = {"batch": "b", "tokens": "n", "heads": "h", "height": "h", "width": "w"}
    return name if name.isdigit() else letters.get(_MEANT.get(name.lower(), ""), "")


def order_named(names: Sequence[str]) -> str:
    """The axis order that a file means, by the names of its axes; "" if they do not reveal it.

    Examples:
        >>> [order_named(n.split()) for n in ("b c h w", "batch seq_len dim", "t b d", "b c t h w")]
        ['picture', 'batch', 'first', 'volume']
        >>> order_named(["bs", "width", "length"])
        'channels'
    """
    axes = [_MEANT.get(name.strip(), "") for name in names]
    if len(names) == 5:
        return "volume" if axes[1] == "width" else "frames"
    if len(names) == 4:
        if "breadth" in axes[2:] and "tokens" not in axes[1:]:
            return "pixels" if axes[3] in ("width", "") and axes[2] == "breadth" else "picture"
        inner = [{"height": "heads", "breadth": "width"}.get(axis, axis) for axis in axes[1:]]
        if "heads" in inner[:2]:
            return "heads" if inner[0] == "heads" else "spread"
        return ""
    axes = ["width" if axis == "breadth" else axis for axis in axes]  # there is no height
    known = {
        ("batch", "tokens", "width"): "batch",
        ("tokens", "batch", "width"): "first",
        ("batch", "width", "tokens"): "channels",
        ("tokens", "width"): "single",
    }
    return known.get(tuple(axes), "")
