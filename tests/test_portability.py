"""Clearhead on macOS and Windows, simulated: what these systems lack is removed first.

Everything but the sandbox of `clearhead check` works; that command says in one line that it does
not. Third-party packages are imported before anything is removed: only our code is under test.
"""

import json
import subprocess
import sys

import pytest

PROGRAM = r"""
import contextlib, importlib, io, json, os, pathlib, pkgutil, signal, sys, tempfile, traceback
import numpy, rich.console, rich.progress, rich.table, safetensors.torch, tiktoken, torch, typer
import torch.distributed.checkpoint.state_dict, torch.distributed.tensor, torch.export
import torch.nn.attention.flex_attention, torch.utils.flop_counter
import concurrent.futures, http.server, multiprocessing.connection, subprocess, webbrowser

system = sys.argv[1]


def without_proc(function):
    def checked(path, *args, **kwargs):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *args, **kwargs)

    return checked


for module, name in [(os, "stat"), (os, "scandir"), (os, "listdir"), (io, "open")]:
    setattr(module, name, without_proc(getattr(module, name)))
sys.modules["triton"] = None
if system == "windows":
    for name in ("resource", "fcntl", "termios", "tty", "pty", "grp", "pwd", "curses", "readline"):
        sys.modules[name] = None
    for name in ("sysconf", "getloadavg", "getuid", "geteuid", "getgid", "chown", "fchmod", "fork",
                 "killpg", "setsid", "sched_getaffinity", "statvfs", "mkfifo", "O_NOFOLLOW",
                 "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "uname"):
        delattr(os, name)
    for name in ("setitimer", "ITIMER_REAL", "SIGALRM", "SIGKILL", "SIGHUP", "SIGUSR1"):
        delattr(signal, name)
else:
    sys.platform = "darwin"
    sysconf = os.sysconf

    def some_names(name):
        if name == "SC_AVPHYS_PAGES":
            raise ValueError("unrecognized configuration name")
        return sysconf(name)

    os.sysconf = some_names
    del os.sched_getaffinity

import clearhead

# Scripts of the sandbox, the command itself, and device code, which is imported on CUDA only.
LEFT_OUT = ("checker.sandbox.confinement", "checker.sandbox.user_namespace", "__main__", ".triton_")


def import_every_module():
    for found in pkgutil.walk_packages(clearhead.__path__, "clearhead."):
        if not any(name in found.name for name in LEFT_OUT):
            importlib.import_module(found.name)


def command(*arguments):
    from clearhead import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(arguments)
        except SystemExit as end:
            return end.code, out.getvalue(), err.getvalue()


def run(*arguments):
    status, out, err = command(*arguments)
    assert status == 0, err
    assert out


def explain():
    run("explain", "the cat sat")
    status, _, err = command("explain", "the cat sat", "--out", str(folder / "page.html"))
    assert status == 0, err
    assert (folder / "page.html").stat().st_size > 1000


def info():
    run("info", "gpt2-small")


def heads():
    run("heads", "the dog near the cats barks")


def dense():
    module = clearhead.MultiHeadAttention(8, 8, 16, 0.0, num_heads=2).eval()
    x = torch.rand(1, 6, 8)
    output, weights = module.with_map(x)
    torch.testing.assert_close(output, module(x))
    assert weights.dense().shape == (1, 2, 6, 6)


def watch():
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.rand(1, 6, 8)
    with clearhead.watch(model) as seen:
        _, expected = model(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(seen[seen.layers[0]].dense(), expected)


def check_a_class():
    assert clearhead.check(clearhead.ladder.MultiHeadAttention).verdict == "correct"


class Unscaled(torch.nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = torch.nn.Linear(d_in, d_out, bias=False)
        self.W_key = torch.nn.Linear(d_in, d_out, bias=False)
        self.W_value = torch.nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        scores = self.W_query(x) @ self.W_key(x).transpose(-2, -1)
        return scores.softmax(dim=-1) @ self.W_value(x)


def check_ones_own_class():
    report = clearhead.check(Unscaled)
    assert [finding.id for finding in report.findings] == ["missing-scale"], report
    assert clearhead.check(clearhead.ladder.CausalAttention(6, 6, 9, 0.0)).verdict == "correct"


def assert_attention():
    clearhead.assert_attention(clearhead.ladder.CausalAttention)
    try:
        clearhead.assert_attention(Unscaled)
    except AssertionError as error:
        assert "missing-scale" in str(error)
    else:
        raise AssertionError("it passed")


def check_a_file():
    file = folder / "attention.py"
    file.write_text("class Attention: pass\n", encoding="utf-8")
    status, out, err = command("check", str(file))
    assert status == 2, (status, out, err)
    assert len(err.splitlines()) == 1, err
    assert "not supported on this system" in err, err


def generate():
    run("generate", "the cat", "--tokens", "3")


STEPS = [import_every_module, explain, info, heads, dense, watch, check_a_class,
         check_ones_own_class, assert_attention, generate]
if system == "windows":  # on macOS a file is checked, in a process with limits
    STEPS.append(check_a_file)
failed = {}
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for step in STEPS:
        try:
            step()
        except BaseException:
            failed[step.__name__] = traceback.format_exc()
json.dump({"ran": [step.__name__ for step in STEPS], "failed": failed}, sys.__stdout__)
"""

STEPS = [
    "import_every_module",
    "explain",
    "info",
    "heads",
    "dense",
    "watch",
    "check_a_class",
    "check_ones_own_class",
    "assert_attention",
    "generate",
]


@pytest.fixture(scope="module", params=["windows", pytest.param("macos", marks=pytest.mark.slow)])
def result(request):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, request.param],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return request.param, json.loads(done.stdout)


@pytest.mark.parametrize("step", STEPS)
def test_works_without_what_other_systems_lack(result, step):
    _, found = result
    assert step in found["ran"]
    assert step not in found["failed"], found["failed"][step]


def test_check_of_a_file_says_that_there_is_no_sandbox(result):
    system, found = result
    if system == "windows":
        assert "check_a_file" in found["ran"]
        assert "check_a_file" not in found["failed"], found["failed"]["check_a_file"]
