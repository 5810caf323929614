"""The recorded forward pass: replayed, interpreted, and judged step by step."""

import functools
import math

import pytest
import torch
from in_process_check import Here, check, ids
from planted_mistakes import BOOK, HEAD, MINIMAL, edited
from torch import nn

from clearhead import ladder
from clearhead.checker.diagnosis import program as program_file
from clearhead.checker.diagnosis.inlining import inlined, plain_multi_head, plain_sdpa
from clearhead.checker.diagnosis.program import NotRunnable, Program
from clearhead.checker.diagnosis.reading import Reading, Source, axis_of
from clearhead.checker.sandbox.answers import Call, Forged, Output, Recording, read_call
from clearhead.checker.sandbox.pass_recorder import Recorder
from clearhead.checker.sandbox.submission import Failure, InProcess

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn

BATCH, TOKENS, D_IN, HEADS, HEAD_DIM = 2, 7, 11, 3, 5


def recorded(subject: type | nn.Module, *arguments: object) -> tuple[Program, torch.Tensor]:
    session = InProcess(subject)
    built = session.build(
        subject.__name__ if isinstance(subject, type) else type(subject).__name__, arguments, {}
    )
    assert not isinstance(built, Failure), built
    weights = {
        name: torch.randn(shape, dtype=torch.float64) for name, shape in built.parameters.items()
    }
    assert session.load(weights) is None
    x = torch.randn(BATCH, TOKENS, D_IN, dtype=torch.float64)
    got = session.record([x])
    assert not isinstance(got, Failure), got
    recording, sent = got
    return Program(recording, weights, sent), x


def multi_head() -> tuple[Program, torch.Tensor]:
    return recorded(ladder.MultiHeadAttention, D_IN, HEADS * HEAD_DIM, 13, 0.0, HEADS)


# Recording and replaying.


def test_a_recording_gives_the_same_output_on_other_inputs():
    program, _ = multi_head()
    session = InProcess(ladder.MultiHeadAttention)
    session.build("MultiHeadAttention", (D_IN, HEADS * HEAD_DIM, 13, 0.0, HEADS), {})
    session.load(program.weights)
    other = torch.randn(BATCH, TOKENS, D_IN, dtype=torch.float64)
    out = session.forward([other])
    assert not isinstance(out, Failure)
    (name,) = program.inputs
    got = program.run({name: other})[program.recording.outputs[0]]
    torch.testing.assert_close(got, out.tensors[0])


def test_only_what_depends_on_a_change_is_computed_again():
    program, x = multi_head()
    base = program.run()
    (register,) = program.inputs.values()
    assert program.again(base, {}) == {}
    new = program.again(base, {register: x})
    assert set(new) < set(base)
    for number, value in new.items():
        torch.testing.assert_close(value, base[number], equal_nan=True)


def test_a_call_in_place_leaves_the_earlier_value_alone():
    class InPlace(nn.Module):
        def forward(self, x):
            y = x * 1.0
            z = y.clone()
            z[:, 0] = 5.0
            z += 1.0
            return y + z

    program, x = recorded(InPlace)
    out = program.run()[program.recording.outputs[0]]
    z = x.clone()
    z[:, 0] = 5.0
    torch.testing.assert_close(out, x + z + 1.0)


def test_lines_are_those_of_the_file():
    with Here(BOOK) as session:
        session.build("MultiHeadAttention", [11, 15, 13, 0.0, 3], {})
        got = session.record([torch.randn(2, 7, 11)])
        assert not isinstance(got, Failure)
        lines = BOOK.splitlines()
        softmax = next(call for call in got[0].calls if call.name == "softmax")
        assert softmax.line is not None
        assert "softmax" in lines[softmax.line - 1]


# What a recording must not do.


def harmless(*calls: Call) -> Program:
    recording = Recording(calls, (), {}, (0,), Output((), "none"))
    return Program(recording, {}, {})


@pytest.mark.parametrize(
    ("home", "name"),
    [("torch", "load"), ("torch", "save"), ("torch", "from_file"), ("Tensor", "__reduce_ex__"),
     ("os", "system"), ("torch", "compile"), ("Tensor", "tofile"), ("get", "__class__")],
)  # fmt: skip
def test_functions_that_do_more_than_compute_are_not_run(home, name):
    with pytest.raises(NotRunnable):
        harmless(Call(home, name, ("x",), {}, (0,), 1)).run()


