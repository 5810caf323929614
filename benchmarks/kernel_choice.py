"""Time each kernel where `kernel="auto"` has to choose: training on short inputs on a CPU.

The thresholds in `clearhead/kernels/__init__.py` come from its results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, get_args

from benchmarks import attention, command
from benchmarks.cases import BACKWARD, Case
from benchmarks.command import Say, option, positive, sizes
from benchmarks.contestants import BOOK, Implementation, build_ours
from clearhead.kernels import Kernel

SMALL = ((8, 32, 32, 4), (8, 128, 128, 4), (8, 128, 768, 12), (8, 256, 768, 12))
SHAPES = (*SMALL, (4, 512, 768, 12), (2, 1024, 768, 12))
CONTESTANTS = tuple(
    Implementation(kernel, partial(build_ours, kernel=kernel), ours=kernel == "auto")
    for kernel in get_args(Kernel)
)


@dataclass(frozen=True)
class Settings(command.Settings):
    """Settings of this benchmark."""

    rounds: int = option(40, "Interleaved rounds per case.", type=positive)
    seconds: float = option(5.0, "End a case after this time, once it had 9 rounds.")

    shape: tuple[attention.Shape, ...] = option(
        SHAPES,
        "Shapes.",
        type=sizes("batch", "tokens", "d_model", "heads"),
        metavar="B,N,D,H",
    )

    def quick(self) -> Self:
        """One small shape, one round."""
        return replace(self, shape=SMALL[:1], rounds=1)

    def cases(self) -> Iterator[Case]:
        """Every case."""
        for shape in self.shape:
            case = Case("kernels", *shape, BACKWARD, dtype=self.dtype, device=self.device)
            yield case
            yield replace(case, dropout=0.1)
            yield replace(case, window=case.tokens // 4)
            yield replace(case, padding=case.tokens // 4)


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Race the kernels in every case."""
    found = command.header("kernel-choice", settings)
    race = attention.Settings(
        settings.device, settings.dtype, settings.rounds, settings.seconds, memory=False
    )
    found["cases"] = []
    for case in settings.cases():
        say(str(case))
        book = () if case.window or case.padding else (BOOK,)
        found["cases"].append(attention.measure_case(case, race, (*book, *CONTESTANTS)))
    return found


main = partial(
    command.main, "kernel-choice", Settings, measure, attention.lines, __doc__, "--dtype bfloat16"
)

if __name__ == "__main__":
    main()
