"""Calls that users of other libraries would write fail with an error that says what to write."""

import inspect
import re

import pytest
import torch
from torch import Tensor, nn

import clearhead
from clearhead import GPT2, Mask, MultiHeadAttention, foreign_names, ladder, watch
from clearhead.gpt2.transformer import Transformer
from clearhead.tokenizers import BytePairTokenizer
from gpt2_others import TINY

IDS = torch.tensor([[3, 1, 4]])


@pytest.fixture
def attention() -> MultiHeadAttention:
    return MultiHeadAttention(8, 8, 16, 0.0, num_heads=2)


@pytest.fixture
def model() -> GPT2:
    return GPT2(TINY)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(1, 5, 8)


# Constructors.


def test_several_foreign_names_have_a_line_each():
    with pytest.raises(TypeError) as error:
        MultiHeadAttention(n_embd=64, n_head=4, block_size=32, dropout=0.1, batch_first=True)  # type: ignore[call-arg]
    assert str(error.value).splitlines() == [
        "MultiHeadAttention: n_embd, n_head, block_size, batch_first are not arguments.",
        "  n_embd=64: here that is d_in=64, d_out=64.",
        "  n_head=4: here that is num_heads=4.",
        "  block_size=32: here that is context_length=32.",
        "  batch_first=True: the batch is always the first axis: leave it out.",
    ]


def test_pytorchs_constructor_by_position():
    with pytest.raises(TypeError, match="context_length, dropout, num_heads missing") as error:
        MultiHeadAttention(768, 12)  # type: ignore[call-arg]
    assert "Got d_in=768, d_out=12." in str(error.value)
    assert "d_in=768, d_out=768, context_length=1024, dropout=0.0, num_heads=12" in str(error.value)


def test_a_misspelled_argument():
    with pytest.raises(
        TypeError, match=r"num_head=2 is not an argument.\n  Did you mean num_heads="
    ):
        MultiHeadAttention(8, 8, 16, 0.0, num_head=2)  # type: ignore[call-arg]


def test_an_argument_that_means_nothing_here_lists_ours():
    with pytest.raises(TypeError, match="The arguments are d_model, dropout"):
        clearhead.FeedForward(8, 0.0, wibble=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("key", "ours"), [("n_embd", "d_model"), ("n_layer", "num_layers")])
def test_a_config_with_foreign_keys(key, ours):
    with pytest.raises(
        ValueError, match=f"{key!r} is not a size of a GPT-2 model. Here it is {ours!r}"
    ):
        GPT2({key: 3})


def test_sizes_as_arguments_of_the_model():
    with pytest.raises(
        TypeError, match=r"GPT2: n_layer=2 is not an argument.\n  Sizes come as one dict"
    ):
        GPT2(n_layer=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ({"bias": False}, r"qkv_bias=False \(out_proj always has a bias\)"),
        ({"attention_bias": True}, r"qkv_bias=True \(out_proj always has a bias\)"),
        ({"out_bias": False}, r"out_proj always has a bias"),
        ({"attn_implementation": "sdpa"}, r'kernel="sdpa"'),
        ({"rope_scaling": {"factor": 8.0}}, r"not scaled.*Rope\(base="),
        ({"rope_theta": 5e5}, r"rope=Rope\(base=500000.0\)"),
    ],
)
def test_options_of_current_models(argument, meant):
    with pytest.raises(TypeError, match=meant):
        MultiHeadAttention(8, 8, 16, 0.0, num_heads=2, **argument)


# Calls.


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ({"theta": 5e5}, "base=500000.0"),
        ({"rope_theta": 5e5}, "base=500000.0"),
        ({"rope_scaling": {"factor": 8.0}}, "not scaled"),
        ({"dim": 64}, "head_dim is read from"),
    ],
)
def test_rotary_positions_under_other_names(argument, meant):
    with pytest.raises(TypeError, match=f"^Rope: (?s:.*){meant}"):
        clearhead.Rope(**argument)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"attn_mask": None}, r"mask=Mask.custom\(may_attend\)"),
        ({"key_padding_mask": IDS.bool()}, r"mask=Mask.padding\(~key_padding_mask\)"),
        ({"is_causal": True}, r"MultiHeadAttention\(..., causal=True\)"),
        ({"need_weights": True}, r"attention.with_map\(x\)"),
        ({"past_key_values": None}, r"attention.new_cache\(batch\)"),
        ({"padding_mask": IDS.bool()}, r"mask=Mask.padding\(real\), with True at real tokens"),
        ({"cache_position": IDS}, "positions count from the cache"),
    ],
)
def test_pytorchs_and_hugging_faces_calls_of_attention(attention, x, arguments, meant):
    with pytest.raises(TypeError, match=meant):
        attention(x, **arguments)


