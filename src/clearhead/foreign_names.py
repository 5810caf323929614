"""Names that users of other libraries type, and what they are called here.

PyTorch, Hugging Face, TransformerLens, nanoGPT and the book have names of their own for the same
things. A call with one of them fails with an error that translates it, value included:

    MultiHeadAttention: embed_dim=768 is not an argument.
      Here that is d_in=768, d_out=768.

In each table, what to say comes first, then the names, separated by spaces: `HERE` says what to
write instead, `ABSENT` why there is no such argument, `ATTRIBUTES` what to read instead. `CALLS`
says what calls with the wrong number of arguments usually mean. This file does not import torch.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Table = Mapping[str, str]  # what to say -> the names

# Sizes of models: the keys of `GPT2_CONFIGS`, and what others call them. The book's are accepted.
BOOK_SIZES = {
    "emb_dim": "d_model",
    "n_heads": "num_heads",
    "n_layers": "num_layers",
    "drop_rate": "dropout",
}
SIZES: Table = {
    "d_model": "emb_dim hidden_size embed_dim embedding_dim n_embd",
    "num_heads": "n_heads num_attention_heads n_head nhead",
    "num_layers": "n_layers num_hidden_layers n_layer",
    "context_length": "block_size max_position_embeddings n_positions n_ctx max_seq_len max_length",
    "vocab_size": "d_vocab",
    "dropout": "drop_rate attn_pdrop attention_dropout",
    "qkv_bias": "bias",
}


def _sizes(*ours: str) -> dict[str, str]:
    """What to write for other libraries' names of these sizes."""
    return {f"{size}={{0}}": SIZES[size] for size in ours}


_WATCH = "with clearhead.watch(model) as seen: model(ids)"
_MAP = "The fused kernel builds no weights. Use output, weights = attention.with_map(x)."
_CALL = {
    "x={0}": "query hidden_states input inputs",
    "context={0}": "key encoder_hidden_states",
    "mask=Mask.custom(may_attend); nn.MultiheadAttention hides where its bool mask is True: "
    "Mask.custom(~attn_mask). A mask of 0 and -inf: Mask.custom(attn_mask == 0)": "attn_mask",
    "mask=Mask.padding(~key_padding_mask), which is True at real tokens": "key_padding_mask",
    "mask=Mask.padding(real), with True at real tokens": "padding_mask",
    "mask=Mask.padding(attention_mask.bool()) for 1 = real token": "attention_mask",
    "cache=attention.new_cache(batch), a KVCache that the call fills": "use_cache kv_cache "
    "past_key_value past_key_values layer_past",
}
_NO_CALL = {
    "Values come from where keys come from: attention(x), or attention(x, context).": "value",
    "Causality is a property of the module: MultiHeadAttention(..., causal={0}).": "is_causal",
    _MAP: "need_weights average_attn_weights output_attentions",
    "To switch heads off: with clearhead.ablate(model, {{layer: heads}}): ...": "head_mask",
    "Rotary positions count from the cache: MultiHeadAttention(..., rope=Rope()).": "position_ids "
    "cache_position",
}
_CACHE = {
    "batch={0}": "batch_size max_batch_size",
    "capacity={0}": "max_length max_seq_len max_cache_len",
}
_NO_SCALING = {"Rotary positions are not scaled; Rope(base=...) sets their base.": "rope_scaling"}
_NO_FILES = {
    "The kernel is chosen per call; attention.explain_kernel(x) says which.": "attn_implementation",
    f"Attention needs no option: {_WATCH}.": "output_attentions",
    "No code of a checkpoint is ever run: leave it out.": "trust_remote_code",
    "Leave it out.": "low_cpu_mem_usage local_files_only",
    "Download it first: hf download NAME --revision {0} --local-dir DIR.": "revision",
}
_DRAWING = {
    "ids={0}": "input_ids idx inputs",
    "ids=tokenizer.encode(text)": "prompt text",
    "max_new_tokens={0}": "max_tokens",
    "stop={0}": "eos_token_id eos_id",
    "cache={0}": "use_cache",
}
_NO_DRAWING = {
    "temperature=1.0, top_k= or top_p= samples; without them the most likely token is taken.": (
        "do_sample"
    ),
    "max_new_tokens counts the new tokens only: {0} less the length of the prompt.": "max_length",
    "There is no beam search. One token is drawn at a time: greedy, or sampled.": "num_beams",
    "Repeat the prompt: model.generate([ids] * {0}, temperature=1.0).": "num_return_sequences",
    "Pass prompts of different lengths as a list of lists; padding is added here.": (
        "attention_mask pad_token_id"
    ),
    "There are no penalties. Sample with temperature= or top_p= instead.": "repetition_penalty",
    "model.stream(ids) yields the tokens one by one.": "streamer",
    "stop= takes token ids. For more, end the loop over model.stream(ids).": "stopping_criteria",
    "Use: with clearhead.watch(model) as seen: model.generate(ids).": (
        "output_attentions return_dict_in_generate"
    ),
    "The model knows its context_length; sliding=True drops the beginning.": "context_size",
}
_TEXT = {"allow_special=True": "allowed_special", "allow_special={0}": "add_special_tokens"}
_NO_TEXT = {
    "A list is returned: torch.tensor([tokenizer.encode(text)]) is a batch.": "return_tensors",
    "model.generate takes a list of lists of any lengths.": "padding",
    "A list is returned: cut it, ids[:context_length].": "truncation max_length",
    "Leave the ids out: [i for i in ids if i != tokenizer.end].": "skip_special_tokens",
}

