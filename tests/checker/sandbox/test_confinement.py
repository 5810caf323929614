"""A confined process cannot keep privileges, create namespaces, hide memory or leave messages."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sandbox_trials import need

from clearhead.checker.sandbox import process as sandbox
from clearhead.checker.sandbox import resource_usage as usage
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.submission import Built, Failure, Isolated

QUICK = Limits(seconds=15, memory_mib=900, processes=24, file_mib=1)
ROOT = os.geteuid() == 0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched on Linux")

ATTACKS = """\
import ctypes, mmap, os, time
import torch
from torch import nn

libc = ctypes.CDLL(None, use_errno=True)
kept = []

def rights(_):
    lines = [line.split() for line in open("/proc/self/status") if line.startswith("Cap")]
    return float(sum(int(value, 16) for name, value in lines if name != "CapBnd:"))
def namespace(_): return float(libc.unshare(0x10000000))
def keeps_key(number): return float(libc.syscall(number, b"user", b"clearhead-note", b"x", 1, -3))
def finds_key(number): return float(libc.syscall(number, 10, -3, b"user", b"clearhead-note", 0))
def hides_memory(_):
    for _ in range(24):
        piece = mmap.mmap(-1, 1 << 26, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        piece.write(b"x" * (1 << 26))
        piece.madvise(mmap.MADV_DONTNEED)
        kept.append(piece)
    time.sleep(1)
    return float(len(kept))
def hides_in_files(_):
    for number in range(200):
        kept.append(os.memfd_create("x"))
        for _ in range(15): os.write(kept[-1], b"x" * (1 << 20))
    time.sleep(1)
    return float(len(kept))

class Attack(nn.Module):
    def forward(self, what, value=None):
        return torch.tensor(globals()[what](value))
"""


@pytest.fixture(scope="module", params=[way.name for way in sandbox.WAYS])
def attacker(request):
    need(request.param)
    with Isolated(ATTACKS, "attacks.py", limits=QUICK, way=request.param) as submission:
        assert submission._way.name == request.param
        assert isinstance(submission.build("Attack", [], {}), Built)
        yield submission


def strike(submission, what, value=None):
    return submission.forward([what, value])


def test_it_has_no_rights(attacker):
    """Root's right to read every file would allow opening any file by its handle."""
    assert strike(attacker, "rights").tensors[0] == 0


KEYCTL = {"x86_64": 250, "aarch64": 219}.get(platform.machine(), 0)
ADD_KEY = {"x86_64": 248, "aarch64": 217}.get(platform.machine(), 0)


@pytest.mark.skipif(not ADD_KEY, reason="the numbers of the calls are those of two processors")
def test_a_key_of_one_submission_is_not_there_for_the_next(attacker):
    """The kernel keeps keys per session, so each submission needs its own session."""
    libc = ctypes.CDLL(None)
    ours = libc.syscall(ADD_KEY, b"user", b"clearhead-note", b"ours", 4, -3)
    try:
        found = strike(attacker, "finds_key", KEYCTL)
        assert found.tensors[0] == -1
        strike(attacker, "keeps_key", ADD_KEY)
        with Isolated(ATTACKS, "b.py", limits=QUICK, way=attacker._way.name) as other:
            other.build("Attack", [], {})
            assert strike(other, "finds_key", KEYCTL).tensors[0] == -1
    finally:
        if ours > 0:
            libc.syscall(KEYCTL, 9, ours, -3)  # unlink it


def test_in_bubblewrap_no_user_namespace_can_be_made():
    need("bwrap")
    with Isolated(ATTACKS, "attacks.py", limits=QUICK) as submission:
        submission.build("Attack", [], {})
        assert strike(submission, "namespace").tensors[0] == -1


@pytest.mark.parametrize(
    ("what", "kinds"), [("hides_memory", ("memory",)), ("hides_in_files", ("memory", "exception"))]
)
def test_memory_outside_every_page_table_is_counted_or_refused(what, kinds):
    """Pages of shared memory stay allocated when no page table maps them."""
    limits = Limits(seconds=15, memory_mib=900, processes=24)
    with Isolated(ATTACKS, "attacks.py", limits=limits) as submission:
        submission.build("Attack", [], {})
        failure = strike(submission, what)
        assert isinstance(failure, Failure), failure
        assert failure.kind in kinds


def test_a_shared_piece_counts_once():
    import mmap

    before = usage.shared([os.getpid()])
    with mmap.mmap(-1, 1 << 20) as piece:
        piece.write(b"x" * (1 << 20))
        assert usage.shared([os.getpid(), os.getpid()]) - before == 1 << 20
    assert not usage.takes_more([os.getpid()], 1 << 40)
    assert usage.takes_more([os.getpid()], 1 << 20)


# The package and Python may be readable by one user only.


WAY_OF = (
    "from clearhead.checker.sandbox.submission import Isolated, Failure\n"
    "import clearhead.checker.sandbox.process as s\n"
    "source = 'import os\\nclass A:\\n    def __init__(self): raise ValueError(os.getuid())'\n"
    "with Isolated(source, 'a.py') as one:\n"
    "    print(one._way.name, one.build('A', [], {}).message)\n"
)


@pytest.mark.skipif(not ROOT, reason="only root becomes another user")
def test_root_with_a_package_for_root_only_still_contains_it(tmp_path):
    """After `umask 077`, a failing trial of bubblewrap must not lead to running as root."""
    need("bwrap")
    shutil.copytree(Path(sandbox.__file__).parents[2], tmp_path / "clearhead")
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    done = subprocess.run(
        [sys.executable, "-c", WAY_OF],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    way, user = done.stdout.split()
    assert way == "bwrap"
    assert int(user) >= sandbox.FIRST_UID


def test_where_nothing_holds_it_in_nothing_runs(monkeypatch):
    """It must not fall back to running as root."""
    monkeypatch.setattr(sandbox, "try_way", lambda way: f"{way.program}: not here")
    with pytest.raises(RuntimeError, match=r"runs only where it can be contained") as error:
        sandbox.choose_way.__wrapped__("bwrap")
    text = str(error.value)
    assert [f"  {name}: not here" in text for name in ("bwrap", "unshare", "plain")] == [True] * 3
    assert text.count("bwrap: not here") == 1
    assert "Fix: install bubblewrap, or run the command as an ordinary user." in text
    assert text.endswith("add --trust.")
    assert sandbox.choose_way.__wrapped__("trusted") is sandbox.TRUSTED


def test_why_a_stronger_way_was_not_taken_is_said(monkeypatch):
    monkeypatch.setattr(
        sandbox, "try_way", lambda way: None if way.name == "plain" else f"{way.program}: no pipe"
    )
    way = sandbox.choose_way.__wrapped__("bwrap")
    assert sandbox.contained_by(way).endswith("(bwrap: no pipe; unshare: no pipe).")


def test_a_python_that_others_cannot_read_is_named(monkeypatch, tmp_path):
    """The trial runs as root, but the process itself has no such rights."""
    if not ROOT:
        pytest.skip("only root becomes another user")
    need("bwrap")
    monkeypatch.setattr(sandbox.numpy, "__file__", str(tmp_path / "numpy" / "__init__.py"))
    (tmp_path / "numpy").mkdir(mode=0o700)
    (tmp_path / "numpy" / "__init__.py").write_text("")
    reason = sandbox.try_way(sandbox.WAYS[0])
    assert reason is not None
    assert "PermissionError" in reason
    assert "numpy/__init__.py" in reason


def test_a_trusted_file_runs_as_the_user_with_limits_all_the_same(monkeypatch):
    """As where nothing can be contained: root, Python below a folder of root's, no bubblewrap."""
    monkeypatch.setattr(sandbox, "try_way", lambda way: pytest.fail("no way is tried"))
    source = (
        "import os, time\n"
        "class Mine:\n"
        "    def forward(self, x):\n"
        "        while x.sum() < 0: time.sleep(1)\n"
        "        return x * 0 + os.getuid()\n"
    )
    with Isolated(source, "mine.py", limits=Limits(seconds=2, trusted=True)) as mine:
        assert "--trust" in mine.contained
        mine.build("Mine", [], {})
        assert mine.forward([torch.ones(1)]).tensors[0].item() == os.getuid()
        assert mine.forward([-torch.ones(1)]).kind == "timeout"
