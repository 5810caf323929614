"""MultiHeadAttention(packed=True): the same function, one projection, every checkpoint loads."""

import copy

import pytest
import torch
from torch import nn

import clearhead
from clearhead import Mask, MultiHeadAttention, Rope, ladder
from clearhead.parallel import tensor_plan

OPTIONS = {
    "plain": {},
    "bias": {"qkv_bias": True},
    "everything": {"num_kv_heads": 2, "rope": Rope(), "qk_norm": True, "window": 3},
    "not causal": {"causal": False, "qkv_bias": True},
}


def build(packed: bool, *, d_in: int = 10, **options) -> MultiHeadAttention:
    return MultiHeadAttention(d_in, 24, 16, 0.0, num_heads=4, packed=packed, **options).double()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_computes_the_same_with_the_same_gradients(options):
    plain, packed = build(False, **options), build(True, **options)
    packed.load_state_dict(plain.state_dict())
    x = torch.randn(3, 7, 10, dtype=torch.float64, requires_grad=True)
    mask = Mask.padding([7, 5, 2])
    out, other = plain(x, mask=mask), packed(x, mask=mask)
    torch.testing.assert_close(other, out)
    weight = torch.randn_like(out)
    (g,) = torch.autograd.grad((out * weight).sum(), x, retain_graph=True)
    (h,) = torch.autograd.grad((other * weight).sum(), x, retain_graph=True)
    torch.testing.assert_close(h, g)
    (out * weight).sum().backward()
    (other * weight).sum().backward()
    separate = [plain.W_query.weight.grad, plain.W_key.weight.grad, plain.W_value.weight.grad]
    torch.testing.assert_close(packed.qkv.weight.grad, torch.cat(separate))


@pytest.mark.parametrize("packed", [False, True])
def test_one_seed_gives_the_weights_of_the_book(packed):
    torch.manual_seed(3)
    book = ladder.MultiHeadAttention(10, 24, 16, 0.0, num_heads=4, qkv_bias=True)
    after = torch.rand(1)
    torch.manual_seed(3)
    ours = MultiHeadAttention(10, 24, 16, 0.0, num_heads=4, qkv_bias=True, packed=packed)
    assert torch.rand(1) == after
    for name, tensor in book.state_dict().items():
        torch.testing.assert_close(ours.book_state_dict()[name], tensor, rtol=0, atol=0)


def forms(module: MultiHeadAttention) -> dict[str, dict[str, torch.Tensor]]:
    """The same weights under every set of names."""
    state = dict(module.state_dict())
    kinds = [kind for kind in ("weight", "bias") if f"W_query.{kind}" in state]
    together = {
        kind: torch.cat([state.pop(f"W_{part}.{kind}") for part in ("query", "key", "value")])
        for kind in kinds
    }
    book = ladder.MultiHeadAttention(24, 24, 16, 0.0, num_heads=4, qkv_bias="bias" in kinds)
    gpt2 = {f"c_attn.{kind}": tensor.t().clone() for kind, tensor in together.items()}
    gpt2 |= {"c_proj.weight": state["out_proj.weight"].T, "c_proj.bias": state["out_proj.bias"]}
    return {
        "separate": dict(module.state_dict()),
        "book": {**module.state_dict(), "mask": book.mask},
        "qkv": {**state, **{f"qkv.{kind}": tensor for kind, tensor in together.items()}},
        "in_proj": {**state, **{f"in_proj_{kind}": tensor for kind, tensor in together.items()}},
        "c_attn": gpt2,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["separate", "book", "qkv", "in_proj", "c_attn"])
def test_every_form_of_checkpoint_loads_strictly(form, packed, bias, dtype):
    source = build(False, d_in=24, qkv_bias=bias).to(dtype)
    target = build(packed, d_in=24, qkv_bias=bias).to(dtype)
    state = forms(source)[form]
    before = {name: tensor.clone() for name, tensor in state.items()}
    target.load_state_dict(state, strict=True)
    assert state.keys() == before.keys()  # the caller's dictionary is left alone
    x = torch.randn(2, 5, 24).to(dtype)
    torch.testing.assert_close(target(x), source(x))
    assert set(target.state_dict()) == set(dict(target.named_parameters()))


@pytest.mark.parametrize("packed", [False, True])
def test_a_checkpoint_of_other_sizes_is_refused(packed):
    state = build(True, d_in=24).state_dict()
    state["qkv.weight"] = state["qkv.weight"][:-1]
    with pytest.raises(RuntimeError, match=r"qkv\.weight"):
        build(packed, d_in=24).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"qkv\.bias|W_query\.bias"):
        build(packed, qkv_bias=True).load_state_dict(build(not packed).state_dict())


def test_cache_map_and_trace():
    module = build(True, num_kv_heads=2, rope=Rope()).eval()
    x = torch.randn(2, 7, 10, dtype=torch.float64)
    cache = module.new_cache(batch=2)
    with torch.no_grad():
        steps = [module(x[:, i : i + 1], cache=cache) for i in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), module(x))
    output, weights = module.with_map(x)
    torch.testing.assert_close(output, module(x))
    assert weights.queries.untyped_storage().nbytes() == weights.queries.numel() * 8
    trace = clearhead.trace(module, x[:1])
    torch.testing.assert_close(trace["attn_weights"], weights[:1])
    assert trace.gap < 1e-12
    names = {"torch": torch, "module": module, "x": x[:1]}
    exec(trace.steps[0].code, names)
    torch.testing.assert_close(names["keys"], trace["keys"])


