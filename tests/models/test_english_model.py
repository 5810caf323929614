"""The English model: its file format, its card, and that it works with everything else."""

import json
import runpy
from pathlib import Path

import pytest
import safetensors
import torch
import transformers
from safetensors.torch import save_file

import clearhead
from clearhead.lab.minimal_pairs import measure_pairs
from clearhead.lab.text_report import rows_of
from clearhead.models.int8_weights import from_int8, load_int8, save_int8, to_int8
from clearhead.models.shipped_models import shipped_file
from clearhead.training.loop import token_loss
from gpt2_others import TINY, randomize

ROOT = Path(__file__).parents[2]
CARD = json.loads(shipped_file("card.json", "english").read_text(encoding="utf-8"))
TEXT = "The author near the doctors was tired."


@pytest.fixture(scope="module")
def english():
    return clearhead.load("english")


# The file format


def test_a_weight_is_off_by_half_a_step_at_most():
    weight = torch.randn(13, 7) * torch.logspace(-3, 3, 13)[:, None]
    weight[5] = 0.0
    steps, scale = to_int8(weight)
    assert (steps.dtype, scale.dtype) == (torch.int8, torch.float32)
    assert int(steps.abs().max()) == 127
    error = (from_int8(steps, scale) - weight).abs()
    assert bool((error <= scale[:, None] * 0.5001).all())
    assert torch.equal(from_int8(steps, scale)[5], torch.zeros(7))


def test_what_is_saved_is_loaded(tmp_path):
    model = randomize(clearhead.GPT2({**TINY, "dropout": 0.0})).eval()
    save_int8(tmp_path / "m.safetensors", model.config, model.state_dict())
    again = load_int8(tmp_path / "m.safetensors")
    assert again.config == model.config
    for name, weight in model.state_dict().items():
        expected = from_int8(*to_int8(weight)) if weight.ndim == 2 else weight
        assert torch.equal(again.state_dict()[name], expected), name
    assert not again.training


def test_javascript_can_read_the_bytes_in_place():
    """The header ends at a multiple of eight bytes, and floats come before int8."""
    content = shipped_file("model.safetensors", "english").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    config = json.loads(header.pop("__metadata__")["config"])
    assert (8 + length) % 8 == 0
    assert config["vocab_size"] == 8192
    matrices = {name: about for name, about in header.items() if about["dtype"] == "I8"}
    assert {about["dtype"] for about in header.values()} == {"F32", "I8"}
    assert len(matrices) == 2 + 6 * 6
    for name, about in matrices.items():
        assert header[f"{name}.scale"]["shape"] == about["shape"][:1]
    for about in header.values():
        if about["dtype"] == "F32":
            assert about["data_offsets"][0] % 4 == 0


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_refused(tmp_path, damage):
    file = tmp_path / "m.safetensors"
    if damage is None:
        save_file({"a": torch.ones(2)}, file)
    else:
        file.write_bytes(damage)
    with pytest.raises(ValueError, match="not a complete file of weights in eight bits"):
        load_int8(file)


# The model


def test_it_has_the_architecture_of_gpt2(english):
    model, tokenizer = english
    assert model.config["vocab_size"] == tokenizer.vocab_size == 8192
    assert model.config["context_length"] == 256
    assert model.tied
    assert model.rope is None
    assert sum(weight.numel() for weight in model.parameters()) == CARD["parameters"]


def test_transformers_loads_what_is_saved(english, tmp_path):
    model, tokenizer = english
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer.encode(TEXT)
    assert their_tokenizer(TEXT)["input_ids"] == ids
    assert their_tokenizer.decode(ids) == TEXT
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits
        torch.testing.assert_close(model(torch.tensor([ids])), expected, rtol=1e-4, atol=1e-4)
    again, _ = clearhead.load(tmp_path)
    assert again.generate(ids, 5) == model.generate(ids, 5)


# The card


def test_the_figures_of_the_card_are_those_of_the_model(english):
    """On our own sentences, which are committed; the training text is not."""
    model, tokenizer = english
    ids = rows_of(tokenizer)
    with torch.no_grad():
        loss = token_loss(model, ids[:, :-1], ids[:, 1:]).item()
    own = CARD["own_sentences"]
    assert loss == pytest.approx(own["loss"], abs=2e-3)
    assert ids.numel() == own["tokens"]
    with torch.no_grad(), clearhead.watch(model) as seen:
        model.hidden(ids)
    heads = seen.heads(ids).rows
    for name in ("previous", "induction", "sink"):
        best = max(getattr(head, name) for head in heads)
        assert best == pytest.approx(own[name], abs=2e-3)
    found = measure_pairs(model, tokenizer)
    assert sum(pair.accuracy.count for pair in found) >= 400
    for pair, stored in zip(found, CARD["pairs"], strict=True):
        assert pair.kind == stored["kind"]
        assert pair.accuracy.mean == pytest.approx(stored["accuracy"]["mean"], abs=0.02)
        assert pair.attention.mean == pytest.approx(stored["attention"]["mean"], abs=2e-3)


def test_eight_bits_cost_less_than_a_hundredth():
    assert CARD["held_out_loss"] < CARD["held_out_loss_before_int8"] + 0.01
    assert CARD["bytes"] == len(shipped_file("model.safetensors", "english").read_bytes())
    assert CARD["bytes"] < 7.5e6


def test_the_card_is_written_from_its_json():
    script = runpy.run_path(str(ROOT / "tools" / "ship_english_model.py"))
    text = shipped_file("card.md", "english").read_text(encoding="utf-8")
    assert text == script["card_text"](CARD)
    for part in ("CC BY-SA", "What it cannot do", f"{CARD['held_out_loss']:.3f} nats per token"):
        assert part in text
    assert len(CARD["seeds"]) >= 3


def test_the_file_has_no_other_metadata():
    with safetensors.safe_open(
        ROOT / "src/clearhead/models/english/model.safetensors", framework="pt"
    ) as file:
        assert set(file.metadata()) == {"config"}
