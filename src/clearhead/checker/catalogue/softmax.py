"""Mistakes between the scores and the mixed values."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Scores, softmax and mixing",
    (
        Mistake(
            "softmax-over-queries",
            "wrong",
            says=(
                "The softmax runs over the queries: columns sum to one instead of rows, and the "
                "future leaks through the sum."
            ),
            fix="Use dim=-1: queries are rows, keys are columns.",
            symptom="The weights of a row do not sum to one; check what does.",
            section="""\
```py
weights = scores.softmax(dim=-2)  # or dim=1 on (batch, queries, keys)
```

Queries are rows and keys are columns. With the wrong axis each column sums to one: the queries
compete for a key. A row may sum to anything, and later tokens change earlier outputs through the
sum, even when they are masked.

**How it shows.** Rows do not sum to one, columns do. A causal model sees the future.

```text
       k0  k1  k2                 k0  k1  k2
q0     .7  .2  .1   = 1    q0     .6  .3  .1
q1     .3  .5  .2   = 1    q1     .3  .5  .4
q2     .1  .3  .6   = 1    q2     .1  .2  .5
     right: rows                  =1  =1  =1   wrong: columns
```

Right:

```py
weights = scores.softmax(dim=-1)
```
""",
        ),
        Mistake(
            "softmax-over-heads",
            "wrong",
            says=(
                "The softmax runs over the heads, so heads compete instead of keys, and masked "
                "entries become NaN."
            ),
            fix="Use dim=-1: in (batch, heads, queries, keys) the last axis is the keys.",
            symptom=(
                "The heads depend on each other: changing one head's weights changes another head."
            ),
            section="""\
```py
weights = scores.softmax(dim=1)  # scores: (batch, heads, queries, keys)
```

Axis 1 holds the heads once the scores have four axes. The weights of each entry are shared among
the heads. With a causal mask a hidden entry is -inf in every head: 0 / 0 is NaN.

**How it shows.** With a mask the output is NaN. Without one, changing the weights of one head
changes the output of another.

```text
(batch, heads, queries, keys)
   0      1       2      3 = -1
          ^ wrong        ^ right
```

Right:

```py
weights = scores.softmax(dim=-1)
```
""",
        ),
        Mistake(
            "softmax-over-batch",
            "wrong",
            says="The softmax runs over the batch, so one sentence changes the output of another.",
            fix="Use dim=-1, the axis of the keys.",
            symptom="Changing one sentence changes the output of another.",
            section="""\
```py
weights = scores.softmax(dim=0)
```

Axis 0 is the batch, so the sentences of a batch share the weight of each entry. The output for a
sentence depends on its neighbours in the batch.

**How it shows.** Changing one sentence changes the output of another. In a batch of one, all
weights are 1.

```text
(batch, heads, queries, keys)
   0      1       2      3 = -1
   ^ wrong               ^ right
```

Right:

```py
weights = scores.softmax(dim=-1)
```
""",
        ),
        Mistake(
            "softmax-over-everything",
            "wrong",
            says=(
                "The softmax runs over all entries at once: the whole matrix sums to one, not "
                "each row."
            ),
            fix="Use dim=-1, the axis of the keys.",
            symptom="Outputs shrink as the text grows.",
            section="""\
```py
weights = scores.flatten(-2).softmax(dim=-1).view_as(scores)
```

One softmax over the whole table: all cells together sum to one. With n tokens a row has about 1 /
n of what it should have, and every token changes the weights of every other.

**How it shows.** Outputs shrink as the text grows, and the future leaks through the sum.

```text
right          wrong
.5 .5   = 1    .25 .25
.5 .5   = 1    .25 .25   = 1 altogether
```

Right:

```py
weights = scores.softmax(dim=-1)
```
""",
        ),
        Mistake(
            "softmax-twice",
            "wrong",
            says="The softmax is applied twice, so the weights are nearly uniform.",
            fix="Apply the softmax once.",
            symptom="The weights of a row are nearly uniform.",
            section="""\
```py
scores = scores.softmax(dim=-1)
weights = F.softmax(scores, dim=-1)
```

The second softmax takes numbers between 0 and 1 as scores. Such scores differ little, so the
result is nearly uniform. A hidden cell is 0 after the first one, and exp(0) = 1 after the second:
it is visible again.

**How it shows.** Rows sum to one but are nearly uniform, and a causal mask leaks.

```text
scores          4    1    0   -inf
softmax once   .94  .05  .02   0
softmax twice  .45  .19  .18  .18    the hidden one has weight
```

Right:

```py
weights = F.softmax(scores, dim=-1)
```
""",
        ),
        Mistake(
            "softmax-no-keepdim",
            "wrong",
            says=(
                "The exponentials are divided by sums along the wrong axis, so rows do not sum "
                "to one."
            ),
            fix="Keep the axis: e / e.sum(dim=-1, keepdim=True), or call softmax(dim=-1).",
            symptom="The weights of a row do not sum to one.",
            section="""\
