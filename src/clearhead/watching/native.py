"""The recorder in C++, for GPUs that wait for Python.

A short batch is over on a GPU before Python has called the next layer: there the recorder's own
Python made a watched GPT-2 1.24x slower. `native.cpp` does the same for the usual call. It is no
part of the installation: it is compiled (10 seconds, in the background, once for every version of
torch and Python) when attention on a GPU is first watched, if there is a C++ compiler, and used by
the blocks that begin after that. Until then, and where there is none, Python records as ever; what
is recorded is the same.

`CLEARHEAD_NATIVE=0` in the environment keeps it off.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import nn

from clearhead.watching.copies import Arguments

_SOURCE = Path(__file__).with_name("native.cpp")
_TORCH = Path(torch.__file__).parent


class Native(Protocol):
    """What is compiled."""

    def record(
        self, model: nn.Module, spare_cpu: int, spare_cuda: int
    ) -> tuple[object, list[nn.Module]] | None:
        """A recording for a model, given its `Keeper.spare`, and the modules.

        None if a module is of an unusual make, has a forward put into it or is an
        `nn.MultiheadAttention`.
        """

    def nodes(self, recording: object) -> list[tuple[str, int]]:
        """The model and its modules: each one's own name and the number of its parent."""

    def switch_to(self, recording: object | None) -> None:
        """This thread's calls are heard from now on, and go to a recording; None: no longer."""

    def take(
        self, recording: object
    ) -> tuple[list[tuple[int, bool, float | None, bool]], int, object]:
        """The calls recorded so far, which are forgotten; where their tensors are; who owns these.

        `torch.ops.clearhead.taken_tensors` gives the tensors, q, k, q, k, ..., of that place.
        """

    def count(self, recording: object) -> int:
        """How many they are."""


class _Workshop:
    """Where it is compiled and kept.

    Attributes:
        made: The compiled recorder, when it is there.
    """

    def __init__(self) -> None:
        self.made: Native | None = None
        self._lock = threading.Lock()
        self._tried = False
        self._compiler: subprocess.Popen[bytes] | None = None

    def look(self) -> Native | None:
        """The compiled recorder, when it is there."""
        compiler = self._compiler
        if compiler is not None and compiler.poll() is not None:
            with self._lock:
                self._finish()
        return self.made

    def prepare(self) -> None:
        """See that a later block has it: load it, or begin to compile it, and go on."""
        if self._tried:
            return
        with self._lock:
            if self._tried:
                return
            self._tried = True
            free = not getattr(sys, "_is_gil_enabled", lambda: True)()  # it needs Python's lock
            if os.environ.get("CLEARHEAD_NATIVE") == "0" or sys.platform != "linux" or free:
                return
            quiet = subprocess.DEVNULL
            with suppress(OSError, RuntimeError):  # no home, no compiler: Python records on
                kept = _kept()
                self.made = _load(kept)
                if self.made is None:
                    self._compiler = subprocess.Popen(
                        # Ctrl-C is meant for the model, not for it.
                        _recipe(kept),
                        stdin=quiet,
                        stdout=quiet,
                        stderr=quiet,
                        start_new_session=True,
                    )

    def build(self) -> Native:
        """It, compiled here and now if it must be; RuntimeError says why that cannot be."""
        with self._lock:
            self._tried = True
            self._finish()
            kept = _kept()
            self.made = self.made or _load(kept)
            if self.made is None:
                done = subprocess.run(_recipe(kept), capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"The compiler failed:\n{done.stderr[-2000:]}")
                self.made = _load(kept)
            if self.made is None:
                raise RuntimeError(f"{kept} was compiled but cannot be loaded.")
            return self.made

    def _finish(self) -> None:
        """Wait for the compiler, if it is at work, and load what it made. Once: it stays."""
        if self._compiler is not None:
            self._compiler.wait()
            self._compiler = None
            self.made = self.made or _load(_kept())


workshop = _Workshop()


