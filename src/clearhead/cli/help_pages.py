"""How help looks: what `clearhead` alone prints, groups of commands, sections of options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

# By purpose, and in this order in `clearhead --help`.
GROUPS = {
    "See attention": ("explain", "play", "heads", "view"),
    "Check code and claims": ("check", "mistakes", "claims"),
    "Use and train models": ("generate", "train", "export", "info"),
}

WELCOME = """\
Clearhead: multi-head attention you can see through. Five things to try:

  clearhead explain "My dog loves quantum pizza!"
      Who attends to whom in a trained model, and what each head does.
  clearhead play --open
      A page that runs the model: type, and switch off the mask or a head.
  clearhead check my_attention.py
      Your own attention code: which mistake, on which line, and the fix.
  clearhead heads "the cat sat on the mat" --sort previous
      What every head of the model attends to, as a table.
  clearhead claims mask-after-softmax
      A common claim about attention, tested. All of them: claims --list.

All commands: clearhead --help. One command: clearhead explain --help.
"""


class Commands(TyperGroup):
    """The commands of `clearhead --help`, grouped by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per group; every line fits the window."""
        width = max(map(len, self.commands))
        for title, names in GROUPS.items():
            shown = [self.commands[name] for name in names if name in self.commands]
            room = formatter.width - width - 6
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{one.name:{width}}", one.get_short_help_str(room)) for one in shown]
                )


class Command(TyperCommand):
    """A command whose options may stand in several sections, named by `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, without the Python types of the arguments."""
        sections: dict[str, list[Sequence[str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            argument = parameter.param_type_name == "argument"
            title = getattr(parameter, "rich_help_panel", None)
            title = title or ("Arguments" if argument else "Options")
            left = str(parameter.metavar) if argument else record[0]
            sections.setdefault(title, []).append((left, record[1]))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
