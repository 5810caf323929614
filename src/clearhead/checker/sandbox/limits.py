"""Limits: the time, memory, processes and files that one submission may use."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Args:
        seconds: Wall-clock time for one question; the import of the file is one question.
        memory_mib: Memory, for all of its processes together.
        processes: Processes and threads.
        file_mib: Size of one file in MiB; all that it writes together may take 16 times as much.
        total_seconds: Wall-clock time for all questions together.
        data: A folder whose files it can read in its working folder; None if there is none.
        trusted: Whether its author is trusted. Then it runs as the user, without containment.
    """

    seconds: float = 20.0
    memory_mib: int = 3072
    processes: int = 64
    file_mib: int = 16
    total_seconds: float = 60.0
    data: Path | None = None
    trusted: bool = False
