"""How a class is built and called: from its source and from its error messages."""

import pytest
import torch
from in_process_check import Here, check, check_file, ids

from clearhead.checker.diagnosis.file_check import check_source
from clearhead.checker.harness.alternatives import alternatives, mask_ways
from clearhead.checker.harness.building import prepare
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import attempts_for, with_configs
from clearhead.checker.harness.subject import Subject
from clearhead.checker.sandbox.submission import Failure, Isolated
from clearhead.checker.source.class_text import text_of
from clearhead.checker.source.siblings import siblings_of

CLASS = """
class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))
"""
IMPORTS = "import torch\nfrom torch import nn\n"


def test_no_two_sizes_are_equal():
    """Otherwise one axis could be confused with another."""
    for seed in range(200):
        sizes = attempts_for(seed)
        for one in (*sizes.plain, sizes.grouped, sizes.wide):
            assert len({one.batch, one.tokens, one.heads, one.head_dim}) == 4, (seed, one)
            assert one.d_out % one.tokens, (seed, one)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("import no_such_module\n", "", "no_such_module"),
        ("from .layers import RMSNorm, helper\n", "", "layers"),
        ("text = open('shakespeare.txt').read()\n", "", "shakespeare.txt"),
        ("text = open('s.txt').read()\nchars = sorted(set(text))\n", "", "s.txt"),
        ("", "model = Attention(8, 2)\nprint(model.missing)\n", "missing"),
        ("", "raise SystemExit(1)\n", "SystemExit"),
    ],
)
def test_what_is_missing_at_the_top_is_left_out(before, after, said):
    with Here(IMPORTS + before + CLASS + after, "file.py") as session:
        (info,) = session.classes()
        assert info.name == "Attention"
        assert said in " ".join(session.notes)
        assert not isinstance(
            session.build("Attention", [], {"d_model": 6, "num_heads": 2}), Failure
        )


SCRIPT = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=24)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()


@torch.jit.script
def scores_of(q, k, scale: float):
    return q @ k.transpose(-1, -2) / scale


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(args.width, args.width) for _ in range(3))

    @torch.compile
    def forward(self, x):
        return scores_of(self.q(x), self.k(x), float(args.width)).softmax(-1) @ self.v(x)
"""


def test_scripted_and_compiled_code_and_the_arguments_of_a_program():
    """argparse in a file must not end the check, and scripted code has to be read."""
    (report,) = check_source(IMPORTS + SCRIPT, "file.py")
    assert [found.id for found in report.findings] == ["scale-twice"], report


def test_an_optional_import_is_left_to_its_own_handler():
    optional = "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n"
    check = "assert flash_attn is None\n"
    with Here(IMPORTS + optional + check + CLASS, "file.py") as session:
        session.classes()
        assert session.notes == ()


def test_siblings_can_be_imported():
    source = IMPORTS + "from .sizes import WIDTH\nfrom tools.maths import double\n" + CLASS
    source += "class Two(Attention):\n    def forward(self, x): return double(x) + WIDTH\n"
    siblings = {"sizes": "WIDTH = 3\n", "tools.maths": "def double(x): return 2 * x\n"}
    with Isolated(source, "file.py", siblings=siblings) as session:
        session.build("Two", [], {"d_model": 6, "num_heads": 2})
        out = session.forward([torch.ones(1, 2, 6)])
    assert session.notes == ()
    assert not isinstance(out, Failure)
    assert torch.equal(out.tensors[0], torch.full((1, 2, 6), 5.0))


def test_the_cpu_stands_for_a_gpu():
    source = IMPORTS + (
        "class Attention(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = nn.Linear(3, 3).cuda()\n"
        "        self.register_buffer('m', torch.ones(3, device='cuda:0'))\n"
        "    def forward(self, x):\n"
        "        return self.w(x).to('cuda') * self.m.to(torch.device('cuda'))\n"
    )
    with Here(source, "file.py") as session:
        built = session.build("Attention", [], {})
        out = session.forward([torch.ones(1, 3)])
    assert not isinstance(built, Failure)
    assert not isinstance(out, Failure)


def made(source: str, name: str = "Attention") -> tuple[Case, Subject]:
    """Build and call the class as `check` does."""
    session = Here(IMPORTS + source)
    classes = session.classes()
    assert not isinstance(classes, Failure)
    (info,) = (one for one in classes if one.name == name)
    text = text_of(IMPORTS + source, info)
    case = Case(session, with_configs(info, text.code, text.file), text, "file.py")
    subject = prepare(case)
    assert isinstance(subject, Subject), subject
    return case, subject


def test_how_it_was_built_and_called_is_said():
    _, subject = made(CLASS)
    assert subject.how == "built with d_model=15 and num_heads=3; called with x"


def attention(init: str, forward: str, body: str, scores: str = "") -> str:
    """A class with these signatures: `body` comes before the queries, `scores` after the scores."""
    return f"""
