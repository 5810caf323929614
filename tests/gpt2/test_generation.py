"""Generation: equal to Hugging Face's, and every fast decoder equal to the modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import clearhead
from clearhead.gpt2 import GPT2, cuda_decoding, decoding
from clearhead.gpt2.sampling import Sampling
from gpt2_others import TINY

CONFIG: dict[str, Any] = {
    **TINY,
    "vocab_size": 101,
    "context_length": 48,
    "d_model": 33,
    "num_layers": 3,
    "dropout": 0.3,
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # for our kernels
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 53, 58], [97]]


def randomize(model: GPT2) -> GPT2:
    """Give every parameter random values, large enough that the text varies."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        mean = 1.0 if "norm" in name and "weight" in name else 0.0
        nn.init.normal_(parameter, mean, 0.3 if parameter.ndim == 2 else 0.05)
    return model


def build(dtype: torch.dtype = torch.float64, *, packed: bool = False, **changes: Any) -> GPT2:
    return randomize(GPT2({**CONFIG, **changes}, packed=packed).to(dtype))


@pytest.fixture(scope="module")
def model() -> GPT2:
    return build()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    build().save_pretrained(folder)
    return transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64).eval()


def left_padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    rows = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    real = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(rows), torch.tensor(real)


# Equal to Hugging Face.


@pytest.mark.parametrize("cache", [True, False])
def test_greedy_equals_hugging_face(model: GPT2, theirs: Any, cache: bool) -> None:
    ids = torch.tensor([PROMPTS[1]])
    expected = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=23, do_sample=False, pad_token_id=0
    )
    found = model.generate(ids, 23, cache=cache)
    assert len(found[0, 7:].unique()) > 5  # a repetitive text would prove little
    assert torch.equal(found, expected)


def test_a_padded_batch_equals_hugging_face_and_one_by_one(model: GPT2, theirs: Any) -> None:
    ids, real = left_padded(PROMPTS)
    expected = theirs.generate(
        ids, attention_mask=real, max_new_tokens=17, do_sample=False, pad_token_id=0
    )[:, ids.shape[1] :]
    found = model.generate(PROMPTS, 17)
    assert [row[-17:] for row in found] == expected.tolist()
    assert found == [model.generate(prompt, 17) for prompt in PROMPTS]
    assert found == model.generate(PROMPTS, 17, cache=False)


@pytest.mark.parametrize("settings", [{"top_k": 7}, {"top_p": 0.6}, {"top_k": 20, "top_p": 0.8}])
def test_probabilities_equal_hugging_face(settings: dict[str, Any]) -> None:
    logits = torch.randn(1, 53, dtype=torch.float64) * 2
    warped = logits / 0.7
    if "top_k" in settings:
        warped = transformers.TopKLogitsWarper(settings["top_k"])(None, warped)
    if "top_p" in settings:
        warped = transformers.TopPLogitsWarper(settings["top_p"])(None, warped)
    sampling = Sampling.read(0.7, settings.get("top_k"), settings.get("top_p"), 0)
    draws = (torch.arange(20_000) + 0.5) / 20_000  # every part of [0, 1)
    picked = sampling.pick(logits.expand(20_000, -1), draws)
    found = torch.bincount(picked, minlength=53).double() / 20_000
    torch.testing.assert_close(found, warped.softmax(-1)[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-24])
def test_no_draw_takes_an_impossible_token(draw: float) -> None:
    """0 must not select a probability of 0, and a draw near 1 must not round up to the total."""
    logits = torch.full((1, 1000), -torch.inf)
    logits[0, 100:700] = torch.randn(600)
    for sampling in (Sampling(1.0), Sampling(1.0, top_p=0.5), Sampling(1.0, top_k=900)):
        assert 100 <= sampling.pick(logits, torch.tensor([draw])).item() < 700


# The settings.


@pytest.mark.parametrize(
    "settings", [{"temperature": 1.3}, {"top_k": 5}, {"temperature": 0.8, "top_p": 0.9}]
)
def test_a_seed_fixes_the_text_and_leaves_the_global_state_alone(
    model: GPT2, settings: dict[str, Any]
) -> None:
    state = torch.get_rng_state()
    first = model.generate(PROMPTS, 12, seed=3, **settings)
    assert first == model.generate(PROMPTS, 12, seed=3, **settings)
    assert first == model.generate(PROMPTS, 12, seed=3, cache=False, **settings)
    assert first != model.generate(PROMPTS, 12, seed=4, **settings)
    assert torch.equal(state, torch.get_rng_state())