def test_a_new_cache_under_other_names(attention):
    with pytest.raises(TypeError, match=r"batch_size=3 is not.*\n  Here that is batch=3"):
        attention.new_cache(batch_size=3)
    with pytest.raises(TypeError, match=r"batch missing.\n  .*new_cache\(batch=x.shape\[0\]\)"):
        attention.new_cache()


def test_converting_the_wrong_kind_of_module(attention):
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    plain = ladder.MultiHeadAttention(8, 8, 16, 0.0, num_heads=2)
    with pytest.raises(TypeError, match=r"(?s)context_length missing.*context_length=1024"):
        MultiHeadAttention.from_torch(theirs)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"(?s)^from_ladder: expected ladder.*Use .*from_torch"):
        MultiHeadAttention.from_ladder(theirs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"(?s)^from_torch: expected nn.*Use .*from_ladder"):
        MultiHeadAttention.from_torch(plain, 16)  # type: ignore[arg-type]
    for convert in (MultiHeadAttention.from_torch, MultiHeadAttention.from_ladder):
        arguments = [nn.Linear(8, 8), 16][: 2 if convert.__name__ == "from_torch" else 1]
        with pytest.raises(TypeError, match=r"got Linear.\n.*load_state_dict\(module.state_dict"):
            convert(*arguments)


def test_query_key_and_value(attention, x):
    with pytest.raises(TypeError, match=r"expected 2 arguments by position, got 3") as error:
        attention(x, x, x)
    assert "Self-attention is attention(x)" in str(error.value)


def test_what_is_no_tensor(attention, model):
    with pytest.raises(TypeError, match=r"x: expected a tensor, got list"):
        attention([[[0.0] * 8]])
    with pytest.raises(TypeError, match=r"ids: expected a tensor \(batch, tokens\), got str"):
        model("the cat")
    with pytest.raises(TypeError, match=r"Try torch.tensor\(\[ids\]\)"):
        model([3, 1, 4])


def test_a_mask_in_the_place_of_context(attention, x):
    with pytest.raises(
        TypeError, match=r"context: expected vectors, got bool \(5, 5\).\n  A mask?"
    ):
        attention(x, torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize(
    ("mask", "meant"),
    [
        (torch.zeros(5, 5), r"float32 \(5, 5\).*Mask.custom\(mask == 0\)"),
        (torch.ones(1, 5, dtype=torch.int64), r"int64 \(1, 5\).*Mask.padding\(mask.bool\(\)\)"),
        (torch.ones(5, 5, dtype=torch.bool), r"bool \(5, 5\).*True means may attend"),
        ([1, 1, 0], "got list"),
    ],
)
def test_masks_of_other_libraries(attention, x, mask, meant):
    with pytest.raises(TypeError, match=f"(?s)mask: expected a clearhead.Mask.*{meant}"):
        attention(x, mask=mask)


def test_masks_are_built_by_name():
    for arguments in ((), (torch.ones(3, 3),)):
        with pytest.raises(TypeError, match=r"asks are built by name: Mask.causal\(\)"):
            Mask(*arguments)
    with pytest.raises(ValueError, match=r"A size\? A mask has none"):
        Mask.causal(6)  # type: ignore[arg-type]


def test_hugging_faces_call_of_the_model(model):
    with pytest.raises(
        TypeError, match=r"GPT2.forward: input_ids is not.*\n  Here that is ids=input_ids"
    ):
        model(input_ids=IDS)
    with pytest.raises(TypeError, match=r"lengths=attention_mask.sum\(1\)"):
        model(IDS, attention_mask=IDS)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"do_sample": True}, "temperature=1.0, top_k= or top_p= samples"),
        ({"num_beams": 4}, "no beam search"),
        ({"max_length": 9}, "max_new_tokens counts the new tokens only: 9 less"),
        ({"eos_token_id": 2}, "stop=2"),
        ({"num_return_sequences": 3}, r"model.generate\(\[ids\] \* 3"),
    ],
)
def test_hugging_faces_generation(model, arguments, meant):
    for method in (model.generate, model.stream):
        with pytest.raises(TypeError, match=meant):
            method(IDS, **arguments)


