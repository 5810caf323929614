"""GPT2: equal to Hugging Face's, forward and gradients; caches, padding, compiling, counting."""

import math

import pytest
import torch
import transformers
from torch import nn

from clearhead import GPT2, GPT2_CONFIGS, FeedForward, Mask, Rope, ShapeError, TransformerBlock
from clearhead.gpt2 import key_names
from gpt2_others import TINY, hugging_face, randomize

# The layers and heads of the four sizes, each head two numbers wide.
SHAPES = {
    name: {**config, "vocab_size": 61, "context_length": 23, "d_model": 2 * config["num_heads"]}
    for name, config in GPT2_CONFIGS.items()
}


def ours_like(other, config):
    """Our model with the weights of Hugging Face's, brought over by the table of names."""
    model = GPT2(config).to(other.dtype).eval()
    state, theirs = {}, other.transformer.state_dict()
    for name in key_names.table("hf", model.state_dict()):
        tensor = theirs[name.theirs]
        tensor = tensor.t() if name.transposed else tensor
        state |= zip(name.ours, tensor.chunk(len(name.ours)), strict=True)
    model.load_state_dict(state)
    return model


def ids_for(config, batch=2, tokens=11):
    return torch.randint(config["vocab_size"], (batch, tokens))


@pytest.fixture
def tiny():
    return randomize(GPT2(TINY)).double().eval()


# Equal to Hugging Face.


SIZES = [
    pytest.param(name, marks=[] if name == "gpt2-small" else pytest.mark.slow) for name in SHAPES
]


@pytest.mark.parametrize("name", SIZES)
def test_logits_equal_hugging_face(name):
    config = SHAPES[name]
    ids = ids_for(config)
    for dtype, bound in [(torch.float64, 1e-10), (torch.float32, 1e-5)]:
        other = hugging_face(config, dtype)
        with torch.no_grad():
            gap = (ours_like(other, config)(ids) - other(ids).logits).abs().max()
        assert gap < bound


@pytest.mark.parametrize("name", SIZES)
def test_gradients_equal_hugging_face(name):
    config = {**SHAPES[name], "dropout": 0.0}
    other = hugging_face(config).train()
    model = ours_like(other, config).train()
    ids = ids_for(config)
    for logits in (model(ids), other(ids).logits):  # its own loss would round to float32
        nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    own = dict(model.named_parameters())
    theirs = dict(other.transformer.named_parameters())
    table = key_names.table("hf", model.state_dict())
    assert len(table) == len(theirs)
    for name in table:
        gradient = torch.cat([own[part].grad for part in name.ours])
        gradient = gradient.t() if name.transposed else gradient
        torch.testing.assert_close(gradient, theirs[name.theirs].grad, rtol=1e-9, atol=1e-12)


def test_padded_batches_equal_hugging_face():
    other = hugging_face()
    model = ours_like(other, TINY)
    ids, lengths = ids_for(TINY, batch=3), torch.tensor([11, 4, 1])
    real = torch.arange(11) >= 11 - lengths[:, None]
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    expected = other(ids, attention_mask=real.long(), position_ids=positions).logits
    torch.testing.assert_close(model(ids, lengths=lengths)[real], expected[real])
    assert torch.equal(model(ids, lengths=lengths.tolist()), model(ids, lengths=lengths))


# Padding and caches.


@pytest.mark.parametrize("rope", [None, Rope()], ids=["learned", "rotary"])
def test_padded_batches_equal_one_by_one(rope):
    model = randomize(GPT2({**TINY, "d_model": 12}, rope=rope)).double().eval()
    ids, lengths = ids_for(TINY, batch=3, tokens=7), torch.tensor([5, 7, 1])
    together = model(ids, lengths=lengths)
    assert together.isfinite().all()
    for row, length in enumerate(lengths):
        alone = model(ids[row : row + 1, -length:])
        torch.testing.assert_close(together[row, -length:], alone[0])


