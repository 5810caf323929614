"""Byte pairs from two files: round trips, equality with Hugging Face, damaged files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clearhead
from clearhead.tokenizers import BytePairTokenizer
from clearhead.training.text_corpus import train_vocabulary
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ENGLISH = clearhead.load("english")[1]
TEXTS = st.one_of(
    st.text(max_size=80),
    st.text("abc '\n\t.éß猫🙂\u0301\x00", max_size=80),
    st.lists(st.sampled_from(["the ", "The", " don't", "  ", "1234", "naïve"])).map("".join),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("english")
    ENGLISH.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def theirs(folder):
    content = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    del content["<|endoftext|>"]
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    found = Tokenizer(models.BPE(content, [tuple(line.split(" ")) for line in lines]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return found


@given(TEXTS)
def test_any_text_survives(text):
    ids = ENGLISH.encode(text, allow_special=False)
    assert ENGLISH.decode(ids) == text
    assert all(0 <= number < ENGLISH.end for number in ids)
    assert len(ENGLISH.tokens(text, allow_special=False)) == len(ids)


@given(text=TEXTS)
def test_the_ids_are_those_of_hugging_face(theirs, text):
    assert ENGLISH.encode(text, allow_special=False) == theirs.encode(text).ids


def test_the_special_token():
    assert ENGLISH.encode("<|endoftext|>") == [ENGLISH.end] == [ENGLISH.vocab_size - 1]
    plain = ENGLISH.encode("<|endoftext|>", allow_special=False)
    assert len(plain) > 1
    assert ENGLISH.decode(plain) == "<|endoftext|>"


def test_saved_and_loaded_it_is_the_same(folder, tmp_path):
    again = BytePairTokenizer(folder)
    again.save_pretrained(tmp_path / "new" / "folder")
    for name in ("vocab.json", "merges.txt"):
        assert (tmp_path / "new" / "folder" / name).read_bytes() == (folder / name).read_bytes()
    text = "My dog loves Einstein's quantum pizza!"
    assert again.encode(text) == ENGLISH.encode(text)


def test_gpt2s_files_are_written_as_openai_wrote_them(tmp_path):
    from clearhead.tokenizers import gpt2_tokenizer

    clearhead.GPT2Tokenizer().save_pretrained(tmp_path)
    merges, vocab = gpt2_tokenizer._find_files(gpt2_tokenizer._package_folder())
    assert (tmp_path / "merges.txt").read_bytes() == merges.read_bytes()
    written = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert written == json.loads(vocab.read_text(encoding="utf-8"))


def test_the_most_frequent_pair_is_merged_first(tmp_path):
    found = train_vocabulary(["abab abab", "ab"], tmp_path, 259)
    assert (found.vocab_size, found.end) == (259, 258)
    assert found.tokens("abab") == ["abab"]
    merges = (tmp_path / "merges.txt").read_text(encoding="utf-8").splitlines()
    assert merges[1:] == ["a b", "ab ab"]
    with pytest.raises(ValueError, match=r"expected 257 to 65,536, got 256\."):
        train_vocabulary(["a"], tmp_path, 256)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_missing_file_is_named(tmp_path, name):
    train_vocabulary(["some words"], tmp_path, 260)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"no {name}"):
        BytePairTokenizer(tmp_path)


def _swap(content):
    first, second = [token for token, number in content.items() if number in (256, 257)]
    content[first], content[second] = content[second], content[first]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("<|endoftext|>"),
        lambda content: content.update(zzz=999),
        _swap,
        lambda content: content.pop("a"),
    ],
)
def test_a_vocabulary_that_tiktoken_would_read_otherwise_is_refused(tmp_path, change):
    train_vocabulary(["some words, some words"], tmp_path, 262)
    content = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    change(content)
    (tmp_path / "vocab.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="not a vocabulary of byte pairs as in GPT-2"):
        BytePairTokenizer(tmp_path)
