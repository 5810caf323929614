"""Weights from outside into a GPT2, and back: `GPT2.from_pretrained` and `save_pretrained`.

Everything is checked from the names, shapes and dtypes in the files before a number is read, and
the model is made without memory of its own ("meta"): each tensor is copied once, from the mapped
file to its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor

from clearhead.atomic_files import beside
from clearhead.gpt2 import key_names
from clearhead.gpt2.config_detection import Plan, find_sizes
from clearhead.gpt2.empty_model import without_numbers
from clearhead.gpt2.key_names import Name
from clearhead.gpt2.weight_files import Spec, Tensors, find_files, read_json
from clearhead.version import __version__

if TYPE_CHECKING:
    from clearhead.gpt2.model import GPT2

_FLOATS = ("float64", "float32", "float16", "bfloat16")


def from_pretrained(
    cls: type[GPT2],
    path_or_name: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    num_heads: int | None = None,
    check_values: bool = True,
) -> GPT2:
    """A model with weights from a file, a folder or the Hugging Face hub, in eval mode.

    Args:
        cls: The class of the model: `GPT2`.
        path_or_name: A folder or a file, `.safetensors` or what `torch.save` wrote, with the names
            of Hugging Face, the original release, the book, or ours; else a name on the hub, such
            as "gpt2-medium" or "distilbert/distilgpt2".
        dtype: What the numbers become; as in the file by default.
        device: Where they go; the CPU by default.
        num_heads: Only for a file without config.json whose heads are not 64 wide, as GPT-2's are:
            shapes do not tell it.
        check_values: Whether weights that are infinite or not a number are refused.

    Raises:
        ValueError: The file is not what it should be; the message names the tensor.
    """
    files, config_file = find_files(path_or_name)
    tensors = Tensors(files)
    where = files[0] if len(files) == 1 else files[0].parent
    keys = key_names.tidy(tensors.specs)  # a tidy name -> the name in the file
    style = key_names.find_style(keys)
    if style is None:
        kind = None if config_file is None else read_json(config_file).get("model_type")
        if isinstance(kind, str) and not kind.endswith("gpt2"):
            raise ValueError(
                f"{where.parent if where.is_file() else where}: this is a {kind}, and export, "
                "generate and explain know GPT-2 only.\n"
                "  clearhead heads, clearhead view and clearhead.watch work with it."
            )
        some = ", ".join(list(tensors.specs)[:3]) or "nothing"
        raise ValueError(
            f"{where}: these are not the weights of a GPT-2; it has {some}, ...\n"
            "  Names are understood as Hugging Face, the original release, the book and this "
            "library write them: wte.weight, tok_emb.weight or embedding.token.weight."
        )
    specs = {name: tensors.specs[key] for name, key in keys.items()}
    alone = len(files) == 1 and Path(path_or_name).suffix == files[0].suffix
    plan = find_sizes(style, specs, config_file, alone, num_heads)
    head, token = key_names.head_name(style), key_names.table_names(style)[0]
    same_head = plan.tied
    if plan.tied is not False and head in specs:
        same_head = _same(tensors, keys[head], keys[token])
        if plan.tied and not same_head:
            raise ValueError(
                f"{keys[head]}: differs from {keys[token]}, and the head of a GPT-2 is the same "
                f"matrix (in {where}).\n  If it was trained so, config.json must say "
                '"tie_word_embeddings": false.'
            )
    tied = same_head is not False
    _check_sizes(plan, specs, keys, key_names.table_names(style), config_file)
    model = without_numbers(lambda: cls(plan.config, rope=plan.rope, tied=tied))
    own = model.state_dict()
    wanted = key_names.table(style, own)
    spare = {head} if tied else set()
    if style == "hf" and not plan.config["qkv_bias"]:
        spare |= {name for name in specs if name.endswith("attn.c_attn.bias")}
    _check(wanted, own, specs, keys, spare, dtype, where, config_file)

    state: dict[str, Tensor] = {}
    table = {keys[name.theirs]: name for name in wanted}
    for key, tensor in tensors.read(table):
        if check_values:
            _check_values(key, tensor, tensors.specs[key].file)
        for own_name, part in _to_ours(table[key], tensor, own):
            # A copy in memory of its own: what was read is a page of the file. Row by row, also
            # where the file has the matrix turned: generation is twice as fast then.
            room = torch.empty(part.shape, dtype=dtype or part.dtype, device=device)
            state[own_name] = room.copy_(part)
        del tensor, part
    if style == "hf" and not plan.config["qkv_bias"]:
        _check_no_bias(tensors, [keys[name] for name in spare - {head}])
    model.load_state_dict(state, assign=True)
    return model.eval()


def _check_sizes(
    plan: Plan,
    specs: Mapping[str, Spec],
    keys: Mapping[str, str],
    tables: tuple[str, str],
    config_file: Path | None,
) -> None:
    """What must hold before a model of these sizes is even thought of."""
    config, file = plan.config, specs[tables[0]].file
    if config["num_layers"] > len(specs):
        raise ValueError(
            f"{config_file or file}: {config['num_layers']} layers, but {file} has only "
            f"{len(specs)} tensors."
        )
    for name, rows in zip(tables, (config["vocab_size"], config["context_length"]), strict=True):
        wanted = (rows, config["d_model"])
        if name in specs and specs[name].shape != wanted:
            raise ValueError(_wrong_shape(keys[name], wanted, specs[name], config_file))


def _wrong_shape(key: str, wanted: tuple[int, ...], spec: Spec, config_file: Path | None) -> str:
    source = "the shapes of the others" if config_file is None else config_file
    came = spec.shape[1:] if len(spec.shape) == 3 else spec.shape
    turned = "\n  Transposed? GPT-2's own files have the matrices of a layer as (in, out)."
    hint = turned if came == wanted[::-1] and len(came) == 2 else ""
    return f"{key}: expected {wanted} according to {source}, got {spec.shape} in {spec.file}.{hint}"


def _check(
    wanted: list[Name],
    own: Mapping[str, Tensor],
    specs: Mapping[str, Spec],
    keys: Mapping[str, str],
    spare: set[str],
    dtype: torch.dtype | None,
    where: Path,
    config_file: Path | None,
) -> None:
    """Every name, shape and dtype, before anything is read."""
    known = {name.theirs for name in wanted}
    extra = [name for name in specs if name not in known | spare]
    missing = [name.theirs for name in wanted if name.theirs not in specs]
    if missing:
        also = f"\n  It has {keys[extra[0]]}, which is not needed." if extra else ""
        raise ValueError(
            f"{missing[0]}: missing in {where}, and {len(missing) - 1} more of "
            f"{len(wanted)} tensors.{also}"
        )
    if extra:
        raise ValueError(
            f"{keys[extra[0]]}: in {specs[extra[0]].file}, but not in a GPT-2 of this size; "
            f"{len(extra)} such tensors."
        )
    for name in wanted:
        spec = specs[name.theirs]
        shape = _their_shape(name, own)
        # The original release has an axis of size 1 before each matrix of a layer.
        if spec.shape not in (shape, (1, *shape)):
            raise ValueError(_wrong_shape(keys[name.theirs], shape, spec, config_file))
        if spec.dtype not in _FLOATS:
            raise ValueError(
                f"{keys[name.theirs]}: expected {', '.join(_FLOATS)}, got {spec.dtype} "
                f"in {spec.file}."
            )
    first = specs[wanted[0].theirs]
    for name in wanted:
        if dtype is None and specs[name.theirs].dtype != first.dtype:
            raise ValueError(
                f"{keys[name.theirs]}: is {specs[name.theirs].dtype}, but "
                f"{keys[wanted[0].theirs]} is {first.dtype} (in {where}).\n"
                "  Choose one: from_pretrained(path, dtype=torch.float32)."
            )


def _their_shape(name: Name, own: Mapping[str, Tensor]) -> tuple[int, ...]:
    rows = sum(own[part].shape[0] for part in name.ours)
    shape = (rows, *own[name.ours[0]].shape[1:])
    return shape[::-1] if name.transposed else shape


def _to_ours(name: Name, tensor: Tensor, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The parameters that a tensor of the file holds, in our layout; no copy yet."""
    tensor = tensor.reshape(_their_shape(name, own))
    tensor = tensor.t() if name.transposed else tensor
    rows = [own[part].shape[0] for part in name.ours]
    return zip(name.ours, torch.split(tensor, rows), strict=True)


