"""Weights files -> model -> weights files: what `GPT2.from_pretrained` and `save_pretrained` do.

Names, shapes and dtypes are checked before any tensor is read. The model is built without memory
(on the "meta" device), and each tensor is copied once, from the memory-mapped file into its
parameter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from clearhead import checkpoint_keys
from clearhead.atomic_files import beside
from clearhead.gpt2 import key_names
from clearhead.gpt2.config_detection import Plan, find_sizes
from clearhead.gpt2.empty_model import without_numbers
from clearhead.gpt2.key_names import Name, Style
from clearhead.gpt2.transformer import Transformer
from clearhead.gpt2.weight_files import Spec, Tensors, find_files, read_json
from clearhead.version import __version__

Model = TypeVar("Model", bound=Transformer)

_FLOATS = ("float64", "float32", "float16", "bfloat16")


def load(
    cls: type[Model],
    path_or_name: str | Path,
    *,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    num_heads: int | None,
    packed: bool,
    check_values: bool,
) -> Model:
    """Build a model of this class from a weights file; see `GPT2.from_pretrained`."""
    files, config_file = find_files(path_or_name)
    source = _read_source(files, config_file)
    is_file = len(files) == 1 and Path(path_or_name).suffix == files[0].suffix
    plan = find_sizes(source.style, source.specs, config_file, is_file, num_heads)
    tied = _is_tied(source, plan)
    _check_tables(source, plan)
    model = without_numbers(lambda: cls(plan.config, rope=plan.rope, tied=tied, packed=packed))
    # GPT-2's own files fit both forms; from others, `load_state_dict` converts at the end.
    together = packed if source.style == "hf" else key_names.is_packed(source.specs)
    own = _arranged(model, packed=together)
    wanted = key_names.table(source.style, own)
    ignored = {key_names.head_name(source.style)} if tied else set()
    biases = []
    if source.style == "hf" and not plan.config["qkv_bias"]:
        biases = [name for name in source.specs if name.endswith("attn.c_attn.bias")]
    _check(source, wanted, own, ignored.union(biases), dtype)

    state: dict[str, Tensor] = {}
    table = {source.keys[name.theirs]: name for name in wanted}
    for key, tensor in source.tensors.read(table):
        if check_values:
            _check_values(key, tensor, source.tensors.specs[key].file)
        for own_name, part in _to_ours(table[key], tensor, own):
            # Copied, because what was read is a page of the file; and made contiguous, even if the
            # file holds the transposed matrix, because generation is then twice as fast.
            memory = torch.empty(part.shape, dtype=dtype or part.dtype, device=device)
            state[own_name] = memory.copy_(part)
        del tensor, part
    _check_zero(source, biases)
    model.load_state_dict(state, assign=True)
    return model.eval()


@dataclass(frozen=True)
class _Source:
    """Weights files, before any tensor is read.

    Attributes:
        where: The file, or the folder of several files, for messages.
        config_file: The config.json beside them, or None.
        tensors: The tensors by their names in the files.
        keys: For each tidy name, the name in the file.
        specs: Shape, dtype and file by tidy name.
        style: Whose key names they use.
    """

    where: Path
    config_file: Path | None
    tensors: Tensors
    keys: dict[str, str]
    specs: dict[str, Spec]
    style: Style


def _read_source(files: list[Path], config_file: Path | None) -> _Source:
    tensors = Tensors(files)
    where = files[0] if len(files) == 1 else files[0].parent
    keys = key_names.tidy(tensors.specs)
    style = key_names.find_style(keys)
    if style is None:
        kind = None if config_file is None else read_json(config_file).get("model_type")
        if isinstance(kind, str) and not kind.endswith("gpt2"):
            raise ValueError(
                f"{where.parent if where.is_file() else where}: expected a GPT-2, got a {kind}; "
                "export, generate and explain support GPT-2 only.\n"
                "  clearhead heads, clearhead view and clearhead.watch support it."
            )
        some = ", ".join(list(tensors.specs)[:3]) or "nothing"
        raise ValueError(
            f"{where}: expected the weights of a GPT-2, got {some}, ...\n"
            "  The key names of Hugging Face, the original release, the book and Clearhead are "
            "supported: wte.weight, tok_emb.weight or embedding.token.weight."
        )
    specs = {name: tensors.specs[key] for name, key in keys.items()}
    return _Source(where, config_file, tensors, keys, specs, style)


def _is_tied(source: _Source, plan: Plan) -> bool:
    """Whether the output head is the token embedding's matrix."""
    head, token = key_names.head_name(source.style), key_names.table_names(source.style)[0]
    if plan.tied is False or head not in source.specs:
        return plan.tied is not False
    head_key, token_key = source.keys[head], source.keys[token]
    same = source.specs[head][:2] == source.specs[token][:2]
    if same:
        found = dict(source.tensors.read([head_key, token_key]))
        same = torch.equal(found[head_key], found[token_key])
    if plan.tied and not same:
        raise ValueError(
            f"{head_key}: expected the same matrix as {token_key}, got a different one "
            f"(in {source.where}).\n  If the head was trained separately, set "
            '"tie_word_embeddings": false in config.json.'
        )
    return same