# The keys are the names of functions and classes. In the texts, {0} is the value that was passed.
HERE: Mapping[str, Table] = {
    "MultiHeadAttention": {
        "d_in={0}, d_out={0}": "d_model " + SIZES["d_model"],
        **_sizes("num_heads", "context_length", "dropout"),
        "qkv_bias={0} (out_proj always has a bias)": f"{SIZES['qkv_bias']} attention_bias",
        "num_kv_heads={0}": "num_key_value_heads n_kv_heads kv_heads",
        "causal={0}": "is_causal",
        "window={0}": "sliding_window",
        "rope=Rope(base={0})": "rope_theta",
    },
    "MultiHeadAttention.forward": _CALL,
    "MultiHeadAttention.with_map": _CALL,
    "MultiHeadAttention.new_cache": _CACHE,
    "MultiHeadAttention.from_torch": {**_sizes("context_length"), "causal={0}": "is_causal"},
    "Rope": {"base={0}": "theta rope_theta"},
    "Transformer.forward": {
        "ids={0}": "input_ids idx x",
        "lengths=attention_mask.sum(1), with padding on the left": "attention_mask",
        "caches=model.new_caches(batch), which the call fills": "use_cache past_key_values",
    },
    "GPT2.generate": _DRAWING,
    "GPT2.stream": _DRAWING,
    "GPT2.from_pretrained": {"dtype={0}": "torch_dtype", "device={0}": "device_map map_location"},
    "load": {"model={0}": "name path", "device={0}": "device_map map_location"},
    "watch": {"layers={0}": "names_filter layer names", 'offload="cpu"': "device"},
    "ablate": {"heads={{layer: [0, 3]}}": "layers head"},
    "AttentionMap": {
        "q={0}": "query queries",
        "k={0}": "key keys",
        "values={0}": "value v",
        "mask=Mask.custom(attn_mask), in which True means may attend": "attn_mask",
        "cap={0}": "softcap",
    },
    "Embedding": {
        "vocab_size={0}": "num_embeddings d_vocab",
        "d_model={0}": "output_dim " + SIZES["d_model"],
        **_sizes("context_length"),
    },
    "SlidingWindowDataset": {
        "context_length={0}": "max_length block_size",
        "ids=tokenizer.encode(text)": "txt text",
    },
    "KVCache": {**_CACHE, "kv_heads={0}": "num_heads num_kv_heads"},
    "FeedForward": _sizes("d_model", "dropout"),
    "WordTokenizer.encode": _TEXT,
    "BytePairTokenizer.encode": _TEXT,
    "trace": {"x={0}": "input inputs", "tokens={0}": "labels"},
    "export": {"path={0}": "f filename", "module={0}": "model"},
}