```py
e = torch.exp(scores - scores.max(-1, keepdim=True).values)
weights = e / e.sum(-1)
```

A softmax written by hand: the sum over the keys removes their axis, which leaves one number per
query. With as many queries as keys the shapes still fit, but each *column* is divided by the sum
of another row. With a batch or several heads, the shapes do not fit, or fit wrongly.

**How it shows.** The rows do not sum to one, and the shape is right.

```text
e            e.sum(-1)    without keepdim       with keepdim
1   2   1        4        1/4  2/3  1/8         1/4  2/4  1/4
1   1   1        3        1/4  1/3  1/8         1/3  1/3  1/3
4   2   2        8        4/4  2/3  2/8         4/8  2/8  2/8
```

Right:

```py
weights = e / e.sum(-1, keepdim=True)
```
""",
        ),
        Mistake(
            "no-softmax",
            "wrong",
            says="The scores are used as weights, without a softmax.",
            fix="Write weights = scores.softmax(dim=-1).",
            symptom="The weights of a row do not sum to one, or some are negative.",
            section="""\
```py
weights = scores.sigmoid()  # or scores / scores.sum(-1, keepdim=True), or the scores themselves
```

The weights of a row must be positive and sum to one. The softmax ensures that for any scores:
dividing by the sum fails with negative scores, and a sigmoid treats each key on its own.

**How it shows.** Rows do not sum to one: the output grows with the number of equal tokens. The
checker names the function that is used in place of the softmax.

```text
scores        2    1   -1
softmax    .705  .26 .035    sum 1
sigmoid     .88  .73  .27    sum 1.88
/ sum       1.0  0.5 -0.5    sum 1, but one is negative
```

Right:

```py
weights = scores.softmax(dim=-1)
```
""",
        ),
        Mistake(
            "keys-viewed-not-transposed",
            "wrong",
            says="The keys are reshaped with view instead of transposed, which mixes tokens.",
            fix="Write keys.transpose(-2, -1).",
            symptom="The scores have the right shape and the wrong numbers: tokens are mixed.",
            section="""\
```py
scores = queries @ keys.view(batch, heads, head_dim, tokens)
```

A matrix product needs the keys as (head_dim, tokens). `view` gives that shape, but it reads the
same memory in the same order: one column holds numbers of different tokens.

**How it shows.** The shapes are right and the scores are not; the future leaks.

```text
keys            transpose       view
a0 a1           a0 b0 c0        a0 a1 b0
b0 b1           a1 b1 c1        b1 c0 c1
c0 c1           one token       tokens mixed
                per column
```

Right:

```py
scores = queries @ keys.transpose(-2, -1)
```
""",
        ),
        Mistake(
            "weights-transposed",
            "wrong",
            says="The weights are transposed before they are multiplied with the values.",
            fix="Write weights @ values, without a transpose.",
            symptom="The rows that mix the values do not sum to one.",
            section="""\
```py
context = weights.transpose(-2, -1) @ values
```

Each row of the weights belongs to a query. Transposed, a row belongs to a key, and it does not
sum to one. With a causal mask each token then reads from the future only.

**How it shows.** In the matrix that mixes the values, columns sum to one and rows do not, and
late tokens change early outputs.

```text
weights     1 0 0      transposed   1 .5 .2
           .5 .5 0                  0 .5 .3
           .2 .3 .5                 0  0 .5
```

Right:

```py
context = weights @ values
```
""",
        ),
        Mistake(
            "values-not-mixed",
            "wrong",
            says=(
                "Each row of weights is summed before it is multiplied with the values, so each "
                "token gets its own values back and nothing of the others."
            ),
            fix=(
                'Sum over the keys: weights @ values, or einsum("bhij,bhjd->bhid", weights, '
                "values)."
            ),
            symptom="Changing a token changes only its own output.",
            section="""\
```py
context = torch.einsum("bhij,bhid->bhid", weights, values)  # j meets nothing
```

The index `j`, the key, occurs in the weights only. So einsum sums each row of weights first,
which gives one, and multiplies the token's own values by it. The weights that the class returns
are right, and sum to one; the output does not depend on them. Comparing the attention maps alone
finds no mistake.

**How it shows.** Changing a token changes its own output only, and no gradient reaches queries
and keys. The output is the same as under a mask that hides all others; the indices of the einsum
tell the two apart.

```text
bhij,bhjd->bhid     j in both: weights times values, summed over the keys
bhij,bhid->bhid     j in one:  (sum of the row) times the token's own values
```

Right:

```py
context = torch.einsum("bhij,bhjd->bhid", weights, values)
```
""",
        ),
    ),
)
