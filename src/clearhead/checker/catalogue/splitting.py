"""Mistakes in splitting a projection into heads and merging the heads again."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Splitting and merging heads",
    (
        Mistake(
            "split-without-transpose",
            "wrong",
            says=(
                "view puts numbers of several tokens into one head; with one head the result is "
                "right."
            ),
            fix="Write view(batch, tokens, heads, head_dim), then transpose(1, 2).",
            symptom="Right with one head, wrong with two: tokens are mixed where heads are split.",
            section="""\
```py
queries = self.W_query(x).view(batch, heads, tokens, head_dim)
```

`view` only reinterprets the axes; it moves no number. In memory, the numbers of one token are
adjacent, so the first head gets *all* numbers of the first tokens instead of some numbers of all
tokens.

**How it shows.** Right with one head, wrong with two. The mask no longer fits what a row is, so
the future leaks.

```text
memory         t0h0 t0h1 | t1h0 t1h1 | t2h0 t2h1 | t3h0 t3h1
view + transpose    head 0: t0h0 t1h0 t2h0 t3h0    right
view alone          head 0: t0h0 t0h1 t1h0 t1h1    two tokens
```

Right:

```py
queries = self.W_query(x).view(batch, tokens, heads, head_dim).transpose(1, 2)
```
""",
        ),
        Mistake(
            "merge-without-transpose",
            "wrong",
            says=(
                "The heads are merged before the token axis is back in its position, so tokens "
                "are mixed."
            ),
            fix="Write transpose(1, 2) first, then contiguous().view(batch, tokens, d_out).",
            symptom="Right with one head, wrong with two: tokens are mixed where heads are merged.",
            section="""\
```py
context = (weights @ values).reshape(batch, tokens, heads * head_dim)
```

The result is (batch, heads, tokens, head_dim). `reshape` takes the numbers in memory order: one
output row gets several tokens of one head instead of one token of all heads.

**How it shows.** Right with one head, wrong with two. Rows of different tokens are mixed.

```text
(heads, tokens)    h0t0 h0t1 h0t2 h0t3 | h1t0 h1t1 h1t2 h1t3
row of token 0     h0t0 h1t0    right, after the transpose
row of token 0     h0t0 h0t1    wrong: token 1 is in it
```

Right:

```py
context = (weights @ values).transpose(1, 2).reshape(batch, tokens, heads * head_dim)
```
""",
        ),
        Mistake(
            "heads-interleaved",
            "compat",
            says=(
                "The merged vector takes one number from each head in turn: it trains well, but "
                "weights from elsewhere give another result."
            ),
            fix="Merge in the order (heads, head_dim): transpose(1, 2), then view.",
            symptom="It trains well, but weights from another implementation give another output.",
            section="""\
```py
context = (weights @ values).permute(0, 2, 3, 1).reshape(batch, tokens, d_out)
```

The merged vector contains all heads, but one number of each head in turn. The output projection
can learn any order, so training works. Weights from another implementation do not fit. (*compat*)

**How it shows.** With the columns of out_proj in the same order, the output is exactly right.

```text
usual         a0 a1 a2 | b0 b1 b2      head a, then head b
interleaved   a0 b0 a1 b1 a2 b2
```

Right:

```py
context = (weights @ values).transpose(1, 2).reshape(batch, tokens, d_out)
```
""",
        ),
        Mistake(
            "heads-folded-into-batch",
            "wrong",
            says=(
                "view folds the heads into the batch axis without a transpose, so heads and "
                "tokens are mixed."
            ),
            fix=(
                "Transpose first, from (batch, tokens, heads, head_dim) to (batch, heads, "
                "tokens, head_dim), and only then merge batch and heads."
            ),
            symptom=(
                "Right with one head, wrong with two: the numbers of one head are not kept "
                "together."
            ),
            section="""\
```py
queries = self.W_query(x).view(batch * heads, -1, head_dim)
```

