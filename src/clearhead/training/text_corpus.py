"""Anyone's text, prepared for training: a byte-pair vocabulary of its own, and its token ids.

    documents = read_documents("my_texts/")
    corpus = prepare(documents, folder, vocab_size=8192)   # writes three files, listed below
    corpus = load_corpus(folder)                           # reads them, without the text

    vocab.json, merges.txt   the vocabulary; see `clearhead.tokenizers.byte_pair_tokenizer`
    text.safetensors         the token ids

Documents are separated by `<|endoftext|>`. Some of them are held out: the model is never trained on
them, and its loss is measured on them.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from jaxtyping import UInt16
from torch import Tensor

from clearhead.models.trained_model import write_safetensors
from clearhead.tokenizers import END_OF_TEXT, BytePairTokenizer
from clearhead.tokenizers.byte_pair_tokenizer import write_vocabulary
from clearhead.version import install

TEXT = "text.safetensors"
HELD_OUT_EVERY = 100  # one document in so many is held out
_SUFFIXES = (".txt", ".md", ".rst", ".text")
_COMPRESSED = (".xz", ".gz")
_MAX_VOCABULARY = 2**16  # ids are stored in two bytes
_AT_ONCE = 1000  # documents per batch of the tokenizer


@dataclass(frozen=True)
class Corpus:
    """Encoded text.

    Attributes:
        train: The ids to train on: documents, each followed by <|endoftext|>.
        validation: The ids of the documents that are held out.
        bytes_per_token: The length of the held-out text in UTF-8, divided by its tokens.
        vocab_size: The number of different ids.
    """

    train: UInt16[Tensor, " tokens"]
    validation: UInt16[Tensor, " held_out"]
    bytes_per_token: float
    vocab_size: int


def read_documents(path: str | Path) -> list[str]:
    """The documents of a text file, or of all text files below a folder.

    A file is one document, or several that are separated by `<|endoftext|>`. It may be compressed
    (.xz, .gz). In a folder, files ending in .txt, .md, .rst and .text are read, in the order of
    their names.

    Raises:
        ValueError: There is no such file, it is not UTF-8, or there is no text.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ValueError(f"--text: {path} does not exist.\n  Looked for {path.absolute()}.")
    files = sorted(_text_files(path)) if path.is_dir() else [path]
    documents: list[str] = []
    for file in files:
        try:
            text = _content(file).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file}: expected text in UTF-8, got other bytes at offset {error.start:,}.\n"
                "  Convert it first, for example: iconv -f latin1 -t utf-8."
            ) from None
        except (lzma.LZMAError, gzip.BadGzipFile, EOFError) as error:
            raise ValueError(f"{file}: cannot be decompressed ({error}).") from None
        documents += [part.strip("\n") for part in text.split(END_OF_TEXT)]
    documents = [document for document in documents if document.strip()]
    if not documents:
        kinds = ", ".join(_SUFFIXES)
        where = f" (looked for {kinds})" if path.is_dir() else ""
        raise ValueError(f"--text: {path} contains no text{where}.")
    return documents


def _content(file: Path) -> bytes:
    if file.suffix == ".xz":
        return lzma.decompress(file.read_bytes())
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def _text_files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        inner = Path(file.stem) if file.suffix in _COMPRESSED else file
        if file.is_file() and inner.suffix in _SUFFIXES:
            yield file


def train_vocabulary(documents: Sequence[str], folder: Path, vocab_size: int) -> BytePairTokenizer:
    """Train byte pairs on documents, and write vocab.json and merges.txt.

    The files have GPT-2's form: 256 bytes, then one token per merge, then <|endoftext|>. A small
    text may have fewer merges than asked for.

    Raises:
        ValueError: The size is out of range, or Hugging Face's tokenizers are not installed.
    """
    if not 257 <= vocab_size <= _MAX_VOCABULARY:
        raise ValueError(
            f"vocab_size: expected 257 to {_MAX_VOCABULARY:,}, got {vocab_size:,}.\n"
            "  There are 256 bytes, and <|endoftext|>."
        )
    try:
        import tokenizers
    except ImportError:
        raise ValueError(
            "Training a tokenizer needs Hugging Face's tokenizers, which are not installed.\n"
            f"  Install them: {install('train')}"
        ) from None
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    trained.train_from_iterator(documents, trainer)
    content = json.loads(trained.to_str())["model"]
    vocabulary = {**content["vocab"], END_OF_TEXT: len(content["vocab"])}
    write_vocabulary(folder, vocabulary, [" ".join(pair) for pair in content["merges"]])
    return BytePairTokenizer(folder)


def prepare(documents: Sequence[str], folder: Path, *, vocab_size: int) -> Corpus:
    """Train a vocabulary, encode the documents, and write both to the folder.

    Every hundredth document is held out, and at least one. A single document is divided: its last
    tenth is held out.
    """
    if len(documents) == 1:
        cut = len(documents[0]) * 9 // 10
        trained_on, held_out = [documents[0][:cut]], [documents[0][cut:]]
    else:
        held_out = list(documents[::HELD_OUT_EVERY])
        trained_on = [text for index, text in enumerate(documents) if index % HELD_OUT_EVERY]
    tokenizer = train_vocabulary(trained_on, folder, vocab_size)
    validation = _encode(held_out, tokenizer)
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in held_out)
    corpus = Corpus(
        _encode(trained_on, tokenizer),
        validation,
        size / max(1, len(validation) - len(held_out)),
        tokenizer.vocab_size,
    )
    write_safetensors(
        folder / TEXT,
        {"train": corpus.train, "validation": corpus.validation},
        {
            "bytes_per_token": repr(corpus.bytes_per_token),
            "vocab_size": str(corpus.vocab_size),
        },
    )
    return corpus


def load_corpus(folder: Path) -> Corpus:
    """What `prepare` wrote.

    Raises:
        ValueError: The file is missing or damaged.
    """
    try:
        with safetensors.safe_open(folder / TEXT, framework="pt") as opened:
            about = opened.metadata() or {}
            return Corpus(
                opened.get_tensor("train"),
                opened.get_tensor("validation"),
                float(about["bytes_per_token"]),
                int(about["vocab_size"]),
            )
    except (safetensors.SafetensorError, OSError, LookupError, ValueError) as error:
        raise ValueError(
            f"{folder / TEXT}: not a file that `clearhead train --text` prepared ({error}).\n"
            "  Delete the folder and start again."
        ) from None


def _encode(documents: Sequence[str], tokenizer: BytePairTokenizer) -> UInt16[Tensor, " tokens"]:
    """All documents in one row, each followed by <|endoftext|>."""
    parts = []
    for start in range(0, len(documents), _AT_ONCE):
        ids: list[int] = []
        for document in documents[start : start + _AT_ONCE]:
            ids += tokenizer.encode(document, allow_special=False)
            ids.append(tokenizer.end)
        parts.append(torch.tensor(ids, dtype=torch.int32).to(torch.uint16))
    return torch.cat(parts)
