"""A submission runs in its own process: honest answers arrive intact, attacks do no harm."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from sandbox_trials import need, until
from torch import nn

from clearhead.checker.sandbox import process as sandbox
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.submission import (  # fmt: skip
    Built,
    Failure,
    Gradients,
    InProcess,
    Isolated,
    Output,
)
from clearhead.checker.sandbox.worker import FRAME, MAGIC, MAX_JSON, MAX_TENSORS
from clearhead.checker.source.notebooks import parse_notebook

QUICK = Limits(seconds=15, memory_mib=900, processes=24, file_mib=1)
ROOT = os.geteuid() == 0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched on Linux")


@pytest.fixture(scope="module", params=["bwrap", "unshare", "plain"])
def way(request) -> str:
    return need(request.param)


HONEST = '''\
import math
import torch
from torch import nn
from collections import OrderedDict

class Attention(nn.Module):
    """Two layers, one made late."""

    def __init__(self, d_in, d_out=3, *, bias: bool = False, cap=math.inf, **rest):
        super().__init__()
        self.W = nn.Linear(d_in, d_out, bias=bias)
        self.register_buffer("seen", torch.zeros(2))
        self.mask = torch.ones(4, 4)
        self.heads = [nn.Linear(2, 2)]
        self.scale, self.name = 0.5, "mine"
        self.late = None

    def forward(self, x, times=1, kind="tensor"):
        if self.late is None:
            self.late = nn.Linear(1, 1, bias=False)
        y = self.W(x) * times
        if self.training:
            y = y + torch.rand_like(y)
        return {"tensor": y, "tuple": (y, None), "list": [y, y], "dict": {"out": y},
                "none": None, "other": "words", "complex": y.to(torch.complex64)}[kind]

    def broken(self):
        return 1

class FromConfig:
    def __init__(self, config):
        self.total = config.a + config["b"] + config.get("c", 100) + dict(**config)["a"]
        self.layer = nn.Linear(2, 2, bias=False)

    def forward(self, x, y=None):
        x *= 2
        return x if x is y else x + 1

class Fails(nn.Module):
    def forward(self, x):
        return inner(x)

def inner(x):
    return torch.ones(2) @ x  # the shapes differ

if __name__ == "__main__":
    raise SystemExit("this part must not run")
'''


@pytest.fixture(scope="module")
def honest():
    with Isolated(HONEST, "/somewhere/honest.py", limits=QUICK) as submission:
        yield submission


@pytest.fixture(params=["isolated", "in process"])
def submission(request, honest):
    """The same calls to a class in a separate process, and to one in this process."""
    if request.param == "isolated":
        return honest
    namespace = {"__name__": "theirs"}
    exec(compile(HONEST, "honest.py", "exec"), namespace)
    return InProcess(namespace["Attention"])


def build(submission, name="Attention", arguments=(5,), **keywords) -> Built:
    built = submission.build(name, arguments, keywords)
    assert isinstance(built, Built), built
    return built


def test_classes_are_those_of_the_file_in_order(honest):
    found = honest.classes()
    assert [one.name for one in found] == ["Attention", "FromConfig", "Fails"]
    first = found[0]
    assert HONEST.splitlines()[first.line - 1].startswith("class Attention")
    assert HONEST.splitlines()[first.end_line - 1] == "        return 1"
    assert [one.is_module for one in found] == [True, False, True]
    assert first.methods == ("__init__", "forward", "broken")
    assert first.bases == ("Module",)
    assert [(p.name, p.kind, p.has_default, p.default, p.annotation) for p in first.init] == [
        ("d_in", "POSITIONAL_OR_KEYWORD", False, None, ""),
        ("d_out", "POSITIONAL_OR_KEYWORD", True, 3, ""),
        ("bias", "KEYWORD_ONLY", True, False, "bool"),
        ("cap", "KEYWORD_ONLY", True, None, ""),  # JSON has no infinity
        ("rest", "VAR_KEYWORD", False, None, ""),
    ]
    assert [p.name for p in first.forward] == ["x", "times", "kind"]
    assert found[2].init == () or found[2].init[0].kind.startswith("VAR")


def test_built_tells_parameters_and_what_is_neither_that_nor_a_buffer(submission):
    built = build(submission, bias=True)
    assert built.parameters == {"W.weight": (3, 5), "W.bias": (3,)}
    assert set(built.stray) == {"mask", "heads[0].weight", "heads[0].bias"}
    assert built.modules == {"W": "Linear"}
    assert built.plain == {"scale": 0.5, "name": "mine"}


def test_layers_made_in_the_first_forward_are_described_afterwards(submission):
    build(submission)
    assert isinstance(submission.forward([torch.ones(2, 5)]), Output)
    assert submission.describe().parameters == {"W.weight": (3, 5), "late.weight": (1, 1)}


def test_forward_uses_the_loaded_weights_and_their_dtype(submission):
    build(submission, bias=True)
    weights = {
        "W.weight": torch.randn(3, 5, dtype=torch.float64),
        "W.bias": torch.randn(3, dtype=torch.float64),
    }
    assert submission.load(weights) is None
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    output = submission.forward([x], {"times": 2})
    expected = 2 * (x @ weights["W.weight"].T + weights["W.bias"])
    torch.testing.assert_close(output.tensors[0], expected)


@pytest.mark.parametrize(
    ("kind", "structure", "count"),
    [
        ("tensor", "tensor", 1), ("tuple", "tuple", 1), ("list", "list", 2), ("dict", "dict", 1),
        ("none", "none", 0), ("other", "other", 0), ("complex", "other", 0),
    ],
)  # fmt: skip
def test_every_kind_of_output_has_its_name(honest, kind, structure, count):
    build(honest)
    output = honest.forward([torch.ones(1, 5)], {"kind": kind})
    assert (output.structure, len(output.tensors)) == (structure, count)


def test_training_is_random_by_seed_and_evaluation_is_not(submission):
    build(submission)
    x = torch.ones(2, 5)
    submission.forward([x])  # the late layer takes random numbers of its own

    def run(**options):
        return submission.forward([x], **options).tensors[0]

    torch.testing.assert_close(run(train=True, seed=3), run(train=True, seed=3))
    assert not torch.equal(run(train=True, seed=3), run(train=True, seed=4))
    torch.testing.assert_close(run(seed=3), run(seed=4))


def test_backward_equals_autograd_here(submission):
    weight = build(submission).weights["W.weight"].clone().requires_grad_()
    x = torch.randn(2, 5, requires_grad=True)
    cotangent = torch.randn(2, 3)
    got = submission.backward([x, 1], cotangent=cotangent)
    assert isinstance(got, Gradients), got
    expected = torch.autograd.grad(x @ weight.T, [x, weight], cotangent)
    torch.testing.assert_close(got.inputs[0], expected[0])
    torch.testing.assert_close(got.parameters["W.weight"], expected[1])
    assert got.inputs[1] is None
    assert got.parameters["late.weight"] is None  # nothing flows there


def test_a_config_object_answers_every_habit_and_a_tensor_given_twice_is_one(honest):
    built = build(honest, "FromConfig", [{"__config__": {"a": 1, "b": 20, "c": 300}}])
    assert built.plain["total"] == 322
    assert built.parameters == {"layer.weight": (2, 2)}
    x = torch.ones(3)
    torch.testing.assert_close(honest.forward([x, x]).tensors[0], 2 * x)
    torch.testing.assert_close(honest.forward([x, x.clone()]).tensors[0], 2 * x + 1)
    got = honest.backward([x, x], cotangent=x)
    torch.testing.assert_close(got.inputs[0], 2 * x)
    torch.testing.assert_close(got.inputs[1], 2 * x)
    torch.testing.assert_close(x, torch.ones(3))  # their x *= 2 did not reach ours


def test_an_exception_shows_their_frames_only(honest):
    build(honest, "Fails", [])
    failure = honest.forward([torch.ones(3)])
    assert (failure.kind, failure.type) == ("exception", "RuntimeError")
    line = next(n for n, text in enumerate(HONEST.splitlines(), 1) if "the shapes differ" in text)
    assert failure.line == line
    assert "the shapes differ" in failure.traceback  # the source line is shown
    assert "in inner" in failure.traceback
    assert 'File "honest.py"' in failure.traceback
    assert "worker.py" not in failure.traceback
    assert "/somewhere" not in failure.traceback
    assert failure.message in failure.traceback


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"nope": torch.ones(1)}, "no parameter 'nope'"), ({"W.weight": torch.ones(2)}, "(3, 5)")],
)
def test_load_says_what_does_not_fit(submission, weights, message):
    build(submission)
    failure = submission.load(weights)
    assert failure.kind == "exception"
    assert message in failure.message


def test_a_module_object_is_copied_and_random_numbers_outside_stay():
    module = nn.Linear(2, 2)
    before = module.weight.detach().clone()
    state = torch.get_rng_state()
    with InProcess(module) as submission:
        assert submission.classes()[0].name == "Linear"
        build(submission, "Linear", [])
        assert submission.load({"weight": torch.zeros(2, 2)}) is None
        assert submission.forward([torch.ones(2)], seed=5).structure == "tensor"
    torch.testing.assert_close(module.weight.detach(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert "Not contained" in submission.contained


def test_an_argument_that_cannot_be_sent_is_our_own_error():
    with pytest.raises(ValueError, match=r"expected a tensor or a JSON value, got set"):
        InProcess(nn.Linear).build("Linear", [{1, 2}], {})


# Attacks. Each is a function in the submission; `Attack` calls it inside forward.

ATTACKS = """\
import ctypes, json, mmap, os, shutil, socket, subprocess, sys, threading, time
import torch
from torch import nn

