"""Which pairs of tokens are hidden, and what is added to the scores of the others."""

from __future__ import annotations

from collections.abc import Collection
from itertools import filterfalse

import torch
from torch import Tensor

from clearhead.checker.diagnosis.attention_step import AttentionStep, cleared
from clearhead.checker.diagnosis.reading import HIDDEN

_READS = {"__getitem__", "embedding", "index_select", "gather"}
_ADDS = {"add", "add_", "__iadd__", "sub", "sub_", "__isub__"}
_DRAWS = {"tril", "triu", "tril_", "triu_"}


class MaskCheck(AttentionStep):
    """The mask, and a position bias."""

    def mask(self, a: Tensor, b: Tensor, summed: int) -> None:
        """Judge which pairs are hidden, and how."""
        core, verdict = self.core, self.verdict
        axes = (core.axes[1 - summed], core.axes[summed])
        if a.shape == self.reading.values[core.scores].shape:
            a, b = core.canonical(a, axes), core.canonical(b, axes)
        elif summed == 0:
            a, b = a.transpose(-1, -2), b.transpose(-1, -2)
        rows, columns = b.shape[-2:]
        last = True  # whether the tokens are the last keys
        learned = self._learned(self._between())
        weights = self._used_weights(summed)
        hidden = (b < HIDDEN) | b.isnan()
        zero = (weights == 0).all(0) if weights is not None else hidden
        gone = zero | hidden if zero.shape == hidden.shape else hidden
        plain = a.masked_fill(hidden | (a.abs() <= 1e-12), torch.nan)
        usual = plain.flatten(1).nanmedian(1).values[:, None, None].nan_to_num(0.0)
        near = 10 * self.close
        odd = ~hidden & ((b.abs() > near) | ((a - usual).abs() > near * usual.abs()))
        if rows != columns:
            places = self.reading.tokens_at(core.operands[summed])
            if places is None or len(places) != rows:
                verdict.mask = "none" if not gone.any() else "other"
                if gone.any() and not self.expected.given_mask:
                    verdict.doubts.append("a mask between sequences of different lengths")
                return
            a, b, gone, odd = (tensor[..., places] for tensor in (a, b, gone, odd))
            last = places == list(range(columns - rows, columns))
        future = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        if not (gone == gone[:1]).all():
            verdict.mask = "other"
            verdict.doubts.append("different heads or sequences hide different tokens")
            return
        pattern = gone[0]
        oddly = odd.all(0) if odd.ndim == 3 else odd
        line = self._mask_line()
        if odd.any() and learned:
            self.learned_bias(a, b)
        elif odd.any() and (self.odd_scores(oddly, odd, a, b, future, line) or verdict.doubts):
            return
        self.pattern(pattern, future, line)
        if not last and verdict.mask != "none":
            verdict.mask = "other"

    def by_shape(self, b: Tensor) -> None:
        """Judge the mask by rows and columns of the scores, where the token axis was lost."""
        tokens = self.reading.size[0]
        hidden = (b < HIDDEN).reshape(-1, *b.shape[-2:]) if b.ndim > 1 else b
        if b.ndim > 1 and hidden.shape[1:] == (tokens, tokens) and (hidden == hidden[:1]).all():
            future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            self.named(hidden[0], future)

    def named(self, hidden: Tensor, future: Tensor) -> None:
        """Judge the pattern of a mask, without raising a doubt if it is unusual."""
        doubts = list(self.verdict.doubts)
        self.pattern(hidden, future, self._mask_line())
        self.verdict.doubts = doubts

    def _used_weights(self, summed: int) -> Tensor | None:
        core = self.core
        axes = core.weight_axes(core.axes)
        order = (axes[1 - summed], axes[summed])
        try:
            return torch.stack([core.canonical(v[core.mixed[1]], order) for v in self.runs])
        except RuntimeError:
            return None

    def odd_scores(
        self, oddly: Tensor, odd: Tensor, a: Tensor, b: Tensor, future: Tensor, line: int | None
    ) -> bool:
        """Judge scores with an odd factor or bias that is not learned; whether it is the mask."""
        verdict = self.verdict
        drawn = any(torch.equal(oddly, one) for one in (future, future.T, ~future))
        fill = b[..., oddly]
        zeroed = bool((a[..., oddly].abs() < 1e-12).all())
        same = fill.numel() > 0 and float(fill.max() - fill.min()) < 1e-9
        if (zeroed or same) if drawn else (zeroed and same and bool((odd == oddly).all())):
            number = cleared(fill.min())
            how = f"the score {number:.3g}" if zeroed else f"{number:.3g} added"
            evidence = f"Masked entries get {how} instead of -inf, so they keep a weight."
            added = not zeroed and abs(abs(number) - 1) < 1e-9
            id = "mask-added-not-filled" if added else "mask-fill-not-inf"
            if number < -5 and not torch.equal(oddly, ~future):
                id, verdict.mask = "mask-fill-too-small", "causal"
            verdict.add(id, evidence, line)
            if not drawn:
                self.named(oddly, future)
            return True
        if self._of_distance(b) or self._of_key(b):
            verdict.notes.append("A relative position bias is added to the scores.")
            last = b[..., -1, :].masked_fill(b[..., -1, :] < HIDDEN, 0.0)
            if bool((last.diff(dim=-1) < -1e-6).all(-1).any()):
                evidence = (
                    f"The last token's score for the first token is raised by "
                    f"{cleared(last[0, 0]):.3g}, and that for itself by "
                    f"{cleared(last[0, -1]):.3g}."
                )
                verdict.add("bias-favours-distant", evidence, self._bias_line() or line)
            return False
        if self._passed_in(a):
            verdict.notes.append("A bias that is passed in is added to the scores.")
        elif not self._of_sum(b):
            verdict.doubts.append("a bias that could not be judged is added to the scores")
        return False

    def _bias_line(self) -> int | None:
        """The line that adds a tensor of finite values to the scores."""
        adds = {i for i in self._between() if self.program.calls[i].name in _ADDS}
        beside = {i: [*filterfalse(self.reading.depends, self.reading.places(i))] for i in adds}
        values = {i: self.reading.values[rs[0]] for i, rs in beside.items() if rs}
        found = {i for i, v in values.items() if v.numel() > 1 and bool((v > HIDDEN).all())}
        return self._line(found)

    def _passed_in(self, a: Tensor) -> bool:
        """Whether nothing is added to the scores if every input besides the tokens is zero.

        A constant per head is ignored, because it changes no weight.
        """
        base, tokens = self.reading.values, {s.register for s in self.reading.sources}
        beside = {*self.program.inputs.values()} - tokens
        zeros = {r: torch.zeros_like(base[r]) for r in beside if base[r].is_floating_point()}
        dots, scores = self.core.pairs({**base, **self.program.again(base, zeros)})
        if not zeros or dots.shape != scores.shape:
            return False
        rest = (scores - float(a.nanmedian()) * dots).masked_fill(scores <= HIDDEN, torch.nan)
        apart = (rest - rest.nanmean((1, 2), keepdim=True)).nan_to_num(0.0)
        return bool((scores > HIDDEN).any()) and float(apart.abs().max()) < 10 * self.close

    def learned_bias(self, a: Tensor, b: Tensor) -> None:
        """Judge a bias per distance, per offset in a window or per pair, and doubt any other."""
        verdict, window = self.verdict, self.expected.window
        values = by_offset(b, *window) if window is not None and len(window) == 2 else None
        if values is not None:
            verdict.notes.append("A bias for offsets in two directions is added to the scores.")
            self._whole_table(values)
        elif (line := self._viewed_table(b)) is not None:
            evidence = (
                "The table gives one number for each pair and head, with the heads last; it is "
                "viewed with the heads first, without moving their axis."
            )
            verdict.add("unexplained", evidence, line)
        elif window is None and self._of_distance(b):
            verdict.notes.append("A relative position bias is added to the scores.")
            seen = b.masked_fill(b <= HIDDEN, torch.nan).flatten(1)
            level = seen.nanmean(1, keepdim=True)
            constant = bool(((seen - level).abs().nan_to_num(0.0) < 1e-9).all())
            if constant and self._table_line() is not None:
                evidence = "Every visible pair of tokens gets the same bias, whatever its distance."
                verdict.add("bias-ignores-distance", evidence, self._table_line())
        elif self._pair_table(b.shape[-1]):
            verdict.notes.append("A bias for each pair of positions is added to the scores.")
        elif self._passed_in(a):
            verdict.notes.append("A bias that is passed in is added to the scores.")
        elif not self._of_sum(b):
            verdict.doubts.append("a learned bias that depends on more than the distance")

    def _viewed_table(self, b: Tensor) -> int | None:
        """The line that reads a heads-last table, if the bias is a heads-first view of it."""
        groups, rows, keys = b.shape
        for call, sources in zip(self.program.calls, self.program.sources, strict=True):
            if call.name not in _READS or not any(r in self.program.parameters for r in sources):
                continue
            read = self.reading.values[call.out[0]]
            heads = read.shape[-1] if read.ndim else 0
            if heads < 2 or groups % heads or read.numel() != heads * rows * keys:
                continue
            viewed = read.reshape(heads, rows, keys).to(b.dtype)
            own = b[:heads].masked_fill(b[:heads] <= HIDDEN, 0.0)
            if float((own - viewed).masked_fill(b[:heads] <= HIDDEN, 0.0).abs().max()) < 1e-5:
                return call.line
        return None

    def _pair_table(self, tokens: int) -> bool:
        """Whether a parameter has an entry for each pair of tokens."""
        read = {place for i in self._between() for place in self.reading.places(i)}
        beside = {p for r in read if not self.reading.depends(r) for p in self.reading.learned(r)}
        shapes = [self.reading.values[r].shape for r in beside]
        return any(
            len(shape) >= 2 and min(shape[-2:]) >= tokens and self.core.head_dim not in shape[-2:]
            for shape in shapes
        )

    def _whole_table(self, values: Tensor) -> None:
        """Check that different offsets use different entries, if the table has one for each."""
        count = values.shape[1]
        whole = any(count in weight.shape for weight in self.program.weights.values())
        distinct = len({tuple(column) for column in values.mul(1e5).round().T.tolist()})
        if whole and distinct < count:
            evidence = (
                f"The bias table has {count} entries, one for each offset between two pixels; "
                f"only {distinct} of them are used, so different offsets share a bias. The index "
                "should be row offset * (2 * width - 1) + column offset."
            )
            self.verdict.add("unexplained", evidence, self._table_line() or self._mask_line())

    def _table_line(self) -> int | None:
        """The line that looks the bias up in a table; None if there is none."""
        program, values = self.program, self.reading.values
        tables = {r for r in program.parameters if r in values and values[r].ndim > 1}
        before = program.before(self.core.scores)
        return self._line({i for i in before if tables & {*program.sources[i]}}, _READS, last=True)

    @staticmethod
    def _of_distance(b: Tensor) -> bool:
        """Whether a bias depends only on the distance between query and key."""
        size = b.shape[-1]
        seen = b > HIDDEN
        for offset in range(-size + 1, size):
            line, fine = b.diagonal(offset, -2, -1), seen.diagonal(offset, -2, -1)
            most = line.masked_fill(~fine, -torch.inf).amax(-1)
            least = line.masked_fill(~fine, torch.inf).amin(-1)
            if bool((most - least > 1e-5).any()):
                return False
        return True

    def _of_key(self, b: Tensor) -> bool:
        """Whether a bias depends only on the key's position and rises linearly with it.

        ALiBi may be written this way, because a constant per query changes no weight.
        """
        level, last = b.diagonal(0, -2, -1)[..., None], b[..., -1:, :]
        same = (b - last).masked_fill(b <= HIDDEN, 0.0).abs() <= 1e-5
        rises = (level > HIDDEN).all() and (last.diff(dim=-1) > -1e-6).all()
        return bool(same.all() and rises) and self._of_distance(b - level)

    def _of_sum(self, b: Tensor) -> bool:
        """Report a bias that depends on the sum of the positions of query and key."""
        if not self._of_distance(b.flip(-1)):
            return False
        evidence = (
            "The bias of query i and key j depends on i + j, so the same pair of tokens has "
            "another bias at another position."
        )
        self.verdict.add(
            "bias-of-summed-positions", evidence, self._table_line() or self._mask_line()
        )
        return True

    def pattern(self, hidden: Tensor, future: Tensor, line: int | None) -> None:
        """Judge whether the hidden pairs are the future, if they should be."""
        verdict = self.verdict
        past = ~future
        self_ = torch.eye(len(hidden), dtype=torch.bool)
        if not hidden.any():
            verdict.mask = "none"
            if self.expected.causal == "yes":
                self.unmasked()
            return
        if torch.equal(hidden, future):
            verdict.mask = "causal"
            return
        calls = self.program.calls
        fused = calls[self.core.softmax].line == calls[self.core.mixing].line == self.core.line
        inverted = "sdpa-mask-polarity" if fused else "mask-inverted"
        drawn = self._line(self.program.before(self.core.scores), _DRAWS, last=True)
        looks_ahead = "Token i may attend to later tokens, but not to earlier ones."
        patterns = (
            ("mask-off-by-one", future.triu(2), "Token i may attend to token i + 1.", drawn),
            ("mask-hides-self", future | self_,
             "Token i may attend to the tokens before it, but not to itself.", drawn),
            (inverted, past, looks_ahead, line),
            (inverted, past & ~self_, looks_ahead, line),
            ("mask-hides-others", ~self_, "Each token may attend only to itself.", drawn),
        )  # fmt: skip
        for id, pattern, evidence, place in patterns:
            if torch.equal(hidden, pattern):
                verdict.add(id, evidence, place)
                return
        leak = (~hidden & future).any()
        widths = {int((~row[: i + 1]).sum()) for i, row in enumerate(hidden)}
        banded = (
            not leak
            and len(widths) > 1
            and all(
                torch.equal(~hidden[i, : i + 1], torch.arange(i + 1) > i - max(widths))
                for i in range(len(hidden))
            )
        )
        if banded:
            verdict.mask = f"window{max(widths)}"
            verdict.notes.append(f"Each token attends to the last {max(widths)} tokens.")
            return
        verdict.mask = "other"
        verdict.doubts.append("a mask of an unusual form")

    def dropped(self, hides: Collection[str] = ("masked_fill",)) -> bool:
        """Report a call that hides scores but whose result is never used; whether there is one."""
        program = self.program
        for index in sorted(program.after(self.core.dots)):
            call = program.calls[index]
            unused = not program.users.get(call.out[0]) and call.out[0] != self.reading.output
            if call.name in hides and unused and call.out[0] not in program.recording.outputs:
                evidence = f"The result of {call.name} is never used, so nothing is hidden."
                self.verdict.add("mask-result-dropped", evidence, call.line)
                return True
        return False

    def unmasked(self) -> None:
        """Report that nothing is hidden although the class is meant to be causal."""
        program = self.program
        if self.dropped(("masked_fill", "where", "tril", "triu", "add", "mul")):
            return
        for index in sorted(program.before(self.core.scores)):
            call = program.calls[index]
            tiny = [v for v in call.args if isinstance(v, float) and -1e-5 < v < 0]
            if call.name == "mul" and tiny and not self.reading.depends(call.out[0]):
                evidence = f"Masked entries get {tiny[0]:.3g} added, which hides nothing."
                self.verdict.add("mask-fill-not-inf", evidence, call.line)
                return
        evidence = "No score is hidden: every token attends to the tokens after it."
        self.verdict.add("no-causal-mask", evidence, self.core.line)


def by_offset(bias: Tensor, height: int, width: int) -> Tensor | None:
    """The bias of each offset (rows, columns) in a window of pixels, (groups, offsets).

    None if the bias depends on anything else. A constant per row is ignored: it changes no weight.
    """
    pixels = torch.arange(height * width)
    if bias.shape[1:] != (len(pixels), len(pixels)) or not bias.isfinite().all():
        return None
    rows, columns = pixels // width, pixels % width
    down = rows[:, None] - rows + height - 1
    across = columns[:, None] - columns + width - 1
    offset = (down * (2 * width - 1) + across).flatten()
    count, cells = (2 * height - 1) * (2 * width - 1), len(offset)
    table = torch.zeros(cells, count + len(pixels), dtype=bias.dtype)
    table[torch.arange(cells), offset] = 1.0
    table[torch.arange(cells), count + torch.arange(cells) // len(pixels)] = -1.0
    wanted = bias.flatten(1).T  # (cells, groups)
    found: Tensor = torch.linalg.pinv(table) @ wanted
    return found[:count].T if float((table @ found - wanted).abs().max()) < 1e-5 else None