ABSENT: Mapping[str, Table] = {
    "MultiHeadAttention": {
        "The batch is always the first axis: leave it out.": "batch_first",
        "Keys and values are computed from vectors of d_in numbers, as queries are.": "kdim vdim",
        "Not supported.": "add_bias_kv add_zero_attn",
        "It is d_out / num_heads.": "head_dim d_head",
        "Move the module: MultiHeadAttention(...).to({0}).": "device dtype",
        "out_proj always has a bias. Set it to zero and freeze it to do without.": "out_bias",
        'The kernel is chosen per call; kernel="sdpa" or kernel="eager" forces one.': (
            "attn_implementation"
        ),
        **_NO_SCALING,
        "A module needs no number: watch finds layers by their names.": "layer_idx",
    },
    "MultiHeadAttention.forward": _NO_CALL,
    "MultiHeadAttention.with_map": _NO_CALL,
    "Rope": {
        **_NO_SCALING,
        "Rope computes angles on request; head_dim is read from what it rotates.": (
            "dim head_dim max_position_embeddings max_seq_len"
        ),
    },
    "Transformer": {
        "Sizes come as one dictionary: GPT2({{**GPT2_CONFIGS['gpt2-small'], 'num_layers': 2}}).": (
            " ".join([*SIZES, *SIZES.values()])
        )
    },
    "Transformer.forward": {
        "The logits are returned; F.cross_entropy(logits[:, :-1].flatten(0, 1), "
        "ids[:, 1:].flatten()) is the loss.": "labels targets",
        f"The fused kernel builds no weights. Use {_WATCH}.": "output_attentions",
        "model.hidden(ids) has the vectors that the head reads.": "output_hidden_states",
        "The logits are returned, as a tensor: leave it out.": "return_dict return_type",
        "Positions follow from lengths= and caches=.": "position_ids cache_position",
    },
    "GPT2.generate": _NO_DRAWING,
    "GPT2.stream": _NO_DRAWING,
    "GPT2.from_pretrained": _NO_FILES,
    "load": {**_NO_FILES, "Convert the model: model.to({0}).": "dtype torch_dtype"},
    "watch": {"Labels are for showing: seen.page(tokens=...).": "tokens"},
    "AttentionMap": {
        "Pass mask=Mask.causal().": "is_causal",
        "A map has the weights before dropout.": "dropout_p",
        "A map is computed from queries and keys: AttentionMap(q, k, mask).": "weights",
    },
    "Embedding": {"Hide padding with a mask: Mask.padding(real).": "padding_idx"},
    "SlidingWindowDataset": {"Pass ids=tokenizer.encode(text).": "tokenizer"},
    "KVCache": {"One cache per layer: model.new_caches(batch) makes all of them.": "num_layers"},
    "WordTokenizer.encode": _NO_TEXT,
    "BytePairTokenizer.encode": _NO_TEXT,
    "WordTokenizer.decode": _NO_TEXT,
    "BytePairTokenizer.decode": _NO_TEXT,
    "export": {
        "Inputs, names and dynamic axes are made here: export(model, path).": (
            "args input_names output_names dynamic_axes opset_version"
        )
    },
}

