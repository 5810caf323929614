"""The rise of the loss without each head, in Python and as `clearhead heads --ablate`."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import transformers

from clearhead.watcher.head_losses import HeadLoss, HeadLosses, head_losses
from tiny_checkpoints import save_words

WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "ran", "to", "house"]
TEXT = "the cat sat on the mat and the dog ran to the house"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with random weights and a tokenizer of ten words."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = transformers.LlamaConfig(
        hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, vocab_size=11, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    save_words(folder, WORDS)
    return folder


@pytest.fixture
def run(command_line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    return partial(command_line, "heads")


def losses_by_hand(folder):
    """Zero a head's columns of the output projection, and compute the loss again."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(TEXT)
    ids = torch.tensor([tokens["input_ids"]])

    @torch.no_grad()
    def loss():
        return float(F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]))

    whole, rises = loss(), []
    for layer in model.model.layers:
        weight = layer.self_attn.o_proj.weight.data
        before = weight.clone()
        for head in range(3):
            weight[:, 8 * head : 8 * head + 8] = 0
            rises.append(loss() - whole)
            weight.copy_(before)
    return whole, rises


def test_ablate_prints_the_rise_of_the_loss(folder, run, tmp_path):
    picture = tmp_path / "heads.svg"
    status, out, err = run("--model", folder, "--ablate", TEXT, "--json", "-o", picture)
    assert (status, err) == (0, f"Wrote {picture}\n")
    found = json.loads(out)
    whole, rises = losses_by_hand(folder)
    assert found["loss"] == pytest.approx(whole, abs=1e-5)
    assert [row["rise"] for row in found["heads"]] == pytest.approx(rises, abs=1e-5)
    assert max(map(abs, rises)) > 0.01
    assert [row["layer"] for row in found["heads"]][::3] == [
        "model.layers.0.self_attn",
        "model.layers.1.self_attn",
    ]
    assert picture.read_text(encoding="utf-8").count("<svg") == 1
    status, out, err = run("--model", folder, "--ablate", TEXT, "--layer", "layers.1")
    assert (status, err) == (0, "")
    assert f"{rises[4]:+.3f}" in out
    assert "0  model.layers.1.self_attn" in out


def test_the_shipped_model(run):
    status, out, err = run("--ablate", "the cat sat on the mat")
    assert (status, err) == (0, "")
    assert "nats per token" in out


def test_a_page_of_a_hugging_face_model(folder, run, tmp_path):
    page = tmp_path / "page.html"
    status, out, err = run("--model", folder, TEXT, "-o", page, "--layer", "1")
    assert (status, err) == (0, f"Wrote {page}\n")
    text = page.read_text(encoding="utf-8")
    assert "layers.1.self_attn" in text
    assert "layers.0.self_attn" not in text
    assert "house" in text
    assert "(chance)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ablate", TEXT, "--sort", "away"], "--sort and --csv apply to the table without"),
        (["--ablate", "cat"], "there is no next token to predict"),
        (["--ablate", TEXT, "-o", "x.html"], "got '.html'"),
        (["--ablate", TEXT, "--layer", "self_attn"], "'self_attn' fits more than one"),
        ([TEXT, "--layer", "7"], "nothing matched 7"),
    ],
)
def test_errors(folder, run, arguments, message):
    status, out, err = run("--model", folder, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_layers_of_different_widths():
    rows = (HeadLoss("a", 0, 0.5), HeadLoss("a", 1, 0.25), HeadLoss("b", 0, -0.125))
    found = HeadLosses(1.0, rows)
    assert "+0.250" in str(found)
    assert "Most: 0.0 +0.500, 0.1 +0.250, 1.0 -0.125" in str(found)
    with pytest.raises(ValueError, match="no next token"):
        head_losses(torch.nn.Identity(), torch.zeros(1, 1, dtype=torch.int64), heads={})
