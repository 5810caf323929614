"""The command line. torch is imported inside the commands that need it, so that help is quick."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead.bench.app import app as bench_app
from clearhead.exporting.app import export
from clearhead.lab.app import heads, train
from clearhead.lab.claims.app import claims
from clearhead.lab.generating import generate
from clearhead.server.app import view
from clearhead.version import __version__

app = typer.Typer(
    name="clearhead",
    help="Multi-head attention you can see through, at full speed.",
    epilog='Example: clearhead explain "the cat sat on the mat"',
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what writing may meet


class Variant(StrEnum):
    """The forms of attention, simplest first."""

    SIMPLIFIED = "simplified"
    SELF = "self"
    CAUSAL = "causal"
    WRAPPER = "wrapper"
    MULTIHEAD = "multihead"
    ENCODER = "encoder"


class TokenizerName(StrEnum):
    """How text is cut into tokens."""

    WORD = "word"
    GPT2 = "gpt2"


class Dtype(StrEnum):
    """How a number is stored."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error of the user's is one message and exit status 2.

    Args:
        arguments: What stands after `clearhead`; taken from the process if None.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without Unicode must not be a crash
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(arguments, prog_name="clearhead", standalone_mode=False)
        print(end="", flush=True)
    except ValueError as error:
        _fail(str(error))
    except BrokenPipeError:  # `clearhead explain | head` closes the pipe early
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.strerror is None:
            _fail(str(error))
        if error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}")
        if error.errno not in _FULL:
            raise
        _drop_output()
        _fail(f"the output cannot be written: {error.strerror}", status=1)
    except typer.Abort:
        sys.exit(130)
    except Exception as error:
        # What typer raises for a wrong option; the class itself is private to it.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(message() + _hint(error))
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _hint(error: Exception) -> str:
    """Where to look after a wrong option or a missing argument."""
    context = getattr(error, "ctx", None)
    return "" if context is None else f"\n  Try: {context.command_path} --help"


def _fail(message: str, status: int = 2) -> None:
    from clearhead.drawing import harmless

    print(f"Error: {harmless(message)}", file=sys.stderr)
    try:
        print(end="", flush=True)
    except OSError:
        _drop_output()
    sys.exit(status)


