"""Names that users of other libraries type, and what they are called here.

PyTorch, Hugging Face, TransformerLens, nanoGPT and the book have names of their own for the same
things. A call with one of them fails with an error that translates it, value included:

    MultiHeadAttention: embed_dim=768 is not an argument.
      Here that is d_in=768, d_out=768.

`HERE` has what to write instead, `ABSENT` why there is no such argument, `CALLS` what calls with
the wrong number of arguments usually mean, `ATTRIBUTES` what to read instead. Keys are the names of
public functions and classes. This file does not import torch.
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

# Sizes of models, under the names of `GPT2_CONFIGS`.
SIZES = {
    "hidden_size": "d_model",
    "hidden_dim": "d_model",
    "embed_dim": "d_model",
    "embedding_dim": "d_model",
    "n_embd": "d_model",
    "dim": "d_model",
    "num_attention_heads": "num_heads",
    "n_head": "num_heads",
    "nhead": "num_heads",
    "heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "n_layer": "num_layers",
    "block_size": "context_length",
    "max_position_embeddings": "context_length",
    "n_positions": "context_length",
    "n_ctx": "context_length",
    "max_seq_len": "context_length",
    "max_length": "context_length",
    "d_vocab": "vocab_size",
    "attn_pdrop": "dropout",
    "attention_dropout": "dropout",
    "dropout_p": "dropout",
    "bias": "qkv_bias",
    "add_bias_qkv": "qkv_bias",
}
BOOK_SIZES = {
    "emb_dim": "d_model",
    "n_heads": "num_heads",
    "n_layers": "num_layers",
    "drop_rate": "dropout",
}

_ALL_SIZES = SIZES | BOOK_SIZES


def _renamed(*ours: str) -> dict[str, str]:
    """What to write for other libraries' names of these sizes."""
    return {name: f"{size}={{0}}" for name, size in _ALL_SIZES.items() if size in ours}


_ATTENTION = {
    **_renamed("num_heads", "context_length", "dropout", "qkv_bias"),
    **dict.fromkeys(_renamed("d_model"), "d_in={0}, d_out={0}"),
    "d_model": "d_in={0}, d_out={0}",
    "num_key_value_heads": "num_kv_heads={0}",
    "n_kv_heads": "num_kv_heads={0}",
    "kv_heads": "num_kv_heads={0}",
    "is_causal": "causal={0}",
    "sliding_window": "window={0}",
    "rope_theta": "rope=Rope(base={0})",
}
_WATCH = "`with clearhead.watch(model) as seen: model(ids)` records it in any model"
_MAP = "use output, weights = attention.with_map(x): weights is an AttentionMap"
_INPUT = "x={0}"
_CALL = {
    "query": _INPUT,
    "hidden_states": _INPUT,
    "input": _INPUT,
    "inputs": _INPUT,
    "key": "context={0}",
    "encoder_hidden_states": "context={0}",
    "attn_mask": "mask=Mask.custom(may_attend); nn.MultiheadAttention hides where its bool mask is "
    "True: Mask.custom(~attn_mask). A mask of 0 and -inf: Mask.custom(attn_mask == 0)",
    "key_padding_mask": "mask=Mask.padding(~key_padding_mask), which is True at real tokens",
    "attention_mask": "mask=Mask.padding(attention_mask.bool()) for 1 = real token",
    "past_key_values": "cache={0}, a KVCache from attention.new_cache(batch)",
    "past_key_value": "cache={0}, a KVCache from attention.new_cache(batch)",
    "layer_past": "cache={0}, a KVCache from attention.new_cache(batch)",
    "kv_cache": "cache={0}, a KVCache from attention.new_cache(batch)",
    "use_cache": "cache=attention.new_cache(batch), which the call fills",
}
_NO_CALL = {
    "value": "Values come from the same source as keys: attention(x), or attention(x, context).",
    "is_causal": "Causality is a property of the module: MultiHeadAttention(..., causal={0}).",
    "need_weights": f"The fused kernel builds no weights; {_MAP}.",
    "average_attn_weights": f"Weights are per head; {_MAP}.",
    "output_attentions": f"The fused kernel builds no weights; {_MAP}.",
    "head_mask": "To switch heads off: with clearhead.ablate(model, {{layer: heads}}): ...",
    "position_ids": "Rotary positions count from the cache: MultiHeadAttention(..., rope=Rope()).",
}
_FILES = {
    "torch_dtype": "dtype={0}",
    "device_map": "device={0}",
    "map_location": "device={0}",
    "pretrained_model_name_or_path": "path_or_name={0}",
}
_NO_FILES = {
    "attn_implementation": "The kernel is chosen per call; attention.explain_kernel(x) says which.",
    "output_attentions": f"Attention needs no option: {_WATCH}.",
    "trust_remote_code": "No code of a checkpoint is ever run: leave it out.",
    "low_cpu_mem_usage": "Weights are read in place: leave it out.",
    "local_files_only": "A folder is read from disk, and a name from the cache if it is there.",
    "revision": "Download it first: hf download NAME --revision REVISION --local-dir DIR.",
}
_DRAWING = {
    "input_ids": "ids={0}",
    "idx": "ids={0}",
    "prompt": "ids=tokenizer.encode(prompt)",
    "max_tokens": "max_new_tokens={0}",
    "eos_token_id": "stop={0}",
    "eos_id": "stop={0}",
    "stop_at_eos": "stop=tokenizer.end",
    "use_cache": "cache={0}",
    "use_past_kv_cache": "cache={0}",
    "p": "top_p={0}",
    "k": "top_k={0}",
    "random_seed": "seed={0}",
}
_PROMPTS = "Pass prompts of different lengths as a list of lists; padding is added here."
_NO_DRAWING = {
    "do_sample": "temperature=1.0, top_k= or top_p= samples; without them the most likely token "
    "is taken.",
    "max_length": "max_new_tokens counts the new tokens only: {0} less the length of the prompt.",
    "min_length": "Leave stop= out, and max_new_tokens are written.",
    "num_beams": "There is no beam search. One token is drawn at a time: greedy, or sampled.",
    "num_return_sequences": "Repeat the prompt: model.generate([ids] * {0}, temperature=1.0).",
    "attention_mask": _PROMPTS,
    "pad_token_id": _PROMPTS,
    "repetition_penalty": "There are no penalties. Sample with temperature= or top_p= instead.",
    "streamer": "model.stream(ids) yields the tokens one by one.",
    "stopping_criteria": "stop= takes token ids. For more, end the loop over model.stream(ids).",
    "return_dict_in_generate": "The ids are returned. For attention: "
    "with clearhead.watch(model) as seen: model.generate(ids).",
    "output_attentions": "Use: with clearhead.watch(model) as seen: model.generate(ids).",
    "context_size": "The model knows its context_length; sliding=True drops the beginning.",
    "return_type": "The same type as ids is returned; tokenizer.decode makes text of it.",
}
_TEXT = {"allowed_special": "allow_special=True", "add_special_tokens": "allow_special={0}"}
_NO_TEXT = {
    "return_tensors": "A list is returned: torch.tensor([tokenizer.encode(text)]) is a batch.",
    "padding": "model.generate takes a list of lists of any lengths.",
    "truncation": "A list is returned: cut it, ids[:context_length].",
    "skip_special_tokens": "Leave the ids out: [i for i in ids if i != tokenizer.end].",
}

