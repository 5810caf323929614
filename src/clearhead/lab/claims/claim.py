"""A claim, its experiment and what it finds. Importing this file does not import torch."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec

Verdict = Literal["holds", "holds if", "does not hold"]
Inputs = ParamSpec("Inputs")

EQUAL = 1e-9  # float64 numbers that should be equal differ by less
EXACT = "exact: nothing is random"
_PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finding:
    """What an experiment found.

    Args:
        verdict: Whether the claim holds.
        figure: The deciding number, in a few words.
        spread: How much that number varies, and over what; or that nothing is random.
        condition: The condition of "holds if".
        numbers: The measurements, for programs.
    """

    verdict: Verdict
    figure: str
    spread: str
    condition: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The verdict with its condition.

        Examples:
            >>> holds_if("d_in = d_out", "1 of 2 shapes", "exact").words
            'holds if d_in = d_out'
        """
        return f"{self.verdict} {self.condition}".rstrip()

    def __str__(self) -> str:
        return f"{self.words}: {self.figure} ({self.spread})"


def holds(figure: str, spread: str, **numbers: Any) -> Finding:
    """The claim is true without a condition."""
    return Finding("holds", figure, spread, numbers=numbers)


def holds_if(condition: str, figure: str, spread: str, **numbers: Any) -> Finding:
    """The claim is true under a condition that it does not name."""
    return Finding("holds if", figure, spread, condition, numbers)


def does_not_hold(figure: str, spread: str, **numbers: Any) -> Finding:
    """The claim is false."""
    return Finding("does not hold", figure, spread, numbers=numbers)


def short(value: float) -> str:
    """A number rounded to two digits, for people.

    Examples:
        >>> short(104.2), short(0.0652), short(3.1e-16), short(0.0)
        ('100', '0.065', '3e-16', '0')
    """
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.0e}"
    return f"{float(f'{value:.2g}'):,g}"


@dataclass(frozen=True)
class Claim(Generic[Inputs]):
    """A common claim about attention, and the experiment that tests it.

    Args:
        name: Its id on the command line.
        says: The claim, one sentence.
        experiment: The function. Its docstring describes the measurement and explains the result.
        timed: Whether the verdict depends on timing, and so on the machine.
    """

    name: str
    says: str
    experiment: Callable[Inputs, Finding]
    timed: bool

    def __call__(self, *args: Inputs.args, **kwargs: Inputs.kwargs) -> Finding:
        """Run the experiment; the caller's random state is not affected."""
        import torch

        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return self.experiment(*args, **kwargs)

    def run(self, *, quick: bool = False) -> Finding:
        """Run the experiment with its defaults; `quick` makes long ones smaller."""
        options: dict[str, Any] = {"quick": quick} if "quick" in self._parameters() else {}
        return self(**options)  # type: ignore[call-arg]  # every argument has a default

    @property
    def seeds(self) -> list[int]:
        """The random seeds; empty if nothing is random."""
        parameters = self._parameters()
        if "seeds" in parameters:
            return list(parameters["seeds"].default)
        return [parameters["seed"].default] if "seed" in parameters else []

    @property
    def explanation(self) -> str:
        """How it is measured, and why the result is what it is."""
        return inspect.getdoc(self.experiment) or ""

    @property
    def file(self) -> str:
        """The file with the experiment, relative to the package: "lab/claims/mask_claims.py"."""
        return Path(inspect.getfile(self.experiment)).relative_to(_PACKAGE).as_posix()

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.experiment).parameters


def claim(
    name: str, says: str, *, timed: bool = False
) -> Callable[[Callable[Inputs, Finding]], Claim[Inputs]]:
    """Decorate an experiment: `@claim("name", "The claim.")`."""
    return lambda experiment: Claim(name, says, experiment, timed)