def _check_values(key: str, tensor: Tensor, file: Path) -> None:
    if tensor.numel() == 0:
        return
    # The least and the largest number: one pass, no memory, and NaN spreads to both.
    for value in map(float, torch.aminmax(tensor)):
        if not math.isfinite(value):
            raise ValueError(
                f"{key}: has {value} in it, in {file}.\n"
                "  A training that diverged, or a damaged file. "
                "To load it all the same: from_pretrained(path, check_values=False)."
            )


def _same(tensors: Tensors, one: str, other: str) -> bool:
    if tensors.specs[one][:2] != tensors.specs[other][:2]:
        return False
    found = dict(tensors.read([one, other]))
    return torch.equal(found[one], found[other])


def _check_no_bias(tensors: Tensors, keys: list[str]) -> None:
    for key, tensor in tensors.read(keys):
        if bool(tensor.any()):
            raise ValueError(
                f"{key}: is not zero in {tensors.specs[key].file}, but config.json says "
                '"qkv_bias": false.'
            )


def save_pretrained(model: GPT2, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which Hugging Face's transformers loads too.

    A rotary model is for `GPT2.from_pretrained` alone: transformers' GPT-2 has no such form.

    Args:
        model: The model.
        folder: Where to; it is made if it is not there.

    Raises:
        ValueError: The folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made a folder: {error.strerror}.") from None
    own = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors = {}
    for name in key_names.table("hf", own):
        tensor = torch.cat([own[part] for part in name.ours])
        tensor = tensor.t() if name.transposed else tensor
        prefix = "" if name.theirs.startswith("lm_head") else "transformer."
        tensors[prefix + name.theirs] = tensor.contiguous()
    if not model.config["qkv_bias"]:  # transformers' GPT-2 always has them: zeros change nothing
        for number in range(model.config["num_layers"]):
            zeros = torch.zeros(3 * model.config["d_model"], dtype=tensor.dtype)
            tensors[f"transformer.h.{number}.attn.c_attn.bias"] = zeros
    said = json.dumps(_to_json(model), indent=2) + "\n"
    with (
        beside(folder / "config.json") as config,  # no reader ever sees half a file
        beside(folder / "model.safetensors") as weights,
    ):
        safetensors.torch.save_file(tensors, weights, metadata={"format": "pt"})
        config.write_text(said, encoding="utf-8")


def _to_json(model: GPT2) -> dict[str, Any]:
    config = model.config
    end = 50256 if config["vocab_size"] == 50257 else None
    said: dict[str, Any] = {
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
        said |= {"model_type": "clearhead-gpt2", "rope_base": model.rope.base}
        del said["architectures"]
    return said
