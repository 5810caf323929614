"""Whether queries, keys and values keep their tokens separate."""

from __future__ import annotations

from clearhead.checker.diagnosis.attention_step import AttentionStep
from clearhead.checker.diagnosis.reading import RESHAPES


class TokenCheck(AttentionStep):
    """The token axis of queries, keys and values."""

    def operand(self, register: int) -> bool:
        """Whether queries, keys or values have a token axis; if not, report where it was lost."""
        reading = self.reading
        if reading.token_axis(register) is not None:
            return True
        index = self._lost(register)
        if index is None or not self._scrambled(register):
            self.verdict.doubts.append("the queries, keys or values have no token axis")
            return False
        call = self.program.calls[index]
        before = reading.values[reading.places(index)[0]]
        after = reading.values[call.out[0]]
        shapes = f"{tuple(before.shape)} -> {tuple(after.shape)}"
        if call.name not in RESHAPES:
            self.verdict.doubts.append("the token axis is lost")
            return False
        evidence = (
            f"{call.name} {shapes}: the result has no token axis. The numbers of one token are "
            "spread over several rows, and a row's index is not its token."
        )
        viewed = after.ndim == before.ndim
        id = "keys-viewed-not-transposed" if viewed else "split-without-transpose"
        if viewed and after.shape[0] > before.shape[0] and after.shape[0] % self.batch == 0:
            id = "heads-folded-into-batch"
        self.verdict.add(id, evidence, call.line)
        return False

    def _lost(self, register: int) -> int | None:
        """The first call on the path to a register that loses the token axis."""
        reading = self.reading
        for index in sorted(self.program.before(register)):
            out = self.program.calls[index].out[0]
            sources = [r for r in reading.places(index) if reading.depends(r)]
            if not sources or out not in reading.tokens or not reading.depends(out):
                continue
            had = all(reading.token_axis(r) is not None or reading.has_pixels(r) for r in sources)
            if had and reading.token_axis(out) is None and not reading.has_pixels(out):
                return index
        return None

    def _scrambled(self, register: int) -> bool:
        """Whether a group holds a token twice, or a row holds several tokens."""
        moves = self.reading.tokens[register]
        if moves.ndim < 3:
            return True
        for features in (-1, -2):  # keys may be columns
            rows = moves.any(features)
            if int(rows.sum(0).max()) > 1:
                continue
            tokens = rows.float().argmax(0)  # the token of each row
            tokens = tokens.masked_fill(~rows.any(0), -1)  # rows that no token affects
            flat = tokens.reshape(-1, tokens.shape[-1]).tolist()
            groups = [[token for token in row if token >= 0] for row in flat]
            return any(not self._all_alike(row, len(moves)) for row in groups)
        return True

    @staticmethod
    def _all_alike(row: list[int], tokens: int) -> bool:
        """Whether each token occurs once, or all of them occur equally often."""
        counts = {token: row.count(token) for token in row}
        if all(count == 1 for count in counts.values()):
            return True
        return len(counts) == tokens and len(set(counts.values())) == 1

    def summed_letters(self) -> None:
        """Report einsum indices of one side only, which are summed before the sides meet."""
        for index in (self.core.product, self.core.mixing):
            call = self.program.calls[index]
            if call.name != "einsum" or not isinstance(call.args[0], str):
                continue
            left, arrow, right = call.args[0].replace(" ", "").partition("->")
            letters = left.split(",")
            if not arrow or len(letters) != 2 or "." in left:
                continue
            shapes = [self.reading.values[r].shape for r in self.reading.places(index)[:2]]
            sides = ((letters[0], letters[1], shapes[0]), (letters[1], letters[0], shapes[1]))
            alone = [
                [c for c in mine if c not in other + right and shape[mine.index(c)] > 1]
                for mine, other, shape in sides
            ]
            if not any(alone):
                continue
            evidence = (
                f'einsum "{call.args[0]}" sums over {", ".join(alone[0] + alone[1])} on one side '
                "only, before the two sides meet."
            )
            mixed = index == self.core.mixing and not all(alone)
            self.verdict.add("values-not-mixed" if mixed else "unexplained", evidence, call.line)

    def two_inputs(self) -> None:
        """Check that, of two inputs, values come from that of the keys; of three, from the last."""
        if len(self.reading.sources) < 2 or self.core.additive:
            return  # which of two summands is the query is unknown
        keys = [self._inputs_of(register) for register in self.core.operands]
        values = self._inputs_of(self.core.mixed.values)
        if keys == [{0}, {1}] and values == {0}:
            evidence = (
                "The keys come from the second input, and the values from the queries' input."
            )
        elif keys == [{0}, {0}] and values in ({1}, {2}):
            evidence = "The keys come from the queries' input, and the values from another input."
        else:
            return
        line = self._line(self.program.before(self.core.mixed.values), {"linear"})
        self.verdict.add("keys-and-values-apart", evidence, line)

    def _inputs_of(self, register: int) -> set[int]:
        """Which inputs a register depends on."""
        found: set[int] = set()
        first = 0
        moves = self.reading.tokens.get(register)
        for number, count in enumerate(self.reading.size):
            if moves is not None and bool(moves[first : first + count].any()):
                found.add(number)
            first += count
        return found
