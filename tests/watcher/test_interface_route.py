"""Hugging Face models: every implementation is seen through AttentionInterface, and restored."""

import copy
import threading

import pytest
import torch
import transformers
from torch import nn
from torch.overrides import TorchFunctionMode, has_torch_function
from torch.testing import assert_close
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from clearhead import watch
from clearhead.watcher import CannotShow
from clearhead.watcher.model_routes import Routes

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2]])
REAL = torch.tensor([[1] * 7 + [0] * 4, [1] * 11])
SIZES = {
    "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 23,
}  # fmt: skip


def build(how, cls=transformers.LlamaForCausalLM, config=None):
    config = copy.deepcopy(config or transformers.LlamaConfig(**SIZES))
    config._attn_implementation = how
    torch.manual_seed(1)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def flash(module, query, key, value, attention_mask, scaling=None, **options):
    """A function with flash attention's signature and masks, written out."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    tokens, keys = query.shape[2], key.shape[2]
    ahead = torch.arange(keys) - torch.arange(tokens)[:, None] - (keys - tokens)
    visible = ahead <= 0
    if (window := options.get("sliding_window")) is not None:
        visible = visible & (ahead > -window)
    if attention_mask is not None:
        visible = visible & attention_mask.bool()[:, None, None]
    scores = (query @ key.mT * scaling).masked_fill(~visible, -torch.inf)
    seen_by_flash.append(scores.softmax(-1).nan_to_num(0.0))
    return (seen_by_flash[-1] @ value).transpose(1, 2).contiguous(), None


seen_by_flash = []


@pytest.fixture(autouse=True)
def nothing_left_wrapped():
    entries = {name: ALL_ATTENTION_FUNCTIONS[name] for name in ("sdpa", "flex_attention")}
    method = AttentionInterface.get_interface
    yield
    assert AttentionInterface.get_interface is method
    assert {name: ALL_ATTENTION_FUNCTIONS[name] for name in entries} == entries
    assert not has_torch_function((torch.empty(0),))


@pytest.fixture
def registered_flash():
    """Registered with the masks of flash attention, as kernels from the hub are."""
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register("my-kernel", flash)
    AttentionMaskInterface.register("my-kernel", flash_attention_mask)
    yield "my-kernel"
    AttentionInterface._global_mapping.pop("my-kernel")
    AttentionMaskInterface._global_mapping.pop("my-kernel")
    seen_by_flash.clear()


def check_implementation(how, mask):
    with torch.no_grad():
        told = build("eager")(IDS, attention_mask=mask, output_attentions=True).attentions
        model = build(how)
        plain = model(IDS, attention_mask=mask).logits
        with watch(model) as seen:
            watched = model(IDS, attention_mask=mask).logits
    assert torch.equal(plain, watched)
    for i, weights in enumerate(told):
        assert_close(seen[i].dense(), weights, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # that it is slow without the compiler
@pytest.mark.parametrize("mask", [None, REAL], ids=["whole", "padded"])
@pytest.mark.parametrize("how", ["eager", "sdpa", "flex_attention"])
def test_every_implementation(uncompiled_flex, how, mask):
    check_implementation(how, mask)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
def test_flex_attention_as_it_is_compiled():
    torch.compiler.reset()  # otherwise it is compiled for lengths of other tests as well
    check_implementation("flex_attention", REAL)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("mask", [None, REAL], ids=["whole", "padded"])
def test_flash_kernels(registered_flash, mask, window):
    config = transformers.MistralConfig(**SIZES, sliding_window=window)
    model = build(registered_flash, transformers.MistralForCausalLM, config)
    with torch.no_grad(), watch(model) as seen:
        model(IDS, attention_mask=mask)
    assert len(seen_by_flash) == 2
    for i, weights in enumerate(seen_by_flash):
        assert_close(seen[i].dense(), weights, rtol=0, atol=1e-6)


def test_packed_sequences_of_flash(registered_flash):
    model = build(registered_flash)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad(), watch(model) as seen:
        model(IDS[:1], position_ids=positions)
    document = (positions[0] == 0).cumsum(0)
    visible = (document[:, None] == document) & torch.ones(11, 11).tril().bool()
    assert torch.equal(seen[0].dense()[0, 0] > 0, visible)


@pytest.mark.parametrize("is_whole", [True, False])
def test_packed_sequences_by_their_limits(registered_flash, is_whole):
    """transformers packs only where all four arguments are given."""
    model = build(registered_flash)
    limits = torch.tensor([0, 4, 7, 11], dtype=torch.int32)
    packing = {"cu_seq_lens_q": limits, "cu_seq_lens_k": limits, "max_length_q": 4}
    if is_whole:
        packing["max_length_k"] = 4
    with torch.no_grad(), watch(model) as seen:
        model(IDS[:1], **packing)
    document = torch.tensor([0] * 4 + [1] * 3 + [2] * 4)
    visible = torch.ones(11, 11).tril().bool()
    if is_whole:
        visible &= document[:, None] == document
    assert torch.equal(seen[1].dense()[0, 3] > 0, visible)


def test_no_mode_is_entered():
    class Counting(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    routes = Routes.of(build("sdpa"))
    assert (routes.interface, routes.mode, routes.own) == (True, False, False)
    inside = []
    AttentionInterface.register("asks", lambda *a, **k: inside.append(has_torch_function((a[1],))))
    try:
        model = build("asks")
        with pytest.raises(TypeError), watch(model):
            model(IDS)
    finally:
        AttentionInterface._global_mapping.pop("asks")
    assert inside == [False]


def test_restored_after_an_exception():
    model = build("sdpa")

    def fail():
        model(IDS)
        return 1 / 0

    with pytest.raises(ZeroDivisionError), watch(model), watch(model):
        fail()
    with watch(model) as seen:
        model(IDS)
    assert len(seen.calls) == 2


def test_overlapping_threads():
    """The first to enter is the first to leave; each sees its own calls only."""
    model, found = build("eager"), {}
    entered, left = threading.Event(), threading.Event()

    def first():
        with watch(model) as seen:
            entered.wait(30)
            model(IDS[:, :3])
        found["first"] = [call.map.shape[3] for call in seen.calls]
        left.set()

    def second():
        with watch(model) as seen:
            entered.set()
            assert left.wait(30)
            model(IDS[:, :8])
        found["second"] = [call.map.shape[3] for call in seen.calls]

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"first": [3, 3], "second": [8, 8]}


def test_a_function_registered_inside_the_block_stays():
    model = build("sdpa")
    try:
        with watch(model):
            AttentionInterface.register("mine", flash)
            model(IDS)
        assert ALL_ATTENTION_FUNCTIONS["mine"] is flash
    finally:
        AttentionInterface._global_mapping.pop("mine")


def test_keys_in_a_cache_of_fixed_size_are_copied():
    model = build("sdpa")
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    with torch.no_grad(), watch(model) as seen:
        model(IDS[:1, :6], past_key_values=cache)
        model(IDS[:1, 6:7], past_key_values=cache)
        told = build("eager")(IDS[:1, :7], output_attentions=True).attentions
    assert_close(seen[1, 0].dense(), told[1][:, :, :6, :6], rtol=0, atol=1e-6)
    assert_close(seen[1, 1].dense()[..., :7], told[1][:, :, 6:7], rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_mask_function_that_is_too_large(uncompiled_flex, monkeypatch):
    monkeypatch.setattr("clearhead.watcher.snapshots._MOST_FLEX_CELLS", 10)
    model = build("flex_attention")
    with torch.no_grad(), watch(model) as seen:
        model(IDS, attention_mask=REAL)
    with pytest.raises(CannotShow, match="11 × 11 cells are too many"):
        seen[0]


def test_a_model_inside_a_wrapper_of_ones_own():
    """The mode is entered too, and each call is seen once."""

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("sdpa")

        def forward(self, ids):
            return self.inner(ids).logits

    model = Wrapper()
    with torch.no_grad(), watch(model) as seen:
        model(IDS)
    assert seen.layers == [f"inner.model.layers.{i}.self_attn" for i in range(2)]
    assert len(seen.calls) == 2
