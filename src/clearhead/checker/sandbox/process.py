"""A process for a submission: how it is started, watched and ended. Its output is discarded.

The first way to start it whose trial run works is used: inside bubblewrap (`bwrap`, preferably
without user namespaces inside it), inside namespaces of its own (`unshare`), or plainly. Each trial
actually runs `confinement.py` that way. A submission's code never runs as root.
"""

import contextlib
import functools
import importlib.util
import json
import os
import platform
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch

from clearhead.atomic_files import temporary_folder
from clearhead.checker.sandbox.answers import Failure, clean
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.resource_usage import (
    descendants,
    folder_prefix,
    remove,
    size_of,
    takes_more,
    user_threads,
)
from clearhead.checker.sandbox.worker import FRAME, MAGIC, MAX_JSON, MAX_TENSORS

HERE = Path(__file__).parent
START_SECONDS = 90.0  # starting Python and importing torch: our time, not the submission's
TICK = 0.05
# No person and no service has these user ids, so that all their processes may be ended.
FIRST_UID, MANY_UIDS = 1_900_000_000, 100_000_000
PACKAGES = (torch, numpy, safetensors)
FILTERED = ("x86_64", "aarch64", "riscv64")  # where confinement.py can refuse system calls
INSIDE = "/tmp/submission"  # the working folder, as seen from inside bubblewrap


@dataclass(frozen=True)
class Way:
    """One way to start the process, and what it contains."""

    name: str
    contained: str
    fenced: bool = False  # nothing inside can create a user namespace
    why: str = ""  # why the stronger ways do not work

    @property
    def program(self) -> str:
        """The program that starts Python."""
        return self.name.partition("-")[0]