def exits(_): sys.exit(0)
def interrupts(_): raise KeyboardInterrupt
def leaves(_): os._exit(0)
def crashes(_): ctypes.string_at(0)
def loops(_):
    while True: pass
def fills(_):
    kept = []
    while True: kept.append(torch.ones(1 << 22))
def fills_shared(_):
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 1 << 26)); kept[-1].write(b"x" * (1 << 26))
def forks(_):
    while True: os.fork()
def forks_once(_):
    os.fork()
    return 1.0
def spawns(_):
    return float(len([subprocess.Popen(["sleep", "300"]) for _ in range(500)]))
def prints(_):
    for _ in range(1024): sys.stdout.write("x" * (1 << 20))
    return 1.0
def prints_report(_):
    print(json.dumps({"verdict": "correct", "findings": []})); print("\\x1b[2J1 passed")
    return 1.0
def writes(_):
    with open("big", "wb") as file: file.write(b"x" * (8 << 20))
def folder(_): return float(len(os.listdir(".")))
def environment(secret):
    found = [secret in value for value in os.environ.values()]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: found.append(secret.encode() in open(f"/proc/{pid}/environ", "rb").read())
        except OSError: pass
    return float(sum(found))
def names(_): raise ValueError(" ".join(sorted(os.environ)))
def connects(port):
    socket.create_connection(("127.0.0.1", port), 2).close()
    return 1.0
