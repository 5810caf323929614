"""Every mistake of the catalogue is named in several styles; correct code is not flagged."""

import difflib
import functools
from pathlib import Path

import pytest
import torch
from in_process_check import check_all as check
from in_process_check import check_file, ids
from planted_mistakes import BOOK, MINIMAL, PLANTED, SPECIAL, STYLES, edited, planted
from uncatalogued_mistakes import BEYOND, CONVOLVED, MAYBE_CAUSAL, UNUSUAL

import clearhead
from clearhead import ladder
from clearhead.checker.catalogue import find
from clearhead.checker.diagnosis.class_check import check_object
from clearhead.checker.harness.weight_roles import role_of

pytestmark = pytest.mark.filterwarnings("ignore")  # submissions may warn


def changed_lines(old: str, new: str) -> set[int]:
    """The numbers of the lines in the new text that are not in the old one, from 1."""
    match = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    return {
        line + 1
        for tag, _, _, first, last in match.get_opcodes()
        for line in range(first, last)
        if tag != "equal"
    }


# Two lines make the mistake together, and the finding names the other one.
TWO_LINES = {
    ("merge-without-transpose", "book"),
    ("heads-interleaved", "book"),
    ("missing-scale", "book"),
    ("mask-inverted", "book"),
    ("mask-not-sliced", "book"),
    ("out-proj-unused", "nano"),
    ("one-dtype-only", "minimal"),
}
# `make test` has each mistake in one style, and all styles in turn.
EVERY = [
    pytest.param(id, style, marks=[] if number == place % len(styles) else pytest.mark.slow)
    for place, (id, styles) in enumerate(PLANTED.items())
    for number, style in enumerate(styles)
]


@pytest.mark.parametrize(("id", "style"), EVERY)
def test_a_planted_mistake_is_named(id: str, style: str) -> None:
    source = planted(id, style)
    (report,) = check(source)
    assert ids(report) == {id}, report
    (finding,) = report.findings
    severity = find(id).severity
    assert finding.severity == severity
    assert report.verdict == ("wrong" if severity == "wrong" else "correct")
    assert finding.evidence
    assert finding.fix
    assert finding.line is not None
    changed = changed_lines(STYLES[style], source)
    assert not changed or finding.line in changed or (id, style) in TWO_LINES


@pytest.mark.parametrize("name", SPECIAL)
def test_a_mistake_with_a_shape_of_its_own_is_named(name: str) -> None:
    id, cls, source = SPECIAL[name]
    (report,) = check(source, cls)
    assert ids(report) == {id}, report


# Pairs where neither mistake hides the other: both are named.
PAIRS = [
    ("book", "missing-scale", "mask-off-by-one"),
    ("book", "merge-without-transpose", "out-proj-unused"),
    ("book", "dropout-in-eval", "mask-result-dropped"),
    ("minimal", "key-from-query-weights", "value-from-keys"),
    ("minimal", "split-without-transpose", "missing-scale"),
    ("minimal", "scores-detached", "mask-off-by-one"),
    ("nano", "padding-inverted", "scale-twice"),
    ("nano", "heads-summed", "scale-by-d-out"),
    ("nano", "query-key-swapped", "mask-hides-self"),
    ("nano", "dropout-rescaled-twice", "no-causal-mask"),
]


@pytest.mark.parametrize(("style", "one", "other"), PAIRS)
def test_two_mistakes_are_both_named(style: str, one: str, other: str) -> None:
    source = edited(edited(STYLES[style], PLANTED[one][style]), PLANTED[other][style])
    (report,) = check(source)
    assert ids(report) == {one, other}, report


def test_three_mistakes_are_all_named() -> None:
    wanted = ("missing-scale", "mask-off-by-one", "merge-without-transpose")
    source = functools.reduce(lambda text, id: edited(text, PLANTED[id]["book"]), wanted, BOOK)
    (report,) = check(source)
    assert ids(report) == set(wanted)


