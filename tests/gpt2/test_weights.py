"""Weights files: every naming scheme, every file format, and every kind of damaged file."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from clearhead import GPT2, Rope
from gpt2_others import TINY, by_book, by_original, hugging_face, randomize

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])


@pytest.fixture(scope="module")
def other():
    return hugging_face(dtype=torch.float32)


@pytest.fixture(scope="module")
def expected(other):
    with torch.no_grad():
        return other(IDS).logits


@pytest.fixture(scope="module")
def state(other):
    """Hugging Face's names, without the tied head."""
    return {
        name: tensor.clone()
        for name, tensor in other.state_dict().items()
        if name != "lm_head.weight"
    }


@pytest.fixture(scope="module")
def saved(other, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    other.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(state, tmp_path, saved):
    """A checkpoint that a test may damage: config.json and model.safetensors."""
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path


def logits(path, **options):
    with torch.no_grad():
        return GPT2.from_pretrained(path, **options)(IDS)


def refuses(path, *, match, **options):
    with pytest.raises(ValueError, match=match):
        GPT2.from_pretrained(path, **options)


def change(folder, **changed):
    """Rewrite the checkpoint with some tensors changed; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changed.items():
        name = f"transformer.{name.replace('__', '.')}"
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, path)


def configure(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changed), encoding="utf-8")


# Names and files.


def test_a_folder_of_hugging_face(saved, expected):
    model = GPT2.from_pretrained(str(saved))
    assert model.config == TINY
    assert not model.training
    assert all(p.requires_grad and p.is_contiguous() for p in model.parameters())
    torch.testing.assert_close(model(IDS), expected, rtol=0, atol=1e-5)


def test_a_file_and_shards(saved, other, expected, tmp_path):
    torch.testing.assert_close(logits(saved / "model.safetensors"), expected)
    other.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    torch.testing.assert_close(logits(tmp_path), expected)


@pytest.mark.parametrize("prefix", ["", "transformer.", "module.transformer.", "_orig_mod."])
def test_prefixes_and_old_buffers(state, expected, tmp_path, prefix):
    found = {prefix + name.removeprefix("transformer."): t for name, t in state.items()}
    for number in range(2):
        found[f"{prefix}h.{number}.attn.bias"] = torch.ones(1, 1, 19, 19).tril().byte()
        found[f"{prefix}h.{number}.attn.masked_bias"] = torch.tensor(-1e4)
    found["lm_head.weight"] = found[f"{prefix}wte.weight"].clone()
    save_file(found, tmp_path / "any.safetensors")
    torch.testing.assert_close(logits(tmp_path, num_heads=3), expected)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".pth", ".pt"])
@pytest.mark.parametrize("bias", [True, False])
def test_files_of_the_book(tmp_path, suffix, bias):
    model = randomize(GPT2({**TINY, "qkv_bias": bias})).eval()
    book = by_book(model.state_dict())
    assert {"trf_blocks.1.att.mask", "trf_blocks.0.norm1.scale", "final_norm.shift"} <= set(book)
    path = tmp_path / f"model{suffix}"
    save_file(book, path) if suffix == ".safetensors" else torch.save(book, path)
    loaded = GPT2.from_pretrained(path, num_heads=3)
    assert loaded.config == {**model.config, "dropout": 0.1}
    assert loaded.tied
    torch.testing.assert_close(loaded(IDS), model(IDS))


def test_the_books_head_of_its_own(tmp_path):
    model = randomize(GPT2(TINY, tied=False)).eval()
    own = model.state_dict()
    book = by_book(
        {k: t for k, t in own.items() if k != "out_head.weight"}, head=model.out_head.weight
    )
    content = {"model_state_dict": book, "optimizer_state_dict": {"state": {}, "lr": 1e-4}}
    torch.save(content, tmp_path / "model_and_optimizer.pth")
    loaded = GPT2.from_pretrained(tmp_path, num_heads=3)
    assert not loaded.tied
    torch.testing.assert_close(loaded(IDS), model(IDS))


@pytest.mark.parametrize("source", ["hf", "original", "book", "separate", "packed"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_every_file_loads_into_both_forms(tmp_path, source, packed, bias):
    model = randomize(GPT2({**TINY, "qkv_bias": bias}, packed=source == "packed")).eval()
    path = tmp_path / "model.safetensors"
    state = model.state_dict()
    if source == "book":
        state = by_book(state)
    elif source in ("hf", "original"):
        model.save_pretrained(tmp_path)
        if source == "original":
            state = by_original(load_file(path))
    if source != "hf":
        save_file(state, path)
    loaded = GPT2.from_pretrained(path, num_heads=3, packed=packed)
    assert ("blocks.0.attention.qkv.weight" in loaded.state_dict()) == packed
    for parameter in loaded.parameters():
        assert parameter.is_contiguous()
        assert parameter.untyped_storage().nbytes() == parameter.nbytes  # no memory is shared
    torch.testing.assert_close(loaded(IDS), model(IDS))


def test_a_packed_model_is_saved_for_transformers(tmp_path):
    model = randomize(GPT2(TINY, packed=True)).eval()
    model.save_pretrained(tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    torch.testing.assert_close(model(IDS), theirs(IDS).logits, rtol=0, atol=1e-5)


def test_the_old_format_of_torch_save(state, expected, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    torch.testing.assert_close(logits(path, num_heads=3), expected)


def test_an_unrelated_config_beside_a_file_is_ignored(state, expected, tmp_path):
    save_file(state, tmp_path / "mine.safetensors")
    (tmp_path / "config.json").write_text('{"port": 8080}', encoding="utf-8")
    torch.testing.assert_close(logits(tmp_path / "mine.safetensors", num_heads=3), expected)


def test_heads_are_64_wide_by_default(tmp_path):
    model = GPT2({**TINY, "d_model": 128, "num_heads": 2, "num_layers": 1})
    torch.save(model.state_dict(), tmp_path / "a.pt")
    assert GPT2.from_pretrained(tmp_path).config["num_heads"] == 2
    assert GPT2.from_pretrained(tmp_path, num_heads=8).config["num_heads"] == 8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtype_is_that_of_the_file(tmp_path, dtype):
    GPT2(TINY).to(dtype).save_pretrained(tmp_path)
    model = GPT2.from_pretrained(tmp_path)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model(IDS).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_as_asked(saved, dtype):
    model = GPT2.from_pretrained(saved, dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    exact = GPT2.from_pretrained(saved).embedding.token.weight
    assert torch.equal(model.embedding.token.weight, exact.to(dtype))


def test_device_is_as_asked(saved):
    assert all(p.is_meta for p in GPT2.from_pretrained(saved, device="meta").parameters())


def test_the_file_may_change_afterwards(folder, expected):
    """The parameters are copies: overwriting the file must not change the model."""
    model = GPT2.from_pretrained(folder)
    path = folder / "model.safetensors"
    path.write_bytes(b"\0" * path.stat().st_size)
    torch.testing.assert_close(model(IDS), expected)


# Saving.


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_transformers_loads_what_we_save(tmp_path, tied, bias):
    model = randomize(GPT2({**TINY, "qkv_bias": bias, "dropout": 0.2}, tied=tied)).double().eval()
    folder = tmp_path / "new" / "folder"
    model.save_pretrained(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    other, found = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values()), found
    torch.testing.assert_close(other.double()(IDS).logits, model(IDS), rtol=0, atol=1e-10)
    assert (other.config.attn_pdrop, other.config.eos_token_id) == (0.2, None)
    back = GPT2.from_pretrained(folder)
    assert (back.config, back.tied) == (model.config, tied)
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_rotary_models_come_back(tmp_path):
    model = randomize(GPT2({**TINY, "d_model": 12}, rope=Rope(500.0))).eval()
    model.save_pretrained(tmp_path)
    back = GPT2.from_pretrained(tmp_path)
    assert back.rope == Rope(500.0)
    assert torch.equal(back(IDS), model(IDS))
    with pytest.raises(ValueError, match="clearhead-gpt2"):
        transformers.AutoModel.from_pretrained(tmp_path)


def test_saving_over_the_file_that_was_loaded(folder, expected):
    model = GPT2.from_pretrained(folder)
    model.save_pretrained(folder)
    torch.testing.assert_close(logits(folder), expected)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="file: cannot create the folder"):
        GPT2(TINY).save_pretrained(tmp_path / "file")


# Bad files. Each error names the tensor or the file.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"h__1__mlp__c_fc__bias": None},
            r"h.1.mlp.c_fc.bias: missing in .*model.safetensors, and 0 more of 28 tensors",
        ),
        (
            {"h__2__ln_1__bias": torch.zeros(15)},
            r"transformer.h.2.ln_1.bias: in .*safetensors, but",
        ),
        (
            {"h__0__attn__c_attn__weight": torch.zeros(45, 15)},
            r"transformer.h.0.attn.c_attn.weight: expected \(15, 45\) according to .*config.json, "
            r"got \(45, 15\) in .*safetensors.\n  Transposed\?",
        ),
        ({"ln_f__weight": torch.zeros(14)}, r"transformer.ln_f.weight: expected \(15,\).*\(14,\)"),
        ({"ln_f__weight": torch.ones(15).int()}, r"transformer.ln_f.weight: .*float32.*, got I32"),
        (
            {"ln_f__weight": torch.ones(15).half()},
            r"ln_f.weight: is float16, but transformer.wte.weight is float32.*\n.*dtype=torch",
        ),
        (
            {"h__1__ln_2__bias": torch.full((15,), torch.nan)},
            r"h.1.ln_2.bias: expected finite numbers, got nan in .*\n",
        ),
        (
            {"wpe__weight": torch.full((19, 15), -torch.inf)},
            r"wpe.weight: expected finite numbers, got -inf in .*\n.*check",
        ),
    ],
)
def test_wrong_tensors_are_named(folder, changed, message):
    change(folder, **changed)
    refuses(folder, match=message)


def test_wrong_tensors_can_be_accepted(folder):
    change(folder, h__1__ln_2__bias=torch.full((15,), torch.nan))
    model = GPT2.from_pretrained(folder, check_values=False)
    assert model.blocks[1].norm2.bias.isnan().all()
    change(folder, h__1__ln_2__bias=torch.ones(15).half())
    assert GPT2.from_pretrained(folder, dtype=torch.float32).blocks[1].norm2.bias.sum() == 15


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"n_embd": 18},
            r"wte.weight: expected \(97, 18\) according to .*config.json, got \(97, 15",
        ),
        ({"n_layer": 3}, r"h.2.ln_1.weight: missing in .*, and 11 more of 40 tensors"),
        ({"n_layer": 1}, r"transformer.h.1.*but not in a GPT-2 of this size; 12 such tensors"),
        ({"n_positions": 20}, r"wpe.weight: expected \(20, 15\)"),
        ({"n_head": 4}, r"d_out \(15\) must be divisible by num_heads \(4\)"),
        ({"n_head": None}, r"n_head: expected a number from 1 to 1,000,000,000,000, got None"),
        ({"model_type": "llama"}, r"expected a GPT-2, got a model of type 'llama'"),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            r"scale_attn_by_inverse_layer_idx: expected False, got True",
        ),
        ({"tie_word_embeddings": False}, r"lm_head.weight: missing"),
        (
            {"qkv_bias": False},
            r"h.\d.attn.c_attn.bias: expected zeros, because .*\"qkv_bias\": false, got",
        ),
    ],
)
def test_a_config_that_does_not_fit(folder, changed, message):
    configure(folder, **changed)
    refuses(folder, match=message)


def test_num_heads_must_agree_with_the_config(saved):
    assert GPT2.from_pretrained(saved, num_heads=3).config["num_heads"] == 3
    refuses(saved, num_heads=5, match=r"num_heads: expected 3 as in .*config.json, got 5")


def test_three_dropouts(folder):
    configure(folder, attn_pdrop=0.3)
    with pytest.warns(UserWarning, match=r"the dropout probabilities \[0.0, 0.0, 0.3\]"):
        assert GPT2.from_pretrained(folder).config["dropout"] == 0.0


def test_a_separate_head_must_be_declared(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1
    save_file(tensors, folder / "model.safetensors")
    refuses(folder, match=r"lm_head.weight: expected the same matrix as transformer.wte.weight")
    configure(folder, tie_word_embeddings=False)
    assert not GPT2.from_pretrained(folder).tied


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": torch.ones(2)}, r"expected the weights of a GPT-2, got a, ...\n  The key names"),
        ({"wte.weight": torch.ones(7, 5)}, r"wte.weight and wpe.weight: expected both"),
        (
            {"wte.weight": torch.ones(7, 5), "wpe.weight": torch.ones(3, 5)},
            r"number of heads is unknown: .*d_model \(5\).*\n  Pass it: .*num_heads",
        ),
        (
            {"wte.weight": torch.ones(7, 64), "wpe.weight": torch.ones(3, 64)},
            r"expected at least one block, got only wpe.weight, wte.weight",
        ),
        (
            {"wte.weight": torch.ones(7, 5), "transformer.wte.weight": torch.ones(7, 5)},
            r"wte.weight and .*wte.weight: two names for the same tensor",
        ),
    ],
)
def test_not_a_gpt2(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "x.safetensors")
    refuses(tmp_path, match=message)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 300, -1])
def test_a_safetensors_file_that_is_cut_off(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    message = (
        r"the file is empty \(0 bytes\)" if kept == 0 else "not a whole safetensors file: .*\n"
    )
    refuses(folder, match=f"model.safetensors: {message}")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 100, -1000])
def test_a_pickle_that_is_cut_off(state, tmp_path, kept, old):
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=not old)
    path.write_bytes(path.read_bytes()[:kept])
    refuses(path, match=r"pytorch_model.bin: (the file is empty|not a file that torch.save|ref)")


class Code:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch was-here",)


def test_a_pickle_with_code_is_refused(state, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({**state, "x": Code()}, "a.bin")
    Path("b.pth").write_bytes(pickle.dumps(Code()))
    for name in ("a.bin", "b.pth"):
        refuses(Path(name), match=f"{name}: refused, because it holds more than tensors")
    assert not Path("was-here").exists()


def test_a_pickle_of_other_things(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "a.pt")
    refuses(tmp_path / "a.pt", match="expected a dictionary of tensors, got list")
    torch.save({"wte.weight": torch.ones(2, 2), "epoch": 3}, tmp_path / "a.pt")
    refuses(tmp_path / "a.pt", match="expected a tensor under 'epoch', got int")
    torch.save({0: torch.ones(2)}, tmp_path / "a.pt")
    refuses(tmp_path / "a.pt", match="expected a tensor under 0")
    torch.save({"wte.weight": torch.ones(2, 2).to_sparse()}, tmp_path / "a.pt")
    refuses(tmp_path / "a.pt", match=r"wte.weight: expected a dense tensor")


# Bad folders.


def test_a_folder_without_weights(tmp_path):
    refuses(tmp_path, match=r"expected weights .*, got an empty folder")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    refuses(tmp_path, match=r"expected weights .*, got config.json")
    (tmp_path / "model.ckpt.index").write_text("", encoding="utf-8")
    refuses(tmp_path, match=r"TensorFlow checkpoints are not supported.*\n.*openai-community/gpt2")
    for name in ("a.bin", "b.pth"):
        (tmp_path / name).write_text("", encoding="utf-8")
    refuses(tmp_path, match=r"several weights files: a.bin, b.pth\n")


def test_links_in_a_circle(tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "model.safetensors")
    for path in (tmp_path / "one", str(tmp_path / "one"), tmp_path):
        refuses(path, match=r"(one|safetensors): Too many levels of symbolic links")


def test_a_folder_named_like_a_file(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    refuses(folder, match="expected a weights file, got a folder")
    refuses(folder / "model.safetensors", match=r"model.safetensors: expected weights")


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    refuses(tmp_path / "notes.txt", match=r"notes.txt: expected a folder or a file that ends with")
    os.mkfifo(tmp_path / "pipe.bin")
    refuses(tmp_path / "pipe.bin", match=r"pipe.bin: expected a regular file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"config.json: the file is empty"),
        ("{", r"config.json: not valid JSON"),
        ("[" * 100_000, r"config.json: not valid JSON"),
        ("[]", r"config.json: expected a JSON object, got list"),
    ],
)
def test_a_broken_config(folder, text, message):
    (folder / "config.json").write_text(text, encoding="utf-8")
    refuses(folder, match=message)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, r"index.json: expected a weight_map"),
        (
            {"weight_map": {"wte.weight": "../other.safetensors"}},
            r"expected the name of a weights file beside it, got '../other.safetensors'",
        ),
        (
            {"weight_map": {"wte.weight": "part.txt"}},
            r"expected the name of a weights file beside it, got 'part.txt'",
        ),
        ({"weight_map": {"wte.weight": "part-2.safetensors"}}, r"part-2.safetensors: No such file"),
        (
            {"weight_map": {"wpe.weight": "part.safetensors"}},
            r"lists wpe.weight in part.safetensors, but it is not there",
        ),
    ],
)
def test_a_bad_index(tmp_path, index, message):
    save_file({"wte.weight": torch.ones(7, 5)}, tmp_path / "part.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index), encoding="utf-8")
    refuses(tmp_path, match=message)


def test_a_tensor_in_two_files(tmp_path):
    for name in ("a", "b"):
        save_file(
            {"wte.weight": torch.ones(7, 5), name: torch.ones(1)}, tmp_path / f"{name}.safetensors"
        )
    places = {"wte.weight": "a.safetensors", "b": "b.safetensors"}
    index = json.dumps({"weight_map": places})
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    refuses(tmp_path, match=r"wte.weight: in two files, .*a.safetensors and .*b.safe")


# The hub. No test uses the network.


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """An empty cache and a download that fails; returns the names that were requested."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    real, asked = huggingface_hub.snapshot_download, []

    def download(name, *, local_files_only=False, **options):
        asked.append(name)
        if not local_files_only:
            raise OSError("no network")
        return real(name, local_files_only=True, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_a_name_in_the_cache_needs_no_network(hub, saved, tmp_path, expected):
    cached = tmp_path / "cache" / "models--some-one--tiny"
    (cached / "snapshots").mkdir(parents=True)
    (cached / "snapshots" / ("0" * 40)).symlink_to(saved)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    torch.testing.assert_close(logits("some-one/tiny"), expected)
    assert hub == ["some-one/tiny"]


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("gpt2", "openai-community/gpt2"),
        ("gpt2-small", "openai-community/gpt2"),
        ("gpt2-xl", "openai-community/gpt2-xl"),
        ("distilbert/distilgpt2", "distilbert/distilgpt2"),
    ],
)
def test_no_network(hub, name, repository):
    with pytest.raises(
        ValueError, match=rf"(?s){name}: no such file.*network.*{repository} --loc"
    ) as e:
        GPT2.from_pretrained(name)
    assert hub == [repository, repository]
    assert "OSError" in str(e.value)


