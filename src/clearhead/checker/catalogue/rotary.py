"""Mistakes in rotary position embeddings."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Rotary positions",
    (
        Mistake(
            "rotary-pairs-mixed",
            "wrong",
            says=(
                "The angles are laid out for one way of pairing numbers, and the numbers are "
                "rotated in the other, so the result is no rotation and depends on where the "
                "text begins."
            ),
            fix=(
                "With rotate_half, write torch.cat((angles, angles), dim=-1); "
                "repeat_interleave(2) belongs to neighbouring pairs."
            ),
            symptom="The scores depend on where the text begins.",
            section="""\
```py
angles = angles.repeat_interleave(2, dim=-1)  # a a b b: for neighbouring pairs
q = q * angles.cos() + rotate_half(q) * angles.sin()  # turns number i with number i + half
```

There are two ways to pair numbers, and both are right: neighbours, or the first half with the
second. The angles must be laid out in the same way. Otherwise the two numbers of a pair are
rotated by two different angles, which is no rotation.

**How it shows.** The scores depend on where the text begins, and the length of a query changes
with its position.

```text
number              0    1    2    3
rotate_half pairs   0-2  1-3  0-2  1-3
cat((a, a))         a0   a1   a0   a1     fits
repeat_interleave   a0   a0   a1   a1     fits neighbours only
```

Right:

```py
angles = torch.cat((angles, angles), dim=-1)
q = q * angles.cos() + rotate_half(q) * angles.sin()
```
""",
        ),
        Mistake(
            "rotary-on-one-side",
            "wrong",
            says=(
                "Only the queries or only the keys are rotated, so scores depend on where the "
                "text begins."
            ),
            fix="Rotate both queries and keys, by the same angles.",
            symptom="The scores depend on where the text begins.",
            section="""\
```py
queries = rotate(queries, cos, sin)
scores = queries @ keys.transpose(-2, -1)  # the keys are not turned
```

Rotary positions rotate queries and keys by an angle that grows with their position. The dot
product of two rotated vectors depends only on the difference of their positions. If one side is
not rotated, it depends on the position itself, and the same text at a later position gives other
scores.

**How it shows.** The output is exactly that of attention with one side rotated.

```text
q at position 5, k at 3          both rotated    5 - 3 = 2
                                 only q          5
moved by 10: 15 and 13           both rotated    15 - 13 = 2
                                 only q          15
```

Right:

```py
queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
```
""",
        ),
        Mistake(
            "rotary-on-values",
            "wrong",
            says="The values are rotated too, so what is mixed depends on its position.",
            fix="Rotate queries and keys only.",
            symptom="Equal tokens do not give their own value back.",
            section="""\
```py
queries, keys, values = (rotate(t, cos, sin) for t in (queries, keys, values))
```

Positions belong in the scores. If the values are rotated too, the same word passes on different
numbers at different positions, and nothing rotates them back.

**How it shows.** Equal tokens do not give their own value back.

```text
rotated        q  k
not rotated    v
```

Right:

```py
queries, keys = (rotate(t, cos, sin) for t in (queries, keys))
```
""",
        ),
        Mistake(
            "rotary-unused",
            "wrong",
            says="forward takes the angles of rotary positions and rotates nothing.",
            fix="Rotate queries and keys by the angles before computing the scores.",
            symptom="The output is the same with all angles.",
            section="""\
```py
def forward(self, x, cos, sin):
    q, k, v = self.project(x)       # and cos, sin are not used
```

`forward` takes the angles and rotates nothing, so the attention has no information about
positions.

**How it shows.** The output does not change with the angles.

```text
forward(x, cos, sin)          the same
forward(x, other angles)      the same
```

Right:

```py
q, k = rotate(q, cos, sin), rotate(k, cos, sin)
```
""",
        ),
    ),
)
