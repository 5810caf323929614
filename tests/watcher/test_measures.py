"""Measures of a whole model: rollout, gradient times attention, value norms, retrieval, chance."""

import copy

import pytest
import torch
import transformers
from torch.testing import assert_close

from clearhead import GPT2, AttentionMap, Mask, MultiHeadAttention, Seen, watch
from clearhead.watcher import CannotShow

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2]])
CONFIG = transformers.LlamaConfig(
    hidden_size=32, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=23,
)  # fmt: skip


def llama(how):
    config = copy.deepcopy(CONFIG)
    config._attn_implementation = how
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def test_rollout():
    model = llama("sdpa")
    with torch.no_grad(), watch(model) as seen:
        model(IDS)
    whole = torch.eye(11)
    for name in seen:
        whole = (0.5 * torch.eye(11) + 0.5 * seen[name].dense().mean(1)) @ whole
    found = seen.rollout([-1, 4])
    assert_close(found, whole[:, [-1, 4]], rtol=0, atol=1e-6)
    assert_close(seen.rollout(4), whole[:, [4]], rtol=0, atol=1e-6)
    assert_close(found.sum(-1), torch.ones(2, 2))
    with pytest.raises(IndexError, match="there are 11 tokens, got 11"):
        seen.rollout(11)


def test_rollout_of_a_layer_that_is_called_twice():
    config = transformers.AlbertConfig(
        hidden_size=12, intermediate_size=7, num_hidden_layers=2, num_attention_heads=3,
        vocab_size=23, embedding_size=5,
    )  # fmt: skip
    model = transformers.AlbertModel(config).eval()
    with torch.no_grad(), watch(model) as seen:
        model(IDS)
    with pytest.raises(ValueError, match=r"was called 2 times(.|\n)*follow seen\.calls"):
        seen.rollout(-1)


def test_measures_of_loaded_maps(tmp_path):
    """The output projection and the gradients are saved too."""
    model = llama("sdpa")
    with watch(model, grad=True) as seen:
        (model(IDS).logits[..., 5].sum() + model(IDS + 1).logits[..., 7].sum()).backward()
    seen.save(tmp_path / "seen.safetensors")
    again = Seen.load(tmp_path / "seen.safetensors")
    for call in seen.calls:
        key = (call.name, call.step)
        assert torch.equal(again.by_value_norm(key)[:], seen.by_value_norm(key)[:])
        assert torch.equal(again.saliency(key).keys, seen.saliency(key).keys)


@torch.no_grad()
def test_value_norms_after_the_projection_has_changed():
    model = llama("sdpa")
    with watch(model, values=True) as seen:
        model(IDS)
    model.model.layers[1].self_attn.o_proj.weight.mul_(2)
    seen.by_value_norm(0)
    seen[1].dense()
    with pytest.raises(CannotShow, match=r"layers\.1.*: the output projection was changed"):
        seen.by_value_norm(1)


