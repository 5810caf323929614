"""The recorder in C++: what it takes, what it leaves to Python, how it is made and kept.

That both record the same is shown in test_watching.py, where every test runs with both.
"""

import copy
import gc
import os
import pickle
import shutil
import stat
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clearhead.watching import native, watch


class Layer(nn.Module):
    """One call of attention; what it is given comes from a function."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def attend(x, **options):
    return F.scaled_dot_product_attention(x, x + 1, x, **options)


def under(context):
    def call(x):
        with context():
            return attend(x)

    return call


@pytest.fixture
def made(monkeypatch):
    made = native.workshop.build()
    monkeypatch.setattr(native.workshop, "made", made)
    return made


def recorded(model, x):
    """How many calls went to C++, and how many there were."""
    watching = watch(model)
    with watching as seen:
        model(x)
        recording = watching._recorder.recording
        swift = None if recording is None else len(recording)
    return swift, len(seen.calls)


X = torch.randn(2, 3, 7, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("call", "swift"),
    {
        "plain": (attend, 1),
        "causal": (lambda x: attend(x, is_causal=True), 1),
        "scale": (lambda x: attend(x, scale=0.3), 1),
        "dropout": (lambda x: attend(x, dropout_p=0.5), 1),
        "no gradients": (under(torch.no_grad), 1),
        "mask": (lambda x: attend(x, attn_mask=torch.ones(7, 7, dtype=torch.bool)), 0),
        "autocast": (under(lambda: torch.autocast("cpu", torch.bfloat16)), 0),
        "inference": (under(torch.inference_mode), 0),
        "written before": (lambda x: attend(x.clone().add_(1)), 0),
        "numpy's memory": (lambda x: attend(torch.from_numpy(x.numpy().copy())), 0),
        "a small part": (lambda x: attend(x.repeat(9, 1, 1, 1)[:2]), 0),
        "vmap": (torch.vmap(attend), 0),
    }.values(),
    ids=lambda value: None,
)
def test_the_usual_call_goes_to_cpp_and_the_others_to_python(made, call, swift):
    assert recorded(Layer(call), X) == (swift, 1)


def own_forward():
    layer = Layer(attend)
    layer.forward = layer.forward
    return layer


def test_models_that_are_not_ordinary_are_left_to_python(made):
    assert recorded(nn.Sequential(own_forward()), X) == (None, 1)
    encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    assert recorded(encoder, torch.randn(2, 5, 8)) == (None, 1)


def test_options_that_need_python(made):
    model = Layer(attend)
    for options in ({"layers": "*"}, {"detach": False}, {"offload": "cpu"}):
        assert watch(model, **options)._recorder.recording is None


def test_names_are_those_at_the_time(made):
    inner = Layer(attend)
    model = nn.ModuleDict({"a": nn.Sequential(nn.Identity(), inner), "b": inner})
    model.forward_with = None
    outer = nn.Sequential(Layer(lambda x: model["a"](x)))
    outer[0].inside = model
    with watch(outer) as seen:
        outer(X)
    model["a"] = nn.Identity()
    assert seen.layers == ["0.inside.a.1"]


def test_order_is_kept_between_the_two(made):
    plain, masked = Layer(attend), Layer(lambda x: attend(x, attn_mask=torch.zeros(7, 7)))
    model = nn.Sequential(plain, masked, plain, masked)
    with watch(model) as seen:
        model(X)
    assert [call.name for call in seen.calls] == ["0", "1", "0", "1"]


def test_looking_inside_the_block(made):
    model = Layer(attend)
    with watch(model) as seen:
        assert len(seen) == 0
        model(X)
        assert len(seen.calls) == 1
        model(X)
    assert [call.step for call in seen.calls] == [0, 1]


def test_an_error_in_attention_leaves_nothing(made):
    model = Layer(lambda x: F.scaled_dot_product_attention(x, x[..., :3], x))
    watching = watch(model)
    with pytest.raises(RuntimeError), watching:
        model(X)
    assert len(watching._recorder.recording) == 0
    assert recorded(Layer(attend), X) == (1, 1)


def test_gradients_flow_through_a_watched_call(made):
    x = X.clone().requires_grad_()
    (plain,) = torch.autograd.grad(attend(x * 2).square().sum(), x)
    model = Layer(lambda x: attend(x * 2))
    with watch(model) as seen:
        (watched,) = torch.autograd.grad(model(x).square().sum(), x)
    assert torch.equal(plain, watched)
    assert not seen["Layer"].dense().requires_grad


def hold_what_was_not_looked_at(model):
    with watch(model) as seen:
        model(X)
    return seen


def hold_what_was_looked_at_inside(model):
    with watch(model) as seen:
        model(X)
        assert len(seen) == 1
    return seen


def hold_it_in_the_model(model):
    with watch(model) as seen:
        model(X)
    model.seen = seen


def hold_the_block_in_the_model(model):
    model.watching = watch(model)


@pytest.mark.parametrize(
    "hold",
    [
        hold_what_was_not_looked_at,
        hold_what_was_looked_at_inside,
        hold_it_in_the_model,
        hold_the_block_in_the_model,
    ],
)
def test_the_model_is_not_held(made, hold):
    model = nn.Sequential(Layer(attend))
    seen = hold(model)
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None
    assert seen is None or seen.layers == ["0"]


def test_what_nobody_looked_at_can_be_copied(made):
    for again in (copy.deepcopy, lambda seen: pickle.loads(pickle.dumps(seen))):
        model = Layer(attend)
        with watch(model) as seen:
            model(X)
        other = again(seen)
        assert torch.equal(other["Layer"].dense(), seen["Layer"].dense())


def test_a_module_of_that_name_stays_whose_it_was(made):
    assert sys.modules.get("native") is not made


def test_parameters_are_copied_at_once(made):
    """Optimizers write to them in ways of their own, and threads share them."""
    layer = Layer(lambda x: F.scaled_dot_product_attention(layer.q.expand(2, -1, -1, -1), x, x))
    layer.q = nn.Parameter(torch.randn(1, 3, 5, 4))
    with watch(layer) as seen:
        layer(X)
    assert not torch._C._is_cow_tensor(layer.q)
    before = seen["Layer"].dense()
    with torch.no_grad():
        layer.q.data.mul_(2)
    assert torch.equal(seen["Layer"].dense(), before)


# How it is made and kept. Each in a process of its own: it can be loaded once.


def in_a_process(source, **environment):
    """What a Python program prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WATCH = """
import time, torch, torch.nn.functional as F
from clearhead.watching import native, watch

class Layer(torch.nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)

def swift():
    watching = watch(Layer())
    with watching as seen:
        Layer.__call__(watching._model, torch.randn(1, 2, 5, 4))
    assert len(seen.calls) == 1
    return watching._recorder.recording is not None
"""