# By the number of arguments passed, which are {0}, {1}, ...
_ORDER = "The book's order: MultiHeadAttention(d_in, d_out, context_length, dropout, num_heads)."
_QKV = "Query, key and value, as in nn.MultiheadAttention? "
CALLS: Mapping[tuple[str, int], str] = {
    ("MultiHeadAttention", 1): _ORDER,
    ("MultiHeadAttention", 2): "As in nn.MultiheadAttention(embed_dim, num_heads)? Write "
    "MultiHeadAttention(d_in={0}, d_out={0}, context_length=1024, dropout=0.0, num_heads={1}).",
    ("MultiHeadAttention", 3): _ORDER,
    ("MultiHeadAttention", 4): _ORDER,
    ("MultiHeadAttention.forward", 3): _QKV + "Self-attention is attention(x); cross-attention is "
    "attention(x, context), with causal=False.",
    ("MultiHeadAttention.with_map", 3): _QKV + "Self-attention is with_map(x); cross-attention is "
    "with_map(x, context), with causal=False.",
    ("MultiHeadAttention.new_cache", 0): "The number of sequences: new_cache(batch=x.shape[0]).",
    ("MultiHeadAttention.from_torch", 1): "PyTorch's module has no limit on tokens. Here one is "
    "needed; it costs no memory: from_torch(module, context_length=1024).",
    ("Mask", 1): "Masks are built by name: Mask.causal(), Mask.window(back), Mask.padding(real), "
    "Mask.custom(may_attend).",
    ("watch", 2): f"The model is called inside the block: {_WATCH}.",
    ("Transformer", 0): "By name: GPT2(GPT2_CONFIGS['gpt2-small']) has random weights; "
    'GPT2.from_pretrained("gpt2") has the released ones.',
    ("FeedForward", 1): "Of a config: FeedForward(config['d_model'], config['dropout']).",
    ("TransformerBlock", 2): "It takes a config: TransformerBlock(GPT2_CONFIGS['gpt2-small']).",
    ("AttentionMap", 1): "It is computed from queries and keys, (batch, heads, tokens, head_dim). "
    f"Of a model: {_WATCH}.",
    ("export", 3): "The example input is made here: export(model, path).",
    ("trace", 1): "It follows one forward pass: trace(attention, x).",
}

ATTRIBUTES: Mapping[str, Table] = {
    "MultiHeadAttention": {
        "d_in and d_out": "embed_dim hidden_size d_model",
        "num_heads": "num_attention_heads n_head n_heads",
        "num_kv_heads": "num_key_value_heads",
        "causal": "is_causal",
        "context_length": "block_size",
        "W_query, W_key and W_value; qkv with packed=True": "in_proj_weight c_attn q_proj k_proj "
        "v_proj",
        "out_proj": "o_proj c_proj W_o",
        "always so: the batch is the first axis": "batch_first",
    },
    "Transformer": {
        "config, a dictionary": "cfg",
        "blocks, with embedding before and norm after them": "transformer h layers trf_blocks",
        "embedding.token": "wte tok_emb",
        "embedding.position": "wpe pos_emb",
        "norm": "ln_f final_norm",
        "head(hidden), with head_weight": "lm_head",
        _WATCH: "run_with_cache",
    },
    "Seen": {
        "list(seen.values()), one AttentionMap per layer": "attentions maps",
        "seen[0] for the first layer, or seen[name]": "attention patterns",
        "seen.layers": "names",
        'seen.save("attention.svg") or seen.save("attention.html")': "plot show",
    },
    "AttentionMap": {
        "a method of tensors: m.dense() is one with all weights, m[0, 3] one with a head's": (
            "numpy cpu tolist mean sum max argmax squeeze"
        ),
        "m.dense(), or m[0, 3] for one head": "weights",
        "queries, keys and values": "q k v",
        "shape": "size ndim",
        "top": "topk",
        "plot(), page() or draw()": "show",
    },
}


