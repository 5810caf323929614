"""Other runtimes: compiled, exported and in onnxruntime, results equal the module's."""

import copy
import pickle
import re

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.export import Dim

from clearhead import Mask, MultiHeadAttention, Rope, cli, exporter
from clearhead.exporter import export
from clearhead.gpt2 import GPT2, TransformerBlock
from gpt2_others import TINY

CONTEXT = 19
CONFIG = {
    **TINY,
    "vocab_size": 31,
    "context_length": CONTEXT,
    "d_model": 12,
    "num_layers": 1,
    "dropout": 0.1,
}
KINDS = {
    "plain": {},
    "grouped, rotary, normed": {"num_kv_heads": 3, "rope": Rope(), "qk_norm": True},
    "window": {"window": 5},
    "both directions": {"causal": False, "window": 3},
}


def attention(**options) -> MultiHeadAttention:
    return MultiHeadAttention(10, 24, CONTEXT, 0.1, num_heads=6, **options).eval()


def run_onnx(path, inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [
        torch.from_numpy(array)
        for array in session.run(None, {name: value.numpy() for name, value in inputs.items()})
    ]


def close(ours, theirs):
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


# torch.compile.


@pytest.mark.parametrize(
    ("kind", "dynamic"),
    [
        ("plain", None),
        pytest.param("grouped, rotary, normed", True, marks=pytest.mark.slow),
    ],
)
def test_new_lengths_do_not_recompile(kind, dynamic):
    """The first length may get its own graph; all others share one."""
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    module = attention(**KINDS[kind])
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    with torch.no_grad():
        for tokens in (3, 5, 11, CONTEXT):
            x = torch.randn(2, tokens, 10)
            torch.testing.assert_close(compiled(x), module(x))
    assert counters["stats"]["unique_graphs"] == (1 if dynamic else 2)


# torch.export.


@pytest.mark.parametrize("kind", KINDS)
def test_torch_export_takes_every_batch_and_length(kind):
    """The book's class fails at tokens = context_length; this one must not."""
    module = attention(**KINDS[kind])
    shapes = {"x": {0: Dim("batch"), 1: Dim("tokens", max=CONTEXT)}}
    program = torch.export.export(module, (torch.randn(2, 3, 10),), dynamic_shapes=shapes)
    for batch, tokens in [(1, 1), (3, 5), (2, CONTEXT)]:
        x = torch.randn(batch, tokens, 10)
        torch.testing.assert_close(program.module()(x), module(x))
    operators = {str(node.target) for node in program.graph.nodes}
    assert not any("clearhead" in operator for operator in operators)


class Padded(nn.Module):
    """A mask without an SDPA flag, larger than the masks that `auto` passes to SDPA eagerly."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MultiHeadAttention(10, 24, 300, 0.0, num_heads=6).eval()

    def forward(self, x, lengths):
        return self.inner(x, mask=Mask.padding(lengths, side="left"))


def test_an_exported_mask_is_free_of_lengths_and_zeroes_rows_that_see_nothing(tmp_path):
    module = Padded().eval()
    batch, tokens = Dim("batch"), Dim("tokens", max=300)
    shapes = {"x": {0: batch, 1: tokens}, "lengths": {0: batch}}
    example = (torch.randn(2, 3, 10), torch.tensor([3, 2]))
    program = torch.export.export(module, example, dynamic_shapes=shapes)
    path = tmp_path / "padded.onnx"
    with exporter._quiet_exporter():
        torch.onnx.export(program, dynamo=True, verbose=False, input_names=["x", "lengths"]).save(
            path
        )
    for size, lengths in [(300, [300, 7]), (1, [1, 1])]:
        x, lengths = torch.randn(2, size, 10), torch.tensor(lengths)
        wanted = module(x, lengths).detach()
        torch.testing.assert_close(program.module()(x, lengths).detach(), wanted)
        close(wanted, run_onnx(path, {"x": x, "lengths": lengths})[0])


# export().


@pytest.mark.slow
def test_onnx_of_the_module_and_of_its_cached_step(tmp_path):
    module = attention(**KINDS["grouped, rotary, normed"])
    export(module, tmp_path / "whole.onnx")
    export(module, tmp_path / "step.onnx", what="step")
    x = torch.randn(3, CONTEXT, 10)
    wanted = module(x).detach()
    close(wanted, run_onnx(tmp_path / "whole.onnx", {"x": x})[0])
    keys = values = torch.zeros(3, 3, 0, 4)  # empty past
    for first, last in [(0, 7), (7, 8), (8, 9), (9, CONTEXT)]:
        inputs = {"x": x[:, first:last], "past.0.keys": keys, "past.0.values": values}
        output, keys, values = run_onnx(tmp_path / "step.onnx", inputs)
        close(wanted[:, first:last], output)
    assert keys.shape == (3, 3, CONTEXT, 4)


def test_onnx_of_gpt2_and_of_its_cached_step(tmp_path):
    model = GPT2(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # logits near 0 would pass any comparison
            parameter.add_(torch.randn_like(parameter) * 0.3)
    said = []
    whole = export(model, tmp_path / "whole.onnx", say=said.append)
    step = export(model, tmp_path / "step.onnx", what="step")
    assert (whole.inputs, whole.outputs) == (["ids"], ["logits"])
    assert step.inputs == ["ids", *(f"past.0.{k}" for k in ("keys", "values"))]
    assert whole.gap < 1e-5
    assert (1, CONTEXT, 0) in whole.sizes
    assert (1, 1, CONTEXT - 1) in step.sizes
    assert said[:2] == ["tracing the module", "writing whole.onnx"]
    assert "comparing" in said[-1]

    ids = torch.randint(31, (2, CONTEXT))
    wanted = model(ids).detach()
    assert wanted.abs().max() > 1
    close(wanted, run_onnx(whole.path, {"ids": ids})[0])
    past = {name: torch.zeros(2, 3, 0, 4) for name in step.inputs[1:]}
    for first, last in [(0, 5), (5, 6), (6, CONTEXT)]:
        logits, *present = run_onnx(step.path, {"ids": ids[:, first:last], **past})
        past = dict(zip(step.inputs[1:], present, strict=True))
        close(wanted[:, first:last], logits)

    for path in (whole.path, step.path):
        written = onnx.load(path)
        onnx.checker.check_model(written)
        assert {node.domain for node in written.graph.node} == {""}, "standard operators only"
        assert [opset.domain for opset in written.opset_import] == [""]
        assert not written.functions
        axes = written.graph.input[0].type.tensor_type.shape.dim
        assert [axis.dim_param for axis in axes] == ["batch", "tokens"]
        assert b".py" not in path.read_bytes(), "no paths of this machine"
        about = {entry.key: entry.value for entry in written.metadata_props}["clearhead"]
        assert '"schema": 1' in about
        assert '"context_length": 19' in about
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step.onnx", "whole.onnx"]


def test_pt2_of_a_block(tmp_path):
    block = TransformerBlock(CONFIG).eval()
    written = export(block, tmp_path / "block.pt2", what="step")
    assert written.gap < 1e-6
    x = torch.randn(2, CONTEXT, 12)
    empty = torch.zeros(2, 3, 0, 4)
    output, keys, _ = torch.export.load(written.path).module()(x, [empty, empty])
    torch.testing.assert_close(output, block(x))
    assert keys.shape == (2, 3, CONTEXT, 4)


def test_a_file_with_different_results_is_discarded(tmp_path, monkeypatch):
    monkeypatch.setattr(exporter, "TOLERANCE", -1.0)
    (tmp_path / "old.pt2").write_text("what was there before")
    with pytest.raises(
        exporter.UnequalExport, match=r"output: the exported file differs by .* tokens 1"
    ):
        export(attention(), tmp_path / "old.pt2")
    assert (tmp_path / "old.pt2").read_text() == "what was there before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_without_onnxruntime_nothing_is_compared(tmp_path, monkeypatch):
    real = exporter.importlib.util.find_spec
    monkeypatch.setattr(
        exporter.importlib.util, "find_spec", lambda n: None if n == "onnxruntime" else real(n)
    )
    written = export(attention(), tmp_path / "x.onnx")
    assert (written.gap, written.sizes) == (None, [])


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(exporter.importlib.util, "find_spec", lambda name: None)
    message = (
        r"export to ONNX needs onnx and onnxscript\.\n  Install them with: pip install 'clearhead"
    )
    with pytest.raises(ModuleNotFoundError, match=message):
        export(attention(), tmp_path / "x.onnx")


@pytest.mark.parametrize(
    ("module", "path", "what", "error", "message"),
    [
        (attention, "x.pb", "model", ValueError, "path: expected a name that ends in .onnx or"),
        (attention, "x.onnx", "all", ValueError, 'what must be "model" or "step", got \'all\'.'),
        (lambda: nn.Linear(2, 3), "x.onnx", "model", TypeError, "GPT2, got Linear."),
        (
            lambda: attention().train(),
            "x.onnx",
            "model",
            ValueError,
            "dropout: dropout 0.1 is active, so two runs differ",
        ),
        (
            lambda: attention(kernel="blocked"),
            "x.onnx",
            "model",
            ValueError,
            'kernel="blocked" is Clearhead\'s own operator, which other runtimes do not have.',
        ),
        (
            lambda: MultiHeadAttention(4, 4, 3, 0.0, num_heads=2),
            "x.onnx",
            "step",
            ValueError,
            "context_length: expected 4 or more, got 3; a shorter axis cannot be dynamic",
        ),
        (
            lambda: attention(causal=False),
            "x.onnx",
            "step",
            ValueError,
            'what="step" needs causal attention',
        ),
        (
            lambda: attention().bfloat16(),
            "x.onnx",
            "model",
            ValueError,
            "the weights are bfloat16: runtimes round half precision differently",
        ),
    ],
)
def test_errors_say_why(tmp_path, module, path, what, error, message):
    with pytest.raises(error, match=re.escape(message)):
        export(module(), tmp_path / path, what=what)
    assert not list(tmp_path.iterdir())


# The command.


def test_the_command_writes_compares_and_tells(tmp_path, capsys):
    model = GPT2({**CONFIG, "dropout": 0.0}).eval()
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit) as end:
        cli.main(["export", "--model", str(tmp_path / "model"), str(tmp_path / "m.pt2")])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert "in    ids" in out
    assert "equal to the model within" in out
    ids = torch.randint(31, (1, 4))
    torch.testing.assert_close(torch.export.load(tmp_path / "m.pt2").module()(ids), model(ids))


# Saving and copying.


@pytest.mark.parametrize("build", [attention, lambda: GPT2(CONFIG).eval()], ids=["module", "gpt2"])
def test_save_load_copy_and_pickle_keep_the_function(build, tmp_path):
    module = build()
    x = torch.randint(31, (2, 5)) if isinstance(module, GPT2) else torch.randn(2, 5, 10)
    wanted = module(x)
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    loaded = build()
    loaded.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    torch.save(module, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    for twin in (loaded, whole, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(twin(x), wanted, atol=0, rtol=0)
        assert twin is not module


@pytest.mark.slow
def test_gpt2_small_in_full_size(tmp_path):
    from clearhead import GPT2_CONFIGS

    model = GPT2(GPT2_CONFIGS["gpt2-small"]).eval()
    for what in ("model", "step"):
        assert export(model, tmp_path / f"{what}.onnx", what=what).gap < 1e-5