HERE: dict[str, dict[str, str]] = {
    "MultiHeadAttention": _ATTENTION,
    "MultiHeadAttention.forward": _CALL,
    "MultiHeadAttention.with_map": _CALL,
    "Transformer.forward": {
        "input_ids": "ids={0}",
        "idx": "ids={0}",
        "x": "ids={0}",
        "attention_mask": "lengths=attention_mask.sum(1), with padding on the left",
        "past_key_values": "caches={0}, from model.new_caches(batch)",
        "use_cache": "caches=model.new_caches(batch), which the call fills",
    },
    "GPT2.generate": _DRAWING,
    "GPT2.stream": _DRAWING,
    "GPT2.from_pretrained": _FILES,
    "load": {
        "device_map": "device={0}",
        "map_location": "device={0}",
        "name": "model={0}",
        "path": "model={0}",
    },
    "watch": {
        "names_filter": "layers={0}",
        "layer": "layers={0}",
        "names": "layers={0}",
        "device": 'offload="cpu"',
        "requires_grad": "detach=False",
    },
    "AttentionMap": {
        "query": "q={0}",
        "queries": "q={0}",
        "key": "k={0}",
        "keys": "k={0}",
        "value": "values={0}",
        "v": "values={0}",
        "attn_mask": "mask=Mask.custom(attn_mask), in which True means may attend",
        "softcap": "cap={0}",
    },
    "Embedding": {
        "num_embeddings": "vocab_size={0}",
        "output_dim": "d_model={0}",
        **_renamed("d_model", "context_length", "vocab_size"),
    },
    "SlidingWindowDataset": {
        "max_length": "context_length={0}",
        "block_size": "context_length={0}",
        "token_ids": "ids={0}",
        "txt": "ids=tokenizer.encode(txt)",
    },
    "KVCache": {
        "batch_size": "batch={0}",
        "max_batch_size": "batch={0}",
        "num_kv_heads": "kv_heads={0}",
        "num_heads": "kv_heads={0}",
        "max_length": "capacity={0}",
        "max_seq_len": "capacity={0}",
        "max_cache_len": "capacity={0}",
    },
    "FeedForward": _renamed("d_model", "dropout"),
    "WordTokenizer.encode": _TEXT,
    "BytePairTokenizer.encode": _TEXT,
    "trace": {"inputs": "x={0}", "input": "x={0}", "attn_mask": "mask={0}", "labels": "tokens={0}"},
    "export": {"f": "path={0}", "filename": "path={0}", "model": "module={0}"},
}

