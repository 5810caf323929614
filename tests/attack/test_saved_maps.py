"""Files for `Seen.load` that somebody has changed: refused by a ValueError, or usable."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from clearhead import MultiHeadAttention, watch
from clearhead.watcher import Seen

PARTS = ("bias", "lse", "sink", "values", "gradient", "output")
VALUES = [None, 0, -1, 2**70, 1.5, float("inf"), True, "", "x", "1", [], [1], [[1]], {}, {"a": 1},
          "['a']", "NaN", [0, 1], [5, 9], ["a", "b"], "\x00", "<img>"]  # fmt: skip
MASKS = ["'x'", "()", "(1,)", "('band',)", "('band',-5,-5,'end')", "('band',None,None,'end')",
         "('band',True,0,'end')", "('band','a',0,'end')", "('band',9**99,0,'end')",
         f"('band',{9**99},0,'end')", "('band',1.5,0,'end')", "('band',0,0,'middle')",
         "('band',0,0,['end'])", "('padding',0,'right')", "('padding',9,'right')",
         "('padding',-1,'up')", "('padding',0,['right'])", "('custom',0)", "('custom',99)",
         "('both',1,2)", "('both',('custom',0),('band',0,0,'end'))", "b'x'", "1+2j", "...", "{}",
         "(" * 5000, "-" * 50_000 + "1", "(" * 90 + ")" * 90, "9" * 5000, "x" * 10**6,
         "__import__('os').system('x')", "'a'*10**9", "[" * 10**5]  # fmt: skip
SHAPES = [(0,), (1,), (2, 6), (1, 2, 6), (1, 2, 6, 4, 1), (1, 2, 0, 4), (0, 2, 6, 4),
          (1, 3, 6, 4), (2, 2, 6, 4), (1, 2, 7, 4), (1, 2, 6, 6), (1, 2, 6)]  # fmt: skip
DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64,
          torch.float8_e4m3fn, torch.uint8]  # fmt: skip
ABOUT = ["", "null", "[]", "1", "{", "[" * 10**5, '{"calls":' * 10**5, "\x00", "NaN",
         '{"schema":1}', '{"schema":1,"model":null,"calls":[null]}',
         '{"schema":1,"model":"m","calls":"abc"}', '{"schema":1,"model":"m","calls":{"a":1}}',
         '{"schema":{},"model":"m","calls":[]}', '{"schema":99}']  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[dict[str, Any], dict[str, Tensor]]:
    module = MultiHeadAttention(8, 8, 16, 0.0, num_heads=2).eval()
    with watch(module) as seen:
        module(torch.rand(1, 6, 8))
    path = tmp_path_factory.mktemp("saved") / "a.safetensors"
    seen.save(path)
    with safetensors.safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in ("0", "1")}
        return json.loads(file.metadata()["clearhead.seen"]), tensors


def nested(levels: int) -> str:
    text = "('band',None,0,'end')"
    for _ in range(levels):
        text = f"('both',{text},('band',None,0,'end'))"
    return text


def attacks(
    about: dict[str, Any], tensors: dict[str, Tensor]
) -> Iterator[tuple[object, object, dict[str, Tensor]]]:
    """A name, what the file says, and its tensors."""

    def changed(**parts: object) -> dict[str, Any]:
        return about | {"calls": [about["calls"][0] | parts]}

    for value in VALUES:
        for key in about:
            yield (key, value), about | {key: value}, tensors
        for key in (*about["calls"][0], *PARTS):
            yield (key, value), changed(**{key: value}), tensors
    for key in about["calls"][0]:
        less = copy.deepcopy(about)
        del less["calls"][0][key]
        yield (key, "missing"), less, tensors
    masks = {
        "2": torch.ones(1, 1, 6, 6, dtype=torch.bool),
        "3": torch.ones(1, 6, dtype=torch.bool),
        "4": torch.tensor([6]),
        "5": torch.zeros(0, dtype=torch.long),
        "6": torch.ones(6, 6, dtype=torch.bool),
        "7": torch.ones(0, 1, 6, 6, dtype=torch.bool),
        "8": torch.tensor([-3]),
        "9": torch.ones(3, 1, 6, 6, dtype=torch.bool),
        "10": torch.ones(1, 7, 1, 1, dtype=torch.bool),
        "11": torch.tensor([2**60]),
    }
    for mask in (*MASKS, *map(nested, (3, 90, 101, 300, 5000))):
        for used in ([], [2], [0], [3]):
            yield (mask[:30], used), changed(mask=mask, mask_tensors=used), tensors | masks
    for mask in ("('padding',0,'right')", "('padding',0,'left')", "('custom',0)"):
        for used in masks:
            yield (mask, used), changed(mask=mask, mask_tensors=[int(used)]), tensors | masks
    for key in tensors:
        for dtype in DTYPES:
            yield (key, dtype), about, tensors | {key: tensors[key].to(dtype)}
        for shape in SHAPES:
            yield (key, shape), about, tensors | {key: torch.rand(shape)}
        for value in (float("nan"), float("inf"), -float("inf"), 1e38):
            yield (key, value), about, tensors | {key: torch.full_like(tensors[key], value)}
    for part in PARTS:
        for shape in SHAPES:
            yield (part, shape), changed(**{part: 2}), tensors | {"2": torch.rand(shape)}
    for text in ABOUT:
        yield text[:20], text, tensors


def use(seen: Seen) -> None:
    repr(seen)
    if not seen.layers:
        return
    for layer in seen.layers:
        repr(seen[layer])
        seen[layer].dense()
        seen[layer].entropy()
    seen.heads()


def test_a_changed_file_is_refused_or_usable(saved, tmp_path):
    path, found, count = tmp_path / "a.safetensors", {"refused": 0, "usable": 0}, 0
    for _, about, tensors in attacks(*saved):
        save_file(
            tensors,
            path,
            {"clearhead.seen": about if isinstance(about, str) else json.dumps(about)},
        )
        count += 1
        try:
            seen = Seen.load(path)
        except ValueError as error:
            found["refused"] += str(path) in str(error)
        else:
            use(seen)
            found["usable"] += 1
    assert found["refused"] + found["usable"] == count == 743
    assert found["refused"] > 500


@pytest.mark.parametrize(
    "path", ["/dev/zero.safetensors", "folder.safetensors", "pipe.safetensors"]
)
def test_what_is_no_file_is_not_read(path, tmp_path, monkeypatch):
    import os

    monkeypatch.chdir(tmp_path)
    Path("folder.safetensors").mkdir()
    os.mkfifo("pipe.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        Seen.load(path)