def test_what_a_packed_module_cannot_do_says_so():
    packed = build(True, causal=False)
    x = torch.randn(1, 5, 10, dtype=torch.float64)
    with pytest.raises(ValueError, match="packed=False for cross-attention"):
        packed(x, x)
    with pytest.raises(AttributeError, match="W_key: this module was built with packed=True"):
        _ = packed.W_key
    with pytest.raises(ValueError, match="a packed module cannot be split by heads"):
        tensor_plan._check_heads(packed, 2, "")
    with pytest.raises(AttributeError, match="no attribute 'qkv'"):
        _ = build(False).qkv


def test_a_mask_in_the_place_of_context_says_where_it_belongs():
    with pytest.raises(TypeError, match=r"got a Mask.\n  Pass it as mask="):
        build(False)(torch.randn(1, 5, 10, dtype=torch.float64), Mask.causal())


def pytorchs_module(**options) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(24, 4, **{"batch_first": True, **options}).double().eval()
    for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
        if bias is not None:  # zero by default, which would hide a mistake
            nn.init.normal_(bias)
    return theirs


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_pytorchs_module_and_back(packed, bias, causal):
    theirs = pytorchs_module(bias=bias)
    ours = MultiHeadAttention.from_torch(theirs, 16, causal=causal, packed=packed)
    assert not ours.training
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    mask = Mask.causal().to_nn_multihead(num_heads=4, queries=7) if causal else {}
    expected = theirs(x, x, x, need_weights=False, **mask)[0]
    torch.testing.assert_close(ours(x), expected)
    back = ours.to_torch()
    torch.testing.assert_close(back(x, x, x, need_weights=False, **mask)[0], expected)


def test_a_module_that_takes_tokens_first_is_converted_with_a_warning():
    theirs, x = pytorchs_module(batch_first=False), torch.randn(2, 7, 24, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"batch_first=False.*\(batch, tokens, d_in\)") as caught:
        ours = MultiHeadAttention.from_torch(theirs, 16)
    assert caught[0].filename == __file__
    given = x.transpose(0, 1)
    torch.testing.assert_close(ours(x), theirs(given, given, given)[0].transpose(0, 1))


@pytest.mark.parametrize("source", ["torch", "book"])
def test_training_resumes_with_the_optimizers_state(source):
    """What docs/tour-engineer.md says: the form whose parameters have the same order."""
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    if source == "torch":
        old: nn.Module = pytorchs_module()
        new = MultiHeadAttention.from_torch(old, 16, packed=True)
        inputs = (x, x, x)
    else:
        old = ladder.MultiHeadAttention(24, 24, 16, 0.0, num_heads=4, qkv_bias=True).double()
        new = MultiHeadAttention.from_ladder(old)
        inputs = (x,)
    before, after = (torch.optim.AdamW(module.parameters()) for module in (old, new))

    def train(module, optimizer, *inputs):
        optimizer.zero_grad()
        output = module(*inputs)
        (output[0] if isinstance(output, tuple) else output).square().sum().backward()
        optimizer.step()

    train(old, before, *inputs)
    new.load_state_dict(old.state_dict())
    after.load_state_dict(copy.deepcopy(before.state_dict()))  # they would share it
    train(old, before, *inputs)
    train(new, after, x)
    shapes = [[p.shape for p in module.parameters()] for module in (old, new)]
    assert shapes[0] == shapes[1]
    for theirs, ours in zip(old.parameters(), new.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def frozen(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if not parameter.requires_grad}


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_frozen_stays_frozen(packed):
    theirs = pytorchs_module()
    theirs.in_proj_weight.requires_grad_(False)
    theirs.out_proj.bias.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(theirs, 16, causal=True, packed=packed)
    matrices = ["qkv"] if packed else ["W_query", "W_key", "W_value"]
    assert frozen(ours) == {*(f"{name}.weight" for name in matrices), "out_proj.bias"}
    assert frozen(ours.to_torch()) == frozen(theirs)
    plain = ours.to_ladder()
    assert frozen(plain) == {"W_query.weight", "W_key.weight", "W_value.weight", "out_proj.bias"}
    assert frozen(MultiHeadAttention.from_ladder(plain, packed=packed)) == frozen(ours)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kdim": 5}, "kdim=5 is not supported: keys and values have the width of the queries"),
        ({"vdim": 5}, "vdim=5 is not supported: keys and values have the width of the queries"),
        ({"add_bias_kv": True}, "add_bias_kv=True is not supported: it appends a learned key"),
        ({"add_zero_attn": True}, "add_zero_attn=True is not supported: it appends a key"),
    ],
)
def test_options_of_pytorchs_module_that_are_not_supported(options, named):
    with pytest.raises(ValueError, match=f"with {named}"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(24, 4, **options), 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_in": 10}, "one width for input and output: expected d_in = d_out, got 10 and 24"),
        ({"d_in": 24, "rope": Rope()}, "does not support rope"),
        ({"d_in": 24, "num_kv_heads": 2}, "does not support num_kv_heads=2"),
    ],
)
def test_options_that_pytorchs_module_does_not_support(options, message):
    with pytest.raises(ValueError, match=message):
        build(False, **options).to_torch()