@pytest.fixture
def compiler(tmp_path):
    """A compiler that knows the answer already: it must be called rightly, and takes a second."""
    native.workshop.build()
    kept = native._kept()
    script = tmp_path / "c++"
    script.write_text(
        "#!/bin/sh\necho called >> $0.log\nsleep 1\n"
        'while [ "$1" != -o ]; do shift; done\n'
        f'cp {kept} "$2"\n'
    )
    script.chmod(0o755)
    return script


def test_it_is_compiled_in_the_background_when_a_gpu_is_watched(compiler, tmp_path):
    program = (
        WATCH
        + """
torch.Tensor.is_cuda = True  # so it looks
print(swift())               # the first block goes on without waiting
end = time.monotonic() + 60
while not swift() and time.monotonic() < end:
    time.sleep(0.1)
print(swift())
"""
    )
    cache = tmp_path / "cache"
    assert in_a_process(program, CXX=compiler, XDG_CACHE_HOME=cache) == "False\nTrue"
    # The next process finds it, and compiles nothing.
    later = WATCH + "torch.Tensor.is_cuda = True\nswift(); print(swift())"
    assert in_a_process(later, CXX=compiler, XDG_CACHE_HOME=cache) == "True"
    assert (tmp_path / "c++.log").read_text() == "called\n"
    (folder,) = cache.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(list(folder.iterdir())) == 1


def test_whatever_the_umask_nobody_else_may_write_it(compiler, tmp_path):
    program = "import os; os.umask(0)" + WATCH + "native.workshop.build(); print(swift())"
    assert in_a_process(program, CXX=compiler, XDG_CACHE_HOME=tmp_path) == "True"
    for path in (tmp_path / "clearhead").rglob("*"):
        assert not path.stat().st_mode & 0o077


def test_a_build_waits_for_the_one_in_the_background(compiler, tmp_path):
    program = WATCH + "native.workshop.prepare(); native.workshop.build(); print(swift())"
    assert in_a_process(program, CXX=compiler, XDG_CACHE_HOME=tmp_path) == "True"
    assert (tmp_path / "c++.log").read_text() == "called\n"


def test_without_a_home_python_records(tmp_path):
    program = (
        "import pathlib, os\n"
        "def nowhere():\n    raise RuntimeError('no home')\n"
        "pathlib.Path.home = nowhere\nos.environ.pop('XDG_CACHE_HOME', None)\n"
    )
    assert in_a_process(program + WATCH + "native.workshop.prepare(); print(swift())") == "False"


def test_without_a_gpu_nothing_is_compiled(compiler, tmp_path):
    program = WATCH + "print(swift(), swift())"
    assert in_a_process(program, CXX=compiler, XDG_CACHE_HOME=tmp_path) == "False False"
    assert not (tmp_path / "c++.log").exists()


def test_it_can_be_kept_off(compiler, tmp_path):
    program = WATCH + "torch.Tensor.is_cuda = True\nprint(swift(), swift())"
    options = {"CXX": compiler, "XDG_CACHE_HOME": tmp_path, "CLEARHEAD_NATIVE": 0}
    assert in_a_process(program, **options) == "False False"
    assert not (tmp_path / "c++.log").exists()


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_file_that_others_could_write_is_not_loaded(compiler, tmp_path, mode):
    kept = native._kept()
    folder = tmp_path / "cache" / "clearhead"
    folder.mkdir(parents=True, mode=0o700)
    shutil.copy(kept, folder)
    program = WATCH + "native.workshop.prepare(); print(native.workshop.made is not None)"
    options = {"CXX": "/nowhere", "PATH": "", "XDG_CACHE_HOME": tmp_path / "cache"}
    (folder / kept.name).chmod(0o755)
    assert in_a_process(program, **options) == "True"
    (folder / kept.name).chmod(mode)
    assert in_a_process(program, **options) == "False"
    (folder / kept.name).chmod(0o755)
    folder.chmod(mode)
    assert in_a_process(program, **options) == "False"


def test_what_is_no_library_is_not_loaded(tmp_path):
    folder = tmp_path / "clearhead"
    folder.mkdir()
    (folder / native._kept().name).write_text("half a file")
    program = WATCH + "native.workshop.prepare(); print(swift())"
    options = {"CXX": "/nowhere", "PATH": "", "XDG_CACHE_HOME": tmp_path}
    assert in_a_process(program, **options) == "False"


def test_errors_of_build_say_why(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    workshop = native._Workshop()
    with pytest.raises(RuntimeError, match=r"No C\+\+ compiler"):
        workshop.build()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("PATH", os.defpath)
    with pytest.raises(RuntimeError, match="failed:\nno such header"):
        workshop.build()
    assert not any((tmp_path / "clearhead").iterdir())