@pytest.mark.parametrize("rope", [None, Rope()], ids=["learned", "rotary"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_cached_equals_uncached(static, padded, rope):
    model = randomize(GPT2({**TINY, "d_model": 12}, rope=rope)).double().eval()
    ids = ids_for(TINY, batch=3, tokens=13)
    first = torch.tensor([5, 3, 1])
    caches = model.new_caches(3, static=static)
    assert len(caches) == TINY["num_layers"]
    pieces, seen = [], 0
    for piece in ids.split([5, 1, 1, 4, 2], dim=1):
        seen += piece.shape[1]
        lengths = first + seen - 5 if padded else None
        pieces.append(model(piece, lengths=lengths, caches=caches))
    real = first + 8 if padded else torch.full((3,), 13)
    expected = model(ids, lengths=real if padded else None)
    for row, length in enumerate(real):
        torch.testing.assert_close(torch.cat(pieces, 1)[row, -length:], expected[row, -length:])


def test_the_last_position_can_be_reached_and_no_further(tiny):
    caches = tiny.new_caches(2, 30)
    tiny(ids_for(TINY, tokens=19), caches=caches)
    with pytest.raises(ValueError, match=r"start \+ tokens \(19 \+ 1\) is more than context_leng"):
        tiny(ids_for(TINY, tokens=1), caches=caches)


def test_changing_a_token_leaves_the_past_alone(tiny):
    ids = ids_for(TINY)
    other = ids.clone()
    other[:, 6] = (ids[:, 6] + 1) % 97
    one, two = tiny(ids), tiny(other)
    assert torch.equal(one[:, :6], two[:, :6])
    assert (one[:, 6:] != two[:, 6:]).any(-1).all()


# Parts.


def test_parts_are_usable_alone():
    block = randomize(TransformerBlock(TINY)).double().eval()
    x = torch.randn(2, 7, 15, dtype=torch.float64)
    middle = x + block.attention(block.norm1(x))
    torch.testing.assert_close(block(x), middle + block.feed_forward(block.norm2(middle)))
    hidden = block(x, mask=Mask.padding([7, 4], side="left"))
    torch.testing.assert_close(hidden[1:, 3:], block(x[1:, 3:]))
    feed = FeedForward(5, 0.0).double()
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    wide = feed.expand(x)
    assert wide.shape == (2, 3, 20)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    torch.testing.assert_close(feed(x), feed.project(0.5 * wide * (1 + inner.tanh())))


def test_head_reads_what_hidden_gives(tiny):
    ids = ids_for(TINY)
    assert torch.equal(tiny(ids), tiny.head(tiny.hidden(ids)))
    torch.testing.assert_close(tiny(ids), tiny.hidden(ids) @ tiny.embedding.token.weight.T)


def test_a_head_of_its_own():
    model = randomize(GPT2(TINY, tied=False)).eval()
    ids = ids_for(TINY)
    torch.testing.assert_close(model(ids), model.hidden(ids) @ model.out_head.weight.T)
    count = sum(p.numel() for p in model.parameters())
    assert count == sum(p.numel() for p in GPT2(TINY).parameters()) + 97 * 15


def test_the_books_keys_build_the_same_model():
    book = {
        "vocab_size": 97,
        "context_length": 19,
        "emb_dim": 15,
        "n_heads": 3,
        "n_layers": 2,
        "drop_rate": 0.0,
        "qkv_bias": True,
    }
    assert GPT2(book).config == TINY


# Size and start.


def test_the_books_own_count():
    """The book's GPT_CONFIG_124M: a head of its own, no query biases."""
    with torch.device("meta"):
        model = GPT2({**GPT2_CONFIGS["gpt2-small"], "qkv_bias": False}, tied=False)
    assert sum(p.numel() for p in model.parameters()) == 163_009_536


def check_start(model):
    layers = model.config["num_layers"]
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            smaller = name.endswith(("out_proj.weight", "project.weight"))
            expected = 0.02 / math.sqrt(2 * layers) if smaller else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.08)
            assert abs(parameter.mean().item()) < expected / 8


WIDE = {**TINY, "d_model": 60, "context_length": 50, "num_layers": 3}


def test_meta_first_and_memory_later():
    """As sharded training does it: build without memory, then make it and fill it."""
    with torch.device("meta"):
        model = GPT2(WIDE)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    model.reset_parameters()
    check_start(model)
    assert model(ids_for(WIDE)).isfinite().all()


# Training.


def test_each_dropout_acts():
    """After the embedding, on the weights, after attention and after feed-forward."""
    ids = ids_for(TINY)
    model = randomize(GPT2(TINY))
    expected = model(ids)
    drops = [name for name, part in model.named_modules() if isinstance(part, nn.Dropout)]
    for name in drops:
        model.get_submodule(name).p = 0.5
        assert not torch.equal(model(ids), expected), name
        model.get_submodule(name).p = 0.0
    assert torch.equal(model(ids), expected)


def gradients(model, ids):
    model.zero_grad()
    nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointing_changes_no_gradient(dropout):
    model = randomize(GPT2({**TINY, "dropout": dropout})).double().train()
    ids = ids_for(TINY)
    torch.manual_seed(1)
    expected = gradients(model, ids)
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model.checkpointing = True
    torch.manual_seed(1)
    torch.testing.assert_close(gradients(model, ids), expected)
    assert len(calls) == 2  # once forward, once more on the way back
    model.eval()(ids)
    assert len(calls) == 3


# Compiling.


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_compiles_to_one_graph(tiny, padded):
    torch.compiler.reset()
    compiled = torch.compile(tiny, fullgraph=True, backend="eager")
    lengths = torch.tensor([11, 6]) if padded else None
    for tokens in (11, 13):
        ids = ids_for(TINY, tokens=tokens)
        expected = tiny(ids, lengths=lengths)
        torch.testing.assert_close(compiled(ids, lengths=lengths), expected)


@pytest.mark.parametrize("checkpointing", [pytest.param(False, marks=pytest.mark.slow), True])
def test_training_compiles_to_one_graph(tiny, checkpointing):
    torch.compiler.reset()
    tiny.train()
    ids = ids_for(TINY)
    expected = gradients(tiny, ids)
    tiny.checkpointing = checkpointing
    compiled = torch.compile(tiny, fullgraph=True, backend="aot_eager")
    found = gradients(compiled, ids)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[f"_orig_mod.{name}"], gradient)


