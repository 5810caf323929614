"""How a class is built and called, learned from the file itself and from its errors."""

import pytest
import torch

from clearhead.checker.sandbox.submission import Failure, Isolated

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


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("import no_such_module\n", "", "no_such_module"),
        ("from .layers import RMSNorm, helper\n", "", "layers"),
        ("text = open('shakespeare.txt').read()\n", "", "shakespeare.txt"),
        ("", "model = Attention(8, 2)\nprint(model.missing)\n", "missing"),
        ("", "raise SystemExit(1)\n", "SystemExit"),
    ],
)
def test_what_is_missing_at_the_top_is_left_out(before, after, said):
    with Isolated(IMPORTS + before + CLASS + after, "file.py") as session:
        (info,) = session.classes()
        assert info.name == "Attention"
        assert said in " ".join(session.notes)
        assert not isinstance(
            session.build("Attention", [], {"d_model": 6, "num_heads": 2}), Failure
        )


def test_nothing_is_said_of_a_file_that_runs():
    with Isolated(IMPORTS + CLASS, "file.py") as session:
        session.classes()
        assert (session.notes, session.missing) == ((), ())


def test_an_optional_import_is_left_to_its_own_handler():
    optional = "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n"
    check = "assert flash_attn is None\n"
    with Isolated(IMPORTS + optional + check + CLASS, "file.py") as session:
        session.classes()
        assert session.notes == ()


def test_a_broken_class_is_an_error_of_the_file():
    with Isolated(IMPORTS + "class A(nn.Modul):\n    pass\n", "file.py") as session:
        failure = session.classes()
    assert isinstance(failure, Failure) and failure.line == 3


def test_siblings_can_be_imported():
    source = IMPORTS + "from .sizes import WIDTH\nfrom tools.maths import double\n" + CLASS
    source += "class Two(Attention):\n    def forward(self, x): return double(x) + WIDTH\n"
    siblings = {"sizes": "WIDTH = 3\n", "tools.maths": "def double(x): return 2 * x\n"}
    with Isolated(source, "file.py", siblings=siblings) as session:
        session.build("Two", [], {"d_model": 6, "num_heads": 2})
        out = session.forward([torch.ones(1, 2, 6)])
    assert session.notes == () and not isinstance(out, Failure)
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
    with Isolated(source, "file.py") as session:
        built = session.build("Attention", [], {})
        out = session.forward([torch.ones(1, 3)])
    assert not isinstance(built, Failure) and not isinstance(out, Failure)