class Attention(nn.Module):
    def __init__(self, {init}):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        {body}

    def forward(self, {forward}):
        q, k, v = self.q(x), self.k(x), self.v(x)
        s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        {scores or "pass"}
        return s.softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("scores", "shape"),
    [
        ("b, _, _, n = mask.shape; s = s.masked_fill(mask.view(b, 1, n) == 0, -1e9)", "b11n"),
        ("s = s.masked_fill(mask.view(x.shape[0], 1, -1) == 0, -1e9)", "bn"),
        ("_, _, n, _ = mask.shape; s = s.masked_fill(mask.view(1, n, n) == 0, -1e9)", "11nn"),
        ("assert mask.shape[0] == 2; s = s.masked_fill(mask == 0, -1e9)", "bnn"),
    ],
)
def test_a_mask_that_is_needed_comes_in_the_shape_that_runs(scores, shape):
    _, subject = made(attention("d", "x, mask", "pass", scores))
    assert subject.mask_shape == shape
    assert subject.polarity


def test_plain_arguments_of_forward_get_plain_values():
    source = attention(
        "d", "x, start_pos, cache, seq_len", "pass", "assert start_pos + 7 == seq_len"
    )
    _, subject = made(source)
    assert dict(subject.feed) == {
        "x": "x", "start_pos": "zero", "cache": "none", "seq_len": "length",
    }  # fmt: skip
    assert "start_pos=0" in subject.how


def test_a_tensor_that_an_error_shows_to_be_needed_is_given():
    _, subject = made(attention("d", "x, pos_emb", "pass", "s = s + self.q(pos_emb).sum() * 0"))
    assert dict(subject.feed)["pos_emb"] == "tensor b n 15"


@pytest.mark.parametrize(
    ("scores", "shape"),
    [
        ("z = self.z(z).view(2, 7, 7); s = s + z", "b n n 11"),
        ("s = s + (q @ self.r(z).mT)[..., 3:10]", "1 m 15"),
    ],
)
def test_an_argument_that_an_error_blames_is_tried_in_more_shapes(scores, shape):
    body = "self.z, self.r = nn.Linear(11, 1), nn.Linear(d, d)"
    scores = scores.replace("; ", "\n        ")
    _, subject = made(attention("d, heads", "x, z", body, scores))
    assert dict(subject.feed)["z"] == f"tensor {shape}"
    assert "a random tensor (" in subject.how


def test_configurations_may_lie_in_each_other():
    source = attention("cfg", "x", "self.r = Relative(cfg.model, cfg.rel)")
    source = source.replace("(d, d)", '(cfg.model.width, cfg.model["width"])')
    source += """
class Relative:
    def __init__(self, model, spec):
        m, inner = model, spec.inner
        self.a = [0] * (m.heads + inner.buckets)

class Defaults:
    buckets = 32
"""
    _, subject = made(source)
    fields = subject.keywords["cfg"]["__config__"]
    assert fields["model"]["__config__"]["heads"] == subject.sizes.heads
    assert "rel.inner.buckets=32" in subject.how


def test_a_configuration_of_the_files_own_class_is_made_where_a_plain_one_does_not_do():
    source = attention("cfg: Config", "x", "assert isinstance(cfg, Config) and cfg.norm is Norm.L")
    source = source.replace("(d, d)", "(cfg.width, cfg.width)")
    source = (
        """
import enum
from dataclasses import dataclass, field

class Norm(enum.Enum):
    L = 1

@dataclass
class Inner:
    buckets: int = 4

@dataclass
class Config:
    width: int
    heads: int = 12
    norm: Norm = Norm.L
    inner: Inner = field(default_factory=Inner)
"""
        + source
    )
    _, subject = made(source)
    assert subject.keywords["cfg"]["__object__"] == "Config"
    assert "cfg=Config(width=24, heads=4)" in subject.how


def test_a_window_has_as_many_sizes_as_the_constructor_reads():
    body = "self.n = window_size[0] * window_size[1] * window_size[2]"
    source = attention("d, window_size", "x", body, "assert x.shape[1] == self.n")
    _, subject = made(source)
    assert subject.keywords["window_size"] == [2, 2, 3]


@pytest.mark.parametrize(("axis", "axes"), [(2, "rows"), (1, "columns")])
def test_a_table_is_no_picture(axis, axes):
    source = attention("d", "x", "pass").replace(
        "q, k, v = self.q(x)", f"x = x.transpose({axis}, 2)\n        q, k, v = self.q(x)"
    )
    source = source.replace("s.softmax(-1) @ v", f"(s.softmax(-1) @ v).transpose({axis}, 2)")
    source = source.replace("x = x.tr", "b, rows, cols, c = x.shape\n        x = x.tr")
    _, subject = made(source)
    assert subject.axes == axes


def test_a_stand_in_for_a_function_gets_no_number():
    source = "from sizes import padded_size, WIDTH\n" + IMPORTS
    source += attention("d", "x", "self.n = padded_size(d); self.m = WIDTH + 1")
    with Here(source, "file.py") as session:
        classes = session.classes()
        assert not isinstance(classes, Failure)
        text = text_of(source, classes[0])
        case = Case(session, classes[0], text, "file.py")
        assert isinstance(prepare(case), Subject)
        assert session.constants.keys() == {"WIDTH"}


