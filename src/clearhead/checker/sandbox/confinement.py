"""The first thing a submission's process does: confine itself, then answer questions.

`process.py` runs this source as a plain script (`python -I -c SOURCE '{...}'`), perhaps inside
bubblewrap. It uses only the standard library; no code of the submission runs before the limits are
in place.
"""

import ctypes
import fcntl
import json
import os
import platform
import resource
import select
import signal
import struct
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

# Constants from <linux/prctl.h>, <linux/capability.h>, <linux/seccomp.h> and <asm/unistd.h>.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 36, 38, 47
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_CAP_AMBIENT_CLEAR_ALL = 22, 2, 4
CAPABILITY_VERSION_3 = 0x20080522
FIRST_PROTOCOL_FD, OPEN_FILES = 200, 256

# System calls that are refused. Memory kept with the first ones belongs to no process, so that it
# could not be counted; the second ones create namespaces; keys stay for the next submission.
REFUSED = (
    *("shmget", "msgget", "semget", "mq_open", "memfd_create", "memfd_secret", "io_uring_setup"),
    *("unshare", "setns"),
    *("add_key", "request_key", "keyctl"),
)
# The number of each system call on x86-64, and on newer processors, which share a table.
CALLS = {
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
}
# The kernel's number for each processor, and its column in that table.
PROCESSORS = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
X32 = 0x40000000  # this bit marks a second table of calls on x86-64
NEW_NAMESPACES = 0x7E020000  # the flags CLONE_NEW* of clone
FAMILIES = (1, 2, 10)  # of sockets: Unix, IPv4, IPv6; others can reach a virtual machine's host
# Instructions of a filter, from <linux/bpf_common.h>, and its results.
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, NO_RIGHT, NO_SUCH_CALL = 0x7FFF0000, 0x00050001, 0x00050026  # errno EPERM, ENOSYS
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # their offsets in what a filter reads


def prctl(option: int, value: int) -> None:
    """Set one property of this process in the kernel; on systems other than Linux, do nothing."""
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


def call_filter(machine: str) -> bytes:
    """A filter for the system calls of this process, as instructions for the kernel.

    Args:
        machine: The processor, as named by `platform.machine`; an unknown one has no filter.
    """
    if machine not in PROCESSORS:
        return b""
    architecture, column = PROCESSORS[machine]
    calls = {name: numbers[column] for name, numbers in CALLS.items()}
    step = struct.Struct("=HBBI")  # instruction, steps to skip if true, if false, its operand

    def answer_if(test: int, value: int, answer: int) -> bytes:
        return step.pack(test, 0, 1, value) + step.pack(RETURN, 0, 0, answer)

    made = step.pack(LOAD, 0, 0, ARCHITECTURE)
    made += step.pack(EQUAL, 1, 0, architecture) + step.pack(RETURN, 0, 0, NO_SUCH_CALL)
    made += step.pack(LOAD, 0, 0, NUMBER)
    if machine == "x86_64":
        made += answer_if(AT_LEAST, X32, NO_SUCH_CALL)
    for name in REFUSED:
        made += answer_if(EQUAL, calls[name], NO_RIGHT)
    made += answer_if(EQUAL, calls["clone3"], NO_SUCH_CALL)  # the C library then uses clone
    flags = step.pack(LOAD, 0, 0, FIRST_ARGUMENT) + answer_if(ANY_BIT, NEW_NAMESPACES, NO_RIGHT)
    flags += step.pack(RETURN, 0, 0, ALLOW)
    made += step.pack(EQUAL, 0, len(flags) // step.size, calls["clone"]) + flags
    family = step.pack(LOAD, 0, 0, FIRST_ARGUMENT)
    family += b"".join(answer_if(EQUAL, one, ALLOW) for one in FAMILIES)
    family += step.pack(RETURN, 0, 0, NO_RIGHT)
    made += step.pack(EQUAL, 0, len(family) // step.size, calls["socket"]) + family
    return made + step.pack(RETURN, 0, 0, ALLOW)


def filter_calls() -> None:
    """Refuse some system calls to this process and everything it starts, permanently."""
    made = call_filter(platform.machine()) if sys.platform == "linux" else b""
    if not made:
        return
    text = ctypes.create_string_buffer(made, len(made))
    program = struct.pack("@HP", len(made) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of calls (seccomp)")


def drop(uid: int | None) -> None:
    """Give up every privilege; root also becomes a user that owns nothing.

    Args:
        uid: The user and group to become; None to keep the current ones.
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
    """Continue in a new process; this one stays behind and removes what the new one leaves.

    A process that puts itself into the background gets this one as its parent. If the checker
    itself is killed, its pipe closes, and everything ends too. The working folder is removed last.
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
        parent.register(fd, 0)  # only for the event that the writing end was closed
    status = None
    while status is None and not parent.poll(20):
        pid, ended = os.waitpid(-1, os.WNOHANG)
        status = os.waitstatus_to_exitcode(ended) if pid == worker else None
    while left := children(os.getpid()):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        os.wait()
    if protocol:
        subprocess.run(["rm", "-rf", "--", os.getcwd()], check=False, capture_output=True)
    status = 1 if status is None else status
    os._exit(status if status >= 0 else 128 - status)


def load(name: str, source: str) -> Any:
    """One of our sources as a module, without the package around it."""
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, f"<{name}>", "exec"), vars(module))
    return module


def main() -> None:
    """Confine this process, then hand it to `worker.py`; without a protocol, it is only a trial."""
    settings = json.loads(sys.argv[1])
    sys.argv = [sys.argv[0]]
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    set_limits(settings)
    drop(settings["uid"])
    filter_calls()
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
    # High file descriptors that no program started by the submission inherits.
    reader, writer = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_PROTOCOL_FD) for fd in protocol)
    for fd in protocol:
        os.close(fd)
    for name, source in settings["sources"].items():  # the last one is worker.py
        child = load(name, source)
    child.serve(reader, writer)


if __name__ == "__main__":
    main()