def test_correct_says_which_arguments_were_tried() -> None:
    masked = [
        ("(self, x)", "(self, x, keep=None)"),
        ("        a = F.softmax", """\
        if keep is not None:
            s = s.masked_fill(keep == 0, float("-inf"))
        a = F.softmax"""),
    ]  # fmt: skip
    (report,) = check(edited(MINIMAL, masked))
    assert report.verdict == "correct", report
    assert report.tested.startswith("tested step by step, with the argument keep, at other")


@pytest.mark.parametrize("name", BEYOND)
def test_mistakes_in_no_list(name: str) -> None:
    wanted, source = BEYOND[name]
    (report,) = check(source)
    assert ids(report) - {"mask-fill-overflows-half"} == wanted, report
    assert report.verdict == "wrong"


# `make test` has every second one.
EVERY_RIGHT = [
    pytest.param(name, marks=pytest.mark.slow if place % 2 else [])
    for place, name in enumerate(UNUSUAL)
]


@pytest.mark.parametrize("name", EVERY_RIGHT)
def test_right_code_is_not_flagged(name: str) -> None:
    reports = check(UNUSUAL[name])
    assert reports
    for report in reports:
        assert report.verdict == "correct", report
        # Failures in half precision are remarks, not mistakes.
        assert ids(report) <= {"mask-fill-overflows-half"}, report


@pytest.mark.parametrize(
    "cls",
    [
        *(ladder.SelfAttention, ladder.CausalAttention),
        pytest.param(ladder.MultiHeadAttentionWrapper, marks=pytest.mark.slow),
        pytest.param(ladder.MultiHeadAttention, marks=pytest.mark.slow),
        *(ladder.EncoderAttention, clearhead.MultiHeadAttention),
    ],
)
def test_our_own_attention_is_right(cls: type) -> None:
    report = check_object(cls)
    assert report.verdict == "correct", report
    assert not report.findings


@pytest.mark.parametrize("subject", ["file.py", lambda x: x, None])
def test_what_is_neither_a_class_nor_a_module_is_refused(subject: object) -> None:
    with pytest.raises(TypeError, match=r"expected a class or a module, got .*\n.*check FILE"):
        clearhead.check(subject)  # type: ignore[arg-type]


def test_a_report_has_a_short_repr() -> None:
    shown = repr(check_object(ladder.CausalAttention))
    assert shown == "Report(CausalAttention: correct; no findings): print it"


@pytest.mark.parametrize("dropout", [0.0, 0.1])  # the rate is not known, and not judged
def test_a_module_that_is_built_is_checked_as_it_is(dropout: float) -> None:
    module = ladder.MultiHeadAttention(10, 12, 9, dropout, num_heads=4)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    report = check_object(module)
    assert report.verdict == "correct", report
    assert not report.findings
    assert str(report.form).startswith("4 heads of size 3, causal")
    for name, value in module.state_dict().items():
        assert torch.equal(before[name], value)


def test_a_file_that_cannot_run_says_so() -> None:
    (report,) = check_file("import nothing_of_this_name\n", "mine.py")
    assert report.verdict == "error"
    assert "nothing_of_this_name" in report.findings[0].says
    (report,) = check_file("x = 1\n", "mine.py")
    assert report.verdict == "error"
    assert "no attention class; its classes: none. The checker looks for" in report.findings[0].says
    (report,) = check_file("def f(:\n", "mine.py")
    assert report.findings[0].says.startswith("Python could not read the file: SyntaxError: ")
    more = ("b, tokens, d_in = x.shape", "b, tokens, d_in, more = x.shape")
    (report,) = check(edited(BOOK, [more]))
    assert report.verdict == "error"
    assert ids(report) == {"cannot-run"}
    assert report.findings[0].line is not None


def test_an_adapter_that_fails_is_no_evidence():
    """One adapter serves a whole course; a file may lack the class that the adapter builds."""
    adapter = (
        "class Adapted(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = NotInThisFile(14, 15, 11, 0.0, 3)\n"
    )
    (report,) = check_file(BOOK, "mine.py", adapter=adapter)
    assert report.verdict == "error"
    assert [found.id for found in report.findings] == ["cannot-run"]
    assert "The adapter failed in its line 4: NameError" in report.findings[0].says