def test_without_a_seed_torch_decides(model: GPT2) -> None:
    texts = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        texts.append([model.generate(PROMPTS, 12, top_k=5) for _ in range(2)])
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    assert texts[0][0] != texts[0][1]


def test_a_row_ends_with_its_stop_token(model: GPT2) -> None:
    whole = model.generate(PROMPTS, 20)
    stop = whole[0][len(PROMPTS[0]) + 4]
    found = model.generate(PROMPTS, 20, stop=[stop, 7])
    for row, full, prompt in zip(found, whole, PROMPTS, strict=True):
        new = full[len(prompt) :]
        length = min((new.index(s) + 1 for s in (stop, 7) if s in new), default=20)
        assert row == full[: len(prompt) + length]
    assert len({len(row) - len(p) for row, p in zip(found, PROMPTS, strict=True)}) > 1
    ids = torch.tensor([[3, 1, 4], [9, 2, 6]])
    table = model.generate(ids, 20, stop=stop)
    ended = table[0].tolist().index(stop, 3)
    assert (table[0, ended:] == stop).all()


def test_the_result_has_the_type_of_the_prompt(model: GPT2) -> None:
    flat = model.generate([3, 1, 4], 5)
    assert isinstance(flat[0], int)
    assert model.generate([[3, 1, 4]], 5) == [flat]
    assert model.generate(torch.tensor([3, 1, 4]), 5).tolist() == flat
    small = model.generate(torch.tensor([[3, 1, 4]], dtype=torch.int32), 5)
    assert small.dtype == torch.int32
    assert small.tolist() == [flat]
    assert len(model.generate([3, 1, 4])) == 48  # fills the context


def test_sliding_goes_on_with_the_last_tokens(model: GPT2) -> None:
    expected = list(PROMPTS[1])
    model.eval()
    with torch.no_grad():
        for _ in range(50):
            expected.append(int(model(torch.tensor([expected[-48:]]))[0, -1].argmax()))
    assert model.generate(PROMPTS[1], 50, sliding=True) == expected
    long = expected[:52]
    assert model.generate(long, 5, sliding=True) == expected[:57]
    rows = model.generate([PROMPTS[1], PROMPTS[0]], 50, sliding=True)
    assert rows[1][: 48 - 4] == model.generate(PROMPTS[0], 48 - 7)[: 48 - 4]
    model.train()


def test_stream_gives_the_tokens_of_generate(model: GPT2) -> None:
    assert list(model.stream(PROMPTS[0], 9)) == model.generate(PROMPTS[0], 9)[3:]
    stop = model.generate(PROMPTS[0], 9)[7]
    rows: list[list[int]] = [[], [], []]
    for tokens in model.stream(PROMPTS, 9, stop=stop):
        for row, token in zip(rows, tokens, strict=True):
            row += [] if token is None else [token]
    expected = model.generate(PROMPTS, 9, stop=stop)
    assert rows == [row[len(p) :] for row, p in zip(expected, PROMPTS, strict=True)]


def test_a_stream_leaves_the_modes_alone_between_tokens() -> None:
    """Gradients can be computed, and the model stays in training mode."""
    model = build()
    for _ in zip(model.stream(PROMPTS[0], 9), range(3), strict=False):
        assert model.training
        assert not torch.is_inference_mode_enabled()
        model(torch.tensor([PROMPTS[0]])).sum().backward()
    assert model.norm.weight.grad is not None


# Bad input.