@pytest.mark.parametrize(
    "call",
    [
        Call("torch", "ones", ({"tuple": [10**6, 10**6]},), {}, (0,), 1),
        Call("torch", "arange", (10**12,), {}, (0,), 1),
        Call("torch", "arange", (0.0, 1.0, 1e-12), {}, (0,), 1),
        Call("torch", "full", ({"list": [1 << 20, 1 << 20]}, 1.0), {}, (0,), 1),
    ],
)
def test_sizes_that_no_honest_pass_has_are_not_run(call):
    with pytest.raises(NotRunnable, match="sizes"):
        harmless(call).run()


def test_results_that_grow_step_by_step_are_not_run():
    calls = [Call("torch", "ones", ({"tuple": [1 << 20]},), {}, (0,), 1)]
    calls += [Call("Tensor", "exp", ({"register": n},), {}, (n + 1,), 1) for n in range(70)]
    with pytest.raises(NotRunnable, match="keeps more values"):
        harmless(*calls).run()


def repeated(*arguments, **more) -> Program:
    """A program that repeats 2 numbers as often as a tensor says."""
    counts = Call("torch", "full", ({"list": [2]}, more.pop("each", 3)), {}, (0,), 1)
    return harmless(counts, Call("torch", "repeat_interleave", arguments, more, (1,), 1))


def test_repeats_may_stand_in_a_tensor_if_they_are_few():
    register = {"register": 0}
    assert repeated(register).run()[1].tolist() == [0, 0, 0, 1, 1, 1]
    assert repeated(register, register, dim=0).run()[1].tolist() == [3] * 6
    for program in (
        repeated(register, each=1 << 40),
        repeated(register, each=1 << 40, output_size=5),
        repeated(register, register, 0, each=1 << 40),
    ):
        with pytest.raises(NotRunnable, match="sizes"):
            program.run()
    with pytest.raises(NotRunnable, match="fraction"):
        repeated(register, register, each=1e15).run()


def test_a_program_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(program_file, "MOST_SECONDS", -1.0)
    with pytest.raises(NotRunnable, match="too long"):
        harmless(Call("torch", "ones", (3,), {}, (0,), 1)).run()


def test_a_register_must_be_written_before_it_is_read():
    with pytest.raises(NotRunnable, match="before it is written"):
        harmless(Call("Tensor", "exp", ({"register": 7},), {}, (0,), 1)).run()


@pytest.mark.parametrize(
    "argument",
    [{"eval": "1"}, {"register": -1}, {"register": 0, "slice": []}, {"list": [[1]]},
     functools.reduce(lambda inner, _: {"tuple": [inner]}, range(9), {"tuple": []})],
)  # fmt: skip
def test_arguments_of_an_unknown_form_are_forged(argument):
    call = {"home": "torch", "name": "exp", "args": [argument], "kwargs": {}, "out": [0], "line": 1}
    with pytest.raises(Forged):
        read_call(call)


def test_a_pass_that_never_ends_is_not_recorded():
    class Endless(nn.Module):
        def forward(self, x):
            for _ in range(5000):
                x = x + 1.0
            return x

    session = InProcess(Endless)
    session.build("Endless", (), {})
    got = session.record([torch.zeros(1, 2, 3)])
    assert isinstance(got, Failure)
    assert "3000 calls" in got.message


# Fused calls and their equivalent in basic operations.


@pytest.mark.parametrize("causal", [True, False])
def test_plain_sdpa_is_the_fused_one(causal):
    q, k, v = (torch.randn(2, 3, 7, 5, dtype=torch.float64) for _ in range(3))
    fused = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(plain_sdpa(q, k, v, is_causal=causal), fused)
    mask = torch.rand(7, 7) < 0.7
    mask |= torch.eye(7, dtype=torch.bool)
    fused = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(plain_sdpa(q, k, v, attn_mask=mask, scale=0.3), fused)


def test_plain_multi_head_is_the_fused_one():
    layer = nn.MultiheadAttention(15, 3).double()
    nn.init.normal_(layer.in_proj_bias)
    x, y = torch.randn(7, 2, 15).double(), torch.randn(6, 2, 15).double()
    mask = torch.rand(7, 6) < 0.4
    mask[:, 0] = False
    out, weights = layer(x, y, y, attn_mask=mask)
    got, shown = plain_multi_head(
        x, y, y, 15, 3, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0,
        layer.out_proj.weight, layer.out_proj.bias, attn_mask=mask,
    )  # fmt: skip
    torch.testing.assert_close(got, out)
    torch.testing.assert_close(shown, weights)