def test_an_adapter_makes_an_unusual_class_checkable() -> None:
    unusual = BOOK.replace(
        "def forward(self, x):", "def forward(self, bundle):\n        x = bundle['x']"
    )
    adapter = """
class Adapted(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads):
        super().__init__()
        self.inner = MultiHeadAttention(d_in, d_out, context_length, dropout, num_heads)

    def forward(self, x):
        return self.inner({"x": x})
"""
    assert check(unusual)[0].verdict == "error"
    (report,) = check_file(unusual, "mine.py", adapter=adapter)
    assert report.verdict == "correct", report


UNSURE = edited(
    BOOK,
    [("weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)",
      "scores = scores.tanh() * 3 - future * 1e30\n"
      "        weights = torch.softmax(scores, dim=-1)"),
     ("        scores.masked_fill_(future, -torch.inf)\n", "")],
)  # fmt: skip


def test_what_is_not_known_is_called_unsure() -> None:
    (report,) = check(UNSURE)
    assert report.verdict == "unsure", report
    assert "unsure" in ids(report)
    assert "the scores are capped in an unknown way" in report.findings[0].evidence


def test_the_line_of_the_root_is_named_not_a_call_of_that_name() -> None:
    """A helper called scaled_dot_product is not the line with the scale."""
    file = Path(__file__).parents[1] / "submissions" / "32_root_of_d_model.py"
    source = file.read_text(encoding="utf-8")
    (report,) = check(source)
    (finding,) = report.findings
    assert finding.line is not None
    assert "math.sqrt(self.d_model)" in source.splitlines()[finding.line - 1]


def test_a_context_length_alone_is_no_sign_of_causality() -> None:
    """An encoder with block_size in its constructor was called wrong."""
    (report,) = check(MAYBE_CAUSAL)
    assert (report.verdict, ids(report)) == ("correct", set()), report
    (report,) = check(MAYBE_CAUSAL + "\n\nclass TinyGPT(nn.Module):\n    pass\n", "SelfAttn")
    assert (report.verdict, ids(report)) == ("wrong", {"no-causal-mask"})


def test_a_scale_that_is_set_on_purpose_is_not_called_wrong() -> None:
    given = edited(
        MINIMAL,
        [
            ("p=0.1,", "p=0.1, scale=0.25,"),
            ("self.h = h", "self.h = h\n        self.scale = scale"),
            (" / math.sqrt(self.dk)", " * self.scale"),
        ],
    )
    (report,) = check(given)
    assert (report.verdict, ids(report)) == ("correct", set()), report
    assert report.notes == ("The scale is an argument, and the value passed is used.",)


def test_a_convolution_beside_attention_is_no_mistake() -> None:
    (report,) = check(CONVOLVED)
    assert report.verdict == "unsure", report


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("w_qs.weight", "q"), ("toQueries.weight", "q"), ("fc_k.weight", "k"),
        ("attn.c_attn.weight", "qkv"), ("in_proj_weight", "qkv"), ("to_kv.weight", "kv"),
        ("to_out.0.weight", "o"), ("unifyheads.weight", "o"), ("alpha.weight", ""),
    ],
)  # fmt: skip
def test_names_tell_roles(path: str, role: str) -> None:
    assert role_of(path) == role