def find(table: Table, name: str) -> str | None:
    """What a table says of this name, or None."""
    return next((text for text, names in table.items() if name in names.split()), None)


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Let a call that does not fit the signature fail with an explanation.

    It adds a few comparisons to a call. Annotations, `inspect.signature` and type checkers see the
    function itself.
    """
    parameters = list(inspect.signature(function).parameters.values())
    by_position = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = frozenset(p.name for p in parameters)
    most, fewest = len(by_position), sum(p.default is p.empty for p in by_position)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        fits = fewest - len(kwargs) <= len(args) <= most
        if not fits or (kwargs and not names.issuperset(kwargs)):
            raise _does_not_fit(function, parameters, args, kwargs)
        return function(*args, **kwargs)

    return call


def no_attribute(owner: object, name: str, kind: str = "") -> AttributeError:
    """The error to raise from `__getattr__`; it names ours if `name` is another library's.

    Args:
        owner: The object.
        name: The attribute that it does not have.
        kind: Its key in `ATTRIBUTES`; by default the name of its class.
    """
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    here = find(ATTRIBUTES[kind or type(owner).__name__], name)
    return AttributeError(text + (f".\n  Here that is {here}." if here else ""))


def _does_not_fit(
    function: Callable[..., object],
    parameters: Sequence[inspect.Parameter],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> TypeError:
    """What is wrong with these arguments, and what was probably meant."""
    name = shown = function.__qualname__.removesuffix(".__init__")
    if parameters[0].name == "self":
        shown = name.replace(name.partition(".")[0], type(args[0]).__name__, 1)
    if parameters[0].name in ("self", "cls"):
        parameters, args = parameters[1:], args[1:]
    by_position = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    known = [p.name for p in parameters]
    covered = {*known[: len(args)], *kwargs}
    lines = []
    unknown = [key for key in kwargs if key not in known]
    for key in unknown:
        value = _short(kwargs[key], key)
        about = _about(name, known, key, value)
        covered |= set(re.findall(r"(\w+)=", about))
        what = key if value == key else f"{key}={value}"
        lines.append(about if len(unknown) == 1 else f"{what}: {about[0].lower()}{about[1:]}")
        problem = f"{what} is not an argument"
    if len(unknown) > 1:
        problem = f"{', '.join(unknown)} are not arguments"
    needed = [p.name for p in by_position if p.default is p.empty and p.name not in covered]
    if unknown and needed:
        lines.append(f"Still missing: {', '.join(needed)}.")
    elif len(args) > len(by_position):
        most = len(by_position) or "no"
        problem = f"expected {most} argument{'s' * (most != 1)} by position, got {len(args)}"
        others = ", ".join(f"{p.name}=" for p in parameters if p.kind is p.KEYWORD_ONLY)
        lines += [f"Pass the others by name: {others}."] if others else []
    elif needed:
        problem = f"{', '.join(needed)} missing"
        got = zip(by_position, args, strict=False)
        lines += [f"Got {', '.join(f'{p.name}={_short(v)}' for p, v in got)}."] if args else []
    if not unknown and (meant := CALLS.get((name, len(args)))):
        lines.append(meant.format(*map(_short, args)))
    return TypeError("\n  ".join([f"{shown}: {problem}.", *lines]))


def _about(function: str, known: Sequence[str], name: str, value: str) -> str:
    """What to write instead of this argument, or why it does not exist."""
    if here := find(HERE.get(function, {}), name):
        return f"Here that is {here.format(value)}."
    if absent := find(ABSENT.get(function, {}), name):
        return absent.format(value)
    if close := difflib.get_close_matches(name, known, n=1):
        return f"Did you mean {close[0]}=?"
    return f"The arguments are {', '.join(known)}."


def _short(value: object, name: str = "") -> str:
    """The value as one would type it, or its name or type where that is long."""
    name = name or f"<{type(value).__name__}>"
    text = repr(value) if not hasattr(value, "shape") else name
    return text if len(text) <= 40 and "\n" not in text else name
