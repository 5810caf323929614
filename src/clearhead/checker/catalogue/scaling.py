"""Mistakes in scaling the scores."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Scaling",
    (
        Mistake(
            "missing-scale",
            "wrong",
            says=(
                "The scores are not divided by √head_dim, so the softmax is too sharp and puts "
                "nearly all weight on one key."
            ),
            fix="Divide the scores by head_dim ** 0.5 before the softmax.",
            symptom=(
                "The weights are too sharp: the scores that enter the softmax are larger than "
                "expected."
            ),
            section="""\
```py
weights = (queries @ keys.transpose(-2, -1)).softmax(dim=-1)
```

The dot product of two random vectors of head_dim numbers has a standard deviation of about
√head_dim. Without the division, the scores of a wide head are large, and the softmax puts nearly
all weight on one key. A softmax that is nearly 0 or 1 everywhere has almost no gradient.

**How it shows.** The weights are sharper than they should be. The checker fits the scale: it is
√head_dim times too large. With head_dim 1, as in the book's small demo, there is no difference.
T5 leaves the division out on purpose and starts with smaller weights instead: where a constant
sets the scale (`self.scaling = 1.0`), the checker asks instead of calling it wrong.

```text
scores             8    4    0    4
softmax          .96  .02  .00  .02    one key has it all
scores / √16       2    1    0    1
softmax          .53  .20  .07  .20    several keys count
```

Right:

```py
weights = (queries @ keys.transpose(-2, -1) / head_dim**0.5).softmax(dim=-1)
```
""",
        ),
        Mistake(
            "scale-by-d-out",
            "wrong",
            says=(
                "The scores are divided by √d_out, the width of all heads together, so the "
                "softmax is too flat."
            ),
            fix="Divide by head_dim ** 0.5, the width of one head, not by d_out ** 0.5.",
            symptom="The weights are too flat, and more so the more heads there are.",
            section="""\
```py
weights = (scores / self.d_out**0.5).softmax(dim=-1)
```

Each head has its own dot product over head_dim numbers, but the scores are divided by the square
root of the width of all heads together. They are too small by a factor of √heads, and the weights
are too flat.

**How it shows.** The fitted scale is too small by exactly √heads. With one head, d_out and
head_dim are the same, and it is right.

```text
d_out = 768 = 12 heads x 64
scores / √64     divide by  8.0    right
scores / √768    divide by 27.7    3.5 times too small
```

Right:

```py
weights = (scores / self.head_dim**0.5).softmax(dim=-1)
```
""",
        ),
        Mistake(
            "scale-multiplied",
            "wrong",
            says=(
                "The scores are multiplied by √head_dim instead of divided by it, so the softmax "
                "is far too sharp."
            ),
            fix="Write / head_dim ** 0.5, or * head_dim ** -0.5.",
            symptom="The weights are far too sharp: nearly all weight of a row is on one key.",
            section="""\
```py
weights = (scores * self.head_dim**0.5).softmax(dim=-1)
```

The sign of the exponent is wrong, so large scores become larger still. They are head_dim times
too large.

**How it shows.** Nearly all of each row is on one key. The fitted scale is head_dim times too
large.

```text
head_dim = 64
* 64 ** -0.5  =  * 0.125    right
* 64 **  0.5  =  * 8        64 times too large
```

Right:

```py
weights = (scores * self.head_dim**-0.5).softmax(dim=-1)
```
""",
        ),
        Mistake(
            "scale-twice",
            "wrong",
            says="The scores are divided by √head_dim twice, so the softmax is too flat.",
            fix="Scale once: scaled_dot_product_attention already divides by head_dim ** 0.5.",
            symptom="The weights are too flat, even with one head.",
            section="""\
```py
queries = queries * head_dim**-0.5
context = F.scaled_dot_product_attention(queries, keys, values)
```

`scaled_dot_product_attention` divides by √head_dim itself. If the queries are scaled as well, the
scores are divided twice.

**How it shows.** The weights are too flat, even with one head. The fitted scale is too small by a
factor of √head_dim.

```text
q * 1/√d  ->  sdpa( . * 1/√d )  =  scores / d
q         ->  sdpa( . * 1/√d )  =  scores / √d    right
```

Right:

```py
context = F.scaled_dot_product_attention(queries, keys, values)
```
""",
        ),
        Mistake(
            "scale-after-softmax",
            "wrong",
            says="The weights are divided after the softmax, so rows do not sum to one.",
            fix="Divide the scores before the softmax, not the weights after it.",
            symptom="The weights of a row do not sum to one.",
            section="""\
```py
weights = scores.softmax(dim=-1) / head_dim**0.5
```

The division comes too late. The softmax has already seen the large scores, and a row now sums to
1 / √head_dim, so all outputs are too small.

**How it shows.** Equal tokens must give their own value back, because a mean of equal vectors is
that vector. Here it comes back smaller, by √head_dim.

```text
head_dim = 4
a row before    .10 .20 .30 .40    sum 1.0
a row after     .05 .10 .15 .20    sum 0.5
```

Right:

```py
weights = (scores / head_dim**0.5).softmax(dim=-1)
```
""",
        ),
        Mistake(
            "scale-is-stray-tensor",
            "edge",
            says="The scale is a plain tensor attribute, so .to() neither moves nor converts it.",
            fix="Use a Python number: head_dim ** 0.5.",
            symptom="Right where it was built; after .to() two dtypes or devices meet.",
            section="""\
```py
self.scale = torch.sqrt(torch.FloatTensor([head_dim]))
```

The scale is a tensor, but neither a parameter nor a buffer, so `.to(device)` and `.double()`
ignore it. It works until the model is moved.

**How it shows.** The object has a tensor attribute that is in no `state_dict` and does not follow
`.to()`.

```text
model.to("cuda")
  W_query   cpu -> cuda
  scale     cpu              stays behind
```

Right:

```py
self.scale = head_dim**0.5
```
""",
        ),
        Mistake(
            "wrong-scale",
            "wrong",
            says="The scores are scaled by a number other than 1 / √head_dim.",
            fix="Divide the scores by head_dim ** 0.5 before the softmax.",
            symptom="The weights are too sharp or too flat.",
            section="""\
```py
weights = (scores / keys.shape[-2] ** 0.5).softmax(dim=-1)  # √tokens
```

The scores are divided by a number other than √head_dim: the square root of d_in, of the number of
tokens or heads, or a constant. The softmax is too sharp or too flat, and with √tokens it changes
with the length of the text.

**How it shows.** The checker fits the scale and names it: "0.588 instead of 0.447".

```text
keys       (batch, heads, tokens, head_dim)
                             ^        ^
                         shape[-2]  shape[-1]: this one
```

Right:

```py
weights = (scores / keys.shape[-1] ** 0.5).softmax(dim=-1)
```
""",
        ),
        Mistake(
            "wrong-gain",
            "wrong",
            says=(
                "The weights are multiplied by a number after the softmax, so rows do not sum to "
                "one."
            ),
            fix="Use the weights as the softmax returns them.",
            symptom="All outputs are too large or too small by the same factor.",
            section="""\
```py
weights = 2 * scores.softmax(dim=-1)
```

Something multiplies the weights after the softmax, so a row does not sum to one, and all outputs
are larger or smaller by that factor.

**How it shows.** Equal tokens must give their own value back; they come back multiplied. The
checker fits the factor.

```text
a row       .1 .2 .3 .4    sum 1
times 2     .2 .4 .6 .8    sum 2
```

Right:

```py
weights = scores.softmax(dim=-1)
```
""",
        ),
    ),
)