def test_watch_is_a_block(model):
    with pytest.raises(TypeError, match="is a block, not a model"):
        watch(model)(IDS)
    with pytest.raises(TypeError, match="The model is called inside the block"):
        watch(model, IDS)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"clearhead.load\('gpt2'\)"):
        watch("gpt2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"That is a class"):
        watch(GPT2)  # type: ignore[arg-type]


# Attributes.


def test_tokenizers_are_not_called():
    tokenizer = clearhead.WordTokenizer.from_text("a b")
    with pytest.raises(TypeError, match=r"tokenizer.encode\(text\)"):
        tokenizer("a b")
    with pytest.raises(TypeError, match="A list is returned"):
        tokenizer.encode("a b", return_tensors="pt")  # type: ignore[call-arg]


def test_foreign_attributes(attention, model):
    with watch(model) as seen:
        model(IDS)
    for owner, name, ours in (
        (attention, "num_attention_heads", "num_heads"),
        (model, "lm_head", r"head\(hidden\)"),
        (seen, "attentions", r"list\(seen.values\(\)\)"),
        (seen[0], "numpy", r"m.dense\(\)"),
    ):
        with pytest.raises(
            AttributeError, match=f"no attribute {name!r}.\n  Here that is .*{ours}"
        ):
            getattr(owner, name)
        assert not hasattr(owner, "wibble")


# The tables themselves.

CALLABLES = {
    "MultiHeadAttention": MultiHeadAttention,
    "MultiHeadAttention.forward": MultiHeadAttention.forward,
    "MultiHeadAttention.with_map": MultiHeadAttention.with_map,
    "MultiHeadAttention.new_cache": MultiHeadAttention.new_cache,
    "MultiHeadAttention.from_torch": MultiHeadAttention.from_torch,
    "Transformer": Transformer,
    "Transformer.forward": Transformer.forward,
    "GPT2.generate": GPT2.generate,
    "GPT2.stream": GPT2.stream,
    "GPT2.from_pretrained": GPT2.from_pretrained,
    "BytePairTokenizer.encode": BytePairTokenizer.encode,
    "BytePairTokenizer.decode": BytePairTokenizer.decode,
    "WordTokenizer.encode": clearhead.WordTokenizer.encode,
    "WordTokenizer.decode": clearhead.WordTokenizer.decode,
    **{
        name: getattr(clearhead, name)
        for name in (
            *(
                "load",
                "watch",
                "view",
                "ablate",
                "knockout",
                "AttentionMap",
                "Embedding",
                "SlidingWindowDataset",
                "KVCache",
            ),
            *("FeedForward", "TransformerBlock", "trace", "export", "Mask", "Rope"),
        )
    },
}


def test_every_table_belongs_to_a_function_that_uses_it():
    counted = {name for name, _ in foreign_names.CALLS}
    assert {*foreign_names.HERE, *foreign_names.ABSENT, *counted} <= CALLABLES.keys()
    for name, function in CALLABLES.items():
        inner = function.__init__ if inspect.isclass(function) else function
        assert hasattr(inner, "__wrapped__"), f"{name} lacks @explained"


@pytest.mark.parametrize("name", CALLABLES)
def test_what_is_named_exists_and_what_is_explained_does_not(name):
    own = inspect.signature(CALLABLES[name]).parameters
    here, absent = foreign_names.HERE.get(name, {}), foreign_names.ABSENT.get(name, {})
    foreign = " ".join([*here.values(), *absent.values()]).split()
    assert len(foreign) == len({*foreign})
    assert not {*foreign} & own.keys()
    for text in here:
        first = re.match(r"(\w+)=", text)
        assert first, text
        assert first[1] in own, text
        text.format("1")
    for text in absent:
        assert text.format("1").endswith((".", ")", "..."))


def test_errors_inside_a_call_are_not_taken_for_errors_of_the_call(attention, x):
    attention.out_proj.forward = lambda: None  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given"):
        attention(x)