@pytest.mark.parametrize(
    ("ids", "settings", "message"),
    [
        ([[1], []], {}, "prompt 1 is empty"),
        ([[3], [-1]], {}, "got -1.\n  Does the tokenizer belong to this model"),
        ("text", {}, r"got text.\n  Encode it first"),
        ([1.5], {}, "expected integers"),
        ([[1], 2], {}, "expected integers, or a list of lists"),
        (5, {}, "a list of ids, a list of such lists or a tensor, got int"),
        (
            torch.rand(1, 3),
            {},
            r"integers \(tokens,\) or \(batch, tokens\), got torch.float32",
        ),
        (torch.ones(1, 1, 1, dtype=torch.long), {}, r"got torch.int64 \(1, 1, 1\)"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens: expected 1 or more, got 0"),
        ([1], {"max_new_tokens": 2.5}, "max_new_tokens: expected an integer, got 2.5"),
        (
            [1] * 40,
            {"max_new_tokens": 9},
            "has 40 tokens plus 9 new ones, but the context holds 48",
        ),
        ([1] * 48, {"max_new_tokens": None}, "48 tokens, but the context holds 48"),
        ([1], {"max_new_tokens": None, "sliding": True}, "does not end on its own"),
        ([1], {"temperature": 0}, r"positive number, got 0.\n  For the most likely token"),
        ([1], {"temperature": float("nan")}, "temperature: expected a positive number, got nan"),
        ([1], {"top_k": 0}, "top_k: expected an integer of at least 1, got 0"),
        ([1], {"top_p": 0.0}, "top_p: expected a probability above 0 and up to 1, got 0.0"),
        ([1], {"top_p": 90}, r"got 90.\n  A percentage\? 90 % is 0.9"),
        ([1], {"seed": 3}, "seed=3 has no effect"),
        ([1], {"seed": 1.5, "top_k": 3}, "seed: expected an integer, got 1.5"),
        ([1], {"seed": 2**64, "top_k": 3}, "seed: expected a 64-bit number"),
        ([1], {"stop": 101}, r"stop: expected 0 to vocab_size - 1 = 100, got 101"),
    ],
)
def test_errors_say_what_to_do(
    model: GPT2, ids: Any, settings: dict[str, Any], message: str
) -> None:
    settings = {"max_new_tokens": 4, **settings}
    with pytest.raises(ValueError, match=message):
        model.generate(ids, **settings)
    with pytest.raises(ValueError, match=message):
        model.stream(ids, **settings)  # immediately, not at the first token


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}])
@pytest.mark.parametrize("cache", [True, False])
def test_logits_that_are_not_numbers_are_refused(settings: dict[str, Any], cache: bool) -> None:
    model = build()
    with torch.no_grad():
        model.embedding.position.weight[6] = torch.nan  # type: ignore[union-attr]  # it is there
    with pytest.raises(ValueError, match=r"NaN or infinity at new token 5"):
        model.generate(PROMPTS[0], 9, cache=cache, **settings)


# Every fast decoder equals the modules.


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": False}, {"vocab_size": 103}])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS, PROMPTS * 23], ids=len)
def test_the_sliced_decoder_equals_the_modules(
    changes: dict[str, Any], packed: bool, prompts: list[list[int]]
) -> None:
    model = build(packed=packed, **changes)
    ids, real = left_padded(prompts)
    lengths = None if len(prompts) == 1 else real.sum(1)
    fast, plain = (
        decoding.SlicedDecoder(model, len(ids), 16),
        decoding.ModuleDecoder(model, len(ids), 16),
    )
    torch.testing.assert_close(fast.prefill(ids, lengths), plain.prefill(ids, lengths))
    for token in (5, 50, 95):
        new = (torch.arange(len(ids)) + token) % 101
        torch.testing.assert_close(fast.step(new), plain.step(new))


def test_a_loaded_model_decodes_fast(tmp_path: Path) -> None:
    """GPT-2's files hold transposed matrices; the fast decoders need contiguous weights."""
    build(torch.float32, d_model=48).save_pretrained(tmp_path)
    loaded = GPT2.from_pretrained(tmp_path)
    assert all(parameter.is_contiguous() for parameter in loaded.parameters())
    assert isinstance(decoding.choose(loaded, 1, 8), decoding.SlicedDecoder)
    packed = GPT2.from_pretrained(tmp_path, packed=True)
    assert isinstance(decoding.choose(packed, 1, 8), decoding.SlicedDecoder)
    assert packed.generate([1, 2], 9) == loaded.generate([1, 2], 9)


def _hook(model: GPT2) -> None:
    model.blocks[1].feed_forward.register_forward_hook(lambda *parts: parts[2] * 0.5)


def _replace(model: GPT2) -> None:
    model.blocks[0].feed_forward.expand = nn.Sequential(model.blocks[0].feed_forward.expand)


def _change_forward(model: GPT2) -> None:
    model.blocks[2].forward = lambda x, **_: x  # type: ignore[method-assign]  # on purpose


def _window(model: GPT2) -> None:
    model.blocks[2].attention.window = 3


def _override_head(model: GPT2) -> None:
    model.head = lambda hidden: -GPT2.head(model, hidden)  # type: ignore[method-assign]  # on purpose


@pytest.mark.parametrize("change", [_hook, _replace, _change_forward, _window, _override_head])
def test_a_changed_model_runs_through_its_modules(change: Any) -> None:
    """The fast decoders know GPT-2's arithmetic only; a change must not be ignored."""
    model = build()
    before = model.generate(PROMPTS[1], 15)
    change(model)
    assert isinstance(decoding.choose(model, 1, 8), decoding.ModuleDecoder)
    after = model.generate(PROMPTS[1], 15)
    assert after == model.generate(PROMPTS[1], 15, cache=False)
    assert (after == before) == (change is _replace)


