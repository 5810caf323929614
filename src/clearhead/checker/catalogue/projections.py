"""Mistakes in the projections of queries, keys, values and output."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Projections",
    (
        Mistake(
            "query-key-swapped",
            "compat",
            says=(
                "Queries and keys are swapped: it trains well, but weights from elsewhere give "
                "another result."
            ),
            fix="Write queries @ keys.transpose(-2, -1).",
            symptom="It trains well, but weights from another implementation give another output.",
            section="""\
```py
scores = keys @ queries.transpose(-2, -1)
```

Queries and keys are swapped. Training finds the same solution with the roles swapped; weights
from elsewhere do not fit. (*compat*)

**How it shows.** With W_query and W_key swapped, the output is exactly right.

```text
scores[i, j] = query i . key j      row = who asks, column = who answers
        k0  k1  k2
   q0    .   .   .
   q1    .   .   .
   q2    .   .   .
```

Right:

```py
scores = queries @ keys.transpose(-2, -1)
```
""",
        ),
        Mistake(
            "key-value-swapped",
            "compat",
            says=(
                "Keys and values are swapped: it trains well, but weights from elsewhere give "
                "another result."
            ),
            fix="Compute the scores with the keys, and mix the values.",
            symptom="It trains well, but weights from another implementation give another output.",
            section="""\
```py
weights = (queries @ values.transpose(-2, -1) / head_dim**0.5).softmax(dim=-1)
context = weights @ keys
```

The values are compared and the keys are mixed. Only the names distinguish the two, so the class
trains well.

**How it shows.** Weights from elsewhere give another result: *compat*.

```text
       compared   mixed
right  q . k      v
here   q . v      k
```

Right:

```py
weights = (queries @ keys.transpose(-2, -1) / head_dim**0.5).softmax(dim=-1)
context = weights @ values
```
""",
        ),
        Mistake(
            "query-value-swapped",
            "compat",
            says=(
                "Queries and values are swapped: it trains well, but weights from elsewhere give "
                "another result."
            ),
            fix="Compute the scores with the queries, and mix the values.",
            symptom="It trains well, but weights from another implementation give another output.",
            section="""\
```py
weights = (values @ keys.transpose(-2, -1) / head_dim**0.5).softmax(dim=-1)
context = weights @ queries
```

The values are used as queries, and the queries are mixed. As above, only the names are wrong.

**How it shows.** Weights from elsewhere give another result: *compat*.

```text
       compared   mixed
right  q . k      v
here   v . k      q
```

Right:

```py
weights = (queries @ keys.transpose(-2, -1) / head_dim**0.5).softmax(dim=-1)
context = weights @ values
```
""",
        ),
        Mistake(
            "projections-in-other-order",
            "compat",
            says=(
                "The fused matrix is split in another order than q, k, v, so weights from "
                "elsewhere do not fit."
            ),
            fix="Write q, k, v = qkv.chunk(3, dim=-1).",
            symptom="It trains well, but weights from another implementation give another output.",
            section="""\
```py
v, q, k = self.qkv(x).chunk(3, dim=-1)
```

One matrix computes all three, and its output is split in an unusual order. It trains well, but a
checkpoint in the order q, k, v does not fit. Where the code itself names the parts in that order,
the checker only mentions it.

**How it shows.** Weights from elsewhere give another result: *compat*.

```text
qkv.weight    | q | k | v |    usual
              | v | q | k |    here
```

Right:

