"""What the public objects look like: short reprs, and displays in notebooks."""

import re

import pytest
import torch

import clearhead
from clearhead import Mask
from clearhead.watcher.head_losses import head_losses
from gpt2_others import TINY

SMALL = {**TINY, "context_length": 16, "d_model": 12}
IDS = torch.tensor([[3, 1, 4, 1, 5]])


@pytest.fixture(scope="module")
def objects() -> dict[str, object]:
    torch.manual_seed(0)
    model = clearhead.GPT2(SMALL).eval()
    attention = model.blocks[0].attention
    with clearhead.watch(model) as seen:
        model(IDS)
    trace = clearhead.trace(attention, torch.rand(1, 5, 12))
    m = seen[0]
    m.normalise()
    return {
        "map": m,
        "seen": seen,
        "trace": trace,
        "step": trace.step("4a"),
        "weights": trace.draw_weights(),
        "vectors": trace.draw_output(),
        "table": seen.heads(IDS),
        "losses": head_losses(model, IDS, heads=dict.fromkeys(seen, 3)),
        "top": m.top(2),
        "heatmap": m.draw(),
        "page": m.page(),
        "mask": Mask.causal() & Mask.padding([5, 3]),
        "watch": clearhead.watch(model),
        "call": seen.calls[0],
        "distance": m.distance(),
        "difference": m.difference(m),
        "summary": m.summary(entropy=True),
        "cache": attention.new_cache(1),
        "rope": clearhead.Rope(),
        "words": clearhead.WordTokenizer.from_text("to be or not to be"),
        "windows": clearhead.SlidingWindowDataset([1, 2, 3, 4, 5], context_length=2, stride=1),
    }


SHORT = {
    "table": "HeadTable(6 heads in 2 layers): print it, or take .rows",
    "heatmap": "Heatmap(5 × 5)",
    "page": "Page('Attention map', 1 layers, 45 visible weights)",
    "mask": "Mask.causal() & Mask.padding([5, 3])",
    "watch": "Watch(GPT2, not entered): a `with` block",
    "distance": "Distance(mean (1, 3, 5), quantiles (1, 3, 3), levels=(0.25, 0.5, 0.75))",
    "cache": "KVCache(0 of 16 tokens, batch=1, kv_heads=3, head_dim=4)",
    "words": "WordTokenizer(7 tokens)",
    "windows": "SlidingWindowDataset(3 windows, context_length=2, stride=1)",
}


def test_reprs_are_short_and_show_no_addresses_or_numbers(objects):
    for name, thing in objects.items():
        text = repr(thing)
        assert " at 0x" not in text, name
        assert "tensor(" not in text, name
        assert name in ("top", "weights", "vectors") or ("\n" not in text and len(text) < 500), name
        assert SHORT.get(name, text) == text


def test_notebooks_show_what_can_be_seen(objects):
    shown = [name for name, thing in objects.items() if hasattr(thing, "_repr_html_")]
    assert shown == [
        *(
            "map",
            "seen",
            "trace",
            "step",
            "weights",
            "vectors",
            "table",
            "losses",
            "top",
            "heatmap",
            "page",
            "mask",
        )
    ]
    for name in shown:
        found = objects[name]._repr_html_()  # type: ignore[attr-defined]
        assert re.match("<(pre|iframe) ", found), name


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (Mask.causal(), "Mask.causal()"),
        (Mask.causal(align="start"), 'Mask.causal(align="start")'),
        (Mask.window(3, ahead=2), "Mask.window(3, ahead=2)"),
        (Mask.causal() & Mask.window(3), "Mask.window(3)"),
        (Mask.padding([5, 3], side="left"), 'Mask.padding([5, 3], side="left")'),
        (Mask.padding(torch.ones(2, 7, dtype=torch.bool)), "Mask.padding(bool (2, 7))"),
        (Mask.padding(torch.ones(9, dtype=torch.int64)), "Mask.padding(lengths (9))"),
        (
            Mask.custom(torch.ones(5, 7, dtype=torch.bool)) | (Mask.causal() & Mask.padding([3])),
            "Mask.custom(batch=1, heads=1, queries=5, keys=7) | "
            "(Mask.causal() & Mask.padding([3]))",
        ),
    ],
)
def test_a_mask_reads_as_it_was_written(mask, text):
    assert repr(mask) == text


def test_a_picture_of_a_mask_is_aligned_and_never_huge():
    lines = str(Mask.custom(torch.eye(12, dtype=torch.bool))).splitlines()
    assert [line.index("■") for line in lines[1:]] == [lines[0].index(f"k{j}") for j in range(12)]
    assert str(Mask.padding([70])) == "Mask.padding([70])"
