"""Models that use a correct attention class wrongly, run as their files run them."""

import pytest
from in_process_check import check_file
from planted_mistakes import HEAD, edited

from clearhead.checker.report import Report

_ATTENTION = (
    HEAD
    + """\
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, real=None, past=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = k, v
        n, seen = x.shape[1], k.shape[2]
        see = torch.ones(n, seen, dtype=torch.bool).tril(seen - n)
        if real is not None:
            see = see & real[:, None, None] | torch.eye(n, dtype=torch.bool)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see)
        return self.out(y.transpose(1, 2).flatten(2))


"""
)
GENERATOR = (
    _ATTENTION
    + """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(30, 24), nn.Embedding(20, 24)
        self.attend, self.head = Attention(24, 4), nn.Linear(24, 30)

    def forward(self, ids, past=None):
        start = past[0].shape[2] if past else 0
        x = self.words(ids) + self.places(torch.arange(start, start + ids.shape[1]))
        return self.head(x + self.attend(x, past=past))


def generate(model, ids, n):
    past, new = [], ids
    for _ in range(n):
        new = model(new, past)[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat((ids, new), 1)
    return ids


if __name__ == "__main__":
    print(generate(Model(), torch.randint(0, 30, (2, 6)), 5))
"""
)
STEPS = (
    _ATTENTION
    + """\
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.see, self.act, self.attend = nn.Linear(5, 24), nn.Linear(3, 24), Attention(24, 4)
        self.masks = {}

    def forward(self, states, actions, mask):
        b, n, _ = states.shape
        x = torch.stack((self.see(states), self.act(actions)), 2).view(b, 2 * n, 24)
        real = mask.bool().repeat_interleave(2, 1)
        return self.attend(x, real)[:, 1::2]


if __name__ == "__main__":
    policy, mask = Policy(), torch.ones(4, 9)
    mask[0, :5] = 0
    policy(torch.randn(4, 9, 5), torch.randn(4, 9, 3), mask)
"""
)
POOLED = (
    _ATTENTION.replace("tril(seen - n)", "bool()")
    + """\
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attention(24, 4)

    def forward(self, x):
        return self.attend(x).mean(1)


if __name__ == "__main__":
    print(Encoder()(torch.randn(8, 5, 24)).shape)
"""
)


def of(source: str) -> Report:
    (report,) = check_file(source, "model.py")
    return report


@pytest.mark.parametrize("source", [GENERATOR, STEPS, POOLED])
def test_a_model_that_uses_it_rightly_is_right(source):
    assert of(source).verdict == "correct"


@pytest.mark.parametrize(
    ("source", "old", "new", "id"),
    [
        (GENERATOR, "past[0].shape[2] if past else 0", "0", "cache-differs"),
        (STEPS, "repeat_interleave(2, 1)", "repeat(1, 2)", "padding-not-hidden"),
        (
            STEPS,
            "mask.bool().repeat_interleave(2, 1)",
            "self.masks.setdefault(n, mask.bool().repeat_interleave(2, 1))",
            "depends-on-earlier-call",
        ),
        (
            POOLED,
            "self.attend(x)",
            "self.attend(x.transpose(0, 1)).transpose(0, 1)",
            "attends-across-batch",
        ),
    ],
)
def test_a_mistake_of_the_model_is_named_with_its_class(source, old, new, id):
    report = of(edited(source, [(old, new)]))
    assert (report.verdict, report.findings[0].id) == ("wrong", id), report
    line = report.findings[0].line
    assert line is not None
    assert source.splitlines()[line - 1].startswith("class ")