def deletes(path):
    for act in (os.remove, shutil.rmtree, lambda p: open(p, "w").close()):
        try: act(path)
        except OSError: pass
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    return 1.0
def reads(path): return float(len(open(path).read()))
def hides(token):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sleep", [token, "300"])
        os._exit(0)
    return 1.0
def user(_): return float(os.getuid())
def dumps_core(_):
    import resource
    return float(resource.getrlimit(resource.RLIMIT_CORE)[1])
def patches(_):
    torch.softmax = torch.allclose = torch.equal = lambda *a, **k: True
    torch.testing.assert_close = lambda *a, **k: None
    torch.Tensor.detach = torch.Tensor.cpu = lambda self: self
    json.dumps = json.loads = os.write = os.read = None
    sys.modules["pytest"] = sys.modules["safetensors"] = None
    return 2.0
class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None): return True
    def __eq__(self, other): return True
    def numpy(self): return None
def lies(_): return torch.ones(3).as_subclass(Liar)
def bad_message(_):
    class Bad(Exception):
        def __str__(self): raise RuntimeError
    raise Bad
def colours(_): raise ValueError("\\x1b[2J\\ud800 cleared")
def expands(_): return torch.zeros(1).expand(1 << 40)
def forges(_):
    os.write(201, b"CLR1" + b"\\xff" * 12)
    return 1.0

