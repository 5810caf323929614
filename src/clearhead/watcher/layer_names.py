"""Layer names: what `seen[...]`, `layers=`, `--layer`, `ablate` and `knockout` accept.

"model.layers.1.self_attn"   the whole name of a module
"layers.1", "1.self_attn"    any part of one name that no other layer has
"layers.*.self_attn"         a pattern, for several layers
1                            the number of the attention layer, in the order of the first calls
lambda name: ...             a function of the name
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Sequence

Selector = str | int | Callable[[str], bool]

_SHOWN = 24  # names in an error message


def fit(part: str, name: str) -> int | None:
    """How well a part of a name fits: 0 is best, None does not fit.

    0 is the whole name, 1 its end, 2 whole components (so "layers.1" does not fit "layers.11"), and
    3 any characters of it.
    """
    if part == name:
        return 0
    if not part or part not in name:
        return None
    if name.endswith(f".{part}"):
        return 1
    return 2 if f".{part}." in f".{name}." else 3


def is_pattern(selector: str) -> bool:
    """Whether a string may select several layers."""
    return any(character in selector for character in "*?[")


def matching(selector: Selector, names: Sequence[str]) -> list[str]:
    """The layers that one selector means; a plain name that fits several equally well means all."""
    if isinstance(selector, int):
        return [names[selector]] if -len(names) <= selector < len(names) else []
    if not isinstance(selector, str):
        return [name for name in names if selector(name)]
    if is_pattern(selector) and selector not in names:
        return [name for name in names if fnmatch.fnmatchcase(name, selector)]
    fits = {name: rank for name in names if (rank := fit(selector, name)) is not None}
    return [name for name, rank in fits.items() if rank == min(fits.values())]


def one_name(selector: str | int, names: Sequence[str]) -> str:
    """The one layer that a name, a part of it or a number means; LookupError otherwise."""
    found = matching(selector, names)
    if len(found) == 1:
        return found[0]
    if found:
        raise LookupError(f"{selector!r} fits {len(found)} attention layers:{listed(found, names)}")
    message = f"no attention layer is called {selector!r}."
    close = difflib.get_close_matches(str(selector), names, n=1, cutoff=0.5)
    hint = f"\n  Did you mean {close[0]!r}?" if close else ""
    raise LookupError(f"{message}{hint}\n  There are:{listed(names, names)}")


def listed(chosen: Iterable[str], names: Sequence[str]) -> str:
    """Names on lines of their own, each with its number among all of them."""
    lines = [f"\n    {names.index(name)}  {name}" for name in chosen]
    rest = f"\n    and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "".join(lines[:_SHOWN]) + rest


class LayerChoice:
    """Which layers are meant, decided as they are called: they are not known before.

    Args:
        argument: The name of the argument, for messages.
        selectors: One selector or several; None means all layers.
        early: Raise as soon as a plain name fits a second layer. Otherwise `chosen` raises.
    """

    def __init__(
        self, argument: str, selectors: Selector | Sequence[Selector] | None, *, early: bool = False
    ) -> None:
        self.argument, self.early = argument, early
        self.selectors = _checked(argument, selectors)
        self.names: list[str] = []  # every attention layer, in the order of the first calls
        self._found: dict[str, list[int]] = {}

    def of(self, name: str) -> list[int]:
        """The indices of the selectors that may mean this layer."""
        if name not in self._found:
            self.names.append(name)
            self._found[name] = [
                i for i, one in enumerate(self.selectors or ()) if name in matching(one, self.names)
            ]
            for i in self._found[name] if self.early else ():
                self._check(i)
        return self._found[name]

    def may_be(self, name: str) -> bool:
        """Whether a layer may be chosen: a name that fits better may follow."""
        return bool(self.of(name)) or self.selectors is None

    def chosen(self) -> list[str]:
        """The layers that are chosen among those that ran; raise if a selector means none."""
        if self.selectors is None:
            return self.names
        nothing = [one for one in self.selectors if not matching(one, self.names)]
        if nothing:
            raise ValueError(
                f"{self.argument}: nothing matched {', '.join(map(repr, nothing))}.\n"
                f"  These attention layers ran:{listed(self.names, self.names)}"
            )
        for i in range(len(self.selectors)):
            self._check(i)
        meant = {name for one in self.selectors for name in matching(one, self.names)}
        return [name for name in self.names if name in meant]

    def _check(self, i: int) -> None:
        """Raise if a plain name means several layers."""
        assert self.selectors is not None
        one = self.selectors[i]
        if not isinstance(one, str) or is_pattern(one):
            return
        found = matching(one, self.names)
        before = [name for name in self.names if i in self._found.get(name, ())]
        if len(found) > 1 or (self.early and len(before) > 1):
            both = listed(found if len(found) > 1 else before, self.names)
            raise ValueError(
                f"{self.argument}: {one!r} fits more than one attention layer:{both}\n"
                "  Give more of the name, or a pattern such as '*.self_attn' for several layers."
            )


def _checked(
    argument: str, layers: Selector | Sequence[Selector] | None
) -> Sequence[Selector] | None:
    """The selectors as a list; raise for what cannot select anything."""
    if layers is None:
        return None
    several = [layers] if isinstance(layers, str | int) or callable(layers) else list(layers)
    if not several:
        raise ValueError(
            f"{argument}: an empty list selects nothing. Leave it out to select all layers."
        )
    for one in several:
        if isinstance(one, bool) or not (isinstance(one, str | int) or callable(one)):
            raise TypeError(
                f"{argument}: expected names, patterns, numbers or functions, got {one!r}."
            )
        if isinstance(one, int) and one < 0:
            raise ValueError(
                f"{argument}: {one}: which layer is the last is not known while the model runs.\n"
                "  Count from 0, the layer that is called first."
            )
    return several