def test_a_fused_pass_runs_again_after_it_was_written_out():
    class Fused(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    program, _ = recorded(Fused)
    values = program.run()
    plain = Program(inlined(program.recording, values), program.weights, program.given)
    assert "scaled_dot_product_attention" not in {call.name for call in plain.calls}
    output = program.recording.outputs[0]
    torch.testing.assert_close(plain.run()[output], values[output])


# Axes and their meaning.


def test_an_axis_is_the_tokens_if_each_entry_moves_with_its_own_token():
    moves = torch.zeros(7, 2, 7, 5, dtype=torch.bool)
    moves[range(7), :, range(7)] = True
    assert axis_of(moves) == 1
    moves[0, 0, 3, 2] = True
    assert axis_of(moves) is None


def test_reading_finds_scores_scale_and_mask():
    program, _ = multi_head()
    (register,) = program.inputs.values()
    reading = Reading(program, (Source(register, 0, (1,)),), program.recording.outputs[0])
    (core,) = reading.cores
    assert core.head_dim == HEAD_DIM
    assert core.mixes_along(core.weight_axes(core.axes)) == (1, 2)
    runs = [
        program.run({name: torch.randn_like(x) for name, x in program.given.items()})
        for _ in range(3)
    ]
    measured = core.scale(runs)
    assert measured is not None
    a, b = measured
    hidden = b == -math.inf
    assert torch.equal(hidden, torch.ones(TOKENS, TOKENS).triu(1).bool().expand_as(hidden))
    torch.testing.assert_close(a[~hidden], torch.full_like(a[~hidden], HEAD_DIM**-0.5))


def test_what_has_no_softmax_is_no_attention_with_one():
    class Plain(nn.Module):
        def forward(self, x):
            return x @ x.mT @ x

    program, _ = recorded(Plain)
    (register,) = program.inputs.values()
    reading = Reading(program, (Source(register, 0, (1,)),), program.recording.outputs[0])
    assert reading.cores == ()


SPLIT = ("q = self.W_q(x).view(B, T, self.h, self.dk).transpose(1, 2)",
         "q = self.W_q(x).view(B, self.h, T, self.dk)")  # fmt: skip


MASKED = [
    ("(self, x)", "(self, x, mask=None)"),
    ("        m = torch.tril(torch.ones(T, T, device=x.device))\n", ""),
    ('s = s.masked_fill(m == 0, float("-inf"))',
     "s = s if mask is None else s.masked_fill(mask == 0, -1e9)"),
]  # fmt: skip


def test_the_branch_of_a_mask_is_shown_where_its_mistake_is():
    """And its number is tried in half precision like that of a mask that is always there."""
    source = edited(MINIMAL, MASKED)
    assert {found.id for found in check(source).findings} == {"mask-fill-overflows-half"}
    report = check(source.replace("-1e9", "-1e-9"))
    (wrong,) = [step for step in report.steps if step.remark]
    assert (wrong.operation, wrong.remark) == ("masked_fill", "mistake here: mask-fill-not-inf")


def test_steps_have_named_axes_and_say_where_it_goes_wrong():
    report = check(edited(MINIMAL, [SPLIT]))
    (wrong,) = [step for step in report.steps if "split-without-transpose" in step.remark]
    assert wrong.operation == "view"
    assert "tokens" not in [name for name, _ in wrong.shape]
    right = check(MINIMAL)
    softmax = next(step for step in right.steps if step.operation == "softmax")
    assert [name for name, _ in softmax.shape] == ["batch", "heads", "queries", "keys"]
    assert not any(step.remark for step in right.steps)
    turned = [
        ("q @ k.transpose(-2, -1)", "k @ q.transpose(-2, -1)"),
        ("s = s.masked_fill", "s = s.transpose(-2, -1).masked_fill"),
    ]
    steps = check(edited(MINIMAL, turned)).steps
    names = [
        [name for name, _ in step.shape[2:]] for step in steps if step.operation == "transpose"
    ]
    assert ["queries", "keys"] in names
    assert [name for name, _ in next(s for s in steps if s.operation == "matmul").shape[2:]] == [
        "keys", "queries"
    ]  # fmt: skip


def test_a_class_that_notices_the_recording_is_not_cleared():
    """The class computes correct attention only while it is recorded."""
    cheat = edited(
        MINIMAL,
        [
            (
                "        s = q @",
                "        if not torch.overrides._get_current_function_mode_stack():\n"
                "            v = v.flip(2)\n"
                "        s = q @",
            )
        ],
    )
    assert check(cheat).verdict != "correct"


def test_a_class_without_a_batch_axis_that_notices_the_recording_is_not_cleared():
    source = (
        HEAD
        + """\
class Attention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.a, self.b = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out)
        self.c, self.gate = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out)

    def forward(self, x):
        n, d = x.shape
        weights = (self.a(x) @ self.b(x).T / self.a(x).shape[-1] ** 0.5).softmax(-1)
        return weights @ self.c(x) * self.gate(x).sigmoid()
"""
    )
    assert check(source).verdict == "correct"
    look = "torch.overrides._get_current_function_mode_stack()"
    edit = (
        "return weights",
        f"weights = weights if {look} else weights.flip(0)\n        return weights",
    )
    assert check(edited(source, [edit])).verdict != "correct"


def test_masks_that_are_passed_in_are_tested():
    takes = edited(
        MINIMAL,
        [
            ("def forward(self, x):", "def forward(self, x, mask=None):"),
            ("        m = torch.tril(torch.ones(T, T, device=x.device))\n", ""),
            (
                's = s.masked_fill(m == 0, float("-inf"))',
                'if mask is not None:\n            s = s.masked_fill(mask == 0, float("-inf"))',
            ),
        ],
    )
    assert check(takes).verdict == "correct"
    for old, new, id in (
        ('float("-inf")', "-1e-9", "mask-fill-not-inf"),
        ("s = s.masked_fill", "s.masked_fill", "mask-result-dropped"),
        ("s = s.masked_fill", "s = s.masked_fil", "mask-branch-fails"),
        ('float("-inf")', '"-inf"', "mask-branch-fails"),  # a TypeError
        ("mask == 0", "1 - mask", "mask-branch-fails"),  # of booleans; and no number hides anything
        ("if mask is not None:", "if True:", "default-mask-fails"),
    ):
        report = check(edited(takes, [(old, new)]))
        assert (report.verdict, ids(report)) == ("wrong", {id}), report


def test_a_width_split_in_front_of_the_batch_is_named():
    """This is not attention across the batch, which has another fix."""
    fused = edited(
        MINIMAL,
        [
            ("self.W_q = nn.Linear(d, d, bias=bias)", "self.qkv = nn.Linear(d, 3 * d, bias=bias)"),
            ("        self.W_k = nn.Linear(d, d, bias=bias)\n", ""),
            ("        self.W_v = nn.Linear(d, d, bias=bias)\n", ""),
            (
                "q = self.W_q(x).view(B, T, self.h, self.dk).transpose(1, 2)",
                "q, k, v = self.qkv(x).reshape(3, B, self.h, T, self.dk)",
            ),
            ("        k = self.W_k(x).view(B, T, self.h, self.dk).transpose(1, 2)\n", ""),
            ("        v = self.W_v(x).view(B, T, self.h, self.dk).transpose(1, 2)\n", ""),
        ],
    )
    report = check(fused)
    assert (report.verdict, ids(report)) == ("wrong", {"split-without-transpose"}), report
    right = "self.qkv(x).reshape(B, T, 3, self.h, self.dk).permute(2, 0, 3, 1, 4)"
    old = "self.qkv(x).reshape(3, B, self.h, T, self.dk)"
    assert check(edited(fused, [(old, right)])).verdict == "correct"


def test_a_mask_that_fits_in_no_usual_shape_is_wrong():
    takes = edited(
        MINIMAL,
        [
            ("def forward(self, x):", "def forward(self, x, mask=None):"),
            ("        m = torch.tril(torch.ones(T, T, device=x.device))\n", ""),
            (
                's = s.masked_fill(m == 0, float("-inf"))',
                "if mask is not None:\n            s = s.masked_fill(mask[..., 1:] == 0, -1e9)",
            ),
        ],
    )
    report = check(takes)
    (found,) = report.findings
    assert (report.verdict, found.id) == ("wrong", "mask-branch-fails")
    assert "RuntimeError" in found.evidence
    heads = edited(takes, [("mask[..., 1:]", "mask.view(s.shape)")])  # one for each head
    refused = edited(takes, [("s = s.masked", "assert mask.ndim == 5; s = s.masked")])
    other = edited(takes, [("mask=None", 'mask: "Mask" = None'), ("mask[..., 1:]", "mask.dense()")])
    for right in (heads, refused, other):
        assert check(right).findings == (), right


def test_a_flag_that_is_called_a_mask_is_no_mask():
    flag = edited(
        MINIMAL,
        [
            ("def forward(self, x):", "def forward(self, x, causal_mask: bool = False):"),
            (
                's = s.masked_fill(m == 0, float("-inf"))',
                'if causal_mask:\n            s = s.masked_fill(m == 0, float("-inf"))',
            ),
        ],
    )
    assert (check(flag).verdict, ids(check(flag))) == ("correct", set())


def test_a_recorder_needs_no_class():
    x = torch.randn(3)
    with Recorder({("input", "x"): x}, lambda _: False) as recorder:
        _ = (x * 2).exp()
    assert [call["name"] for call in recorder.calls] == ["mul", "exp"]