class Attack(nn.Module):
    def forward(self, what, value=None):
        result = globals()[what](value)
        return torch.tensor(result) if isinstance(result, float) else result
"""


@pytest.fixture(scope="module")
def secret():
    """A value in our environment, and in that of another process of ours."""
    word = "s3cret-of-the-teacher"
    os.environ["CLEARHEAD_TEST_TOKEN"] = word
    with subprocess.Popen(["sleep", "600"], env={"TOKEN": word}) as other:
        yield word
        other.kill()
    del os.environ["CLEARHEAD_TEST_TOKEN"]


@pytest.fixture(scope="module")
def attacker(way, secret):
    with Isolated(ATTACKS, "attacks.py", limits=QUICK, way=way) as submission:
        assert submission._way.name == way
        build(submission, "Attack", [])
        yield submission


def strike(submission, what, value=None):
    return submission.forward([what, value])


@pytest.mark.parametrize(
    ("what", "type_"),
    [
        ("exits", "SystemExit"), ("interrupts", "KeyboardInterrupt"), ("writes", "OSError"),
        ("bad_message", "Bad"), ("colours", "ValueError"), ("expands", "ValueError"),
    ],
)  # fmt: skip
def test_what_can_be_caught_is_an_exception_and_the_process_goes_on(attacker, what, type_):
    failure = strike(attacker, what)
    assert (failure.kind, failure.type) == ("exception", type_)
    assert "\x1b" not in failure.message + failure.traceback
    assert strike(attacker, "dumps_core").tensors[0] == 0


def test_the_environment_holds_nothing_of_ours(attacker, way, secret):
    found = strike(attacker, "environment", secret).tensors[0]
    if way == "plain" and not ROOT:
        assert "other processes" in attacker.contained
    else:
        assert found == 0
    allowed = "HOME LANG LC_CTYPE MKL_NUM_THREADS OMP_NUM_THREADS PATH PWD TMPDIR"
    allowed += " TORCH_COMPILE_DISABLE KMP_INIT_AT_FORK KMP_DUPLICATE_LIB_OK"
    seen = {name for name in strike(attacker, "names").message.split() if "PYTORCH" not in name}
    assert {"HOME", "PATH"} <= seen <= {*allowed.split()}


def test_the_working_folder_is_empty_and_the_user_is_nobody_known(way):
    """In a new process, since other attacks leave files in theirs."""
    with Isolated(ATTACKS, "attacks.py", limits=QUICK, way=way) as fresh:
        build(fresh, "Attack", [])
        assert strike(fresh, "folder").tensors[0] == 0
        if ROOT:
            assert strike(fresh, "user").tensors[0] >= sandbox.FIRST_UID


def test_no_network(attacker, way):
    with socket.create_server(("127.0.0.1", 0)) as server:
        got = strike(attacker, "connects", server.getsockname()[1])
    if way == "plain":
        assert "network" in attacker.contained.split("Not contained")[1]
    else:
        assert isinstance(got, Failure)
        assert got.type in ("ConnectionRefusedError", "OSError")
        assert "no network" in attacker.contained


def test_files_outside_stay(attacker, way, tmp_path):
    file = tmp_path / "marks.csv"
    file.write_text("ada,1\n")
    if way != "bwrap" and not ROOT:
        assert "your files" in attacker.contained.split("Not contained")[1]
        return
    assert strike(attacker, "deletes", str(file)).tensors[0] == 1
    assert file.read_text() == "ada,1\n"
    if way == "bwrap":
        assert strike(attacker, "reads", str(file)).type == "FileNotFoundError"


def test_a_fork_that_comes_back_does_not_answer_too(attacker):
    for _ in range(3):
        assert isinstance(strike(attacker, "forks_once"), Output)
        assert strike(attacker, "dumps_core").tensors[0] == 0


def test_a_tensor_that_lies_arrives_as_its_numbers(attacker):
    (tensor,) = strike(attacker, "lies").tensors
    assert type(tensor) is torch.Tensor
    assert not torch.allclose(tensor, torch.zeros(3))


def test_print_goes_nowhere(attacker, capfd):
    """Neither a report of its own nor a gigabyte."""
    for what in ("prints_report", "prints"):
        assert isinstance(strike(attacker, what), Output)
    assert capfd.readouterr() == ("", "")


def test_patched_torch_json_and_os_do_not_reach_the_parent(attacker):
    """The last call to this process, which is unusable afterwards."""
    output = strike(attacker, "patches")
    assert isinstance(output, Output)
    assert output.tensors[0] == 2
    assert torch.allclose(torch.ones(1), torch.zeros(1)) is False


def processes(file: str) -> Iterator[bytes]:
    """The contents of this file in /proc for every running process."""
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            yield path.read_bytes()


def running(token: str) -> bool:
    """Whether a process with this name is running."""
    return any(line.split(b"\0")[0] == token.encode() for line in processes("cmdline"))


def users_processes(uid: int) -> int:
    return sum(f"Uid:\t{uid}\t".encode() in text for text in processes("status"))


def test_bombs_and_what_hides_in_the_background(way):
    token = f"clearhead-hidden-{way}-{os.getpid()}"
    limits = Limits(seconds=15, memory_mib=700, processes=24)
    with Isolated(ATTACKS, "attacks.py", limits=limits, way=way) as submission:
        build(submission, "Attack", [])
        assert strike(submission, "fills").kind == "memory"
        assert isinstance(strike(submission, "hides", token), Output)
        assert until(lambda: running(token))
        failure = strike(submission, "forks")
        assert isinstance(failure, Failure)
        assert failure.type == "BlockingIOError" or failure.kind in ("died", "memory")
        process = submission._process
    assert not running(token)
    if process is not None:
        assert process.folder is None or not Path(process.folder).exists()
        assert process.uid is None or users_processes(process.uid) == 0


@pytest.mark.parametrize("strongest", ["bwrap", "plain"])
def test_nothing_goes_on_when_the_checker_itself_is_killed(strongest, tmp_path):
    """The supervising process must outlive the checker until all others have ended."""
    need(strongest)
    token = f"clearhead-orphan-{strongest}-{os.getpid()}"
    program = (
        "import sys, torch\n"
        "from clearhead.checker.sandbox.submission import Isolated\n"
        "submission = Isolated(sys.argv[1], 'a.py', way=sys.argv[3])\n"
        "submission.build('Attack', [], {})\n"
        "submission.forward(['hides', sys.argv[2]])\n"
        "submission.forward(['loops'])\n"
    )
    command = [sys.executable, "-c", program, ATTACKS, token, strongest]
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(tmp_path)}) as checker:
        assert until(lambda: running(token))
        checker.kill()
    assert until(lambda: not running(token))


def test_memory_that_no_process_limit_counts_is_watched():
    limits = Limits(seconds=15, memory_mib=700, processes=24)
    with Isolated(ATTACKS, "attacks.py", limits=limits) as submission:
        build(submission, "Attack", [])
        assert strike(submission, "fills_shared").kind == "memory"
        assert isinstance(strike(submission, "spawns"), Failure)  # 500 programs


def test_a_process_that_is_gone_is_started_again():
    """A file that dies four times: each death is reported, and the next call gets a new process."""
    limits = Limits(seconds=2.5, memory_mib=900, processes=24)
    with Isolated(ATTACKS, "attacks.py", limits=limits) as submission:
        build(submission, "Attack", [])
        for what, kind, message in [
            ("leaves", "died", "status 0"),
            ("crashes", "died", "SIGSEGV"),
            ("loops", "timeout", "still running after 2.2 s"),
            ("forges", "protocol", "impossible size"),
        ]:
            assert isinstance(strike(submission, "dumps_core"), Output)
            failure = strike(submission, what)
            assert (failure.kind, message in failure.message) == (kind, True), failure
        assert strike(submission, "dumps_core") == failure  # three new starts, then no more


@pytest.mark.parametrize(
    ("source", "kind", "type_", "line"),
    [
        ("x = 1\nwhile True: pass", "timeout", "", 2),
        ("import time\ntry: time.sleep(9)\nexcept: time.sleep(9)", "timeout", "", None),
        ("import os\nos._exit(0)", "died", "", None),
        ("x = 1\ndef f(:\n", "exception", "SyntaxError", 2),
    ],
)
def test_a_file_that_cannot_be_imported_says_so_to_every_question(source, kind, type_, line):
    with Isolated(source, "broken.py", limits=Limits(seconds=2)) as submission:
        failure = submission.classes()
        assert (failure.kind, failure.type, failure.line) == (kind, type_, line)
        assert submission.build("A", [], {}) == failure


def test_all_questions_together_have_a_limit():
    source = "import time\nclass A:\n    def forward(self): time.sleep(0.6)"
    with Isolated(source, "slow.py", limits=Limits(seconds=5, total_seconds=1.0)) as submission:
        build(submission, "A", [])
        assert isinstance(submission.forward([]), Output)
        failure = submission.forward([])
        assert failure.kind == "timeout"
        assert "together" in failure.message
        assert submission.build("A", [], {}) == failure


# Forged answers. A small program stands for the child, so that no torch is imported.


def frame(header: object, blob: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return FRAME.pack(MAGIC, len(text), len(blob)) + text + blob


def safe(header: dict, size: int = 0) -> bytes:
    """Safetensors bytes with this header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def answering(monkeypatch, answer: bytes, then: str = "time.sleep(60)") -> Isolated:
    """A submission whose process completes the handshake, then sends these bytes."""
    hello, started = frame({"id": 0}), frame({"id": 1})
    code = (
        "import os, time, sys\n"
        "def put(data):\n"
        "    while data: data = data[os.write({1}, data):]\n"
        f"put({hello!r}); os.read({{0}}, 1 << 16); put({started!r}); os.read({{0}}, 1 << 16)\n"
        f"put({answer!r}); {then}"
    )

    def command(way, limits, uid, protocol):
        script = code.replace("{0}", str(protocol[0])).replace("{1}", str(protocol[1]))
        return [sys.executable, "-I", "-S", "-c", script], {}

    sandbox.choose_way("bwrap")  # remembered: the trial needs the real command
    monkeypatch.setattr(sandbox, "command_for", command)
    return Isolated("", "forged.py", limits=Limits(seconds=1.5))