class Recording:
    """The calls of one model that were recorded and not yet taken; its length is their number."""

    def __init__(self, made: Native, inside: object, modules: list[nn.Module]) -> None:
        self._made, self._inside = made, inside
        self._model = type(modules[0]).__name__
        self._modules = modules  # as long as it hears, their addresses stay taken

    def names(self) -> list[str]:
        """The names of the model's modules, as they were when the recording was made."""
        prefixes: list[str] = []
        names = []
        for name, parent in self._made.nodes(self._inside):
            whole = prefixes[parent] + name if prefixes else ""
            names.append(whole or self._model)
            prefixes.append(f"{whole}." if whole else "")
        return names

    def by_module(self) -> dict[nn.Module, str]:
        """The same, by module, until it is over."""
        return dict(zip(self._modules, self.names(), strict=True))

    def over(self) -> None:
        """It will hear no more, and lets go of the model."""
        self._modules = []

    def __len__(self) -> int:
        return self._made.count(self._inside)

    def switch(self, on: bool) -> None:
        """This thread's calls are heard from now on, and the usual ones written down here."""
        self._made.switch_to(self._inside if on else None)

    def take(self) -> Iterator[tuple[str, Arguments]]:
        """The calls so far, which are forgotten."""
        names = self.names()
        rows, place, owner = self._made.take(self._inside)
        tensors = torch.ops.clearhead.taken_tensors(place)
        del owner
        for i, (number, is_causal, scale, enable_gqa) in enumerate(rows):
            q, k = tensors[2 * i : 2 * i + 2]
            yield names[number], Arguments(q, k, None, is_causal, scale, enable_gqa)


def recording(model: nn.Module, spare: dict[str, int]) -> Recording | None:
    """A recording for a model, if it is an ordinary one and there is a compiled recorder by now.

    Args:
        model: What is watched.
        spare: See `Keeper.spare`; the recording takes it.
    """
    if (made := workshop.look()) is None:
        return None
    inside = made.record(model, spare.get("cpu", 0), spare.get("cuda", 0))
    if inside is None:
        return None
    spare.clear()
    return Recording(made, *inside)


def _recipe(kept: Path) -> list[str]:
    """The command that compiles it; nobody else may write what it makes, nor see half a file."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    compiler = next((found for name in names if name and (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError("No C++ compiler (c++, g++ or clang++, or what CXX names).")
    includes = [
        sysconfig.get_paths()["include"],
        _TORCH / "include",
        _TORCH / "include" / "torch" / "csrc" / "api" / "include",
    ]
    fresh = kept.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}.so")
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    command = [
        *(compiler, "-O2", "-std=c++20", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
        *(f"-I{folder}" for folder in includes),
        *(str(_SOURCE), "-o", str(fresh), f"-L{_TORCH / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]
    steps = [
        ["umask", "077"],
        ["mkdir", "-p", str(kept.parent)],
        ["nice", *command],
        ["mv", str(fresh), str(kept)],
    ]
    return ["/bin/sh", "-c", " && ".join(shlex.join(step) for step in steps)]


def _kept() -> Path:
    """Where it is kept: another file for another source, torch or Python."""
    built = f"{torch.__version__} {torch.version.git_version} {EXTENSION_SUFFIXES[0]}"
    name = hashlib.sha256(_SOURCE.read_bytes() + built.encode()).hexdigest()[:16]
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "clearhead" / f"native-{name}.so"


def _load(kept: Path) -> Native | None:
    """What a file holds; None without one, or where others could have written it."""
    try:
        found = [kept.stat(), kept.parent.stat()]
    except OSError:
        return None
    if any(status.st_uid != os.getuid() or status.st_mode & 0o022 for status in found):
        return None
    spec = importlib.util.spec_from_file_location("native", kept)
    assert spec is not None
    assert spec.loader is not None
    try:
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (ImportError, AttributeError, OSError, RuntimeError):  # Python records on
        return None
    return cast(Native, module)
