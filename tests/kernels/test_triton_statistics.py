"""The Triton statistics against dense float64: on the GPU where there is one, else interpreted."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from clearhead.kernels import triton_statistics  # only where there is Triton
from clearhead.kernels.triton_statistics import log_sum_exp, statistics  # the same

CUDA = torch.cuda.is_available()  # if not, conftest.py has switched the interpreter on

DEVICE = "cuda" if CUDA else "cpu"
EVERYTHING: dict[str, Any] = {"entropy": True, "received": True}
# Triton's interpreter multiplies the bits of bfloat16 numbers, not the numbers.
HALF = torch.bfloat16 if CUDA else torch.float16


def dense(
    q: Tensor,
    k: Tensor,
    dtype: torch.dtype,
    *,
    scale: float,
    cap: float | None = None,
    causal: bool,
    causal_offset: int | None = None,
    window: int | None = None,
    key_valid: Tensor | None = None,
    thumbnail: tuple[int, int],
) -> dict[str, Tensor]:
    """The same statistics from the whole map, in plain torch."""
    n_q, n_k = q.shape[2], k.shape[2]
    rows, cols = thumbnail
    diagonal = n_k - n_q if causal_offset is None else causal_offset
    i = torch.arange(n_q, device=q.device)[:, None]
    j = torch.arange(n_k, device=q.device)[None, :]
    seen = torch.ones(q.shape[0], 1, n_q, n_k, dtype=torch.bool, device=q.device)
    if causal:
        seen = seen & (j <= i + diagonal)
    if window is not None:
        seen = seen & (j > i + diagonal - window)
    if key_valid is not None:
        seen = seen & key_valid[:, None, None, :]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q.to(dtype) @ k.to(dtype).mT * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    logs = (scores - lse[..., None]).masked_fill(~seen, -math.inf)
    p = logs.exp()
    cells = p.new_zeros(*p.shape[:2], rows, cols)
    index = (i * rows // n_q * cols + j * cols // n_k).expand_as(p).flatten(2)
    cells.flatten(2).scatter_add_(2, index, p.flatten(2))
    return {
        "lse": lse,
        "entropy": -(p * logs.masked_fill(~seen, 0)).sum(-1),
        "received": p.sum(-2),
        "thumbnail": cells,
    }


def random(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def assert_as_good_as_plain(
    ours: Tensor, exact: Tensor, plain: Tensor, highest: float = 0.0
) -> None:
    """At most twice the error of plain float32, give or take the last bit of a float32.

    With large scores, also one rounding of the highest score: Triton's interpreter rounds a product
    before it adds, which a GPU does not.
    """
    assert ours.dtype == torch.float32
    assert torch.equal(ours.isinf(), exact.isinf())
    finite = ~exact.isinf()
    error = (ours - exact)[finite].abs().max() if finite.any() else torch.tensor(0.0)
    allowed = (plain - exact)[finite].abs().max() if finite.any() else torch.tensor(0.0)
    last_bit = 2.0**-22 * max(1.0, exact[finite].abs().max().item() if finite.any() else 1.0)
    assert error <= 2 * allowed + last_bit + 2.0**-24 * highest


def some_keys(batch: int, keys: int) -> Tensor:
    """Every third key hidden, and the end of the second sequence."""
    valid = (torch.arange(keys) % 3 != 1).repeat(batch, 1)
    valid[1:, keys - 17 :] = False
    return valid.to(DEVICE)


def case(q: tuple[int, ...], k: tuple[int, ...], thumbnail: tuple[int, int], **more: Any) -> Any:
    return {"q": q, "k": k, "thumbnail": thumbnail, "causal": True, **more}


CASES: dict[str, dict[str, Any]] = {
    "63 tokens": case((1, 2, 63, 64), (1, 2, 63, 64), (8, 8)),
    "111 tokens, grouped": case((2, 2, 111, 16), (2, 1, 111, 16), (16, 9)),
    "600 tokens": case((1, 1, 600, 16), (1, 1, 600, 16), (3, 7)),
    "bidirectional, more cells than tokens": case(
        (1, 1, 70, 32), (1, 1, 37, 32), (80, 50), causal=False
    ),
    "fewer queries than keys": case((1, 2, 37, 32), (1, 1, 211, 32), (3, 5)),
    "aligned to the start": case((1, 1, 37, 32), (1, 1, 211, 32), (3, 5), causal_offset=0),
    "rows that see nothing": case((1, 1, 211, 32), (1, 1, 37, 32), (3, 5)),
    "window": case((1, 1, 300, 64), (1, 1, 300, 64), (5, 3), window=37),
    "window, future seen": case((1, 1, 200, 16), (1, 1, 200, 16), (5, 3), causal=False, window=37),
    "hidden keys": case((2, 1, 150, 16), (2, 1, 150, 16), (2, 2), key_valid=some_keys(2, 150)),
    "hidden keys and window": case(
        (2, 1, 50, 16), (2, 1, 150, 16), (2, 2), window=9, key_valid=some_keys(2, 150)
    ),
    "all keys hidden": case(
        (1, 1, 20, 16),
        (1, 1, 70, 16),
        (2, 2),
        causal=False,
        key_valid=torch.zeros(1, 70, dtype=torch.bool, device=DEVICE),
    ),
    "capped": case((1, 2, 150, 16), (1, 1, 150, 16), (5, 3), cap=1.5),
    "capped as in Gemma 2, rows that see nothing": case(
        (2, 1, 150, 32),
        (2, 1, 90, 32),
        (5, 3),
        scale=1.5,
        cap=50.0,
        window=40,
        key_valid=some_keys(2, 90),
    ),
    "one token": case((1, 1, 1, 16), (1, 1, 1, 16), (2, 3)),
    "one query": case((1, 3, 1, 128), (1, 1, 300, 128), (1, 7)),
}
IN_FLOAT32 = ("63 tokens", "hidden keys and window", "capped", "one token")  # others: slow


def runs() -> list[Any]:
    """Every case in half precision, and in float32."""
    found = []
    for name in CASES:
        for dtype, kind in ((HALF, "half"), (torch.float32, "float32")):
            marks = [pytest.mark.slow] if kind == "float32" and name not in IN_FLOAT32 else []
            found.append(pytest.param(CASES[name], dtype, id=f"{name}-{kind}", marks=marks))
    return found


@pytest.mark.parametrize(("case", "dtype"), runs())
def test_equals_the_dense_map(case: dict[str, Any], dtype: torch.dtype) -> None:
    options = {name: value for name, value in case.items() if name not in ("q", "k")}
    options.setdefault("scale", 0.9 * case["q"][3] ** -0.5)
    q, k = random(*case["q"], dtype=dtype), random(*case["k"], dtype=dtype)
    exact = dense(q, k, torch.float64, **options)
    plain = dense(q, k, torch.float32, **options)
    ours = statistics(q, k, **EVERYTHING, **options)
    options.pop("thumbnail")
    ours["lse"] = log_sum_exp(q, k, **options)
    assert ours.keys() == exact.keys()
    highest = exact["lse"].nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    for name in exact:
        assert_as_good_as_plain(ours[name], exact[name], plain[name], highest)


@pytest.mark.parametrize("tiles", [2, 8])
def test_several_tiles_of_queries_make_one_chunk(
    tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long inputs give a program several tiles; short ones would not."""
    monkeypatch.setattr(
        triton_statistics, "_tiling", lambda *_: {"TILES": tiles, "KEYS": 64, "STAGES": 1}
    )
    monkeypatch.setattr(
        triton_statistics, "_log_sum_exp_tiling", lambda *_: {"TILES": 2, "KEYS": 32, "STAGES": 1}
    )
    q, k = random(1, 1, 333, 16), random(1, 1, 333, 16)
    options: dict[str, Any] = {"scale": 0.25, "causal": True, "thumbnail": (2, 3)}
    exact = dense(q, k, torch.float64, **options)
    plain = dense(q, k, torch.float32, **options)
    ours = statistics(q, k, **EVERYTHING, **options)
    for name in ours:
        assert_as_good_as_plain(ours[name], exact[name], plain[name])