OUTPUT = {"id": 2, "structure": "tensor", "tensors": ["a"]}
ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def test_the_stand_in_can_also_be_believed(monkeypatch):
    """Otherwise the forged answers below might fail for another reason."""
    with answering(monkeypatch, frame(OUTPUT, save({"a": torch.ones(1)}))) as submission:
        assert submission.forward([]).tensors[0] == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(FRAME.pack(MAGIC, MAX_JSON + 1, 0), id="header too long"),
        pytest.param(FRAME.pack(MAGIC, 0, 8), id="no header"),
        pytest.param(FRAME.pack(MAGIC, 2, MAX_TENSORS + 1), id="tensors too large"),
        pytest.param(frame(b"not json"), id="not json"),
        pytest.param(frame(b"\xff\xfe"), id="not text"),
        pytest.param(frame(b"[" * 50_000), id="nested"),
        pytest.param(frame([1, 2]), id="not an object"),
        pytest.param(
            frame(b'{"id": 2, "structure": "none", "tensors": [], "more": NaN}'), id="nan"
        ),
        pytest.param(frame(b'{"id": ' + b"9" * 9999 + b"}"), id="endless number"),
        pytest.param(frame({"structure": "none", "tensors": []}), id="no id"),
        pytest.param(frame(OUTPUT | {"id": 3}, save({"a": torch.ones(1)})), id="other question"),
        pytest.param(frame(OUTPUT), id="tensor not sent"),
        pytest.param(frame(OUTPUT | {"structure": "verdict"}), id="unknown structure"),
        pytest.param(frame(OUTPUT | {"tensors": "a"}), id="text for a list"),
        pytest.param(frame(OUTPUT, b"\x80\x04pickle"), id="a pickle"),
        pytest.param(frame(OUTPUT, save({"a": torch.ones(1)})) + b"x", id="bytes after the end"),
        pytest.param(
            frame(OUTPUT, safe({"a": ONE | {"shape": [1 << 40, 1 << 40]}}, 4)), id="huge shape"
        ),
        pytest.param(frame(OUTPUT, safe({"a": ONE | {"data_offsets": [0, 99]}}, 4)), id="offsets"),
        pytest.param(frame(OUTPUT, save({"a": torch.ones(1, dtype=torch.complex64)})), id="dtype"),
        pytest.param(
            frame(OUTPUT, safe({"a": ONE | {"shape": [1] * 40}}, 4)), id="many dimensions"
        ),
        pytest.param(frame({"id": 2, "failure": {"kind": "correct"}}), id="unknown failure"),
        pytest.param(frame({"id": 2, "failure": "none"}), id="failure is text"),
    ],
)
def test_a_forged_answer_is_a_failure_of_the_protocol(monkeypatch, answer):
    with answering(monkeypatch, answer) as submission:
        failure = submission.forward([])
    assert isinstance(failure, Failure)
    assert failure.kind == "protocol", failure