def test_rotary_models_generate() -> None:
    model = randomize(GPT2({**CONFIG, "d_model": 36}, rope=clearhead.Rope()).double())
    found = model.generate(PROMPTS, 15)
    assert found == model.generate(PROMPTS, 15, cache=False)
    assert found == [model.generate(prompt, 15) for prompt in PROMPTS]


def test_watch_sees_generation(model: GPT2) -> None:
    with clearhead.watch(model, layers="blocks.1.attention") as seen:
        found = model.generate(PROMPTS[0], 4)
    assert [tuple(call.map.shape) for call in seen.calls] == [
        (1, 3, 3, 3), (1, 3, 1, 4), (1, 3, 1, 5), (1, 3, 1, 6)
    ]  # fmt: skip
    assert found == model.generate(PROMPTS[0], 4)


@pytest.mark.parametrize(
    ("prompts", "sampled"),
    [
        pytest.param(PROMPTS[:1], False, id="one row, greedy"),
        pytest.param(PROMPTS, True, id="rows, sampled", marks=pytest.mark.slow),
        pytest.param(PROMPTS, False, id="rows, greedy", marks=pytest.mark.slow),
        pytest.param(PROMPTS[:1], True, id="one row, sampled", marks=pytest.mark.slow),
    ],
)
def test_the_kernels_equal_the_modules(prompts: list[list[int]], sampled: bool) -> None:
    """On a GPU if there is one, else in Triton's interpreter."""
    pytest.importorskip("triton")
    sizes = {"d_model": 48, "num_layers": len(prompts) // 2 + 1, "qkv_bias": not sampled}
    model = build(torch.float32, packed=sampled, **sizes).to(DEVICE)
    sampling = Sampling.read(1.0, 9, 0.8, 5) if sampled else Sampling()
    ids, real = (part.to(DEVICE) for part in left_padded(prompts))
    lengths = None if len(prompts) == 1 else real.sum(1)
    width, new = ids.shape[1], 3
    draws = sampling.draws(new, len(ids))
    step = cuda_decoding.Step(model, len(ids), 16, sampling, pdl=False)
    step.start(model, ids, lengths, draws)
    plain = decoding.ModuleDecoder(model, len(ids), 16)
    plain.prefill(ids, lengths)
    for index in range(width, width + new - 1):
        expected = plain.step(step.history[:, index])
        step.launch()
        torch.testing.assert_close(step.logits, expected, rtol=1e-4, atol=1e-5)
    settings = {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "seed": 5} if sampled else {}
    expected_rows = [row[-new:] for row in model.generate(prompts, new, **settings)]
    assert step.history[:, width : width + new].tolist() == expected_rows
    assert not int(step.bad)


@pytest.mark.slow
def test_the_kernels_notice_nan() -> None:
    pytest.importorskip("triton")
    model = build(torch.float32, d_model=48, num_layers=1).to(DEVICE)
    with torch.no_grad():
        model.embedding.token.weight[70, 3] = torch.nan  # affects a logit only
    step = cuda_decoding.Step(model, 1, 16, Sampling(), pdl=False)
    step.launch()
    assert int(step.bad)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("settings", [{}, {"top_k": 5, "seed": 3}])
def test_captured_graphs_equal_the_cpu(settings: dict[str, Any], packed: bool) -> None:
    model = build(torch.float32, d_model=48, packed=packed)
    expected = [model.generate(given, 29, **settings) for given in (PROMPTS, PROMPTS[:1])]
    model.cuda()
    assert cuda_decoding.refusal(model) is None
    for _ in range(2):  # captured, then reused
        found = [model.generate(given, 29, **settings) for given in (PROMPTS, PROMPTS[:1])]
        assert found == expected
    one, other = model.stream(PROMPTS[0], 9, **settings), model.stream(PROMPTS[0], 9, **settings)
    assert [pair[0] == pair[1] for pair in zip(one, other, strict=True)] == [True] * 9
    with torch.no_grad():
        model.blocks[1].norm1.weight.mul_(-2.0)
    changed = model.generate(PROMPTS[:1], 29, **settings)
    assert changed != expected[1]
    assert changed == model.cpu().generate(PROMPTS[:1], 29, **settings)


def test_models_that_the_kernels_do_not_support() -> None:
    assert cuda_decoding.refusal(build()) == "no kernel for torch.float64"
    assert cuda_decoding.refusal(build(torch.float32)) == "no kernel for head_dim 11"
    turned = build(torch.float32, d_model=48)
    linear = turned.blocks[0].attention.out_proj
    linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    assert cuda_decoding.refusal(turned) == "a weight is not contiguous"
    assert turned.generate([1, 2], 9) == build(torch.float32, d_model=48).generate([1, 2], 9)