Folding the heads into the batch axis is a useful technique, but only after a transpose. `view`
alone splits the memory at the wrong positions, as in
[split-without-transpose](#split-without-transpose).

**How it shows.** Right with one head, wrong with two.

```text
(batch, tokens, heads * head_dim)
   -> (batch, tokens, heads, head_dim)     view
   -> (batch, heads, tokens, head_dim)     transpose
   -> (batch * heads, tokens, head_dim)    reshape
```

Right:

```py
queries = self.W_query(x).view(batch, tokens, heads, head_dim).transpose(1, 2)
queries = queries.reshape(batch * heads, tokens, head_dim)
```
""",
        ),
        Mistake(
            "heads-summed",
            "wrong",
            says=(
                "The heads are summed or averaged instead of concatenated, so the result of each "
                "head is lost."
            ),
            fix=(
                "Concatenate the heads: transpose(1, 2), then flatten(2), or torch.cat(heads, "
                "dim=-1)."
            ),
            symptom="Swapping two heads does not change the output.",
            section="""\
```py
context = (weights @ values).sum(dim=1)  # or mean
```

The heads are added, so the output projection cannot distinguish them. It should receive all
heads, concatenated.

**How it shows.** Swapping two heads does not change the output.

```text
head a  1 2      beside    1 2 3 4     (heads * head_dim)
head b  3 4      summed    4 6         (head_dim)
```

Right:

```py
context = (weights @ values).transpose(1, 2).flatten(2)
```
""",
        ),
        Mistake(
            "concat-on-wrong-axis",
            "wrong",
            says="The heads' outputs are concatenated along the token axis.",
            fix="Concatenate along the last axis: torch.cat(heads, dim=-1).",
            symptom="The output has more tokens than the input.",
            section="""\
```py
return torch.cat([head(x) for head in self.heads], dim=1)
```

Axis 1 is the tokens. The heads' outputs are concatenated as if the text were longer.

**How it shows.** The output has heads * tokens rows.

```text
a head's output        (batch, tokens, head_dim)
cat(..., dim=-1)       (batch, tokens, heads * head_dim)    right
cat(..., dim=1)        (batch, heads * tokens, head_dim)    wrong
```

Right:

```py
return torch.cat([head(x) for head in self.heads], dim=-1)
```
""",
        ),
        Mistake(
            "view-after-transpose",
            "wrong",
            says=(
                "view cannot merge axes that transpose has moved, so the forward pass raises "
                "RuntimeError."
            ),
            fix="Write .contiguous().view(...), .reshape(...) or .flatten(2) after the transpose.",
            symptom="The forward pass raises an error where shapes change.",
            section="""\
```py
context = (weights @ values).transpose(1, 2).view(batch, tokens, d_out)
```

`transpose` changes only how the memory is read. `view` needs numbers in memory order, and raises
RuntimeError: view size is not compatible with input tensor's size and stride.

**How it shows.** The forward pass raises, at this line.

```text
memory             h0t0 h0t1 | h1t0 h1t1
after transpose    read as h0t0 h1t0 | h0t1 h1t1, not moved
contiguous()       h0t0 h1t0 | h0t1 h1t1, moved: view works
```

Right:

```py
context = (weights @ values).transpose(1, 2).contiguous().view(batch, tokens, d_out)
# or .reshape(batch, tokens, d_out), or .flatten(2)
```
""",
        ),
        Mistake(
            "view-with-d-in",
            "wrong",
            says=(
                "The heads are split with d_in instead of d_out, so the forward pass fails when "
                "the two differ."
            ),
            fix="After the projections, use d_out, or heads and head_dim.",
            symptom="Right when input and output have the same width; fails otherwise.",
            section="""\
```py
batch, tokens, d_in = x.shape
queries = self.W_query(x).view(batch, tokens, heads, d_in // heads)
```

After the projection a vector has d_out numbers: the width of the input no longer applies.

**How it shows.** It works while d_in = d_out, and raises as soon as the two differ.

```text
x (b, n, d_in=5)  -> W_query ->  (b, n, d_out=6)
view(b, n, 3, 6 // 3)    right
view(b, n, 3, 5 // 3)    fails
```

Right:

```py
queries = self.W_query(x).view(batch, tokens, heads, self.head_dim)
```
""",
        ),
        Mistake(
            "heads-in-python-list",
            "wrong",
            says=(
                "The heads are in a plain list, so the module does not own their parameters: "
                "they are not trained, saved or moved."
            ),
            fix="Write nn.ModuleList([...]).",
            symptom="The module has fewer parameters than it uses.",
            section="""\
```py
self.heads = [CausalAttention(d_in, head_dim) for _ in range(num_heads)]
```

`nn.Module` looks for layers among its attributes, not inside a plain list. The heads work, but
the optimizer does not train them, `state_dict` does not save them and `.to(device)` does not move
them.

**How it shows.** `module.parameters()` does not contain the parameters of the heads.

```text
module.parameters()
  nn.ModuleList   heads.0.W_query  heads.0.W_key ...
  list            (nothing)
```

Right:

```py
self.heads = nn.ModuleList(CausalAttention(d_in, head_dim) for _ in range(num_heads))
```
""",
        ),
        Mistake(
            "heads-share-weights",
            "wrong",
            says="All heads are one and the same module, so they all compute the same.",
            fix="Create each head separately: nn.ModuleList([Head(...) for _ in range(heads)]).",
            symptom="All heads compute the same.",
            section="""\
```py
self.heads = nn.ModuleList([Head(d_in, head_dim)] * num_heads)
```

`[head] * 4` is a list that contains one head four times. All heads have the same weights and
compute the same; training cannot make them differ.

**How it shows.** Loading other weights into one head changes the others too.

```text
[Head()] * 3                    one head, three names
[Head() for _ in range(3)]      three heads
```

Right:

```py
self.heads = nn.ModuleList([Head(d_in, head_dim) for _ in range(num_heads)])
```
""",
        ),
        Mistake(
            "heads-share-projection",
            "compat",
            says=(
                "Each head projects only its own part of the input, and all heads share the same "
                "small weights."
            ),
            fix="Project first, with nn.Linear(d, d), and split into heads afterwards.",
            symptom=(
                "There are fewer parameters than usual; weights from another implementation do "
                "not fit."
            ),
            section="""\
```py
self.keys = nn.Linear(head_dim, head_dim)
keys = self.keys(x.view(batch, tokens, num_heads, head_dim))
```

The input is split into heads before it is projected. Each head sees only its own part of the
input, and one small matrix serves all heads. It is attention and it trains, with fewer weights
than the paper's form, where every head sees the whole input. A popular tutorial does this.

**How it shows.** The weights are (head_dim, head_dim). Weights from elsewhere do not fit:
*compat*.

```text
paper      x (d) -> W (d, d) -> heads            every head sees all of x
here       x (d) -> parts -> W (head_dim, head_dim), the same for each part
```

Right:

```py
self.keys = nn.Linear(d, d)
keys = self.keys(x).view(batch, tokens, num_heads, head_dim)
```
""",
        ),
        Mistake(
            "heads-ignored",
            "wrong",
            says="The constructor takes a number of heads, but the class has one head.",
            fix="Split queries, keys and values into that many heads.",
            symptom="The number of heads does not change the output.",
            section="""\
```py
def __init__(self, d_model, num_heads):
    ...                                  # num_heads is used nowhere
    self.d_k = d_model
```

The constructor takes the number of heads, but the class has one head. It runs with any number, so
the mistake is easy to overlook.

**How it shows.** The output is exactly that of one head, whatever number is asked for.

```text
num_heads=4     d_model = 4 x head_dim, four softmaxes per token
got             d_model = 1 x d_model,  one
```

Right:

```py
queries = queries.view(batch, tokens, num_heads, head_dim).transpose(1, 2)
```
""",
        ),
        Mistake(
            "one-head-only",
            "wrong",
            says="Only one of the heads reaches the output.",
            fix="Concatenate all heads along the last axis.",
            symptom="Some of your weights get no gradient.",
            section="""\
```py
return self.out_proj(context[:, 0])
```

Only the first head, or the last, reaches the output. The others are computed and discarded, and
get no gradient.

**How it shows.** The output equals that of one head; the weights of the others have no gradient.

```text
heads   0 1 2 3
used    ^
```

Right:

```py
return self.out_proj(context.transpose(1, 2).flatten(2))
```
""",
        ),
        Mistake(
            "kv-heads-in-other-order",
            "compat",
            says=(
                "Query heads use the key heads in another order than usual, so weights from "
                "elsewhere do not fit."
            ),
            fix="Use repeat_interleave(groups, dim=1), not repeat.",
            symptom="It trains well, but weights from another implementation give another output.",
            section="""\
```py
keys = keys.repeat(1, groups, 1, 1)
```

With fewer key heads than query heads, each key head serves a group of neighbouring query heads.
`repeat` lists all key heads, and then starts again, so query heads and key heads are paired
differently.

**How it shows.** It trains well. Weights from elsewhere give another result: *compat*.

```text
query heads                 0  1  2  3
repeat_interleave(2)  keys  a  a  b  b
repeat(2)             keys  a  b  a  b
```

Right:

```py
keys = keys.repeat_interleave(groups, dim=1)
```
""",
        ),
        Mistake(
            "kv-heads-do-not-match",
            "wrong",
            says=(
                "Keys and values are expanded to the query heads in two different orders, so a "
                "head scores with one key head and mixes the values of another."
            ),
            fix=(
                "Expand both in the same way: repeat_interleave(groups, dim=1) for the keys and "
                "for the values."
            ),
            symptom=(
                "Right with one key and value head, or with as many as query heads; wrong in "
                "between."
            ),
            section="""\
```py
keys = keys.repeat(1, groups, 1, 1)
values = values.repeat_interleave(groups, dim=1)
```

With fewer key heads than query heads, a key head and the value head with the same index belong
together: their weights were trained together. Here they are expanded in two different orders, so
a query head scores with the keys of one head and then mixes the values of another. With one key
head, or with as many as query heads, the result is right.

**How it shows.** The output is reproduced exactly when only the keys, or only the values, are
expanded in the other order.

```text
query heads                   0  1  2  3
repeat(2)             keys    a  b  a  b
repeat_interleave(2)  values  a  a  b  b
                                 ^  ^   keys of one head, values of the other
```

Right:

```py
keys = keys.repeat_interleave(groups, dim=1)
values = values.repeat_interleave(groups, dim=1)
```
""",
        ),
    ),
)