def test_missing_base_classes_and_registries_do_no_harm():
    source = "import lightning as L\nfrom registry import LAYERS\n" + IMPORTS + CLASS
    source = source.replace("class", "@LAYERS.register_module(name='a')\nclass")
    source = source.replace("nn.Module)", "L.LightningModule)")
    source = source.replace("self.h = ", "self.save_hyperparameters(); self.h = ")
    (report,) = check_file(source, "file.py")
    assert report.verdict == "correct"


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("self.h = num_heads", "self.h = self.num_head", "Nothing sets self.num_head.", 6),
        ("self.h = num_heads", "self.h = heads", "Nothing in the file defines heads.", 6),
        ("self.h, -1", "self.heads, -1", "Nothing sets self.heads.", 10),
        (".softmax(-1)", ".sofmax(-1)", "Did you mean softmax?", 14),
        ("transpose(1, 2).flatten", "transpose(0, 2, 1, 3).flatten", "The call is in your", 15),
        ("(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)", "torch.functional.softmax(q @ k.mT, -1)",
         "It is in torch.nn.functional", 14),
        ("weights @ v).", "nn.functional.scaled_dot_product_attention(q, k, v, v @ v.mT, 0.1, True)"
         ").", "Both are passed", 15),
        ("q @ k.mT /", "torch.einsum('bhid,bhjd,->bhij', q, k) /", "No input changes that", 14),
        ("/ q.shape[-1] ** 0.5", "/ -abs", "No input changes that", 14),
        ("self.h = num_heads", "self.h = num_heads / 1; nn.Linear(self.h, 2)", "computed with", 7),
        ("(weights @ v).tr", "nn.LSTM(v.shape[-1], 5).to(v)(v[0]).tr", "returns a tuple", 15),
        ("self.h = num_heads", "self.h = nn.Linear(num_heads)", "The call is in your own code.", 6),
        ("self.h = num_heads", "self.h = self.n; self.n = 1", "It is set later", 6),
        ("self.split(self.q(x))", "self.split(x @ self.q)", "Linear is a layer: call it", 13),
        ("self.split(self.q(x))", "self.split(torch.relu(self.q))", "Linear is a layer", 13),
    ],
)  # fmt: skip
def test_a_crash_in_its_own_code_is_a_finding(old, new, said, line):
    new = new.replace("; ", "\n        ")
    report = check(IMPORTS + CLASS.replace(old, new).lstrip("\n"))
    (found,) = report.findings
    assert (report.verdict, found.id, found.line) == ("wrong", "crashes", line)
    assert said in found.evidence


def test_a_crash_that_may_come_from_what_was_passed_is_none():
    without = "self.a = torch.ones(cfg_like, cfg_like)"  # torch says that ones() takes 1 argument
    for body in ("self.a = norm_factory()(d, d, d)", "self.a = cfg_like.missing", without):
        source = attention("d, norm_factory, cfg_like=None", "x", body)
        report = check(IMPORTS + source)
        assert report.verdict == "error"
        assert "--adapter" in report.findings[0].fix


def test_what_is_set_on_an_argument_is_not_set_on_the_object():
    source = CLASS.replace("d_model, num_heads", "args").replace("d_model", "args.d_model")
    source = source.replace("self.h = num_heads", "args.h = args.num_heads")
    report = check(IMPORTS + source)
    assert report.verdict == "wrong"
    assert "Nothing sets self.h." in report.findings[0].evidence


def test_a_base_class_whose_heirs_provide_a_method_does_not_crash():
    base = CLASS.replace("class Attention", "class BaseAttention").replace(
        "self.k(x)", "self.keys(x)"
    )
    mixin = "class Keys:\n    def keys(self, x):\n        return self.k(x)\n\n\n"
    heir = "\n\nclass SelfAttention(Keys, BaseAttention):\n    pass\n"
    assert base.count("self.keys(x)") == 1
    (report,) = check_file(IMPORTS + mixin + base + heir, "file.py")
    assert (report.cls, report.verdict) == ("SelfAttention", "correct")


def test_a_class_that_cannot_be_called_by_itself_is_checked_inside_its_owner():
    source = CLASS.replace("class Attention", "class Layer")
    source = source.replace("(weights @ v)", "Mix().forward(weights, v, [1])")
    source = source.replace("Mix()", "self.mix")
    source = source.replace("self.h = num_heads", "self.h = num_heads; self.mix = MixAttention()")
    source += "\nclass MixAttention(nn.Module):\n"
    source += "    def forward(self, a, v, n): assert n == [1]; return a @ v\n"
    (report,) = check_file(IMPORTS + source, "file.py")
    assert (report.cls, report.verdict) == ("MixAttention", "correct")
    assert "it was checked inside Layer" in report.notes[0]


def test_fields_of_a_configuration_are_guessed_by_name():
    body = "self.inner = Inner(c)"
    source = attention("c", "x", body).replace("(d, d)", "(c.width, c.width)")
    source += "\nclass Inner:\n    def __init__(self, k):\n"
    source += "        assert not k.use_flash and k.rope_base == 10000 and k.my_device is None\n"
    _, subject = made(source)
    assert subject.keywords["c"]["__config__"]["use_flash"] is False


