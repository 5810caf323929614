"""Text to token ids and labels, and token ids to whole characters."""

import pytest
import transformers

import tokenizers
from clearhead.models.text_readers import (
    BytePairTextReader,
    Characters,
    HubTextReader,
    WordTextReader,
    find_reader,
)
from clearhead.tokenizers import UNKNOWN, GPT2Tokenizer, WordTokenizer


@pytest.fixture
def words():
    return WordTextReader(WordTokenizer(["the", "cat", "sat", "Mary"]))


def test_words_are_found_whatever_their_case(words):
    reading = words.read(" The cat\n sat  mary")
    assert reading.text == "The cat sat mary"
    assert reading.ids == [0, 1, 2, 3]
    assert reading.labels == ["The", "cat", "sat", "mary"]
    assert reading.notes == []
    assert words.decode(reading.ids) == "the cat sat Mary"


def test_unknown_words_are_marked_and_noted(words):
    reading = words.read("the blue cat sat on Mary")
    assert reading.labels == ["the", "blue?", "cat", "sat", "on?", "Mary"]
    assert reading.ids[1] == reading.ids[4] == words.tokenizer.encode(UNKNOWN)[0]
    assert reading.notes[0].startswith("blue, on are not among the 4 words")
    with pytest.raises(ValueError, match=r"of its 3 words, 2 are not among the 4 .* \(a, blue\)"):
        words.read("a blue cat")


def test_labels_of_byte_pairs_show_broken_characters():
    reading = BytePairTextReader(GPT2Tokenizer()).read("a 猫")
    assert reading.labels == ["a", " \\xe7", "\\x8c", "\\xab"]
    assert reading.tensor().tolist() == [reading.ids]
    assert reading.tensor(2).tolist() == [reading.ids[:2]]


def test_characters_are_never_broken():
    reader = BytePairTextReader(GPT2Tokenizer())
    text = "naïve 猫 🦜 end 𝄞"
    characters = Characters(reader)
    pieces = [characters.add(token) for token in reader.read(text).ids]
    assert "".join(pieces) + characters.rest() == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    cut = reader.read("猫").ids[:-1]
    assert [characters.add(token) for token in cut] == [""] * len(cut)
    assert characters.rest() == "\N{REPLACEMENT CHARACTER}"


def test_the_tokenizer_in_the_folder_is_used(tmp_path):
    words = {"<end>": 0, "the": 1, "cat": 2}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<end>", model_max_length=7
    ).save_pretrained(tmp_path)
    found = find_reader(tmp_path, 3)
    assert isinstance(found, HubTextReader)
    assert found.read("the cat").ids == [1, 2]
    assert found.read("the cat").labels == ["the", "cat"]
    assert found.decode([1, 2]) == "the cat"
    assert (found.end, found.longest) == (0, 7)


def test_a_space_that_sentencepiece_drops_is_shown():
    class Pieces:
        """As SentencePiece: ▁ is the space before a word, dropped by decode."""

        eos_token_id = None

        def __call__(self, text, **options):
            return {"input_ids": [5, 6]}

        def convert_ids_to_tokens(self, ids):
            return [{5: "\u2581the", 6: "re"}[number] for number in ids]

        def decode(self, ids, **options):
            return "".join({5: "the", 6: "re"}[number] for number in ids)

    assert HubTextReader(Pieces()).read("there").labels == [" the", "re"]
