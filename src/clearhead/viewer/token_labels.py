"""Labels: the tokens of each text, and a search over them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from clearhead.drawing import shorten

WIDTH = 40  # longer labels are shortened
_MOST_MATCHES = 1000


class Labels:
    """The tokens of each sequence.

    Args:
        tokens: One list of tokens per sequence.
    """

    def __init__(self, tokens: Sequence[Sequence[str]] = ()) -> None:
        self._tokens = [list(map(str, each)) for each in tokens]
        self._texts: dict[int, tuple[str, list[int]]] = {}

    def count(self, batch: int) -> int:
        """The number of tokens of a sequence; 0 without labels."""
        return len(self._tokens[batch]) if batch < len(self._tokens) else 0

    def some(self, batch: int, start: int, stop: int) -> list[str]:
        """The labels from `start` to `stop`, made visible and shortened."""
        return [shorten(token, WIDTH) for token in self._tokens[batch][start:stop]]

    def find(self, batch: int, text: str) -> tuple[list[int], int]:
        """The indices of the first 1,000 tokens in which `text` begins, and the number of all.

        The search ignores case, and a match may extend over several tokens.
        """
        if not text or not self.count(batch):
            return [], 0
        if batch not in self._texts:
            pieces = [token.casefold() for token in self._tokens[batch]]
            starts, length = [], 0
            for piece in pieces:
                starts.append(length)
                length += len(piece)
            self._texts[batch] = "".join(pieces), starts
        whole, starts = self._texts[batch]
        wanted = text.casefold()
        found: list[int] = []
        count, last, at = 0, -1, whole.find(wanted)
        while at >= 0:
            token = bisect.bisect_right(starts, at) - 1
            if token != last:
                count, last = count + 1, token
                if count <= _MOST_MATCHES:
                    found.append(token)
            at = whole.find(wanted, at + 1)
        return found, count
