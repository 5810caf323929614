"""The command line: one file per command, named after it.

Enters: the arguments of the process. Leaves: text on stdout, messages on stderr, an exit status.
Start reading at `main`. Only the file of the command that runs is imported, and that file imports
torch inside its functions, so that `--help` is quick.

    shared       the options that several commands have, and the text they read
    help_pages   how help looks, and what `clearhead` alone prints
"""

from __future__ import annotations

import difflib
import importlib
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from clearhead.atomic_files import DISK_ERRORS
from clearhead.cli.help_pages import GROUPS, WELCOME, Command, Commands
from clearhead.version import __version__

COMMANDS = tuple(name for names in GROUPS.values() for name in names)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user error gives one message and exit status 2.

    Args:
        arguments: The arguments after `clearhead`; those of the process if None.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without Unicode must not crash
            stream.reconfigure(errors="backslashreplace")
    try:
        status = make_app(arguments)(arguments, prog_name="clearhead", standalone_mode=False)
        print(end="", flush=True)
    except ValueError as error:
        _fail(str(error))
    except ImportError as error:
        if error.name is not None:  # not raised by us: a broken installation
            raise
        _fail(str(error))
    except BrokenPipeError:  # `clearhead explain | head` closes the pipe early
        _discard_output()
        sys.exit(1)
    except OSError as error:
        if error.strerror is None:
            _fail(str(error))
        if error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}")
        if error.errno not in DISK_ERRORS:
            raise
        _discard_output()
        _fail(f"the output cannot be written: {error.strerror}", status=1)
    except typer.Abort:
        sys.exit(130)
    except Exception as error:
        # Raised by typer for a wrong option; it does not export the class.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(_suggested(error, arguments) or message() + _hint(error))
    else:
        sys.exit(status if isinstance(status, int) else 0)


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """An app with the command that the arguments name, or with all commands if they name none.

    All are needed for `--help`, and to suggest a command when a name is misspelled.
    """
    named = [name for name in COMMANDS if name in arguments[:1]]
    app = typer.Typer(
        name="clearhead",
        cls=Commands,
        help="Multi-head attention you can see through, at full speed.",
        epilog='Example: clearhead explain "My dog loves quantum pizza!"',
        rich_markup_mode=None,
        add_completion=not named,  # the shell asks for completions without arguments
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_start)
    for name in named or COMMANDS:
        module = importlib.import_module(f"clearhead.cli.{name}")
        app.command(name, cls=Command, epilog=f"Example: {module.EXAMPLE}")(getattr(module, name))
    anything = {"ignore_unknown_options": True, "help_option_names": []}
    app.command("bench", hidden=True, context_settings=anything)(_bench)
    return app


def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Multi-head attention you can see through, at full speed."""
    if version:
        print(f"clearhead {__version__}")
    elif context.invoked_subcommand is None:
        print(WELCOME, end="")


def _bench(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Report what replaces `clearhead bench`."""
    raise ValueError(
        "`clearhead bench` has been removed: the benchmarks are in the repository.\n"
        "  In a clone, use `make bench` or `python -m benchmarks.attention --help`."
    )


def _hint(error: Exception) -> str:
    """Where to find help after a wrong option or a missing argument."""
    context = getattr(error, "ctx", None)
    return "" if context is None else f"\n  Try: {context.command_path} --help"


def _suggested(error: Exception, arguments: Sequence[str]) -> str | None:
    """The message for an unknown option or command, with what may be meant; None for others."""
    context = getattr(error, "ctx", None)
    if context is None:
        return None
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        # `-model` is read as `-m -o ...`: the word that was typed says more.
        typed = next((word for word in arguments if word.startswith(option)), option)
        typed = typed.partition("=")[0]
        names = {name.lstrip("-") for one in context.command.params for name in one.opts}
        close = difflib.get_close_matches(typed.lstrip("-"), sorted({*names, "help"}), n=1)
        close = [f"--{name}" for name in close]
        return f"No such option: {typed}.{_meant(close)}{_hint(error)}"
    name = arguments[0] if arguments else ""
    if context.parent is None and name and name[0] != "-" and name not in COMMANDS:
        command = "check" if Path(name).suffix in (".py", ".ipynb") else "explain"
        if command == "check" or " " in name:
            return f"No such command {name!r}.\n  Try: clearhead {command} {shlex.quote(name)}"
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        return f"No such command {name!r}.{_meant(close)}{_hint(error)}"
    return None


def _meant(close: Sequence[str]) -> str:
    return f" Did you mean {close[0]}?" if close else ""


def _fail(message: str, status: int = 2) -> None:
    from clearhead.drawing import harmless

    text = f"Error: {harmless(message)}"
    if sys.stderr.isatty():
        text = _wrapped(text, shutil.get_terminal_size().columns)
    print(text, file=sys.stderr)
    try:
        print(end="", flush=True)
    except OSError:
        _discard_output()
    sys.exit(status)


def _wrapped(text: str, width: int) -> str:
    """The lines of a message, broken between words where they do not fit."""
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            max(width, 20),
            subsequent_indent=indent or "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _discard_output() -> None:
    """Send unwritten output nowhere; otherwise Python tries once more at exit."""
    try:
        stdout = sys.stdout.fileno()
    except (OSError, ValueError):  # it is not a file, as in a notebook, or already closed
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
