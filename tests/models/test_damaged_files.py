"""Small files that ask for gigabytes, endless work or code are refused, and quickly."""

import io
import json
import os
import pickle
import pickletools
import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clearhead import GPT2, AttentionMap, lab
from clearhead.gpt2.pickle_guard import check_pickle
from clearhead.models import find_model
from clearhead.models.trained_model import trained_file
from clearhead.watcher import Seen
from clearhead.watcher.head_table import Head, HeadTable

HUGE = {
    "vocab_size": 50_000_000,
    "context_length": 16,
    "d_model": 1024,
    "num_heads": 16,
    "num_layers": 1,
    "dropout": 0.0,
    "qkv_bias": False,
}


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Limit the address space to 16 GiB more than is used now; larger requests fail."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 16 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


# What `clearhead train` writes


def described(**changed: object) -> str:
    about = {"schema": 1, "config": HUGE, "rope_base": None, "vocabulary": ["a", "b"]}
    return json.dumps(about | changed)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (described(), r"weight: expected \(1024, 1024\), got no such tensor"),
        (described(config=HUGE | {"num_layers": 10**9}), "1000000000 layers, but only 1 tensors"),
        (described(config=HUGE | {"vocab_size": 10**30}), "is not valid"),
        (described(config=HUGE | {"vocab_size": "many"}), "is not valid"),
        (described(config=None), "expected a dictionary with the model's sizes"),
        (described(rope_base="far"), "is not valid"),
        (described(rope_base=[1]), "is not valid"),
        ("{}", "KeyError: 'rope_base'"),
        ("[]", "is not valid"),
        ("[" * 100_000, "is not valid"),
        ("nothing", "is not valid"),
    ],
)
def test_a_lab_file_that_says_strange_things(about, said, tmp_path):
    """The shapes are checked before a model of that size is built."""
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", {"clearhead.lab": about})
    with pytest.raises(ValueError, match=said):
        lab.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("about", ["{}", "[1]", "[" * 100_000, "nothing"])
def test_a_checkpoint_of_a_training_that_says_strange_things(about, tmp_path):
    folder = tmp_path / "seed-0"
    folder.mkdir()
    file = folder / "checkpoint.safetensors"
    save_file({"x": torch.zeros(1)}, file, {"clearhead.training": about})
    assert trained_file(tmp_path) is None


# What torch.save writes


