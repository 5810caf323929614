"""What a submission tries from inside its process: memory that nobody counts, other systems, keys.

Each attack runs in every way to start the process that works here; see `sandbox/process.py`.
"""

import ctypes
import errno
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_trials import need, until

from clearhead.checker.sandbox import confinement
from clearhead.checker.sandbox import process as sandbox
from clearhead.checker.sandbox import resource_usage as usage
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.submission import Built, Failure, Isolated

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
LIMITS = Limits(seconds=20, memory_mib=900, processes=24, file_mib=1)

ATTACKS = r"""
import ctypes, mmap, os, platform, socket, subprocess, sys, threading, time
import torch
from torch import nn

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
kept = []

def call(*arguments):
    ctypes.set_errno(0)
    return -ctypes.get_errno() if libc.syscall(*arguments) == -1 else 0
def fills_shared_memory(_):
    for _ in range(40):
        number = libc.shmget(0, 1 << 25, 0o1600)
        if number < 0: return -1.0
        at = libc.shmat(number, None, 0)
        ctypes.memset(at, 1, 1 << 25)
        libc.shmdt(ctypes.c_void_p(at))
    time.sleep(1)
    return 1.0
def message_queue(_): return float(libc.msgget(0, 0o1600))
def semaphores(_): return float(libc.semget(0, 100, 0o1600))
def posix_queue(number): return float(call(number, b"clearhead", 0o102, 0o600, None))
def file_in_memory(_):
    try: return float(os.memfd_create("x"))
    except OSError as error: return -float(error.errno)
def sends_files_away(_):
    # Files on their way between two processes are in no process at all.
    for _ in range(100):
        try: file = os.memfd_create("x")
        except OSError as error: return -float(error.errno)
        os.write(file, b"x" * (1 << 20))
        kept.append(socket.socketpair())
        socket.send_fds(kept[-1][0], [b"x"], [file])
        os.close(file)
    return 1.0
def secret_memory(number): return float(call(number, 0))
def ring(number): return float(call(number, 8, ctypes.create_string_buffer(120)))
def namespace(flag): return float(libc.unshare(flag))
def clone_namespace(arguments):
    number, flag = arguments
    pid = libc.syscall(number, flag | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    return float(pid)
def clone_3(number): return float(call(number, ctypes.create_string_buffer(88), 88))
def family(number):
    try: return float(socket.socket(number, socket.SOCK_DGRAM).fileno())
    except OSError as error: return -float(error.errno)
def any_call(number): return float(call(number, 0, 0, 0, 0))
def old_table(_):
    # The calls of 32-bit programs have other numbers: 20 is getpid.
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return float(ctypes.CFUNCTYPE(ctypes.c_int)(at)())
def second_table(number): return float(call(0x40000000 | number))
def child_too(code):
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True)
    return float(done.stdout or -99)
def ordinary_things(_):
    # Threads, processes and pipes still work.
    found = []
    thread = threading.Thread(target=found.append, args=(1,))
    thread.start(); thread.join()
    pid = os.fork()
    if pid == 0: os._exit(7)
    found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    found.append(len(subprocess.run(["/bin/echo", "a"], capture_output=True).stdout))
    a, b = socket.socketpair()
    a.send(b"abc")
    found.append(len(b.recv(9)))
    return float(sum(found))

class Attack(nn.Module):
    def forward(self, what, value=None):
        return torch.tensor(globals()[what](value))
"""
CALLS = (
    {name: both[confinement.PROCESSORS[platform.machine()][1]] for name, both in
     confinement.CALLS.items()}
    if platform.machine() in confinement.PROCESSORS
    else {}
)  # fmt: skip
NO_RIGHT, NO_SUCH_CALL = -float(errno.EPERM), -float(errno.ENOSYS)
needs_filter = pytest.mark.skipif(not CALLS, reason="no filter for this processor")