@pytest.mark.parametrize("padded", [False, True])
def test_decoding_with_a_static_cache_is_one_graph(tiny, padded):
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    compiled = torch.compile(tiny, fullgraph=True, backend=counter)
    ids = ids_for(TINY, tokens=9)
    caches = tiny.new_caches(2, static=True)
    first = torch.tensor([4, 2])
    expected = tiny(ids, lengths=first + 5 if padded else None)
    with torch.no_grad():
        tiny(ids[:, :4], lengths=first if padded else None, caches=caches)
        for step in range(4, 9):
            lengths = first + step - 3 if padded else None
            logits = compiled(ids[:, step : step + 1], lengths=lengths, caches=caches)
            torch.testing.assert_close(logits[:, 0], expected[:, step])
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # inductor's own
def test_inductor_compiles_it(tiny):
    torch.compiler.reset()
    tiny.float()
    ids = ids_for(TINY)
    compiled = torch.compile(tiny, fullgraph=True)
    torch.testing.assert_close(compiled(ids), tiny(ids), rtol=1e-4, atol=1e-5)
    expected = gradients(tiny, ids)
    for name, gradient in gradients(compiled, ids).items():
        wanted = expected[name.removeprefix("_orig_mod.")]
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)


# Bad input.


@pytest.mark.parametrize(
    ("ids", "options", "error", "message"),
    [
        (torch.tensor([[1, 97]]), {}, ValueError, r"vocab_size - 1 = 96, got 97.\n.*tokenizer"),
        (torch.tensor([[1, -3]]), {}, ValueError, r"vocab_size - 1 = 96, got -3"),
        (torch.tensor([1, 2]), {}, ShapeError, r"got \(2,\).\n.*unsqueeze\(0\)"),
        (torch.ones(1, 2), {}, ShapeError, "expected token ids of dtype"),
        (torch.zeros(1, 0).long(), {}, ValueError, "at least 1 token, got none.\n  An empty text"),
        (torch.zeros(1, 20).long(), {}, ValueError, r"context_length \(19\) tokens, got 20"),
        (
            torch.zeros(2, 3).long(),
            {"lengths": torch.tensor([3])},
            ShapeError,
            r"lengths: expected integers \(batch=2,\), got torch.int64 \(1,\)",
        ),
        (
            torch.zeros(2, 3).long(),
            {"lengths": torch.tensor([3.0, 1.0])},
            ShapeError,
            r"lengths: .* got torch.float32 \(2,\)",
        ),
        (
            torch.zeros(2, 3).long(),
            {"lengths": torch.tensor([3, 0])},
            ValueError,
            r"lengths: expected 1 to 3 \(the tokens seen so far\), got 0",
        ),
        (
            torch.zeros(2, 3).long(),
            {"lengths": torch.tensor([4, 1])},
            ValueError,
            r"lengths: expected 1 to 3 .* got 4",
        ),
        (torch.zeros(2, 3).long(), {"caches": []}, ValueError, "one for each of the 2 blocks, got"),
    ],
)
def test_wrong_input_explains_itself(tiny, ids, options, error, message):
    with pytest.raises(error, match=message):
        tiny(ids, **options)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_heads": 4}, r"d_out \(15\) must be divisible by num_heads \(4\)"),
        ({"d_model": 1024, "num_heads": 24}, "24 is GPT-2 medium's number of layers; it has 16"),
        ({"num_layers": 0}, "num_layers must be a whole number of at least 1, got 0"),
        ({"vocab_size": 0}, "vocab_size: expected 1 or more, got 0"),
        ({"dropout": 10}, r"expected 0 to 1, got 10.\n  A percentage"),
        ({"n_head": 3}, "'n_head' is not a size of a GPT-2 model. Here it is 'num_heads'"),
        ({"emb_dim": 15}, "'emb_dim' repeats another key"),
    ],
)
def test_wrong_sizes_explain_themselves(changed, message):
    with pytest.raises(ValueError, match=message):
        GPT2({**TINY, **changed})


def test_a_config_must_be_whole():
    with pytest.raises(ValueError, match=r"num_layers, qkv_bias missing; it has vocab_size"):
        GPT2({key: TINY[key] for key in TINY if key not in ("num_layers", "qkv_bias")})
    with pytest.raises(ValueError, match=r"expected a dictionary .* got 'gpt2-small'.\n  By name"):
        GPT2("gpt2-small")


def test_transformers_is_the_witness():
    """So that a change of its defaults is seen here: sdpa is what it runs when not asked."""
    assert hugging_face().config._attn_implementation == "sdpa"
    assert transformers.GPT2Config().activation_function == "gelu_new"
