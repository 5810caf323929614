"""The first thing a submission's process does: bind itself to limits, then answer questions.

`sandbox.py` runs this text as a plain script (`python -I -c TEXT '{...}'`), perhaps inside
bubblewrap. It uses the standard library only; nothing of the submission has run when it is done.
"""

import ctypes
import fcntl
import json
import os
import platform
import resource
import select
import signal
import sys
import types
from pathlib import Path
from typing import Any

# Numbers from <linux/prctl.h>, <linux/capability.h>, <linux/keyctl.h> and <asm/unistd.h>.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 36, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL, CAPABILITY_VERSION_3, KEYCTL_JOIN_SESSION_KEYRING = 4, 0x20080522, 1
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
FIRST_PROTOCOL_FD, OPEN_FILES = 200, 256


def prctl(option: int, value: int) -> None:
    """Ask the kernel for one property of this process; elsewhere than on Linux, do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def limit(which: int, value: int) -> None:
    """Lower one resource limit, soft and hard, so that it cannot be raised again."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def set_limits(settings: dict[str, Any]) -> None:
    """Bound memory, file size, open files, CPU time and processes; no core dumps."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, settings["file_bytes"])
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    limit(resource.RLIMIT_CPU, settings["cpu_seconds"])
    # Not RLIMIT_AS: torch reserves far more address space than it ever uses.
    limit(resource.RLIMIT_DATA, settings["memory_bytes"])
    if settings["processes"] is not None:
        limit(resource.RLIMIT_NPROC, settings["processes"])


def new_keyring() -> None:
    """Join a new keyring of the kernel's: what a submission keeps in a shared one, others read."""
    number = KEYCTL.get(platform.machine())
    if sys.platform == "linux" and number is not None:  # refused, no key can be kept either
        ctypes.CDLL(None).syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None, 0, 0, 0)


def drop(uid: int | None) -> None:
    """Give up every right; root also becomes a user that owns nothing.

    Args:
        uid: The user and group to become; None to stay who one is.
    """
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if sys.platform == "linux":
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
        header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None).capset(header, none) != 0:
            raise OSError("the rights of this process could not be given up")


def children(pid: int) -> list[int]:
    """The direct children of one process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def keep(protocol: list[int]) -> None:
    """Go on in a new process; this one stays behind and ends what the new one leaves over.

    A process that puts itself into the background gets this one as its parent. If the checker
    itself is killed, the pipe from it closes, and all ends too.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    worker = os.fork()
    if worker == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2, *protocol[1:]):
        os.dup2(null, fd)
    parent = select.poll()
    for fd in protocol[:1]:
        parent.register(fd, 0)  # only the news that nobody writes to it any more
    status = None
    while status is None and not parent.poll(20):
        pid, ended = os.waitpid(-1, os.WNOHANG)
        status = os.waitstatus_to_exitcode(ended) if pid == worker else None
    while left := children(os.getpid()):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        os.wait()
    status = 1 if status is None else status
    os._exit(status if status >= 0 else 128 - status)


def load(name: str, source: str) -> Any:
    """A source of ours as a module, without the package around it."""
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, f"<{name}>", "exec"), vars(module))
    return module


def main() -> None:
    """Bind this process, then hand it to `worker.py`; with no protocol it is only a trial."""
    settings = json.loads(sys.argv[1])
    sys.argv = [sys.argv[0]]
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    new_keyring()
    set_limits(settings)
    drop(settings["uid"])
    protocol = settings["protocol"]
    if settings["keeper"]:
        keep(protocol)
    else:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.path.extend(path for path in settings["paths"] if path not in sys.path)
    for path in settings["readable"]:
        with Path(path).open("rb"):
            continue
    Path("trial").touch()  # the working folder must be ours
    Path("trial").unlink()
    if not protocol:
        print("confined")
        return
    # High numbers that no program started by the submission inherits.
    reader, writer = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_PROTOCOL_FD) for fd in protocol)
    for fd in protocol:
        os.close(fd)
    for name, source in settings["sources"].items():  # the last one is worker.py
        child = load(name, source)
    child.serve(reader, writer)


if __name__ == "__main__":
    main()