@pytest.mark.parametrize(
    ("default", "verdict", "said"),
    [
        ("DROPUOT", "wrong", "Nothing in the file defines DROPUOT. Did you mean DROPOUT?"),
        ("float(open('rate.txt').read())", "error", ""),
        ("tuple(1, 2)", "wrong", "tuple expected at most 1 argument, got 2. The definition itself"),
    ],
)
def test_a_file_that_cannot_be_imported_is_wrong_if_that_is_its_own_fault(default, verdict, said):
    source = edited(
        MINIMAL, [("p=0.1", f"p={default}"), ("class Attn", "DROPOUT = 0\n\n\nclass Attn")]
    )
    (report,) = check_file(source, "mine.py")
    assert report.verdict == verdict
    assert said in report.findings[0].evidence
    assert (report.findings[0].id == "crashes") == (verdict == "wrong")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("        m = torch.tril", "        if T > 1000:\n            m = torch.tril",
         "Nothing is assigned to it before on this path."),
        ("self.drop = nn", "self.q = nn.Linear(1, 1)\n        self.q = 5\n        self.drop = nn",
         "A layer already has this name."),
    ],
)  # fmt: skip
def test_errors_that_are_its_own_whatever_is_passed_in(old, new, said):
    (report,) = check(edited(MINIMAL, [(old, new)]))
    assert (report.verdict, ids(report)) == ("wrong", {"crashes"})
    assert said in report.findings[0].evidence


def test_a_length_that_is_written_into_the_code_is_named():
    """The class works with context_length tokens, but not with fewer."""
    fixed = BOOK.replace("view(b, tokens, self", "view(b, self.mask.shape[0], self")
    (report,) = check(fixed)
    assert ids(report) == {"fails-at-some-lengths"}
    assert "7 tokens with a context of 11" in report.findings[0].evidence


def test_a_mask_that_is_dropped_is_found_in_a_class_that_cannot_be_run():
    masks = '        s = s.masked_fill(m == 0, float("-inf"))'
    graph = [
        ("self, x):", "self, x, graph):"),
        ("B, T, D =", "edges = graph.edges()\n        B, T, D ="),
    ]
    (report,) = check_file(edited(MINIMAL, [*graph, (masks, masks.replace("s = ", "", 1))]))
    assert (report.verdict, report.findings[0].id) == ("wrong", "mask-result-dropped"), report
    (report,) = check_file(edited(MINIMAL, graph))
    assert report.verdict == "error"


@pytest.mark.parametrize("tie", ["self.W_q.weight = self.W_k.weight", "self.W_q = self.W_k"])
def test_layers_that_the_source_ties_are_a_question(tie):
    (report,) = check_file(edited(MINIMAL, [("self.drop = nn", f"{tie}\n        self.drop = nn")]))
    assert report.verdict == "correct", report
    assert all("The source ties them" in found.evidence for found in report.findings)


BACKWARD = """\
import numpy as np
class Attention:
    def __init__(self, width):
        self.W_q, self.W_k, self.W_v = (np.random.randn(width, width) for _ in range(3))

    def forward(self, x):
        self.x, self.q, self.k, self.v = x, x @ self.W_q, x @ self.W_k, x @ self.W_v
        scores = self.q @ self.k.swapaxes(1, 2) / np.sqrt(self.q.shape[-1])
        self.p = np.exp(scores - scores.max(-1, keepdims=True))
        self.p /= self.p.sum(-1, keepdims=True)
        return self.p @ self.v

    def backward(self, dout):
        dp, dv = dout @ self.v.swapaxes(1, 2), self.p.swapaxes(1, 2) @ dout
        ds = self.p * (dp - (dp * self.p).sum(-1, keepdims=True)) / np.sqrt(self.q.shape[-1])
        dq, dk = ds @ self.k, ds.swapaxes(1, 2) @ self.q
        self.dW_q = np.tensordot(self.x, dq, ([0, 1], [0, 1]))
        return dq @ self.W_q.T + dk @ self.W_k.T + dv @ self.W_v.T
"""


def test_a_backward_pass_written_by_hand_is_compared_with_the_forward_pass():
    (report,) = check_file(BACKWARD)
    assert (report.verdict, report.notes) == ("correct", ()), report
    (report,) = check_file(BACKWARD.replace("dp - (dp * self.p).sum(-1, keepdims=True)", "dp"))
    assert (report.verdict, ids(report)) == ("wrong", {"backward-differs"})
    assert "def backward" in BACKWARD.splitlines()[report.findings[0].line - 1]
    (report,) = check_file(BACKWARD.replace("dk @ self.W_k.T", "dk @ self.W_none.T"))
    assert (report.verdict, report.notes) == (
        "correct",
        ("Its own backward pass was not checked.",),
    )
