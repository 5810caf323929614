"""When do ranks wait for each other? A small simulation of attention over a split sequence.

It knows two numbers a block, how long computing takes and how long sending takes, and who needs
what from whom. That is enough to see when sending hides behind computing and when it does not:

    ring     turn i: compute with the block that is here, and pass it on to the next rank meanwhile
    gather   all blocks come first (or meanwhile the own block is computed), then all is computed

Nothing here runs in parallel, and no time is measured: the figures that go in must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timeline:
    """What every rank does, and when.

    Attributes:
        computing: For each rank, the (begin, end) of each turn.
        sending: For each rank, the (begin, end) of each block it sends or fetches.
    """

    computing: list[list[tuple[float, float]]]
    sending: list[list[tuple[float, float]]]

    @property
    def total(self) -> float:
        """When the last rank is done."""
        return max(end for turns in self.computing for _, end in turns)

    @property
    def busy(self) -> float:
        """The share of the time in which a rank computes, over all ranks."""
        work = sum(end - begin for turns in self.computing for begin, end in turns)
        return work / (self.total * len(self.computing))

    def draw(self, width: int = 60) -> str:
        """A picture: for each rank, ■ while it computes, and below it ─ while it sends.

        >>> print(ring([[2, 2], [2, 2]], transfer=1).draw(width=8))
        rank 0  ■■■■■■■■
                ──
        rank 1  ■■■■■■■■
                ──
        """
        step = max(self.total, max((end for s in self.sending for _, end in s), default=0)) / width
        lines = []
        for rank, (turns, sends) in enumerate(zip(self.computing, self.sending, strict=True)):
            lines.append(f"rank {rank}".ljust(8) + _bar(turns, step, width, "■"))
            lines.append(" " * 8 + _bar(sends, step, width, "─"))
        return "\n".join(line.rstrip() for line in lines)


def causal_work(ranks: int, *, balanced: bool = True) -> list[list[float]]:
    """The share of causal attention that each rank computes in each turn of the ring.

    In turn i rank r has the keys that began at rank r - i. See `context_parallel` for the order of
    the tokens.

    >>> causal_work(2, balanced=False)
    [[0.25, 0.0], [0.25, 0.5]]
    >>> causal_work(2, balanced=True)
    [[0.25, 0.25], [0.25, 0.25]]
    """
    parts = 2 * ranks if balanced else ranks

    def chunks(rank: int) -> list[int]:
        return [rank, 2 * ranks - 1 - rank] if balanced else [rank]

    def pairs(rows: int, keys: int) -> float:
        return 1.0 if keys < rows else 0.5 if keys == rows else 0.0

    return [
        [
            sum(pairs(a, b) for a in chunks(rank) for b in chunks((rank - turn) % ranks))
            / (parts * parts / 2)
            for turn in range(ranks)
        ]
        for rank in range(ranks)
    ]


def ring(work: Sequence[Sequence[float]], transfer: float, *, overlap: bool = True) -> Timeline:
    """Blocks go round: each rank passes on what it has, and computes with it.

    Args:
        work: For each rank, how long it computes in each turn.
        transfer: How long one block is under way to the next rank.
        overlap: Whether a rank sends while it computes, or only afterwards.
    """
    ranks = len(work)
    here = [[0.0] * ranks for _ in range(ranks)]  # when block i has arrived at rank r
    computing: list[list[tuple[float, float]]] = [[] for _ in range(ranks)]
    sending: list[list[tuple[float, float]]] = [[] for _ in range(ranks)]
    for turn in range(ranks):
        for rank in range(ranks):
            free = computing[rank][-1][1] if turn else 0.0
            begin = max(free, here[rank][turn])
            computing[rank].append((begin, begin + work[rank][turn]))
            if turn == ranks - 1:
                continue
            line = sending[rank][-1][1] if turn else 0.0
            start = max(here[rank][turn] if overlap else computing[rank][-1][1], line)
            sending[rank].append((start, start + transfer))
            here[(rank + 1) % ranks][turn + 1] = start + transfer
    return Timeline(computing, sending)


def gather(work: Sequence[Sequence[float]], transfer: float, *, overlap: bool = False) -> Timeline:
    """All blocks come to every rank at once, in as many transfers as there are other ranks.

    Args:
        work: For each rank, how long it computes in each turn of a ring; only the sum counts here.
        transfer: How long one block is under way.
        overlap: Whether the own block is computed while the others come.
    """
    ranks = len(work)
    arrived = (ranks - 1) * transfer
    computing, sending = [], []
    for turns in work:
        if overlap:
            begin = max(turns[0], arrived)
            computing.append([(0.0, turns[0]), (begin, begin + sum(turns[1:]))])
        else:
            computing.append([(arrived, arrived + sum(turns))])
        sending.append([(0.0, arrived)] if ranks > 1 else [])
    return Timeline(computing, sending)


def _bar(spans: Sequence[tuple[float, float]], step: float, width: int, mark: str) -> str:
    """Cells in whose middle something happens are marked."""
    middles = [(cell + 0.5) * step for cell in range(width)]
    return "".join(
        mark if any(begin <= at < end for begin, end in spans) else " " for at in middles
    )