ABSENT: dict[str, dict[str, str]] = {
    "MultiHeadAttention": {
        "batch_first": "The batch is always the first axis: leave it out.",
        "kdim": "Keys and values are computed from vectors of d_in numbers, as the queries are.",
        "vdim": "Keys and values are computed from vectors of d_in numbers, as the queries are.",
        "add_bias_kv": "Not supported.",
        "add_zero_attn": "Not supported; AttentionMap(..., sink=) shows models that do this.",
        "head_dim": "It is d_out / num_heads.",
        "d_head": "It is d_out / num_heads.",
        "device": "Move the module: MultiHeadAttention(...).to(device).",
        "dtype": "Convert the module: MultiHeadAttention(...).to(dtype).",
        "layer_idx": "A module needs no number: watch finds layers by their names.",
        "scale": "Scores are divided by √head_dim.",
    },
    "MultiHeadAttention.forward": _NO_CALL,
    "MultiHeadAttention.with_map": _NO_CALL,
    "Transformer": dict.fromkeys(
        (*_ALL_SIZES, *_ALL_SIZES.values()),
        "Sizes come as one dictionary: GPT2({{**GPT2_CONFIGS['gpt2-small'], 'num_layers': 2}}).",
    ),
    "Transformer.forward": {
        "labels": "The logits are returned; F.cross_entropy(logits[:, :-1].flatten(0, 1), "
        "ids[:, 1:].flatten()) is the loss.",
        "targets": "The logits are returned; F.cross_entropy(logits.flatten(0, 1), "
        "targets.flatten()) is the loss.",
        "output_attentions": f"The fused kernel builds no weights; {_WATCH}.",
        "output_hidden_states": "model.hidden(ids) has the vectors that the head reads.",
        "return_dict": "The logits are returned, as a tensor: leave it out.",
        "position_ids": "Positions follow from lengths= and caches=.",
        "token_type_ids": "GPT-2 has none: leave it out.",
        "return_type": "The logits are returned: leave it out.",
    },
    "GPT2.generate": _NO_DRAWING,
    "GPT2.stream": _NO_DRAWING,
    "GPT2.from_pretrained": _NO_FILES,
    "load": _NO_FILES
    | dict.fromkeys(("dtype", "torch_dtype"), "Convert the model: model.to({0})."),
    "watch": {
        "output_attentions": "It is what watch does: leave it out.",
        "tokens": "Labels are for showing: seen.page(tokens=...), seen.save(..., tokens=...).",
    },
    "AttentionMap": {
        "dropout_p": "A map has the weights before dropout.",
        "is_causal": "Pass mask=Mask.causal().",
        "weights": "A map is computed from queries and keys: AttentionMap(q, k, mask).",
    },
    "Embedding": {"padding_idx": "Hide padding with a mask: Mask.padding(real)."},
    "SlidingWindowDataset": {
        "tokenizer": "Encode the text first: SlidingWindowDataset(tokenizer.encode(text), ...).",
    },
    "KVCache": {"num_layers": "One cache per layer: model.new_caches(batch) makes all of them."},
    "FeedForward": {"activation": "It is GELU, in the tanh approximation that GPT-2 uses."},
    "WordTokenizer.encode": _NO_TEXT,
    "BytePairTokenizer.encode": _NO_TEXT,
    "WordTokenizer.decode": _NO_TEXT,
    "BytePairTokenizer.decode": _NO_TEXT,
    "export": dict.fromkeys(
        ("args", "input_names", "output_names", "dynamic_axes", "opset_version"),
        "Inputs, names and dynamic axes are made here: export(model, path).",
    ),
}