def test_a_name_that_is_downloaded(monkeypatch, saved, tmp_path, expected):
    """The cache is tried first, then the hub; without safetensors the .bin file is used."""
    asked = []
    empty = tmp_path / "empty"
    empty.mkdir()

    def download(name, *, allow_patterns, local_files_only=False):
        asked.append(local_files_only)
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        return str(saved if "pytorch_model*.bin" in allow_patterns else empty)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    torch.testing.assert_close(logits("some-one/tiny"), expected)
    assert asked == [True, False, False]


@pytest.mark.parametrize(
    "name", ["no/such/folder", "./here", "/no/such", "a b", "x.safetensors", ""]
)
def test_invalid_names(hub, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(name, match=r"(no such file or folder|expected weights)")
    assert hub == []


def test_without_huggingface_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refuses("some-one/tiny", match=r"needs huggingface_hub.\n  Install it: pip install")


# Memory.

MEASURE = """
import sys, torch
from clearhead import GPT2
def most():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
GPT2.from_pretrained(sys.argv[2])  # what is loaded once: libraries, kernels
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts again
before = most()
model = GPT2.from_pretrained(sys.argv[1])
print((most() - before) / sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.parametrize(
    "kind",
    [
        "safetensors",
        pytest.param("pickle", marks=pytest.mark.slow),
        pytest.param("shards", marks=pytest.mark.slow),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's own count")
def test_peak_memory_is_the_models_own(kind, saved, tmp_path):
    """A model of 100 MB, a third of it the token table, as in GPT-2 small."""
    sizes = {"vocab_size": 16000, "context_length": 256, "d_model": 512, "num_heads": 8}
    model = GPT2({**TINY, **sizes, "num_layers": 5})
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    if kind == "pickle":
        path.unlink()
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    elif kind == "shards":
        path.unlink()
        places = {key: f"part-{i % 3}.safetensors" for i, key in enumerate(tensors)}
        for file in set(places.values()):
            save_file({k: t for k, t in tensors.items() if places[k] == file}, tmp_path / file)
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path, saved], capture_output=True, text=True, check=True
    )
    assert 0.9 < float(found.stdout) < 1.2


@pytest.mark.slow
def test_loading_does_not_import_the_compiler(saved):
    """Random initialisation on "meta" would: two seconds and 170 MiB."""
    code = (
        "import sys; from clearhead import GPT2; GPT2.from_pretrained(sys.argv[1]); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, saved], check=True)