def _check_tables(source: _Source, plan: Plan) -> None:
    """Check what must hold before a model of these sizes is built, even without memory."""
    config, specs, tables = plan.config, source.specs, key_names.table_names(source.style)
    file = specs[tables[0]].file
    if config["num_layers"] > len(specs):
        raise ValueError(
            f"{source.config_file or file}: {config['num_layers']} layers, but {file} has only "
            f"{len(specs)} tensors."
        )
    for name, rows in zip(tables, (config["vocab_size"], config["context_length"]), strict=True):
        if name in specs:
            _check_shape(source, name, (rows, config["d_model"]))


def _check_shape(source: _Source, name: str, wanted: tuple[int, ...]) -> None:
    spec = source.specs[name]
    # The original release has an axis of size 1 before each matrix of a layer.
    if spec.shape in (wanted, (1, *wanted)):
        return
    shape = spec.shape[1:] if len(spec.shape) == 3 else spec.shape
    hint = ""
    if len(shape) == 2 and shape == wanted[::-1]:
        hint = "\n  Transposed? GPT-2's own files store the matrices of a layer as (in, out)."
    reason = source.config_file or "the shapes of the others"
    raise ValueError(
        f"{source.keys[name]}: expected {wanted} according to {reason}, "
        f"got {spec.shape} in {spec.file}.{hint}"
    )


def _check(
    source: _Source,
    wanted: list[Name],
    own: Mapping[str, Tensor],
    ignored: set[str],
    dtype: torch.dtype | None,
) -> None:
    """Check every name, shape and dtype before anything is read."""
    specs, keys = source.specs, source.keys
    known = {name.theirs for name in wanted}
    extra = [name for name in specs if name not in known | ignored]
    missing = [name.theirs for name in wanted if name.theirs not in specs]
    if missing:
        also = f"\n  The file has {keys[extra[0]]}, which is not needed." if extra else ""
        raise ValueError(
            f"{missing[0]}: missing in {source.where}, and {len(missing) - 1} more of "
            f"{len(wanted)} tensors.{also}"
        )
    if extra:
        raise ValueError(
            f"{keys[extra[0]]}: in {specs[extra[0]].file}, but not in a GPT-2 of this size; "
            f"{len(extra)} such tensors."
        )
    first = wanted[0].theirs
    for name in wanted:
        spec, key = specs[name.theirs], keys[name.theirs]
        _check_shape(source, name.theirs, _their_shape(name, own))
        if spec.dtype not in _FLOATS:
            raise ValueError(
                f"{key}: expected {', '.join(_FLOATS)}, got {spec.dtype} in {spec.file}."
            )
        if dtype is None and spec.dtype != specs[first].dtype:
            raise ValueError(
                f"{key}: is {spec.dtype}, but {keys[first]} is {specs[first].dtype} "
                f"(in {source.where}).\n"
                "  Choose one: from_pretrained(path, dtype=torch.float32)."
            )