# What a call with too few or too many arguments usually means. {0}, {1} are those passed.
CALLS: dict[tuple[str, int], str] = {
    **dict.fromkeys(
        [("MultiHeadAttention", count) for count in (1, 3, 4)],
        "The book's order: MultiHeadAttention(d_in, d_out, context_length, dropout, num_heads).",
    ),
    ("MultiHeadAttention", 2): "As in nn.MultiheadAttention(embed_dim, num_heads)? Write "
    "MultiHeadAttention(d_in={0}, d_out={0}, context_length=1024, dropout=0.0, num_heads={1}).",
    ("MultiHeadAttention.forward", 3): "Query, key and value, as in nn.MultiheadAttention? "
    "Self-attention is attention(x); cross-attention is attention(x, context), with causal=False.",
    ("MultiHeadAttention.with_map", 3): "Query, key and value, as in nn.MultiheadAttention? "
    "Self-attention is with_map(x); cross-attention is with_map(x, context), with causal=False.",
    ("Mask", 1): "Masks are built by name: Mask.causal(), Mask.window(back), Mask.padding(real), "
    "Mask.custom(may_attend).",
    ("watch", 2): "The model is called inside the block: with watch(model) as seen: model(ids).",
    ("Transformer", 0): "By name: GPT2(GPT2_CONFIGS['gpt2-small']) has random weights; "
    'GPT2.from_pretrained("gpt2") has the released ones.',
    ("FeedForward", 1): "Of a config: FeedForward(config['d_model'], config['dropout']).",
    ("TransformerBlock", 2): "It takes a config: TransformerBlock(GPT2_CONFIGS['gpt2-small']).",
    ("AttentionMap", 1): "It is computed from queries and keys, (batch, heads, tokens, head_dim). "
    "Of a model: with clearhead.watch(model) as seen: model(ids).",
    ("export", 3): "The example input is made here: export(model, path).",
    ("trace", 1): "It follows one forward pass: trace(attention, x).",
}

_W = "weights of the layer `W_query`, `W_key` or `W_value`; `qkv` with packed=True"
_DENSE = "a method of tensors: m.dense() is one with all weights, m[0, 3] one with a head's"
ATTRIBUTES: dict[str, dict[str, str]] = {
    "MultiHeadAttention": {
        "embed_dim": "d_in and d_out",
        "hidden_size": "d_in and d_out",
        "num_attention_heads": "num_heads",
        "n_head": "num_heads",
        "n_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "is_causal": "causal",
        "block_size": "context_length",
        "scale": "head_dim ** -0.5",
        "in_proj_weight": _W,
        "in_proj_bias": _W,
        "q_proj": "W_query",
        "k_proj": "W_key",
        "v_proj": "W_value",
        "o_proj": "out_proj",
        "c_proj": "out_proj",
        "c_attn": "qkv, with packed=True",
        "batch_first": "always so: the batch is the first axis",
    },
    "Transformer": {
        "cfg": "config, a dictionary",
        "transformer": "blocks, with embedding before and norm after them",
        "h": "blocks",
        "layers": "blocks",
        "trf_blocks": "blocks",
        "wte": "embedding.token",
        "tok_emb": "embedding.token",
        "wpe": "embedding.position",
        "pos_emb": "embedding.position",
        "ln_f": "norm",
        "final_norm": "norm",
        "lm_head": "head(hidden), with head_weight",
        "block_size": 'config["context_length"]',
        "run_with_cache": _WATCH,
        "tokenizer": 'tokenizer of model, tokenizer = clearhead.load("english")',
    },
    "Seen": {
        "attentions": "list(seen.values()), one AttentionMap per layer",
        "maps": "list(seen.values()), one AttentionMap per layer",
        "attention": "seen[0] for the first layer, or seen[name]",
        "patterns": "seen[0] for the first layer, or seen[name]",
        "names": "seen.layers",
        "plot": 'seen.save("attention.svg"), or seen[0].plot()',
        "show": "seen.page() or clearhead.view(seen)",
        "show_html": 'seen.save("attention.html")',
    },
    "AttentionMap": {
        **dict.fromkeys(
            ("numpy", "cpu", "tolist", "mean", "sum", "max", "argmax", "squeeze"), _DENSE
        ),
        "weights": "m.dense(), or m[0, 3] for one head",
        "q": "queries",
        "k": "keys",
        "v": "values",
        "ndim": "always 4: (batch, heads, queries, keys)",
        "size": "shape",
        "topk": "top",
        "heads": "shape[1]; head_numbers has their numbers",
        "show": "plot(), page() or draw()",
    },
}


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
    here = ATTRIBUTES[kind or type(owner).__name__].get(name)
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
    if name in (here := HERE.get(function, {})):
        return f"Here that is {here[name].format(value)}."
    if name in (absent := ABSENT.get(function, {})):
        return absent[name].format(value)
    if close := difflib.get_close_matches(name, known, n=1):
        return f"Did you mean {close[0]}=?"
    return f"The arguments are {', '.join(known)}."


def _short(value: object, name: str = "") -> str:
    """The value as one would type it, or its name or type where that is long."""
    name = name or f"<{type(value).__name__}>"
    text = repr(value) if not hasattr(value, "shape") else name
    return text if len(text) <= 40 and "\n" not in text else name