def test_rollout_of_other_layers():
    seen = Seen()
    seen.add("a", AttentionMap(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)))
    with pytest.raises(ValueError, match="expected self-attention layers that all read the same"):
        seen.rollout(0)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_gradient_times_attention(how):
    """Against the gradients of the weights that the eager model itself returns."""
    eager, model = llama("eager"), llama(how)
    output = eager(IDS, output_attentions=True)
    for weights in output.attentions:
        weights.retain_grad()
    output.logits[..., 5].sum().backward()
    with watch(model, grad=True) as seen:
        plain = model(IDS).logits
    plain[..., 5].sum().backward()
    assert torch.equal(plain, llama(how)(IDS).logits)
    for i, weights in enumerate(output.attentions):
        product = weights.detach() * weights.grad
        found = seen.saliency(i)
        assert_close(found.queries, product.sum(-1), rtol=1e-3, atol=1e-4)
        assert_close(found.keys, product.sum(-2), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("torchs", [False, True])
def test_gradient_times_attention_of_modules(torchs):
    torch.manual_seed(2)
    x = torch.randn(2, 5, 12)
    if torchs:
        attention = torch.nn.MultiheadAttention(12, 3, batch_first=True)
        _, weights = attention(x, x, x, average_attn_weights=False)
        v = attention.in_proj_weight[24:] @ x.mT  # the bias is 0
        v = v.mT.unflatten(-1, (3, 4)).transpose(1, 2)
    else:
        attention = MultiHeadAttention(12, 12, 16, 0.0, 3)
        weights = attention.with_map(x)[1].dense()
        v = attention.W_value(x).unflatten(-1, (3, 4)).transpose(1, 2)
    weights = weights.detach().requires_grad_()
    context = (weights @ v).transpose(1, 2).flatten(2)
    attention.out_proj(context).square().sum().backward()
    attention.zero_grad()
    with watch(attention, grad=True) as seen:
        output = attention(x, x, x, need_weights=False)[0] if torchs else attention(x)
        output.square().sum().backward()
    product = weights.detach() * weights.grad
    assert_close(seen.saliency(0).queries, product.sum(-1), rtol=1e-4, atol=1e-5)
    assert_close(seen.saliency(0).keys, product.sum(-2), rtol=1e-4, atol=1e-5)


def test_without_gradients():
    model = llama("sdpa")
    with torch.no_grad(), watch(model, grad=True) as seen:
        model(IDS)
    with pytest.raises(RuntimeError, match=r"has no gradient(.|\n)*watch\(model, grad=True\)"):
        seen.saliency(0)


def test_value_norms_after_the_output_projection():
    model = llama("sdpa")
    with torch.no_grad(), watch(model, values=True) as seen:
        model(IDS)
    attention, m = model.model.layers[1].self_attn, seen[1]
    assert_close(seen.call(1).output, attention.o_proj.weight)
    v = m.values.repeat_interleave(2, 1)  # (batch, heads, keys, value_dim)
    parts = attention.o_proj.weight.unflatten(1, (4, 8))  # (d_model, heads, value_dim)
    norms = torch.einsum("bhkv,ohv->bhko", v, parts).norm(dim=-1)
    shares = m.dense() * norms[:, :, None]
    expected = shares / shares.sum(-1, keepdim=True)
    assert_close(seen.by_value_norm(1).dense(), expected.detach(), rtol=0, atol=1e-5)


def test_where_the_output_projection_is_found():
    gpt2 = transformers.GPT2Model(transformers.GPT2Config(n_embd=12, n_layer=1, n_head=3))
    own = GPT2(
        {"vocab_size": 23, "context_length": 16, "d_model": 12, "num_heads": 3, "num_layers": 1,
         "dropout": 0.0, "qkv_bias": True}
    )  # fmt: skip
    bert = transformers.BertModel(
        transformers.BertConfig(hidden_size=12, num_hidden_layers=1, num_attention_heads=3)
    )
    for model, expected in (
        (gpt2, gpt2.h[0].attn.c_proj.weight.T),
        (own, own.blocks[0].attention.out_proj.weight),
        (bert, None),
    ):
        with torch.no_grad(), watch(model, values=True) as seen:
            model(IDS)
        found = seen.call(0).output
        assert (found is None and expected is None) or torch.equal(found, expected)
        assert seen.by_value_norm(0).shape == seen[0].shape


def test_retrieval():
    model = llama("sdpa")
    with torch.no_grad(), watch(model) as seen:
        model(IDS)
    found = seen.retrieval(slice(2, 5), [9, 10])
    assert list(found) == seen.layers
    expected = seen[2].dense()[:, :, 9:, 2:5].sum(-1).mean(-1)
    assert_close(found[seen.layers[2]], expected)


@pytest.mark.parametrize("tokens", [40, 1000])
def test_random_weights_read_as_chance(tokens):
    torch.manual_seed(0)
    attention = MultiHeadAttention(32, 32, 1024, 0.0, 4).eval()
    ids = torch.randint(20, (1, tokens))
    with torch.no_grad(), watch(attention) as seen:
        attention(torch.randn(1, tokens, 32))
    for row in seen.heads(ids).rows:
        for name in ("previous", "sink", "same_token", "induction", "entropy", "distance"):
            number, chance = getattr(row, name), row.chance[name]
            assert number == pytest.approx(chance, rel=0.5)
    shown = str(seen.heads(ids)).splitlines()
    assert "(chance)" in shown[2]
    assert "0.00 " not in "".join(shown[2:7])


def test_chance_is_that_of_the_mask():
    """A window makes the previous token likelier, and chance says so."""
    q = torch.randn(1, 2, 50, 4)
    seen = Seen()
    seen.add("all", AttentionMap(q, q, Mask.causal()))
    seen.add("window", AttentionMap(q, q, Mask.causal() & Mask.window(2)))
    chance = [row.chance["previous"] for row in seen.heads().rows]
    assert chance[2] == pytest.approx(0.5)
    assert chance[0] == pytest.approx(sum(1 / (i + 1) for i in range(1, 50)) / 49)
