"""Mistakes that show in training: gradients, and training that differs from evaluation."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Training",
    (
        Mistake(
            "scores-detached",
            "wrong",
            says=(
                "The output is right, but no gradient reaches W_query and W_key, so they never "
                "learn."
            ),
            fix="Remove .detach(), .data and no_grad between the projections and the scores.",
            symptom="The output is right, but two of your layers get no gradient.",
            section="""\
```py
with torch.no_grad():
    weights = scores.softmax(dim=-1)
```

The forward pass is right, but the graph is cut: W_query and W_key never learn where to look.
`.detach()` and `.data` do the same.

**How it shows.** No gradient reaches W_query and W_key, while W_value has one.

```text
x -> W_query -> scores -> weights -> context -> loss
                       ^ cut: no gradient to the left of here
```

Right:

```py
weights = scores.softmax(dim=-1)
```
""",
        ),
        Mistake(
            "values-detached",
            "wrong",
            says=(
                "The output is right, but no gradient reaches the weights of the values or of "
                "the output projection."
            ),
            fix="Remove detach(), .data and no_grad.",
            symptom="The output is right, but some of your layers get no gradient.",
            section="""\
```py
context = weights @ values.detach()
```

`detach`, `.data` and `no_grad` stop the gradient. The output is right, and the weights of the
values, or of the output projection, are never trained.

**How it shows.** The output is reproduced, and no gradient reaches those weights.

```text
loss -> out_proj -> context -> weights -> W_query, W_key
                            -x values  -> W_value            cut here
```

Right:

```py
context = weights @ values
```
""",
        ),
        Mistake(
            "in-place-breaks-autograd",
            "wrong",
            says=(
                "A tensor that the backward pass needs is modified in place, so training raises "
                "RuntimeError."
            ),
            fix="Write q = q * s instead of q *= s.",
            symptom="The forward pass works; the backward pass raises an error.",
            section="""\
```py
queries, keys, values = self.qkv(x).chunk(3, dim=-1)
queries *= head_dim**-0.5
```

The three parts share their memory, and the backward pass needs its old content. PyTorch detects
this and raises an error, but only when gradients are computed: evaluation works.

**How it shows.** The forward pass works under no_grad; training raises RuntimeError about a view
modified in place.

```text
qkv  [ queries | keys | values ]    one memory
       *= here changes qkv itself
```

Right:

```py
queries = queries * head_dim**-0.5
```
""",
        ),
        Mistake(
            "backward-fails",
            "wrong",
            says="The forward pass works, but no gradient can be computed.",
            fix="Read the error: it names the operation.",
            symptom="The forward pass works; the backward pass raises an error.",
            section="""\
```py
scores = MyScores.apply(queries, keys)  # an autograd.Function whose backward is not written
```

The forward pass works, and the backward pass raises. A test of the output alone does not find it.

**How it shows.** PyTorch's own error, with the operation's name.

```text
forward     fine
backward    RuntimeError
```

Right:

```py
scores = queries @ keys.transpose(-2, -1)  # operations of torch all the way
```
""",
        ),
        Mistake(
            "never-learns",
            "wrong",
            says=(
                "Some weights can never learn: no gradient reaches them, or their gradient "
                "starts at zero and stays zero while the others learn."
            ),
            fix=(
                "Compute with tensors from the weights to the output, without float(), .item() "
                "and math. Start from random numbers: of two weights that are multiplied, only "
                "one may start at zero."
            ),
            symptom="Some of your weights never change in training.",
            section="""\
```py
self.W_query = nn.Parameter(torch.zeros(d_in, d_out))
self.W_key = nn.Parameter(torch.zeros(d_in, d_out))
```

Scores are products of queries and keys, so the gradient of each is a multiple of the other. With
both at zero, both gradients are zero, and no training step changes that: every token attends to
all others equally, forever. One of two factors may start at zero: initialising an output
projection with zeros is good practice, since it changes in the first step and the weights before
it in the second.

**How it shows.** The checker trains for four steps from the values that `__init__` sets. It
reports weights whose gradient is exactly zero in each step, although it is not zero with random
values. A class in which no weight is initialised randomly, or which loads its weights, is not
judged: there the zeros are placeholders.

Weights that are not part of the graph are found in one backward pass: `float(w)`, `w.item()`,
`math.exp(w)` and numpy return plain numbers, through which no gradient flows. If the output
depends on such a weight, it is named; a weight that is frozen (`requires_grad=False`) or detached
explicitly is not.

```text
gradient of      W_query   W_key   W_value   out_proj
step 1           0         0       0.033     0
step 4           0         0       0.031     0.002
```

Right:

```py
self.W_query = nn.Parameter(torch.randn(d_in, d_out) * d_in**-0.5)
self.W_key = nn.Parameter(torch.randn(d_in, d_out) * d_in**-0.5)
```
""",
        ),
        Mistake(
            "keeps-its-graph",
            "wrong",
            says=(
                "A tensor that was computed from weights is kept for the next call, together "
                "with its graph: the second training step fails, and new weights have no effect."
            ),
            fix=(
                "Keep only what does not depend on weights, such as indices; compute the rest in "
                "each call."
            ),
            symptom="The second training step fails, or new weights have no effect.",
            section="""\
```py
@functools.lru_cache
def position_bias(self, tokens):
    return self.table(self.distances(tokens))  # depends on weights
```

What depends only on the length of the text may be kept. This depends on weights too. It is kept
together with its graph: the first training step frees that graph, and the second one fails. If
the first call was made without gradients, nothing fails, but the table never learns: the old
numbers are used forever.

**How it shows.** A new object is trained for two steps at one length: the second backward pass
raises an error. A class that keeps nothing is not tried; one with a cache of past keys and values
gets a remark, not a verdict.

```text
step 1   forward: computes and keeps    backward: frees the graph
step 2   forward: takes what was kept   backward: the graph is gone
```

Right:

```py
@functools.lru_cache
def distances(self, tokens):                    # whole numbers: no weights in them
    ...

bias = self.table(self.distances(tokens))       # anew in each call
```
""",
        ),
        Mistake(
            "training-differs",
            "wrong",
            says="Training computes something other than evaluation, even without dropout.",
            fix="Let only dropout depend on self.training.",
            symptom="Without dropout, training and evaluation give different outputs.",
            section="""\
```py
scores = scores.masked_fill(future, -2.0 if self.training else -torch.inf)
```

Apart from dropout, attention computes the same in training and evaluation. Here it does not: the
model is trained as one function and used as another.

**How it shows.** The class is built with dropout 0, and training and evaluation still differ.

```text
                 dropout 0.1     dropout 0
train vs eval    differ          must be equal
```

Right:

```py
scores = scores.masked_fill(future, -torch.inf)
```
""",
        ),
        Mistake(
            "random-in-eval",
            "wrong",
            says="The same input gives different outputs in evaluation.",
            fix="Create all layers in __init__, and draw no random numbers in forward.",
            symptom="The same input gives two different outputs in eval mode.",
            section="""\
```py
def forward(self, x):
    W_query = nn.Linear(d_in, d_out)  # made anew at each call
```

The same input gives different outputs in evaluation, and dropout is not the reason: layers are
created in `forward`, with new random weights each time, or random numbers are drawn there.

**How it shows.** Two runs on the same input differ. Nothing else can be checked before that.

```text
__init__    once:  the weights live here
forward     at each call
```

Right:

```py
def __init__(self, d_in, d_out):
    super().__init__()
    self.W_query = nn.Linear(d_in, d_out)
```
""",
        ),
    ),
)