def test_endless_bytes_and_a_stalled_answer_end_in_time(monkeypatch):
    began = time.monotonic()
    endless = FRAME.pack(MAGIC, 2, MAX_TENSORS)
    with answering(monkeypatch, endless, "\nwhile True: put(bytes(1 << 20))") as submission:
        assert submission.forward([]).kind in ("protocol", "timeout")
    with answering(monkeypatch, FRAME.pack(MAGIC, 100, 0) + b"{") as submission:
        assert submission.forward([]).kind == "timeout"
    with answering(monkeypatch, b"CLR", "sys.exit(3)") as submission:
        assert "status 3" in submission.forward([]).message
    with answering(monkeypatch, b"CLR", "os.close({1}); time.sleep(60)") as submission:
        assert "closed its connection" in submission.forward([]).message
    assert time.monotonic() - began < 30  # it ended at all; not a measurement


def test_gradients_must_have_the_shape_of_their_inputs(monkeypatch):
    header = {"id": 2, "parameters": []}
    tensors = {"gradient.input.t0": torch.ones(7)}
    with answering(monkeypatch, frame(header, save(tensors))) as submission:
        assert submission.backward([torch.ones(2)], cotangent=torch.ones(2)).kind == "protocol"


def test_a_way_that_is_installed_but_does_not_work_is_not_taken(monkeypatch, tmp_path):
    need("plain")
    for name in ("bwrap", "unshare"):
        fake = tmp_path / name
        fake.write_text("#!/bin/sh\necho 'not permitted here' >&2\nexit 1\n")
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sandbox.try_way(sandbox.WAYS[0]) == "bwrap: not permitted here"
    assert sandbox.choose_way.__wrapped__("bwrap").name == "plain"


