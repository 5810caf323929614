"""What the tests of the sandbox share: which way to start a process works here, and waiting."""

import time
from collections.abc import Callable

import pytest

from clearhead.checker.sandbox import process


def need(name: str) -> str:
    """Skip where this way to start a process does not work."""
    reason = process.try_way(next(way for way in process.WAYS if way.name == name))
    if reason is not None:
        pytest.skip(f"no trial run succeeded: {reason}")
    return name


def until(true: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether it becomes true in this time."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()
