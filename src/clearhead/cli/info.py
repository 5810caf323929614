"""`clearhead info`: parameters, memory and operations of a model; known sizes need no torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clearhead.cli.shared import SHIPPED, JsonOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clearhead.configs import GPT2Config

EXAMPLE = "clearhead info gpt2-medium --tokens 512 --dtype bfloat16"


def info(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="gpt2-small, -medium, -large, -xl or gpt3; or what --model accepts elsewhere, "
            "such as english. [default: all sizes of GPT-2, and GPT-3]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME_OR_DIR", help="The same as NAME."),
    ] = None,
    d_model: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The width of the vectors.")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The number of heads.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The number of layers.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The context length in tokens.")
    ] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="The number of sequences per batch.")
    ] = 1,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens per sequence. [default: the context length]"),
    ] = None,
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"],
        typer.Option(
            metavar="NAME",
            help="The data type of weights and activations: float64, float32, bfloat16 or float16.",
        ),
    ] = "float32",
    as_json: JsonOption = False,
) -> None:
    """Compute the cost of a model: parameters, memory, operations."""
    from clearhead import drawing
    from clearhead.configs import GPT2_CONFIGS, find_config

    if name is not None and model is not None:
        raise ValueError("NAME and --model: give one of the two.")
    name = model if name is None else name
    own = {"d_model": d_model, "num_heads": heads, "num_layers": layers, "context_length": context}
    changed = {key: value for key, value in own.items() if value is not None}
    if name is None and not changed:
        sizes = {each: find_config(each) for each in (*GPT2_CONFIGS, "gpt3")}
        rotary = False
    else:
        base, config, rotary = _find(name or "gpt2-small")
        config.update(changed)  # type: ignore[typeddict-item]  # the keys are those of a config
        title = base
        if changed:
            title = "your own size" if name is None else f"{base}, changed"
            rest = [f"{key} {config[key]}" for key in own if key not in changed]  # type: ignore[literal-required]  # as above
            title += f" (from {base}: {', '.join(rest)})" if rest else ""
        sizes = {title: config}
    if as_json:
        found = [_to_json(each, sizes[each], batch, tokens, dtype, rotary) for each in sizes]
        print(json.dumps({"schema": 1, "models": found}))
    elif len(sizes) > 1:
        drawing.console().print(_compare(sizes, batch, tokens, dtype))
    else:
        drawing.console().print(_describe(title, config, batch, tokens, dtype, rotary))


def _find(name: str) -> tuple[str, GPT2Config, bool]:
    """The title of a model, its sizes, and whether its positions are rotary."""
    from clearhead.configs import config_name, find_config

    if name not in SHIPPED and not Path(name).exists():
        try:
            return config_name(name), find_config(name), False
        except ValueError as error:
            raise ValueError(f"{error} Or: {', '.join(SHIPPED)}, a folder.") from None
    from clearhead.models import find_model

    loaded = find_model(name)
    return loaded.name, loaded.gpt2.config.copy(), loaded.gpt2.rope is not None


def _to_json(
    title: str, config: GPT2Config, batch: int, tokens: int | None, dtype: str, rotary: bool
) -> dict[str, Any]:
    from clearhead import costs

    memory = costs.memory(config, batch=batch, tokens=tokens, dtype=dtype, rotary=rotary)
    work = costs.flops(config, batch=batch, tokens=tokens)
    return {
        "name": title,
        "config": config,
        "batch": batch,
        "tokens": config["context_length"] if tokens is None else tokens,
        "dtype": dtype,
        "parameters": costs.parameters(config, rotary=rotary),
        "memory_mib": asdict(memory),
        "flops": {**asdict(work), "total": work.total, "total_causal": work.total_causal},
    }


def _compare(
    sizes: dict[str, GPT2Config], batch: int, tokens: int | None, dtype: str
) -> RenderableType:
    """All models in two tables: their sizes, and their cost."""
    from rich.console import Group
    from rich.text import Text

    from clearhead import costs, drawing

    shapes, bill = [], []
    for name, config in sizes.items():
        numbers = [config["num_layers"], config["d_model"], config["num_heads"]]
        numbers += [config["d_model"] // config["num_heads"], config["context_length"]]
        total = costs.parameters(config)["total"]
        shapes.append([name, *map(str, numbers), f"{total:,}"])
        memory = costs.memory(config, batch=batch, tokens=tokens, dtype=dtype)
        mib = (memory.parameters, memory.kv_cache, memory.map_all_layers, memory.lse_all_layers)
        work = costs.flops(config, batch=batch, tokens=tokens).total
        bill.append([name, *(f"{amount:,.1f}" for amount in mib), f"{work / 1e12:,.2f}"])
    length = "= context" if tokens is None else f"{tokens:,}"
    head = ["model", "layers", "d_model", "heads", "head_dim", "context", "parameters"]
    bill_head = ["model", "weights", "KV cache", "n × n", "ours", "TFLOPs"]
    return Group(
        drawing.FittingTable(head, shapes, drop=[5, 4, 1, 3, 2]),
        Text(f"\nMiB, and operations of one forward pass; batch {batch}, tokens {length}, {dtype}"),
        drawing.FittingTable(bill_head, bill, drop=[5, 2, 4, 1]),
        *map(Text, _beyond(sizes, tokens)),
        Text("n × n: the attention matrices of all layers, if they were built."),
        Text("ours: what a fused forward pass stores instead, one number per row."),
    )


def _beyond(sizes: dict[str, GPT2Config], tokens: int | None) -> list[str]:
    """A note if the sequences are longer than the context of some models."""
    short = [name for name, config in sizes.items() if (tokens or 0) > config["context_length"]]
    if not short:
        return []
    models = "the model" if len(sizes) == 1 else ", ".join(short)
    return [
        f"Note: {tokens:,} tokens are more than the context of {models}: counted as if it were "
        "long enough."
    ]


def _describe(
    title: str, config: GPT2Config, batch: int, tokens: int | None, dtype: str, rotary: bool
) -> RenderableType:
    """One model: its parameters by part, its memory and its operations."""
    from rich.console import Group
    from rich.text import Text

    from clearhead import costs, drawing

    parts = costs.parameters(config, rotary=rotary)
    total, one_layer = parts.pop("total"), parts.pop("attention_per_layer")
    memory = costs.memory(config, batch=batch, tokens=tokens, dtype=dtype, rotary=rotary)
    work = costs.flops(config, batch=batch, tokens=tokens)
    length = config["context_length"] if tokens is None else tokens
    heads, d_model = config["num_heads"], config["d_model"]
    counts = [[part.replace("_", " "), f"{n:,}", f"{n / total:.1%}"] for part, n in parts.items()]
    counts += [["total", f"{total:,}", ""], ["attention of one layer", f"{one_layer:,}", ""]]
    mib = [
        ["weights", "", f"{memory.parameters:,.2f}"],
        ["KV cache", "", f"{memory.kv_cache:,.2f}"],
        [
            "attention matrix, n × n",
            f"{memory.map_one_layer:,.2f}",
            f"{memory.map_all_layers:,.2f}",
        ],
        ["what we keep instead", f"{memory.lse_one_layer:,.2f}", f"{memory.lse_all_layers:,.2f}"],
    ]
    operations = {
        "projections": work.projections,
        "scores": work.scores,
        "weighted sum": work.weighted_sum,
        "feed-forward": work.feed_forward,
        "output head": work.head,
        "total": work.total,
        "total, causal half only": work.total_causal,
    }
    return Group(
        Text(title, style="bold"),
        Text(
            f"{config['num_layers']} layers, d_model {d_model}, {heads} heads × head_dim "
            f"{d_model // heads}, context {config['context_length']}, "
            f"vocabulary {config['vocab_size']:,}"
        ),
        Text(f"Counted for batch {batch}, tokens {length:,}, {dtype}."),
        *map(Text, _beyond({title: config}, tokens)),
        Text(),
        drawing.FittingTable(["Parameters", "", "share"], counts, drop=[2]),
        Text(),
        drawing.FittingTable(["Memory, MiB", "one layer", "all layers"], mib, drop=[1]),
        Text(),
        drawing.FittingTable(
            ["Operations of one forward pass", "GFLOPs"],
            [[part, f"{count / 1e9:,.2f}"] for part, count in operations.items()],
        ),
    )