def _arranged(model: Transformer, *, packed: bool) -> dict[str, Tensor]:
    """The state dict of a model as if it were packed, or not."""
    state = model.state_dict()
    if packed != model.packed:
        widths = [model.config["d_model"]] * 3
        for number in range(len(model.blocks)):
            checkpoint_keys.rename(state, f"blocks.{number}.attention.", widths, packed=packed)
    return state


def _their_shape(name: Name, own: Mapping[str, Tensor]) -> tuple[int, ...]:
    rows = sum(own[part].shape[0] for part in name.ours)
    shape = (rows, *own[name.ours[0]].shape[1:])
    return shape[::-1] if name.transposed else shape


def _to_ours(name: Name, tensor: Tensor, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The parameters that a tensor of the file holds, as views in our layout."""
    tensor = tensor.reshape(_their_shape(name, own))
    tensor = tensor.t() if name.transposed else tensor
    rows = [own[part].shape[0] for part in name.ours]
    return zip(name.ours, torch.split(tensor, rows), strict=True)


def _check_values(key: str, tensor: Tensor, file: Path) -> None:
    if tensor.numel() == 0:
        return
    # Minimum and maximum take one pass and no memory, and NaN propagates to both.
    for value in map(float, torch.aminmax(tensor)):
        if not math.isfinite(value):
            raise ValueError(
                f"{key}: expected finite numbers, got {value} in {file}.\n"
                "  Training may have diverged, or the file is damaged. "
                "To load it anyway: from_pretrained(path, check_values=False)."
            )


def _check_zero(source: _Source, biases: list[str]) -> None:
    for key, tensor in source.tensors.read([source.keys[name] for name in biases]):
        if bool(tensor.any()):
            raise ValueError(
                f'{key}: expected zeros, because config.json has "qkv_bias": false, got other '
                f"values in {source.tensors.specs[key].file}."
            )


def save(model: Transformer, folder: str | Path) -> None:
    """Write config.json and model.safetensors; see `GPT2.save_pretrained`."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: cannot create the folder: {error.strerror}.") from None
    own = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors = {}
    for name in key_names.table("hf", own):
        tensor = torch.cat([own[part] for part in name.ours])
        tensor = tensor.t() if name.transposed else tensor
        prefix = "" if name.theirs.startswith("lm_head") else "transformer."
        tensors[prefix + name.theirs] = tensor.contiguous()
    if not model.config["qkv_bias"]:  # GPT-2 in transformers always has them; zeros do nothing
        for number in range(model.config["num_layers"]):
            zeros = torch.zeros(3 * model.config["d_model"], dtype=tensor.dtype)
            tensors[f"transformer.h.{number}.attn.c_attn.bias"] = zeros
    text = json.dumps(_to_json(model), indent=2) + "\n"
    with (
        beside(folder / "config.json") as config,  # no reader ever sees half a file
        beside(folder / "model.safetensors") as weights,
    ):
        safetensors.torch.save_file(tensors, weights, metadata={"format": "pt"})
        config.write_text(text, encoding="utf-8")


def _to_json(model: Transformer) -> dict[str, Any]:
    config = model.config
    end = 50256 if config["vocab_size"] == 50257 else None
    content: dict[str, Any] = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config["vocab_size"],
        "n_positions": config["context_length"],
        "n_embd": config["d_model"],
        "n_head": config["num_heads"],
        "n_layer": config["num_layers"],
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": config["dropout"],
        "embd_pdrop": config["dropout"],
        "attn_pdrop": config["dropout"],
        "qkv_bias": config["qkv_bias"],
        "tie_word_embeddings": model.tied,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": str(model.norm.weight.dtype).removeprefix("torch."),
        "clearhead_version": __version__,
    }
    if model.rope is not None:
        content |= {"model_type": "clearhead-gpt2", "rope_base": model.rope.base}
        del content["architectures"]
    return content
