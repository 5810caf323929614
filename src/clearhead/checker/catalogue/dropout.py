"""Mistakes in dropout."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Dropout",
    (
        Mistake(
            "dropout-in-eval",
            "wrong",
            says="Dropout also acts outside training, so the same input gives different outputs.",
            fix="Use nn.Dropout, or pass dropout_p=p if self.training else 0.0.",
            symptom="The same input gives two different outputs in eval mode.",
            section="""\
```py
weights = F.dropout(weights, self.p)
context = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p)
```

The functions do not know whether the module is training; only `nn.Dropout` does. Weights are
dropped outside training too, and the outputs vary.

**How it shows.** In eval mode the same input gives two different outputs.

```text
            train()      eval()
nn.Dropout  drops        does nothing
F.dropout   drops        drops       unless training=False
```

Right:

```py
weights = F.dropout(weights, self.p, training=self.training)
context = F.scaled_dot_product_attention(
    q, k, v, dropout_p=self.p if self.training else 0.0
)
```
""",
        ),
        Mistake(
            "dropout-unused",
            "wrong",
            says="Dropout is built and never called, so training drops nothing.",
            fix="Call self.dropout on the weights, after the softmax.",
            symptom=(
                "The same input gives the same output in training mode, although dropout is on."
            ),
            section="""\
```py
self.dropout = nn.Dropout(0.1)  # never called in forward
```

The layer is built and never used, so training drops nothing. Nothing shows until the model
overfits.

**How it shows.** In training mode, with dropout 0.5, two runs give the same output.

```text
softmax -> dropout -> @ values    right
softmax ------------> @ values    the layer is skipped
```

Right:

```py
weights = self.dropout(scores.softmax(dim=-1))
```
""",
        ),
        Mistake(
            "dropout-rescaled-twice",
            "wrong",
            says="The kept weights are scaled up twice, so outputs are too large.",
            fix=(
                "Leave the scaling to nn.Dropout: it divides by 1 - p in training and does "
                "nothing else."
            ),
            symptom="Outputs are too large by a factor that depends on the dropout rate.",
            section="""\
```py
weights = self.dropout(weights) / (1 - self.p)
```

`nn.Dropout` already divides what it keeps by 1 - p, in training only. The second division makes
outputs too large, in evaluation as well.

**How it shows.** In eval mode the output is 1 / (1 - p) times too large.

```text
p = 0.5      training              eval
right        half are 0, rest x2   as they are
twice        half are 0, rest x4   x2
```

Right:

```py
weights = self.dropout(weights)
```
""",
        ),
        Mistake(
            "dropout-scaled-down",
            "wrong",
            says=(
                "Outputs are multiplied by 1 - p outside training, although nn.Dropout already "
                "compensates in training."
            ),
            fix="Leave the scaling to nn.Dropout.",
            symptom="Outputs are too small by a factor that depends on the dropout rate.",
            section="""\
```py
weights = self.dropout(weights) * (1 - p)
```

Older descriptions of dropout scale by 1 - p in evaluation. PyTorch's dropout compensates in
training, by 1 / (1 - p), so evaluation needs no scaling.

**How it shows.** In evaluation all outputs are 1 - p of what they should be.

```text
p = 0.2          training               evaluation
nn.Dropout       kept / 0.8             as it is
here             kept / 0.8 * 0.8       * 0.8    too small
```

Right:

```py
weights = self.dropout(weights)
```
""",
        ),
        Mistake(
            "dropout-before-softmax",
            "wrong",
            says=(
                "Dropout sets scores to zero, and a score of zero becomes a real weight in the "
                "softmax."
            ),
            fix="Call dropout on the weights, after the softmax.",
            symptom="Right in eval mode; in training the first row never loses a weight.",
            section="""\
```py
weights = self.dropout(scores).softmax(dim=-1)
```

A dropped score becomes 0, and exp(0) = 1: the token is not dropped, it gets an ordinary weight. A
score below zero even grows.

**How it shows.** Right in eval mode. In training the first row, which has one visible key, never
varies: its weight is always 1.

```text
scores           2   -1   -inf -inf
dropped          0   -2   -inf -inf    -> .88 .12  0  0
softmax first  .95  .05      0    0    -> 0   .09  0  0  dropped
```

Right:

```py
weights = self.dropout(scores.softmax(dim=-1))
```
""",
        ),
        Mistake(
            "arguments-crossed",
            "wrong",
            says=(
                "Two arguments are swapped on their way to an inner class: the dropout rate sets "
                "the bias, and the bias sets the dropout rate."
            ),
            fix="Pass them by name: Head(d_in, d_out, dropout=dropout, qkv_bias=qkv_bias).",
            symptom="Two arguments of the constructor do not do what their names say.",
            section="""\
```py
class Head(nn.Module):
    def __init__(self, d_in, d_out, dropout=0.0, qkv_bias=False): ...

# in the class around it
self.heads = nn.ModuleList([Head(d_in, d_out, qkv_bias, dropout) for _ in range(num_heads)])
```

Positional arguments are matched by position, not by name. Here the dropout arrives as `qkv_bias`,
and any number but 0 counts as True; the bias arrives as a dropout of 0 or of 1. With both at
their defaults, the result is right. With dropout, nothing is dropped and every layer has a bias;
with a bias, training drops everything.

**How it shows.** The checker builds the class with and without each of the two: does the bias
follow its own argument, or the dropout?

```text
qkv_bias   dropout   bias is there   meant
True       0.3       yes             yes
False      0.3       yes             no
False      0         no              no
```

Right:

```py
Head(d_in, d_out, dropout=dropout, qkv_bias=qkv_bias)
```
""",
        ),
    ),
)