def new_uid() -> int | None:
    """A user id of its own if this is root; None for others, who keep theirs."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return None
    return FIRST_UID + secrets.randbelow(MANY_UIDS)


def needed_folders() -> list[Path]:
    """What the child must be able to read: Python and torch."""
    packages = [Path(str(one.__file__)).parents[1] for one in PACKAGES]
    python = Path(sys.executable)
    prefixes = [Path(sys.prefix), Path(sys.base_prefix)]
    places = [*prefixes, python.parent, python.resolve().parents[1], *packages]
    return list(dict.fromkeys(places))


def prefix(way: Way, size: int, data: Path | None = None) -> list[str]:
    """The words to put before the command."""
    root = os.geteuid() == 0
    program = shutil.which(way.program) or way.program  # on our PATH, which the child does not get
    if way.name == "unshare":
        words = "--net --ipc --uts --pid --fork --kill-child --mount-proc"
        return [program, *words.split(), *([] if root else ["--user", "--map-current-user"])]
    if way.program != "bwrap":
        return []
    words = "--die-with-parent --unshare-pid --unshare-net --unshare-ipc --unshare-uts"
    command = [program, *words.split(), "--cap-drop", "ALL"]
    if root:  # confinement.py needs these two to become another user, and loses them then
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        fence = [sys.executable, "-I", "-S", str(HERE / "user_namespace.py")]
        command = [*fence, *command] if way.fenced else command
    else:
        command += ["--unshare-user", *(["--disable-userns"] if way.fenced else [])]
    for place in ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin"):
        if os.path.islink(place):
            command += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            command += ["--ro-bind", place, place]
    command += ["--perms", "0755", "--dir", "/etc"]
    for place in ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"):
        command += ["--ro-bind-try", place, place]
    command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--perms", "1777", "--size", str(size), "--tmpfs", "/tmp"]
    for folder in needed_folders():
        for above in reversed(folder.parents):  # if bubblewrap made them, only root could enter
            command += ["--perms", "0755", "--dir", str(above)]
        command += ["--ro-bind", str(folder), str(folder)]
    # Not /tmp itself: Python may be installed below it, and would be visible there.
    command += ["--perms", "1777", "--dir", INSIDE]
    for source, name in data_parts(data):
        command += ["--ro-bind", str(source), f"{INSIDE}/{name}"]
    return [*command, "--remount-ro", "/", "--chdir", INSIDE, "--"]


def data_parts(data: Path | None) -> list[tuple[Path, str]]:
    """What a data folder adds to the working folder: its files, and itself under its name."""
    inside = [] if data is None else sorted(data.iterdir())
    named = [] if data is None or data.name in {one.name for one in inside} else [data]
    return [(one, one.name) for one in (*inside, *named)]


# The modules that the child runs, each after those it imports.
CHILD = (
    "pass_recorder", "recorded_arrays", "object_contents", "missing_parts", "demonstration",
    "worker",
)  # fmt: skip


def command_for(
    way: Way, limits: Limits, uid: int | None, protocol: list[int]
) -> tuple[list[str], dict[str, str]]:
    """The whole command and its environment, which inherits nothing from ours."""
    processes = limits.processes + (0 if uid is not None else user_threads())
    settings: dict[str, Any] = {
        "file_bytes": limits.file_mib << 20,
        "cpu_seconds": int(limits.total_seconds) + 60,
        "memory_bytes": limits.memory_mib << 20,
        "processes": processes if sys.platform == "linux" else None,
        "uid": uid,
        "keeper": way.program != "bwrap" and sys.platform == "linux",
        "protocol": protocol,
        "paths": [str(Path(str(one.__file__)).parents[1]) for one in PACKAGES],
        "readable": [str(one.__file__) for one in (os, *PACKAGES)],
        # As text: the child may run as a user who cannot read the folder of this package.
        "sources": {
            f"clearhead.checker.sandbox.{name}": (HERE / f"{name}.py").read_text(encoding="utf-8")
            for name in CHILD
        },
    }
    confine = (HERE / "confinement.py").read_text(encoding="utf-8")
    python = [sys.executable, "-I", "-B", "-c", confine, json.dumps(settings)]
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTORCH_JIT": "0",  # scripted and compiled code runs as it is written, call by call
        "TORCH_COMPILE_DISABLE": "1",
    }
    return [*prefix(way, 16 * limits.file_mib << 20, limits.data), *python], environment


BUBBLE = "Contained by bubblewrap: no network, none of your files, nothing stays behind."
WAYS = (
    Way("bwrap", BUBBLE, fenced=True),
    Way("bwrap-open", BUBBLE),
    Way(
        "unshare",
        "Contained by namespaces: no network, nothing stays running. Not contained: {files}",
    ),
    Way(
        "plain",
        "Limited in time, memory, processes and output. "
        "Not contained: the network, {files}{others}",
    ),
)


# For the user's own file, run as the user: only on request, never chosen automatically.
TRUSTED = Way("trusted", "Not contained, because of --trust: the network, your files.")


def contained_by(way: Way) -> str:
    """One line for the user: what is contained, what is not, and why not."""
    if sys.platform != "linux":
        return "Limited in time and output. Not contained: memory, the network, your files."
    root = os.geteuid() == 0
    files, others = ("reading files", "") if root else ("your files", ", your other processes")
    line = way.contained.format(files=files, others=others).removesuffix(".")
    if platform.machine() not in FILTERED:
        line += ", memory" if "Not contained" in line else ". Not contained: memory"
        line += " that belongs to no process"
    return f"{line} ({way.why})." if way.why else f"{line}."


def working_folder(way: Way) -> str | None:
    """A new folder for a submission; None in bubblewrap, which makes one in memory.

    Raises:
        OSError: If there is nowhere to create it.
    """
    if way.program == "bwrap":
        return None
    return tempfile.mkdtemp(dir=temporary_folder(), prefix=folder_prefix(os.getpid()))


def try_way(way: Way) -> str | None:
    """Run `confinement.py` this way; return None if it works, else why not."""
    limits = Limits()
    if way.program in ("bwrap", "unshare") and shutil.which(way.program) is None:
        return f"{way.program} is not installed"
    uid, folder = new_uid(), working_folder(way)
    try:
        command, environment = command_for(way, limits, uid, [])
        if uid is not None and folder is not None:
            os.chown(folder, uid, uid)
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder or "/",
            capture_output=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{way.program}: {type(error).__name__}"
    finally:
        remove(folder)
    # The keeper discards its own output, so "confined" comes from the process that it started.
    if done.returncode == 0 and b"confined" in done.stdout:
        return None
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    reason = clean(last[0], 300) if last else f"status {done.returncode}"
    return f"{way.program}: {reason.removeprefix(f'{way.program}: ')}"


@functools.cache
def choose_way(first: str) -> Way:
    """The best way that works here; the answer is cached.

    Args:
        first: Skip the ways before this one, which is how the tests select weaker ways. "trusted"
            means no containment at all.

    Raises:
        RuntimeError: If none works. Then nothing is run.
    """
    if importlib.util.find_spec("resource") is None:  # with which the process limits itself
        raise RuntimeError(
            "A submission is checked in a process of its own, which is not supported on this "
            "system. Use Linux, macOS or WSL; for your own class: clearhead.check(MyClass)."
        )
    if first == TRUSTED.name:
        return TRUSTED
    names = [way.name for way in WAYS]
    failed: list[str] = []
    for way in WAYS[names.index(first) :]:
        reason = try_way(way)
        if reason is None:
            return replace(way, why="; ".join(dict.fromkeys(failed)))
        failed.append(reason)
    reasons = "".join(f"\n  {reason}" for reason in dict.fromkeys(failed))
    raise RuntimeError(
        f"A submission runs only where it can be contained, and here it cannot:{reasons}\n"
        "  Fix: install bubblewrap, or run the command as an ordinary user. As root, a submission\n"
        "  runs as a user of its own, who must be able to read Python and torch: chmod o+x on the\n"
        "  folders above them allows that.\n"
        "  A file of your own needs no containment: add --trust."
    )


class Process:
    """One running process of a submission, from start to end.

    Args:
        limits: What it may use.
        way: How it is started.
    """

    def __init__(self, limits: Limits, way: Way) -> None:
        self.limits = limits
        self.verdict: Failure | None = None  # why we ended it
        self.ended, self.lock = threading.Event(), threading.Lock()
        self.folder, self.uid = working_folder(way), None if way is TRUSTED else new_uid()
        if self.uid is not None and self.folder is not None:
            os.chown(self.folder, self.uid, self.uid)
        for source, name in data_parts(limits.data if self.folder is not None else None):
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, Path(str(self.folder)) / name)
        theirs_in, self.writer = os.pipe()
        self.reader, theirs_out = os.pipe()
        command, environment = command_for(way, limits, self.uid, [theirs_in, theirs_out])
        environment["HOME"] = self.folder or INSIDE
        environment["TMPDIR"] = environment["HOME"]
        try:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder or "/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        finally:
            for fd in (theirs_in, theirs_out):
                os.close(fd)
        for fd in (self.writer, self.reader):
            os.set_blocking(fd, False)
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self) -> None:
        """End the process when all its parts together use too much."""
        most, room, ticks = self.limits.memory_mib << 20, 16 * self.limits.file_mib << 20, 0
        while not self.ended.wait(TICK):
            pids = descendants(self.process.pid)
            if takes_more(pids, most):
                self.end(Failure("memory", message=f"it took more than {most >> 20} MiB"))
            elif len(pids) > self.limits.processes + 4:
                self.end(Failure("died", message=f"it started {len(pids)} processes"))
            elif (ticks := ticks + 1) % 10 == 0 and sum(size_of(self.folder)) > room:
                self.end(Failure("died", message="it filled its working folder"))

    def end(self, verdict: Failure) -> Failure:
        """End the process and everything that it started; the first verdict stays."""
        with self.lock:
            if self.verdict is not None:
                return self.verdict
            self.verdict = verdict
            self.end_all()
            return verdict

    def end_all(self) -> None:
        """Send SIGKILL until no process is left."""
        for _ in range(200 if self.process.poll() is None else 0):
            below = descendants(self.process.pid) - {self.process.pid}
            for pid in below:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not below:
                break
            time.sleep(0.002)
        # Not after it was waited for: its id may belong to another process by then.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.uid is not None:
            # One call that ends all processes of that user, including those that hid elsewhere.
            subprocess.run(
                ["/bin/sh", "-c", "kill -9 -1"],
                user=self.uid,
                group=self.uid,
                extra_groups=[],
                check=False,
                capture_output=True,
            )
        self.process.wait()

    def ask(self, frame: bytes, seconds: float) -> tuple[bytes, bytes] | Failure:
        """Send one frame (or none) and wait for one: its JSON and its tensors, unparsed."""
        until = time.monotonic() + seconds
        left, answer, need, text = memoryview(frame), bytearray(), FRAME.size, 0
        with selectors.DefaultSelector() as ready:
            ready.register(self.reader, selectors.EVENT_READ)
            if left:
                ready.register(self.writer, selectors.EVENT_WRITE)
            while len(answer) < need:
                wait = min(until - time.monotonic(), TICK)
                if wait <= 0:
                    return self.end(Failure("timeout", message=f"no answer in {seconds:g} s"))
                gone = self.process.poll() is not None
                events = {key.fd for key, _ in ready.select(wait)}
                if self.writer in events:
                    try:
                        left = left[os.write(self.writer, left[: 1 << 16]) :]
                    except BrokenPipeError:
                        return self.died()
                    if not left:
                        ready.unregister(self.writer)
                if self.reader in events:
                    # One byte more than expected: honest answers end where they say.
                    piece = os.read(self.reader, min(need + 1 - len(answer), 1 << 20))
                    answer += piece
                    gone = not piece
                if gone:
                    return self.died()
                if text == 0 and len(answer) >= FRAME.size:
                    magic, text, blob = FRAME.unpack(answer[: FRAME.size])
                    if magic != MAGIC or not 0 < text <= MAX_JSON or blob > MAX_TENSORS:
                        return self.end(Failure("protocol", message="an answer of impossible size"))
                    need += text + blob
        if len(answer) > need:
            return self.end(Failure("protocol", message="more bytes than the answer has"))
        body = FRAME.size + text
        return bytes(answer[FRAME.size : body]), bytes(answer[body:need])

    def died(self) -> Failure:
        """Report how the process ended, after it closed its end of the pipe."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        status = self.process.poll()
        if status is None:
            message = "it closed its connection and gave no answer"
        elif status < 0 or status > 128:
            number = -status if status < 0 else status - 128
            known = {one.value: one.name for one in signal.Signals}
            message = f"the process was ended by {known.get(number, f'signal {number}')}"
        else:
            message = f"the process ended with status {status} before it answered"
        return self.end(Failure("died", message=message))

    def close(self) -> None:
        """End it, and remove its folder."""
        self.ended.set()
        self.end(Failure("died", message="closed"))
        self.watcher.join()
        for fd in (self.writer, self.reader):
            os.close(fd)
        remove(self.folder)