def test_takes_a_given_log_sum_exp() -> None:
    """P is exp(s - lse) of the lse given, so one that is log 2 too large halves all weights."""
    q, k = random(1, 2, 63, 16), random(1, 2, 63, 16)
    lse = log_sum_exp(q, k, scale=0.25, causal=True)
    own = statistics(q, k, scale=0.25, causal=True, **EVERYTHING)
    given = statistics(q, k, lse, scale=0.25, causal=True, **EVERYTHING)
    torch.testing.assert_close(given, own)
    halved = statistics(q, k, lse + math.log(2), scale=0.25, causal=True, received=True)
    torch.testing.assert_close(halved["received"], own["received"] / 2)


def test_takes_views_into_packed_projections() -> None:
    """Strides of a fused (batch, tokens, 3, heads, head_dim) projection, and a turned head_dim."""
    packed = random(2, 70, 3, 2, 16)
    q, k = packed[:, :, 0].transpose(1, 2), packed[:, :, 1].transpose(1, 2)
    options: dict[str, Any] = {"scale": 0.25, "causal": True, **EVERYTHING, "thumbnail": (3, 3)}
    expected = statistics(q.contiguous(), k.contiguous(), **options)
    torch.testing.assert_close(statistics(q, k, **options), expected)
    turned = k.transpose(2, 3).contiguous().transpose(2, 3)
    torch.testing.assert_close(statistics(q, turned, **options), expected)


def test_huge_scores_stay_finite() -> None:
    """Scores of +-1e4: each row is one key, its entropy 0, and nothing overflows."""
    q, k = random(1, 1, 70, 16, dtype=torch.float32) * 1e4, random(1, 1, 70, 16).float()
    seen = statistics(q, k, scale=0.25, causal=True, thumbnail=(1, 1), **EVERYTHING)
    assert all(tensor.isfinite().all() for tensor in seen.values())
    torch.testing.assert_close(seen["thumbnail"].sum().item(), 70.0, rtol=1e-3, atol=0)


def test_returns_what_is_asked() -> None:
    q, k = random(1, 1, 5, 16), random(1, 1, 5, 16)
    assert statistics(q, k, scale=1.0, causal=True) == {}
    assert statistics(q, k, scale=1.0, causal=True, entropy=True).keys() == {"entropy"}
    assert statistics(q, k, scale=1.0, causal=True, thumbnail=(1, 1)).keys() == {"thumbnail"}


def test_nothing_to_attend_to() -> None:
    q, k = random(1, 2, 5, 16), random(1, 2, 0, 16)
    assert log_sum_exp(q, k, scale=1.0, causal=False).eq(-math.inf).all()
    seen = statistics(q, k, scale=1.0, causal=False, thumbnail=(2, 2), **EVERYTHING)
    assert seen["entropy"].shape == (1, 2, 5)
    assert seen["received"].shape == (1, 2, 0)
    assert not seen["entropy"].any()
    assert not seen["thumbnail"].any()