def zipped(data: bytes, kind: int = zipfile.ZIP_STORED) -> bytes:
    """A file as torch.save writes it, with other pickle instructions."""
    plain, made = io.BytesIO(), io.BytesIO()
    torch.save({"x": torch.zeros(2)}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(made, "w", kind) as new:
        for entry in old.infolist():
            inner = data if entry.filename.endswith("data.pkl") else old.read(entry)
            new.writestr(entry.filename, inner)
    return made.getvalue()


def nested(levels: int) -> bytes:
    """A dictionary whose key is a pair of pairs of pairs ...: hashing it takes 2**levels steps."""
    key: tuple[object, ...] = ()
    for _ in range(levels):
        key = (key, key)
    data = b"\x80\x02}" + pickle.dumps(key, 2)[2:-1] + b"K\x01s."
    return pickletools.optimize(data)


@pytest.mark.parametrize("in_zip", [True, False])
def test_a_key_that_takes_years(in_zip, tmp_path):
    """`torch.load` alone would not return."""
    path = tmp_path / "a.pth"
    path.write_bytes(zipped(nested(100)) if in_zip else nested(100))
    with pytest.raises(ValueError, match=r"a.pth: refused, because loading it"):
        GPT2.from_pretrained(path)


def test_instructions_that_are_compressed_or_long(tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(zipped(b"\x80\x02" + b"}0" * 10**7 + b"}.", zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"a.pth: refused, because .*data.pkl in it is compressed"):
        GPT2.from_pretrained(path)
    path.write_bytes(zipped(b"\x80\x02" + b"}0" * 10**7 + b"}."))
    with pytest.raises(ValueError, match=r"its pickle has 20,000,004 bytes; expected 4,194,304"):
        GPT2.from_pretrained(path)


def test_room_of_any_size(tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(zipped(b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\0\0\0\0\0\x01\x85R."))
    with pytest.raises(ValueError, match=r"a.pth: refused, because loading it"):
        GPT2.from_pretrained(path)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("one", [True, False])
def test_tensors_larger_than_their_file(one, old, tmp_path):
    """A tensor can repeat one number a billion times; it must not be copied."""
    many = torch.zeros(1).expand(10**9, 1024) if one else torch.zeros(10**5)
    tensors = {"wte.weight": many} if one else {f"h.{i}.ln_1.weight": many for i in range(100)}
    torch.save(tensors, tmp_path / "a.bin", _use_new_zipfile_serialization=not old)
    with pytest.raises(ValueError, match="they repeat the same values"):
        GPT2.from_pretrained(tmp_path / "a.bin")


class Code:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch was-here",)


def test_a_refusal_gives_no_bad_advice(tmp_path):
    """It does not repeat torch's advice to use weights_only=False."""
    torch.save({"a": Code()}, tmp_path / "a.bin")
    with pytest.raises(ValueError, match=r"refused, .*more than tensors \(posix.system\)") as error:
        GPT2.from_pretrained(tmp_path / "a.bin")
    assert "weights_only" not in str(error.value)
    torch.save({"a": torch.nn.Linear(2, 2)}, tmp_path / "a.bin")
    with pytest.raises(ValueError, match=r"\(torch.nn.modules.linear.Linear\)") as error:
        GPT2.from_pretrained(tmp_path / "a.bin")
    assert "weights_only" not in str(error.value)


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_no_checkpoint(seed, tmp_path):
    """The message says that the file is no checkpoint, not that it holds code."""
    numbers = torch.randint(256, (500,), generator=torch.Generator().manual_seed(seed))
    (tmp_path / "a.bin").write_bytes(bytes(numbers.tolist()))
    with pytest.raises(ValueError, match=r"a.bin: not a file that torch.save wrote") as got:
        GPT2.from_pretrained(tmp_path / "a.bin")
    assert "\n  Compare its size with the original's" in str(got.value)


@pytest.mark.parametrize("text", [b"hello", b"{}", b".", b"PK\x03\x04", b"\x80\x02", b"N", b"0."])
def test_short_texts_are_no_checkpoint(text, tmp_path):
    (tmp_path / "a.bin").write_bytes(text)
    with pytest.raises(ValueError, match=r"a.bin: not a file that torch.save wrote"):
        GPT2.from_pretrained(tmp_path / "a.bin")


@pytest.mark.parametrize("old", [True, False])
def test_what_people_save_passes(old, tmp_path):
    model = torch.nn.TransformerEncoderLayer(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 2, 8)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": (1, [2, "x"])},
        tmp_path / "a.pth",
        _use_new_zipfile_serialization=not old,
    )
    check_pickle(tmp_path / "a.pth")


# Folders of Hugging Face


@pytest.fixture
def hugging(tmp_path) -> Path:
    """A small GPT-2 with a tokenizer of two words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    sizes = {"vocab_size": 7, "n_positions": 16, "n_embd": 6, "n_head": 2, "n_layer": 1}
    transformers.GPT2Model(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    words.save(str(tmp_path / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    return tmp_path


def configure(folder: Path, **changed: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changed), encoding="utf-8")


def test_a_folder_that_is_whole_is_loaded(hugging):
    assert find_model(hugging, any_architecture=True).read("a").ids == [1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vocab_size": 10**9, "n_embd": 512}, "config.json describes a model of .* but the files"),
        ({"n_layer": 10**9}, "config.json has 1,000,000,000 layers, but the files have"),
        ({"n_positions": 10**30}, "the model cannot be loaded"),
        ({"vocab_size": "many"}, "the model cannot be loaded"),
    ],
)
def test_a_folder_that_asks_for_much_more_than_it_has(hugging, changed, said):
    """Otherwise transformers would fill terabytes with random numbers."""
    configure(hugging, **changed)
    with pytest.raises(ValueError, match=said):
        find_model(hugging, any_architecture=True)


def test_code_of_the_folder_is_not_run_and_not_advised(hugging):
    """The message does not repeat the advice to pass trust_remote_code=True."""
    configure(hugging, model_type="own", auto_map={"AutoModel": "own.M", "AutoConfig": "own.C"})
    (hugging / "own.py").write_text("raise SystemExit", encoding="utf-8")
    with pytest.raises(ValueError, match="and Clearhead never runs such code") as got:
        find_model(hugging, any_architecture=True)
    assert "trust_remote_code" not in str(got.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"n_positions": 10**18}, "n_positions: expected a number from 1 to 1,000,000,000,000"),
        ({"n_positions": 2**31 - 1}, r"wpe.weight: expected \(2147483647, 6\)"),
        ({"n_positions": 10**30}, "n_positions: expected a number from 1 to 1,000,000,000,000"),
        ({"n_layer": 10**9}, "1000000000 layers, but"),
        ({"resid_pdrop": [0.1]}, r"resid_pdrop: expected a number, got \[0.1\]"),
        ({"attn_pdrop": "some"}, "attn_pdrop: expected a number, got 'some'"),
        ({"resid_pdrop": 7, "embd_pdrop": 7, "attn_pdrop": 7}, "expected 0 to 1, got 7"),
        ({"model_type": "clearhead-gpt2", "rope_base": "far"}, "rope_base: expected a number, got"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: expected true or false, got 'no'"),
        ({"qkv_bias": 0}, "qkv_bias: expected true or false, got 0"),
        ({"layer_norm_epsilon": 1e-6}, r"expected 1e-05, got 1e-06.\n  transformers supports it"),
        ({"activation_function": "relu"}, r"'gelu_new', got 'relu'.\n.*clearhead.watch\(model\)"),
        ({"n_inner": 7}, r"n_embd = 24, got 7.\n.*clearhead.watch\(model\)"),
    ],
)
def test_a_config_that_says_strange_things(hugging, changed, said):
    """Each gets a message, not a traceback; "no" is not taken for true."""
    configure(hugging, **changed)
    with pytest.raises(ValueError, match=said):
        GPT2.from_pretrained(hugging)


# Saved maps


def saved_map(folder: Path, q: torch.Tensor, **changed: object) -> Path:
    call = {"name": "a\x1b]0;x\x07", "scale": 1.0, "mask": None, "mask_tensors": [], "q": 0, "k": 0}
    about = {"schema": 1, "model": "m\x1b[31m", "calls": [call | changed]}
    save_file({"0": q}, folder / "a.safetensors", {"clearhead.seen": json.dumps(about)})
    return folder / "a.safetensors"


def test_a_map_of_nothing(tmp_path):
    """A billion tokens of width 0: a file of 300 bytes, and a huge map."""
    path = saved_map(tmp_path, torch.zeros(1, 1, 10**9, 0))
    with pytest.raises(ValueError, match=r"an axis is empty in q \(1, 1, 1000000000, 0\)"):
        Seen.load(path)


def test_names_from_a_file_cannot_move_the_cursor(tmp_path):
    seen = Seen.load(saved_map(tmp_path, torch.zeros(1, 1, 3, 2)))
    assert repr(seen).startswith(r"Seen(m\x1b[31m: 1 layers")
    for key in ("zz", ("a\x1b]0;x\x07", 7)):
        with pytest.raises(KeyError) as error:
            seen[key]
        assert "\x1b" not in str(error.value)
        assert r"a\x1b]0;x\x07" in str(error.value)


def test_names_are_no_formulas():
    """A spreadsheet must not run the name of a layer."""
    row = Head("=cmd()", 0, -0.5, None, None, None, None, None, "@sum")
    assert HeadTable((row,)).to_csv().splitlines()[1] == "'=cmd(),0,-0.5,,,,,,'@sum,,,,,,"
    seen = Seen("m")
    seen.add("+1\nb", AttentionMap(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2)))
    assert seen.heads().to_csv().splitlines()[1].startswith("'+1\\nb,0,")