def test_an_argument_that_is_called_gets_a_layer():
    _, subject = made(attention("d, norm_layer", "x", "self.norm = norm_layer(d)"))
    assert subject.built.modules["norm"] == "LayerNorm"


def test_an_argument_that_forward_calls_gets_a_class_of_the_file():
    body = "self.mixer = mixer"
    source = attention("d, mixer", "x", body).replace("s.softmax(-1) @ v", "self.mixer(s, v)")
    source += "\nclass Mixer(nn.Module):\n    def forward(self, s, v): return s.softmax(-1) @ v\n"
    _, subject = made(source)
    assert subject.built.modules["mixer"] == "Mixer"


def test_a_call_site_tells_what_unknown_names_mean():
    source = CLASS.replace("d_model, num_heads", "alpha, beta")
    source = source.replace("d_model", "alpha").replace("num_heads", "beta")
    source += (
        "\nclass Block(nn.Module):\n    def __init__(self, n_head, n_embd):\n"
        "        super().__init__()\n        self.a = Attention(n_embd, n_head)\n"
    )
    _, subject = made(source)
    assert subject.keywords == {"alpha": 15, "beta": 3}


@pytest.mark.parametrize(
    ("unpack", "back", "axes"),
    [
        (
            "b, h, w, c = x.shape\n        x = x.reshape(b, h * w, c)",
            ".reshape(b, h, w, c)",
            "pixels",
        ),
        (
            "b, c, h, w = x.size()\n        x = x.flatten(2).mT",
            ".mT.reshape(b, c, h, w)",
            "picture",
        ),
        ("b, n, c, h, w = x.shape\n        x = x[..., 0, 0]", "[..., None, None]", "frames"),
    ],
)
def test_the_order_of_axes_is_read_from_their_names(unpack, back, axes):
    source = attention("d", "x", "pass").replace(
        "q, k, v = self.q(x)", f"{unpack}\n        q, k, v = self.q(x)"
    )
    source = source.replace("s.softmax(-1) @ v", f"(s.softmax(-1) @ v){back}")
    _, subject = made(source)
    assert subject.axes == axes


def test_a_helper_without_weights_gets_inputs_of_the_width_it_was_told():
    source = """
class Attention(nn.Module):
    def __init__(self, d_k):
        super().__init__()
        self.d_k = d_k

    def forward(self, q, k, v):
        assert q.shape[-1] == self.d_k
        return (q @ k.mT / self.d_k ** 0.5).softmax(-1) @ v
"""
    _, subject = made(source)
    assert subject.d_in == subject.keywords["d_k"]


def test_flags_are_tried_with_their_other_value():
    source = attention("d, scaled=False", "x, causal=False", "self.f = scaled", "pass")
    case, subject = made(source)
    ways = list(alternatives(case, subject))
    assert ways[0].keywords["scaled"] is True
    assert any(dict(one.feed).get("causal") == "true" for one in ways)
    assert len(ways) <= 6


def test_a_mask_of_heads_is_no_mask_of_tokens():
    """BERT takes both a mask of heads and a mask of tokens."""
    source = attention("d", "x, attention_mask=None, head_mask=None", "pass")
    _, subject = made(source)
    assert [name for name, role in subject.feed if role == "mask"] == ["attention_mask"]
    masks = "s + (0 if attention_mask is None else attention_mask)"
    weights = f"({masks})[:, None].softmax(-1)"
    weights = f"({weights} * (1 if head_mask is None else head_mask))[:, 0]"
    (report,) = check_file(IMPORTS + source.replace("s.softmax(-1)", weights), "file.py")
    assert (report.verdict, report.findings, report.notes) == ("correct", (), ()), report


def test_masks_come_in_both_meanings():
    _, subject = made(attention("d", "x, mask=None", "pass"))
    ways = list(mask_ways(subject))
    seen = torch.ones(7, 7).tril().bool()
    assert any(way.shape == seen.shape and way.equal(seen) for way in ways)
    assert any(way.shape == seen.shape and way.equal(~seen) for way in ways)
    assert {tuple(way.shape) for way in ways} >= {(2, 1, 1, 7), (2, 3, 7, 7), (6, 7, 7)}


