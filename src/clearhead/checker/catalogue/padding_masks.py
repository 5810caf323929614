"""Mistakes in padding masks."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Padding",
    (
        Mistake(
            "padding-inverted",
            "wrong",
            says="The padding is visible and the real tokens are hidden.",
            fix="True must mean a real token here: pass ~mask if your mask marks the padding.",
            symptom="Changing the padding changes the output; changing a real token does not.",
            section="""\
```py
scores = scores.masked_fill(is_real[:, None, None, :], -torch.inf)
```

A padding mask marks either the real tokens or the padding. Read the wrong way round, the text is
hidden and the padding is seen.

**How it shows.** Changing the padding changes the output, and changing a real token does not.
Where a line of the source says what the argument marks (`mask: (B, T), 1 = token`), the checker
uses that meaning.

```text
tokens    the  cat  sat  pad  pad
is_real    1    1    1    0    0
seen       1    1    1    0    0    right
seen       0    0    0    1    1    inverted
```

Right:

```py
scores = scores.masked_fill(~is_real[:, None, None, :], -torch.inf)
```
""",
        ),
        Mistake(
            "padding-on-queries",
            "wrong",
            says=(
                "The padding mask is applied along the queries, so real tokens still see the "
                "padding."
            ),
            fix="Apply it along the last axis, the keys: mask[:, None, None, :].",
            symptom="Changing the padding changes the output of a real token.",
            section="""\
```py
scores = scores.masked_fill(~keep[:, None, :, None], -torch.inf)  # keep: (batch, tokens)
```

Texts of different lengths are padded to one length, and a mask says which tokens are real.
Applied along the queries, the mask changes the outputs at the padding, which are never used, and
hides nothing from the real tokens. The shapes fit either way, because there are as many queries
as keys.

**How it shows.** With the mask given, changing a padding token still changes the output of a real
one. Without padding in the batch everything is right.

```text
           along the queries      along the keys
keys       the  cat  pad          the  cat  pad
the         x    x    x            x    x    .
cat         x    x    x            x    x    .
pad         .    .    .            x    x    .
```

Right:

```py
scores = scores.masked_fill(~keep[:, None, None, :], -torch.inf)
```
""",
        ),
        Mistake(
            "padding-not-hidden",
            "wrong",
            says="Tokens beyond the given length of a text are still seen.",
            fix="Hide every key whose position is not less than the length, with -inf.",
            symptom="Padding changes what real tokens get, although the lengths are passed.",
            section="""\
```py
visible = torch.arange(tokens)[None, :] <= lengths[:, None]  # one too many
scores = scores.masked_fill(~visible[:, None, None, :], -torch.inf)
```

Positions count from 0, so a text of length 5 has the positions 0 to 4. With `<=` the first token of
the padding is seen. A fill that is not very negative, or lengths that are repeated in another order
than the heads, show in the same way.

**How it shows.** A batch with lengths gives a text something else than it gets alone, and changing
the padding changes the outputs of real tokens.

```text
length 5    visible: 0 1 2 3 4        right
            visible: 0 1 2 3 4 5      with <=
```

Right:

```py
visible = torch.arange(tokens)[None, :] < lengths[:, None]
```
""",
        ),
        Mistake(
            "padding-gives-nan",
            "wrong",
            says="A text that begins with a lot of padding gives NaN at its real tokens.",
            fix=(
                "Do not subtract a running maximum that is still -inf: clamp it to a finite "
                "number before exp."
            ),
            symptom="A text that begins with a lot of padding gives NaN.",
            section="""\
```py
for start in range(0, tokens, chunk):
    scores = (q @ k[..., start : start + chunk, :].mT).masked_fill(hidden, -torch.inf)
    highest = torch.maximum(so_far, scores.amax(-1, keepdim=True))  # -inf if all is padding
    weights = torch.exp(scores - highest)                           # -inf - -inf is NaN
```

Attention that processes the keys in blocks keeps a running maximum of the scores and subtracts
it. If a text begins with more padding than fits into one block, the maximum is -inf, and -inf -
-inf is NaN. The NaN stays in the sums, even when real tokens follow. Short texts, and padding at
the end, are not affected.

**How it shows.** For classes that work in blocks and take a padding mask, the checker runs a text
of a few hundred tokens of which only the last five are real. The outputs at the real tokens must
be finite.

```text
piece            1              2
keys             all padding    padding and real
largest so far   -inf           a number
exp(s - m)       NaN            NaN, since the sums hold it
```

Right:

```py
    highest = torch.maximum(so_far, scores.amax(-1, keepdim=True)).clamp_min(-1e30)
```
""",
        ),
        Mistake(
            "padding-in-other-texts",
            "wrong",
            says=(
                "The padding mask of one text is applied to other texts of the batch: it is "
                "repeated for the heads in another order than the scores."
            ),
            fix=(
                "With scores of (batch * heads, ...), repeat each text's mask heads times in a "
                "row: mask.repeat_interleave(heads, dim=0), not mask.repeat(heads, 1)."
            ),
            symptom="The padding of one text changes the output of another.",
            section="""\
```py
hide = padding.repeat(heads, 1)              # (heads * batch, tokens): text 0, text 1, text 0, ...
scores = scores.masked_fill(hide[:, None, :], -torch.inf)  # (batch * heads, tokens, tokens)
```

Where heads and texts share one axis, the scores hold all heads of text 0, then all heads of text
1. `repeat` arranges the masks in the other order, so a head of text 0 gets the mask of text 1. It
is right with one text, with one head, and with texts of one length.

**How it shows.** The padding of one text changes the output of another text, which has none.

```text
row of the scores     0        1        2        3
it is                 text 0   text 0   text 1   text 1     two heads each
repeat                text 0   text 1   text 0   text 1
repeat_interleave     text 0   text 0   text 1   text 1
```

Right:

```py
hide = padding.repeat_interleave(heads, dim=0)
```
""",
        ),
    ),
)