@pytest.mark.parametrize("way", sandbox.WAYS, ids=lambda one: one.name)
def test_what_is_not_contained_is_said_in_one_line(way):
    line = sandbox.contained_by(way)
    assert "\n" not in line
    assert "{" not in line
    assert line.endswith(".")
    assert ("Not contained" in line) == (way.program != "bwrap")


def notebook(*sources: str) -> str:
    cells = [{"cell_type": "code", "source": text.splitlines(True)} for text in sources]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# hi"]}, *cells]})


def test_a_notebook_becomes_python_with_its_lines_kept(tmp_path):
    file = tmp_path / "a.ipynb"
    file.write_text(
        notebook(
            "%matplotlib inline\n!pip install torch\nimport math\nfiles = !ls\nmath?",
            "%%bash\nrm -rf x",
            "%%time\nif True:\n    %load_ext x\ny = 7 \\\n  % 4",
            "z = (7\n% 4)",
        ),
        encoding="utf-8",
    )
    source = parse_notebook(file.read_bytes(), file.name).text
    lines = source.splitlines()
    assert lines[0] == "# cell 1"
    assert lines[3] == "import math"
    assert lines[lines.index("# cell 2") + 2] == "# rm -rf x"
    namespace: dict = {}
    exec(source, namespace)
    assert (namespace["files"], namespace["z"]) == (None, 3)
