"""A text that somebody typed, as the lab's model reads it: some words are not among its own."""

from __future__ import annotations

from dataclasses import dataclass

from clearhead.tokenizers import UNKNOWN, WordTokenizer

_MOST_UNKNOWN = 0.5  # of the words; beyond it a map says nothing of the text


@dataclass(frozen=True)
class Reading:
    """What the model reads of a text.

    Attributes:
        ids: A token id each.
        labels: The words as they were typed; one that the model does not know has a `?`.
        notes: What a person should know of it.
    """

    ids: list[int]
    labels: list[str]
    notes: list[str]


def read(text: str, tokens: WordTokenizer) -> Reading:
    """Cut a text into the model's words; "The" is read as "the", "mary" as "Mary".

    Raises:
        ValueError: more than half of it is outside the vocabulary.

    >>> words = WordTokenizer(["the", "cat", "sat", "Mary"])
    >>> found = read("The blue cat sat", words)
    >>> found.labels
    ['The', 'blue?', 'cat', 'sat']
    """
    unknown_id = tokens.encode(UNKNOWN)[0]
    size = tokens.vocab_size - 3  # without the special ones
    ids: list[int] = []
    labels: list[str] = []
    unknown: list[str] = []
    text = " ".join(text.split())  # whole words: how they are spaced does not count
    for piece in WordTokenizer.from_text(text).tokens(text):
        forms = (piece, piece.lower(), piece.capitalize())
        found = [number for form in forms for number in tokens.encode(form)[:1]]
        known = [number for number in found if number != unknown_id]
        ids.append(known[0] if known else unknown_id)
        labels.append(piece if known else f"{piece}?")
        unknown += [] if known else [piece]
    _check(unknown, len(ids), size)
    notes = []
    if unknown:
        words = ", ".join(dict.fromkeys(unknown))
        are = "is" if len(set(unknown)) == 1 else "are"
        notes.append(
            f"{words} {are} not among the {size} words of the lab's model, which "
            f"reads {UNKNOWN} there."
        )
    return Reading(ids, labels, notes)


def _check(unknown: list[str], count: int, size: int) -> None:
    if len(unknown) <= _MOST_UNKNOWN * count:
        return
    different = list(dict.fromkeys(unknown))
    some = ", ".join(different[:5]) + (", ..." if len(different) > 5 else "")
    raise ValueError(
        f"TEXT: of its {count} words, {len(unknown)} are not among the {size} English words of the "
        f"lab's model ({some}): its attention would say nothing of them.\n"
        "  Another model: --model DIR_OR_NAME. Any words, with random weights: "
        "clearhead explain --untrained."
    )