def _drop_output() -> None:
    """Let what is not written yet go nowhere: else Python tries once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(asked: bool) -> None:
    if asked:
        print(f"clearhead {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Multi-head attention you can see through, at full speed."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog='Example: clearhead explain "the cat sat on the mat" --query sat')
def explain(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="The text. Without it: the book's own example.",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[
        Variant | None,
        typer.Option(help="The form of attention. [default: multihead; simplified without TEXT]"),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=512, help="How many heads. [default: 2]")
    ] = None,
    d_model: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=4096, help="The width of the vectors. [default: 8]"),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Another seed, other weights.")
    ] = 123,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Follow one token through all steps: a word, WORD:2 for its second place, or "
            "the number of the token.",
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Show one step, as numbered there (4c, say), with the PyTorch that gives it.",
        ),
    ] = None,
    tokenizer: Annotated[
        TokenizerName, typer.Option(help="Whole words, or GPT-2's pieces of words.")
    ] = TokenizerName.WORD,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR_OR_NAME",
            help="Show a layer of this GPT-2: a folder, a file, a name on the hub, or what "
            "`clearhead train` wrote. "
            "[default: the small trained model that comes with Clearhead]",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Which layer of the model. [default: 0; of a model of the lab's the last]",
        ),
    ] = None,
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained",
            help="Random weights instead of a model: any words, any form. "
            "--variant, --heads, --d-model, --seed and --tokenizer mean the same.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write a page to look at and walk through (.html), a figure of the weights "
            "(.svg, .png, .pdf), or everything for programs (.json).",
        ),
    ] = None,
) -> None:
    """Show attention at work, step by step, with all numbers.

    A text goes in, and every step on its way to context vectors is drawn: in this window, or as a
    page, a figure or JSON with --out.
    """
    if query is not None and step is not None:
        raise ValueError("--query shows all steps and --step shows one: choose one of the two.")
    import json

    from clearhead import drawing, explaining, following

    given = None if text is None else " ".join(text)
    chosen_sizes = (variant, heads, d_model) != (None, None, None)
    random = chosen_sizes or seed != 123 or tokenizer is not TokenizerName.WORD or untrained
    if random and (model is not None or layer is not None):
        raise ValueError(
            "A model has its own form, heads, width, weights and tokenizer: leave out "
            "--variant, --heads, --d-model, --seed, --tokenizer and --untrained."
        )
    if model is not None:
        example = explaining.build_from_model(given or "", model=model, layer=layer)
    elif given is not None and not random:
        example = explaining.build_from_lab(given, layer=layer)
    elif layer is not None:
        raise ValueError("--layer is a layer of a model that reads TEXT: give a TEXT, too.")
    else:
        if given is None and variant is None:
            variant = Variant.SIMPLIFIED
            query = "journey" if query is None and step is None else query
        example = explaining.build(
            given,
            variant=(variant or Variant.MULTIHEAD).value,
            heads=heads,
            d_model=d_model,
            seed=seed,
            tokenizer=tokenizer.value,
        )
    index, remark = None, None
    if query is not None:
        index, remark = following.find_query(example.trace.tokens, query)
    chosen = example.trace.steps if step is None else explaining.select(example, step)
    if out is not None:
        try:
            explaining.save(example, out, query=index, chosen=None if step is None else chosen)
        except OSError as error:
            said = f"{out}: {error.strerror}" if error.strerror else str(error)
            raise ValueError(f"--out {said}") from None
        print(f"Wrote {out}", file=sys.stderr)
        if not as_json or out.suffix.lower() == ".json":
            return
    if as_json:
        print(json.dumps(explaining.to_json(example, chosen, index), allow_nan=False))
        return
    screen = drawing.console()
    if step is not None:
        screen.print(explaining.draw_step(example, chosen))
        # Not through the console: a program must not be wrapped at the window's edge.
        print("\n" + explaining.script(example, chosen))
    elif index is not None:
        screen.print(explaining.draw_query(example, index, remark))
    else:
        screen.print(explaining.draw_all(example))
    if given is None and step is None:
        screen.print('\nNow your own text: clearhead explain "the cat sat on the mat"')


@app.command(epilog="Example: clearhead info gpt2-medium --tokens 512 --dtype bfloat16")
def info(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="gpt2-small, -medium, -large, -xl or gpt3. Without it: all of them.",
        ),
    ] = None,
    d_model: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The width of the vectors.")
    ] = None,
    heads: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many heads.")] = None,
    layers: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many layers.")] = None,
    context: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The most tokens there may be.")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="How many texts at a time.")] = 1,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="How long each text is. [default: the context]"),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="How a number is stored.")] = Dtype.FLOAT32,
) -> None:
    """Count what a model costs: parameters, memory, operations."""
    from clearhead import drawing, sizes
    from clearhead.configs import GPT2_CONFIGS, config_name, find_config

    own = {"d_model": d_model, "num_heads": heads, "num_layers": layers, "context_length": context}
    changed = {key: value for key, value in own.items() if value is not None}
    out = drawing.console()
    if name is None and not changed:
        configs = {each: find_config(each) for each in (*GPT2_CONFIGS, "gpt3")}
        out.print(sizes.compare(configs, batch, tokens, dtype.value))
        return
    base = config_name(name or "gpt2-small")
    config = find_config(base)
    config.update(changed)  # type: ignore[typeddict-item]  # the keys are those of a config
    title = base
    if changed:
        title = "your own size" if name is None else f"{base}, changed"
        rest = [f"{key} {config[key]}" for key in own if key not in changed]  # type: ignore[literal-required]  # as above
        title += f" (from {base}: {', '.join(rest)})" if rest else ""
    out.print(sizes.describe(title, config, batch, tokens, dtype.value))


@app.command(epilog="Example: clearhead check my_attention.py:MultiHeadAttention")
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A .py file or an .ipynb notebook, FILE:CLASS for one class in it, or a folder.",
        ),
    ],
    hint: Annotated[
        bool, typer.Option("--hint", help="Show what goes wrong and where, but not the fix.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="For programs: one JSON object per class, each on one line."),
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Write one row per file, as each one finishes. Run it again to go on.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page to project.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="How many files at a time.")
    ] = 1,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What counts in this assignment: a TOML file, see docs/check.md."
        ),
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How to build and call a class of an unusual form."),
    ] = None,
    write_adapter: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write such an adapter, from the class's own arguments."),
    ] = None,
) -> int:
    """Name the mistake in anyone's attention code.

    The file runs in a process of its own. The exit status is 0 if all is correct, 1 if something
    is wrong, 2 if something could not be run or judged.
    """
    from clearhead.checker import app as checker

    if write_adapter is not None:
        checker.write_adapter(target, write_adapter)
        return 0
    options = checker.Options(as_json, hint, adapter, csv, html, policy, jobs)
    return checker.check(target, options)


app.command(
    epilog='Example: clearhead heads "the cat sat on the mat" --layer "h.1.*" --sort previous'
)(heads)
app.command(epilog="Example: clearhead claims mask-after-softmax")(claims)
app.command(epilog="Example: clearhead train --seeds 3 --out my-lab")(train)
app.command(epilog='Example: clearhead generate "the cat sat" --top-p 0.9 --seed 1')(generate)
app.command(epilog="Example: clearhead view --text sentence.txt")(view)
app.command(epilog="Example: clearhead export model.onnx")(export)
app.add_typer(bench_app, name="bench")