```py
q, k, v = self.qkv(x).chunk(3, dim=-1)
```
""",
        ),
        Mistake(
            "key-from-query-weights",
            "wrong",
            says="The keys are computed with W_query, and W_key is never used.",
            fix="Write keys = self.W_key(x).",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
queries = self.W_query(x)
keys = self.W_query(x)
```

A line was copied and not changed. The scores become symmetric: if the cat attends to the mat, the
mat attends to the cat.

**How it shows.** W_key gets no gradient. Changing its numbers changes nothing.

```text
x -> W_query -> queries
  -> W_query -> keys        W_key is not on any path
  -> W_value -> values
```

Right:

```py
queries = self.W_query(x)
keys = self.W_key(x)
```
""",
        ),
        Mistake(
            "query-from-key-weights",
            "wrong",
            says=(
                "The queries are computed with the key weights, and the query weights are never "
                "used."
            ),
            fix="Compute the queries with their own weights.",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
queries = self.W_key(x)
keys = self.W_key(x)
```

Queries and keys are the same vectors, so a token always matches itself best, and `W_query` is
never trained.

**How it shows.** No gradient reaches `W_query`, and the scores are symmetric.

```text
W_query          not used
W_key    ->  q
W_key    ->  k        q . k = k . q
```

Right:

```py
queries = self.W_query(x)
```
""",
        ),
        Mistake(
            "query-from-value-weights",
            "wrong",
            says=(
                "The queries are computed with the value weights, and the query weights are "
                "never used."
            ),
            fix="Compute the queries with their own weights.",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
queries = self.W_value(x)
```

A line was copied and the name not changed: the queries come from the weights of the values, and
`W_query` is never trained.

**How it shows.** No gradient reaches `W_query`.

```text
W_query          not used
W_value  ->  q and v
```

Right:

```py
queries = self.W_query(x)
```
""",
        ),
        Mistake(
            "key-from-value-weights",
            "wrong",
            says=(
                "The keys are computed with the value weights, and the key weights are never used."
            ),
            fix="Compute the keys with their own weights.",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
keys = self.W_value(x)
```

The keys come from the weights of the values. What a token is matched by and what it passes on are
then the same, and `W_key` is never trained.

**How it shows.** No gradient reaches `W_key`.

```text
W_key            not used
W_value  ->  k and v
```

Right:

```py
keys = self.W_key(x)
```
""",
        ),
        Mistake(
            "value-from-keys",
            "wrong",
            says="The values are the keys, and W_value is never used.",
            fix="Write values = self.W_value(x).",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
context = weights @ keys
```

The keys decide *where* to look; the values are *what* is read there. Here the keys do both.

**How it shows.** W_value gets no gradient.

```text
weights (n, n) @ values (n, head_dim) -> context (n, head_dim)
weights (n, n) @ keys   (n, head_dim) -> same shape, other numbers
```

Right:

```py
context = weights @ values
```
""",
        ),
        Mistake(
            "value-from-queries",
            "wrong",
            says="The values are the queries, and the value weights are never used.",
            fix="Compute the values with their own weights.",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
values = self.W_query(x)
```

The values come from the weights of the queries: what a token asks for is what it passes on.

**How it shows.** No gradient reaches `W_value`.

```text
W_query  ->  q and v
W_value          not used
```

Right:

```py
values = self.W_value(x)
```
""",
        ),
        Mistake(
            "value-not-projected",
            "wrong",
            says="The values are the inputs themselves, and the value weights are never used.",
            fix="Compute the values with their own weights.",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
context = weights @ x
```

The inputs are mixed instead of the values. That is the simplified attention with which books
begin; here `W_value` should come in between.

**How it shows.** No gradient reaches `W_value`, and it works only where d_in = d_out.

```text
x -> W_value -> v -> mixed      right
x ------------------> mixed     W_value is not used
```

Right:

```py
context = weights @ self.W_value(x)
```
""",
        ),
        Mistake(
            "key-not-projected",
            "wrong",
            says="The keys are the inputs themselves, and the key weights are never used.",
            fix="Compute the keys with their own weights.",
            symptom="One of your layers gets no gradient.",
            section=r"""
```py
scores = self.W_query(x) @ x.transpose(-2, -1)
```

The queries are compared with the inputs themselves, and `W_key` is never used.

**How it shows.** No gradient reaches `W_key`, and it works only where d_in = d_out.

```text
x -> W_query -> q \
x -------------->  q . x
```

Right:

```py
scores = self.W_query(x) @ self.W_key(x).transpose(-2, -1)
```
""",
        ),
        Mistake(
            "query-not-projected",
            "wrong",
            says="The queries are the inputs themselves, and the query weights are never used.",
            fix="Compute the queries with their own weights.",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
scores = x @ self.W_key(x).transpose(-2, -1)
```

The inputs themselves are compared with the keys, and `W_query` is never used.

**How it shows.** No gradient reaches `W_query`, and it works only where d_in = d_out.

```text
x -------------->  x . k
x -> W_key   -> k /
```

Right:

```py
scores = self.W_query(x) @ self.W_key(x).transpose(-2, -1)
```
""",
        ),
        Mistake(
            "out-proj-unused",
            "wrong",
            says="The output projection is built and never called, so the heads are not mixed.",
            fix="Return self.out_proj(context_vec).",
            symptom="One of your layers gets no gradient.",
            section="""\
```py
context = self.out_proj(context)  # forgotten, or its result not kept
return context_before
```

The heads are concatenated and never mixed. The shape is right, so no error is raised.

**How it shows.** out_proj gets no gradient.

```text
head a | head b | head c  ->  out_proj  ->  output    right
head a | head b | head c  ------------->  output    not mixed
```

Right:

```py
return self.out_proj(context)
```
""",
        ),
        Mistake(
            "out-proj-takes-d-in",
            "wrong",
            says=(
                "The output projection expects d_in numbers and gets d_out, so the forward pass "
                "fails when the two differ."
            ),
            fix="Write nn.Linear(d_out, d_out).",
            symptom="Right when input and output have the same width; fails otherwise.",
            section="""\
```py
self.out_proj = nn.Linear(d_in, d_out)
```

The output projection receives the concatenated heads: d_out numbers. It was built for d_in.

**How it shows.** It works while d_in = d_out, and raises as soon as the two differ: mat1 and mat2
shapes cannot be multiplied.

```text
x (.., d_in) -> Q, K, V (.., d_out) -> heads -> (.., d_out) -> out_proj
                                                        expects d_out
```

Right:

```py
self.out_proj = nn.Linear(d_out, d_out)
```
""",
        ),
        Mistake(
            "wrong-width",
            "wrong",
            says=(
                "A layer has the wrong width, so the forward pass fails when d_in and d_out differ."
            ),
            fix="Write nn.Linear(d_in, d_out) for queries, keys and values.",
            symptom="Right when input and output have the same width; fails otherwise.",
            section="""\
```py
self.W_query = nn.Linear(d_out, d_in)
```

The two widths of a layer are swapped, or one of them is used twice. While d_in = d_out, the
result is right.

**How it shows.** With d_in different from d_out the forward pass raises.

```text
x (.., d_in)  ->  nn.Linear(d_in, d_out)  ->  (.., d_out)
```

Right:

```py
self.W_query = nn.Linear(d_in, d_out)
```
""",
        ),
        Mistake(
            "bias-flag-ignored",
            "compat",
            says="The projections have a bias although qkv_bias says they have none.",
            fix="Pass it on: nn.Linear(d_in, d_out, bias=qkv_bias).",
            symptom="There are more parameters than the arguments ask for.",
            section="""\
```py
def __init__(self, d_in, d_out, qkv_bias=False):
    ...
    self.W_query = nn.Linear(d_in, d_out)  # bias=True is the default
```

The constructor takes the argument and ignores it. There are 3 * d_out parameters too many, and a
checkpoint without them does not load. (*compat*)

**How it shows.** With qkv_bias=False there are still biases.

```text
qkv_bias   W_query   W_key   W_value
False      weight    weight  weight
False      w + b     w + b   w + b      3 * d_out too many
```

Right:

```py
self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
```
""",
        ),
        Mistake(
            "norm-over-wrong-axis",
            "wrong",
            says=(
                "Queries and keys are normalised over another axis than head_dim, so their "
                "length depends on other heads or other tokens."
            ),
            fix="Write F.normalize(q, dim=-1): without dim, axis 1 is used.",
            symptom="Heads or tokens depend on each other before the scores are computed.",
            section="""\
```py
q, k = F.normalize(q), F.normalize(k)        # (batch, heads, tokens, head_dim)
scores = q @ k.transpose(-2, -1) * temperature
```

Cosine attention needs queries and keys of length one. Without `dim`, `F.normalize` uses axis 1,
which is the heads: a number of one head is then divided by the same number of the other heads.

**How it shows.** With one head every number becomes 1 or -1. With more, changing the weights of
one head changes the scores of another.

```text
axis        0       1       2        3
is          batch   heads   tokens   head_dim
normalised          x                              F.normalize(q)
normalised                           x             F.normalize(q, dim=-1)
```

Right:

```py
q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
```
""",
        ),
    ),
)