def test_siblings_are_found_beside_a_file(tmp_path):
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "norms.py").write_text("from sizes import D\n", encoding="utf-8")
    (tmp_path / "sizes.py").write_text("D = 3\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("", encoding="utf-8")
    source = "import torch\nfrom .layers.norms import Norm\n"
    found = siblings_of(tmp_path / "file.py", source, tmp_path)
    assert found == {"layers.norms": "from sizes import D\n", "sizes": "D = 3\n"}


def test_a_folder_may_name_itself_and_no_other_folder_is_reached(tmp_path):
    for name in ("alice/model", "bob"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.py").write_text(f"# {name}\n", encoding="utf-8")
    (tmp_path / "alice" / "top.py").write_text("", encoding="utf-8")
    file = tmp_path / "alice" / "model" / "attention.py"
    source = "from model.config import A\nimport bob.config\nimport top\nfrom ..top import x\n"
    assert siblings_of(file, source, file.parent) == {"model.config": "# alice/model\n"}
    assert siblings_of(file, source, tmp_path / "alice").keys() == {"model.config", "top"}


def test_a_call_that_the_checker_chose_is_said_to_be_so():
    source = IMPORTS + attention("d", "x", "pass", "s = s + x.new_zeros(99, 98)")
    (report,) = check_file(source, "file.py")
    assert "The checker chose this call: built with d=15; called with x." in report.findings[0].fix


_PADDING_MUST_BE_GIVEN = """
class CrossAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, queries, keys, key_padding):
        scores = self.q(queries) @ self.k(keys).mT / queries.shape[-1] ** 0.5
        hidden = key_padding.unsqueeze(1).expand_as(scores)
        scores = torch.where(hidden, torch.full_like(scores, -1e30), scores)
        return scores.softmax(-1) @ self.v(keys)
"""
_FULL_IN_FLOAT32 = "s = s + torch.full(s.shape[1:], torch.finfo(s.dtype).min).triu(1)"


@pytest.mark.parametrize(
    "source",
    [
        attention("d", "x", "pass", _FULL_IN_FLOAT32),
        _PADDING_MUST_BE_GIVEN,
        attention("d", "x", "self.b = nn.Parameter(torch.zeros(9, 9))", "s = s + self.b"),
    ],
)
def test_how_a_class_must_be_called_is_found(source):
    report = check(IMPORTS + source)
    assert report.verdict == "correct", report


_SHAPE_IN_DOCSTRING = '''
class GatedAttention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, relevance):
        """Attention to what is relevant.

        Args:
            x: the tokens, (batch, tokens, width)
            relevance (torch.Tensor): a logit for each key
                and head, of shape [batch, tokens, heads]
        """
        q, k, v = (f(x).unflatten(-1, (self.h, -1)) for f in (self.q, self.k, self.v))
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + relevance.permute(0, 2, 1).unsqueeze(2)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
'''


def test_shapes_in_docstrings_are_read():
    report = check(IMPORTS + _SHAPE_IN_DOCSTRING)
    assert report.verdict == "correct", report
    assert "a random tensor (batch, tokens, heads) for relevance" in report.how
    assert "A bias that is passed in is added to the scores." in report.notes


def test_an_object_that_is_no_tensor_is_said_to_be_one():
    source = attention("d", "g", "pass").replace("self.q(x)", "self.q(g.nodes)")
    report = check(IMPORTS + source.replace("(x)", "(g.nodes)"))
    assert "forward reads g.nodes: it expects a custom object" in report.findings[0].evidence


def test_an_argument_without_which_the_constructor_fails_gets_a_number():
    body = "self.gate = nn.Sequential(nn.LayerNorm(c_z), nn.Linear(c_z, 1))"
    _, subject = made(attention("d, c_z=None, unused=None", "x, z=None", body))
    assert subject.keywords == {"d": 15, "c_z": 15}


def test_a_flag_without_a_default_is_off():
    body = "self.shifted = shifted"
    _, subject = made(attention("d, shifted", "x", body, "if self.shifted: s = s + 1"))
    assert subject.keywords["shifted"] is False


def test_pixels_of_a_window_whose_size_has_a_default():
    body = "self.bias = nn.Parameter(torch.randn(window_size**2, window_size**2))"
    source = attention("d, window_size=7", "x", body, "s = s + self.bias")
    source = source.replace(
        "q, k, v = self.q(x)",
        "b, h, w, c = x.shape; x = x.flatten(1, 2)\n        q, k, v = self.q(x)",
    ).replace("s.softmax(-1) @ v", "(s.softmax(-1) @ v).view(b, h, w, c)")
    _, subject = made(source)
    assert (subject.axes, subject.keywords["window_size"]) == ("pixels", 3)


def test_volumes_have_their_channels_first():
    source = """
class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.qkv, self.out = nn.Conv3d(channels, 3 * channels, 1), nn.Conv3d(channels, channels, 1)

    def forward(self, x):
        q, k, v = (t.flatten(2).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=1))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((weights @ v).mT.view_as(x))
"""
    report = check(IMPORTS + source)
    assert report.verdict == "correct", report
    assert "(batch, channels, frames, height, width)" in report.how
    assert check(IMPORTS + source.replace(" * q.shape[-1] ** -0.5", "")).findings


def test_heads_may_come_back_before_the_tokens():
    source = """
class Attention(nn.Module):
    def __init__(self, temperature: float):
        super().__init__()
        self.temperature = temperature

    def forward(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return (q @ k.transpose(2, 3) / self.temperature).softmax(-1) @ v
"""
    _, subject = made(source)
    assert subject.axes == "crossed"
    assert check(IMPORTS + source).verdict == "correct"


def test_a_projection_that_is_passed_in_is_a_layer():
    source = attention("d, n_heads, q_proj", "x", "self.a = q_proj")
    _, subject = made(source.replace("self.q(x)", "self.a(x)"))
    assert subject.keywords["q_proj"]["__object__"] == "Linear"


SPLIT_FIRST = """
class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads, width = heads, embed_size // heads
        self.values, self.keys, self.queries = (
            nn.Linear(width, width, bias=False) for _ in range(3)
        )
        self.fc_out = nn.Linear(heads * width, embed_size)

    def forward(self, values, keys, query, mask):
        n, q, k = query.shape[0], query.shape[1], keys.shape[1]
        values = self.values(values.reshape(n, k, self.heads, -1))
        keys = self.keys(keys.reshape(n, k, self.heads, -1))
        queries = self.queries(query.reshape(n, q, self.heads, -1))
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / queries.shape[-1] ** 0.5, dim=3)
        out = torch.einsum("nhqk,nkhd->nqhd", [attention, values])
        return self.fc_out(out.reshape(n, q, -1))
"""


def test_projections_inside_the_heads_do_not_tell_the_width_of_the_keys():
    report = check(IMPORTS + SPLIT_FIRST)
    ids = {one.id for one in report.findings}
    wanted = {"heads-share-projection", "mask-fill-overflows-half"}
    assert (report.verdict, ids) == ("correct", wanted)


def test_a_decoders_state_has_an_axis_for_its_one_token():
    """Without that axis, it would be added to the tokens, as many as there are states."""
    source = """
class BahdanauAttention(nn.Module):
    def __init__(self, decoder_dim, encoder_dim):
        super().__init__()
        self.W1 = nn.Linear(decoder_dim, decoder_dim)
        self.W2 = nn.Linear(encoder_dim, decoder_dim)
        self.Va = nn.Linear(decoder_dim, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.W1(query) + self.W2(keys))).squeeze(2).unsqueeze(1)
        weights = scores.softmax(-1)
        return torch.bmm(weights, keys), weights
"""
    _, subject = made(source, "BahdanauAttention")
    assert (subject.axes, subject.memory) == ("column", "each")
    assert check(IMPORTS + source).verdict == "correct"


def test_a_scale_that_a_width_at_the_top_of_the_file_fixes_is_a_question():
    top = "d_model = 32\n" + IMPORTS + CLASS
    (found,) = check(top.replace("q.shape[-1] ** 0.5", "d_model ** 0.5")).findings
    assert (found.id, found.severity) == ("wrong-scale", "edge")
    assert "It is right for heads of size 32" in found.evidence
    (found,) = check(IMPORTS + CLASS.replace("q.shape[-1] ** 0.5", "32 ** 0.5")).findings
    assert found.severity == "wrong"


def test_a_switch_for_inference_is_off():
    source = attention("d", "x, start_pos, inference", "pass", "if inference: raise ValueError")
    assert "inference=False" in check(IMPORTS + source).how


def test_a_cache_that_is_on_by_default_is_off_in_the_plain_run():
    source = """
class CausalAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.past = None

    def forward(self, x, use_cache=True):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if use_cache:
            if self.past is not None:
                k, v = torch.cat([self.past[0], k], 1), torch.cat([self.past[1], v], 1)
            self.past = k, v
        rows, keys = q.shape[1], k.shape[1]
        hidden = torch.ones(rows, keys).triu(1 + keys - rows).bool()
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v
"""
    report = check(IMPORTS + source)
    assert report.verdict == "correct", report
    assert "use_cache=False" in report.how
    wrong = check(IMPORTS + source.replace("triu(1 + keys - rows)", "triu(1)"))
    assert wrong.findings[0].id == "cached-mask-misaligned"


def test_positions_that_an_error_shows_to_be_needed_are_given():
    source = attention("d", "x, position_ids=None", "pass", "s = s + 0 * position_ids[:, None, :]")
    report = check(IMPORTS + source)
    assert report.verdict == "correct", report
    assert "positions 0, 1, ... for each sequence for position_ids" in report.how


def test_no_warning_is_given_twice(recwarn):
    """A pass is run again many times; what it warns of was said when it was recorded."""
    source = """
class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return nn.functional.softmax(scores) @ self.v(x)
"""
    assert check(IMPORTS + source).findings[0].id == "softmax-over-batch"
    assert not [one for one in recwarn.list if "diagnosis" in one.filename]


MASKED_HEADS = """
class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, mask):
        mixed = torch.zeros(*x.shape)
        hidden = 1 - mask.unsqueeze(1).expand(len(x), x.shape[1], x.shape[1])
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5 - 1e30 * hidden
        mixed[:] = scores.softmax(-1) @ self.v(x)
        return self.o(mixed)
"""
WITH_FUNCTION = """
def look_back(n):
    return torch.ones(n, n).tril().bool()

class LookingLayer(nn.Module):
    def forward(self, x):
        pass

class Attention(nn.Module):
    def __init__(self, width, look_back):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.look_back = look_back

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        seen = self.look_back(x.shape[1])
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ self.v(x)
"""
WITH_BIAS = """
class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, query, key, value, relative_bias):
        scores = torch.bmm(query, key.mT) / self.width**0.5
        print(relative_bias.size())
        return torch.bmm((scores + relative_bias.permute(2, 0, 1)).softmax(-1), value)
"""
ALONG_AXES = """
class AxisAttention(nn.Module):
    def __init__(self, width, axis):
        super().__init__()
        self.axis = axis
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        if self.axis == "tokens":
            q, k, v = self.q(x), self.k(x), self.v(x)
            return (q @ k.mT / x.shape[-1] ** 0.5).softmax(-1) @ v
        raise ValueError(f"Unknown axis: {self.axis}")
"""
FIXED_WIDTH = """
width, heads = 60, 4

class HeadsAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v = (nn.Linear(width, num_heads * head_size) for _ in range(3))
        self.o = nn.Linear(width, width)

    def forward(self, x):
        parts = (one(x).unflatten(-1, (self.h, -1)) for one in (self.q, self.k, self.v))
        q, k, v = (one.transpose(1, 2) for one in parts)
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))
"""
IN_WINDOWS = """
class WindowAttention(nn.Module):
    def __init__(self, dim, window_size):
        super().__init__()
        assert isinstance(window_size, tuple)
        area = 1
        for side in window_size:
            area *= side
        self.bias = nn.Parameter(torch.zeros(area, area))
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5 + self.bias
        return scores.softmax(-1) @ self.v(x)
"""
TURNED = """
class RotaryAttention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def rope(self, x, theta, positions):
        size = x.shape[-1]
        speeds = theta ** (-torch.arange(0, size, 2) / size)
        cos, sin = (positions[:, None] * speeds).cos(), (positions[:, None] * speeds).sin()
        one, two = x.unflatten(-1, (size // 2, 2)).unbind(-1)
        return torch.stack([one * cos - two * sin, one * sin + two * cos], -1).flatten(-2)

    def forward(self, x, theta, token_positions):
        q, k, v = (one(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
                   for one in (self.q, self.k, self.v))
        q, k = self.rope(q, theta, token_positions), self.rope(k, theta, token_positions)
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))
"""
READER = """
class Attention(nn.Module):
    def __init__(self, enc_hidden_dim, dec_hidden_dim):
        super().__init__()
        self.attn = nn.Linear(2 * enc_hidden_dim + dec_hidden_dim, dec_hidden_dim)
        self.score = nn.Linear(dec_hidden_dim, 1)

    def forward(self, hidden, encoder_outputs):
        memory = encoder_outputs.transpose(0, 1)
        asked = hidden.unsqueeze(1).repeat(1, memory.shape[1], 1)
        scores = self.score(torch.tanh(self.attn(torch.cat([asked, memory], 2))))
        weights = scores.squeeze(2).softmax(1)
        return RETURNED
"""


@pytest.mark.parametrize(
    "source",
    [MASKED_HEADS, WITH_FUNCTION, WITH_BIAS, ALONG_AXES, FIXED_WIDTH, IN_WINDOWS, TURNED,
     READER.replace("RETURNED", "torch.bmm(weights.unsqueeze(1), memory).squeeze(1)")],
)  # fmt: skip
def test_what_a_class_wants_is_found(source):
    report = check(IMPORTS + source)
    assert report.verdict == "correct", report


@pytest.mark.parametrize("returned", ["weights", "weights.unsqueeze(1), scores"])
def test_weights_without_values_are_applied_to_the_memory(returned):
    source = READER.replace("RETURNED", returned)
    report = check(IMPORTS + source)
    assert report.verdict == "correct", report
    assert "they were applied to encoder_outputs here" in report.notes[0]
    assert check(IMPORTS + source.replace("softmax(1)", "softmax(0)")).verdict != "correct"


@pytest.mark.parametrize(
    ("old", "new", "own"),
    [
        ("q.shape[-1] ** 0.5", "torch.sqrt(self.size)", True),
        ("q.shape[-1] ** 0.5", "torch.sqrt(q.size(-1))", True),
        ("self.split(self.q(x))", "torch.cat([one(x) for one in self.size])", True),
        ("q.shape[-1] ** 0.5", "torch.sqrt(self.given)", False),  # perhaps a tensor is passed
    ],
)
def test_a_number_in_the_place_of_a_tensor(old, new, own):
    kept = (
        "self.h = num_heads\n        self.given = scale\n        self.size = d_model // num_heads"
    )
    source = CLASS.replace("num_heads):", "num_heads, scale: int):").replace(old, new)
    report = check(IMPORTS + source.replace("self.h = num_heads", kept))
    assert (report.verdict == "wrong") == own, report
    assert [found.id for found in report.findings] == ["crashes" if own else "cannot-run"]


LOOSE = """\
import FAST
class Attention:
    def __init__(self, width, heads):
        self.heads = heads
        self.W_q, self.W_k, self.W_v = (FAST.ones((width, width)) for _ in range(3))
        self.W_o = FAST.ones((width, width))
        self.params = {"W_q": self.W_q, "W_o": self.W_o}
        self.grads = {"W_q": FAST.zeros((width, width))}
        self.hidden = FAST.triu(FAST.ones((99, 99)), 1) * -1e9

    def split(self, x):
        return x.reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2)

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (self.split(x @ w) for w in (self.params["W_q"], self.W_k, self.W_v))
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 + self.hidden[:n, :n]
        weights = FAST.exp(scores - scores.max())
        weights = weights / weights.sum(-1)[..., None]
        return (weights @ v).swapaxes(1, 2).reshape(x.shape) @ self.W_o
"""


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_tensors_of_an_object_that_is_no_module_are_its_weights(library):
    """A mask among them keeps its values; an array with two names is one; gradients are none."""
    source = LOOSE.replace("FAST", library)
    report = check(source)
    assert (report.verdict, report.form.causal) == ("correct", "yes"), report
    assert "effect" not in " ".join(report.notes)
    assert ids(check(source.replace("self.W_k, self.W_v)", "self.W_k, self.W_k)"))) >= {
        "value-from-keys"
    }
    first = f"self.W_q, self.W_k, self.W_v = ({library}.ones((width, width)) for _ in range(3))"
    assert first in source
    parts = f"self.W = {library}.ones((3, width, width)); self.W_q, self.W_k, self.W_v = self.W"
    assert check(source.replace(first, parts)).verdict == "correct"
    if library == "torch":
        sparse = parts + "; self.table = torch.eye(3).to_sparse()"
        assert check(source.replace(first, sparse)).verdict == "correct"


IN_AN_OBJECT = """\
import torch
from torch import nn
from utils.masking import TriangularCausalMask


class FullAttention(nn.Module):
    def __init__(self, mask_flag=True):
        super().__init__()
        self.mask_flag = mask_flag

    def forward(self, queries, keys, values, attn_mask):
        B, L, H, E = queries.shape
        scores = torch.einsum("blhe,bshe->bhls", queries, keys) / E**0.5
        if self.mask_flag:
            if attn_mask is None:
                attn_mask = TriangularCausalMask(B, L)
            scores.masked_fill_(attn_mask.mask, -torch.inf)
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), values), None


class AttentionLayer(nn.Module):
    def __init__(self, attention, d_model, n_heads):
        super().__init__()
        self.inner_attention, self.h = attention, n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, queries, keys, values, attn_mask):
        heads = (w(x).unflatten(-1, (self.h, -1)) for w, x in
                 ((self.q, queries), (self.k, keys), (self.v, values)))
        out, _ = self.inner_attention(*heads, attn_mask)
        return self.o(out.flatten(2))
"""


def test_a_mask_may_be_a_field_of_an_object():
    both = check_file(IN_AN_OBJECT)
    assert [(one.cls, one.verdict) for one in both] == [
        ("FullAttention", "correct"), ("AttentionLayer", "correct")
    ]  # fmt: skip
    assert [one.form.causal for one in both] == ["yes", "yes"]
    other = IN_AN_OBJECT.replace("import TriangularCausalMask", "import Triangle").replace(
        "= TriangularCausalMask(", "= Triangle("
    )  # which nobody knows
    assert all("a causal mask" in one.how for one in check_file(other))
    for one in check_file(IN_AN_OBJECT.replace(" / E**0.5", "")):
        assert "missing-scale" in ids(one)
    for one in check_file(IN_AN_OBJECT.replace("attn_mask):", "attn_mask=None):")):
        assert (one.verdict, one.form.causal) == ("correct", "yes")


def test_an_optional_argument_whose_truth_is_asked_is_left_out():
    source = CLASS.replace("(self, x):", "(self, x, keys, values=None):", 1).replace(
        "        q, k, v =", "        values = values or keys\n        q, k, v ="
    )
    assert "values" not in check(IMPORTS + source).how


def test_the_scale_of_set_transformers_is_a_question():
    source = CLASS.replace("d_model, num_heads", "dim_Q, dim_K, dim_V, num_heads")
    source = source.replace("(d_model, d_model)", "(dim_Q, dim_V)").replace(
        "q.shape[-1] ** 0.5", "(self.h * q.shape[-1]) ** 0.5"
    )
    report = check(IMPORTS + source)
    assert (report.verdict, report.findings[0].severity) == ("correct", "edge")
    assert "Set Transformer" in report.findings[0].evidence


def test_a_class_with_other_methods_than_forward_is_not_called_wrong():
    (report,) = check_file(IMPORTS + CLASS.replace("def forward(self, x)", "def prefill(self, x)"))
    assert report.verdict == "error"
    assert "it has no forward, only split, prefill" in report.findings[0].says
    called = (
        CLASS.replace("def forward(self, x)", "def prefill(self, x)")
        + """
attend = Attention(8, 2)
out = lambda x: attend(x)
"""
    )
    (report,) = check_file(IMPORTS + called)
    assert (report.verdict, ids(report)) == ("wrong", {"misspelled-forward"})


def test_a_missing_layer_for_each_token_is_left_out():
    (report,) = check_file(
        "from models.common import MLP\n"
        + IMPORTS
        + CLASS.replace("self.h = num_heads", "self.h, self.mlp = num_heads, MLP(d_model, 4)")
        .replace("return self.o(", "return self.mlp(self.o(")
        .replace("flatten(2))", "flatten(2)))")
    )
    assert (report.verdict, ids(report)) == ("correct", set()), report