# The two ways of bubblewrap differ before the process starts only.
QUICK = [way.name for way in sandbox.WAYS if way.name != "bwrap-open"]
EVERY = [*QUICK, pytest.param("bwrap-open", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=EVERY)
def attacker(request):
    need(request.param)
    with Isolated(ATTACKS, "attacks.py", limits=LIMITS, way=request.param) as submission:
        assert submission._way.name == request.param
        assert isinstance(submission.build("Attack", [], {}), Built)
        yield submission


def strike(submission, what, value=None) -> float:
    found = submission.forward([what, value])
    assert not isinstance(found, Failure), found
    return float(found.tensors[0])


SHMGET_IN_A_CHILD = "import ctypes; print(ctypes.CDLL(None).shmget(0, 4096, 0o1600))"


@needs_filter
@pytest.mark.parametrize(
    ("what", "value", "answer"),
    [
        ("fills_shared_memory", None, -1),
        ("message_queue", None, -1),
        ("semaphores", None, -1),
        ("posix_queue", CALLS.get("mq_open"), NO_RIGHT),
        ("file_in_memory", None, NO_RIGHT),
        ("sends_files_away", None, NO_RIGHT),
        ("secret_memory", CALLS.get("memfd_secret"), NO_RIGHT),
        ("ring", CALLS.get("io_uring_setup"), NO_RIGHT),
        *(("namespace", 1 << bit, -1) for bit in (7, 17, 25, 26, 27, 28, 29, 30)),
        *(("clone_namespace", [CALLS.get("clone"), 1 << bit], -1) for bit in (17, 28, 29)),
        ("clone_3", CALLS.get("clone3"), NO_SUCH_CALL),
        *(("family", number, NO_RIGHT) for number in (16, 17, 38, 40)),  # netlink .. vsock
        ("any_call", CALLS.get("setns"), NO_RIGHT),
        ("any_call", CALLS.get("add_key"), NO_RIGHT),
        ("any_call", CALLS.get("request_key"), NO_RIGHT),
        ("any_call", CALLS.get("keyctl"), NO_RIGHT),
        ("child_too", SHMGET_IN_A_CHILD, -1),
        ("ordinary_things", None, 1 + 7 + 2 + 3),
    ],
)
def test_calls_of_the_kernel_are_refused(attacker, what, value, answer):
    assert strike(attacker, what, value) == answer


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 has three tables of calls")
def test_other_tables_of_calls_are_refused(attacker):
    assert strike(attacker, "old_table") == NO_SUCH_CALL
    assert strike(attacker, "second_table", 39) == NO_SUCH_CALL  # getpid
    assert strike(attacker, "second_table", 29) == NO_SUCH_CALL  # shmget


def test_the_filter_is_made_for_the_processors_that_are_named():
    assert tuple(confinement.PROCESSORS) == sandbox.FILTERED
    assert {*confinement.REFUSED, "clone", "clone3", "socket"} == {*confinement.CALLS}
    assert confinement.call_filter("m68k") == b""


def test_a_processor_without_a_filter_is_named(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "m68k")
    for way in sandbox.WAYS:
        assert "memory that belongs to no process" in sandbox.contained_by(way)


def test_a_kernel_without_filters_runs_nothing(monkeypatch):
    class Refuses:
        def prctl(self, *_: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(confinement.ctypes, "CDLL", lambda *_, **__: Refuses())
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(OSError, match="takes no filter of calls"):
        confinement.filter_calls()


def test_swapped_and_huge_pages_count(monkeypatch):
    """Neither is resident anonymous memory, as /proc calls it."""
    for name in ("VmSwap", "HugetlbPages"):
        monkeypatch.setattr(usage, "_sizes", lambda file, name=name: {name: 1 << 30})
        assert usage.takes_more([1], 1 << 29)
        assert not usage.takes_more([1], 1 << 31)


# What stays behind

WAITS = "import time\nopen('left', 'w').write('x')\ntime.sleep(60)\n"
CHECKER = """
import sys, tempfile
tempfile.tempdir = sys.argv[2]
from clearhead.checker.sandbox.submission import Isolated
with Isolated(sys.argv[3], "a.py", way=sys.argv[1]) as one:
    print("started", flush=True)
    one.classes()
"""


@pytest.mark.parametrize("way", ["bwrap", "unshare", "plain"])
def test_a_killed_checker_leaves_no_folder(way, tmp_path):
    """Nobody can clean up after SIGKILL but the processes that are left."""
    need(way)
    tmp_path.chmod(0o777)
    for above in tmp_path.parents[:-1]:
        if above.stat().st_uid == os.geteuid() and os.geteuid() == 0:
            above.chmod(above.stat().st_mode | 0o011)
    checker = subprocess.Popen(
        [sys.executable, "-c", CHECKER, way, str(tmp_path), WAITS],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with checker:
        checker.stdout.readline()
        if way != "bwrap":
            assert until(lambda: any(tmp_path.glob("clearhead-*/left")))
        checker.send_signal(signal.SIGKILL)
    assert until(lambda: list(tmp_path.iterdir()) == []), list(tmp_path.iterdir())


def test_bubblewrap_needs_no_temporary_folder(monkeypatch):
    need("bwrap")
    monkeypatch.setattr(sandbox.tempfile, "mkdtemp", None)
    with Isolated("class A:\n    pass\n", "a.py") as one:
        assert [found.name for found in one.classes()] == ["A"]
        assert one._process.folder is None


def test_the_file_that_is_run_first_stands_alone():
    """It is sent as text: it may import the standard library only."""
    lines = Path(confinement.__file__).read_text().splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= sys.stdlib_module_names
