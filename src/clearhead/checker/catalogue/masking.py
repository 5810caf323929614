"""Mistakes in masks over queries and keys."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Causal and other masks",
    (
        Mistake(
            "mask-result-dropped",
            "wrong",
            says=(
                "The masked scores are computed and then discarded, so every token sees the future."
            ),
            fix=(
                "Write scores = scores.masked_fill(...), or scores.masked_fill_(...) with an "
                "underscore."
            ),
            symptom="A later token changes an earlier output, although there is a mask.",
            section="""\
```py
scores.masked_fill(future, -torch.inf)
weights = scores.softmax(dim=-1)
```

`masked_fill` without an underscore returns a new tensor and leaves the old one unchanged. Here
the new one is discarded.

**How it shows.** The output is exactly that of attention without a mask. The checker reports this
only if the class has a mask.

```text
scores.masked_fill(...)  ->  a new tensor  ->  discarded
scores                   ->  softmax           unmasked

meant   1 0 0 0      got   1 1 1 1
        1 1 0 0            1 1 1 1
        1 1 1 0            1 1 1 1
        1 1 1 1            1 1 1 1
```

Right:

```py
scores = scores.masked_fill(future, -torch.inf)
weights = scores.softmax(dim=-1)
```
""",
        ),
        Mistake(
            "no-causal-mask",
            "wrong",
            says="Nothing hides the future, so every token sees the tokens after it.",
            fix="Set the scores above the diagonal to -inf before the softmax.",
            symptom="A later token changes an earlier output.",
            section="""\
```py
weights = (queries @ keys.transpose(-2, -1) / head_dim**0.5).softmax(dim=-1)
```

Nothing hides the future. A language model that is trained like this reads the answer instead of
predicting it: the loss is excellent, and the generated text is not.

**How it shows.** Changing the last token changes the first output. An encoder may do that; a
class that calls itself causal, or builds a triangular mask, may not. If only a context length in
the constructor points to a causal model, the finding is a question (*edge*), not a verdict.

```text
should see   1 0 0 0      sees   1 1 1 1
             1 1 0 0             1 1 1 1
             1 1 1 0             1 1 1 1
             1 1 1 1             1 1 1 1
```

Right:

```py
future = torch.ones(tokens, tokens, dtype=torch.bool).triu(diagonal=1)
weights = (scores / head_dim**0.5).masked_fill(future, -torch.inf).softmax(dim=-1)
```
""",
        ),
        Mistake(
            "mask-off-by-one",
            "wrong",
            says="Each token also sees the next token.",
            fix="Hide everything from the first diagonal above the main one: triu(diagonal=1).",
            symptom="The next token changes an output; the one after it does not.",
            section="""\
```py
future = torch.ones(tokens, tokens).triu(diagonal=2).bool()
```

The mask begins one diagonal too far to the right, so each token sees the next one: the very token
that it should predict.

**How it shows.** Changing token t changes output t - 1, and no output before it.

```text
diagonal=1   1 0 0 0      diagonal=2   1 1 0 0
             1 1 0 0                   1 1 1 0
             1 1 1 0                   1 1 1 1
             1 1 1 1                   1 1 1 1
```

Right:

```py
future = torch.ones(tokens, tokens).triu(diagonal=1).bool()
```
""",
        ),
        Mistake(
            "mask-hides-self",
            "wrong",
            says=(
                "No token sees itself, and the first token sees nothing at all: its row becomes "
                "NaN."
            ),
            fix="Keep the main diagonal visible: triu(diagonal=1) marks what to hide.",
            symptom="The first output is NaN.",
            section="""\
```py
future = torch.ones(tokens, tokens).triu(diagonal=0).bool()
```

The main diagonal is hidden as well. The first token has no visible key, and the softmax of a row
of -inf is NaN, which spreads to everything that is computed from it.

**How it shows.** The first output is NaN.

```text
diagonal=1   1 0 0 0      diagonal=0   0 0 0 0  -> NaN
             1 1 0 0                   1 0 0 0
             1 1 1 0                   1 1 0 0
             1 1 1 1                   1 1 1 0
```

Right:

```py
future = torch.ones(tokens, tokens).triu(diagonal=1).bool()
```
""",
        ),
        Mistake(
            "mask-hides-others",
            "wrong",
            says="Each token sees only itself.",
            fix="Keep the lower triangle visible: tril().",
            symptom="Changing a token changes only its own output.",
            section="""\
```py
scores = scores.masked_fill(torch.eye(tokens) == 0, -torch.inf)
```

Only the diagonal is left, so each token sees itself and nothing else. The output is the token's
own value; no information moves between positions.

**How it shows.** Changing a token changes its own output only.

```text
meant   1 0 0 0      got   1 0 0 0
        1 1 0 0            0 1 0 0
        1 1 1 0            0 0 1 0
        1 1 1 1            0 0 0 1
```

Right:

```py
scores = scores.masked_fill(torch.ones(tokens, tokens).tril() == 0, -torch.inf)
```
""",
        ),
        Mistake(
            "mask-inverted",
            "wrong",
            says="The past is hidden and the future is visible.",
            fix="Hide the upper triangle (triu), keep the lower one (tril).",
            symptom=(
                "A later token changes an earlier output, and an earlier token does not change a "
                "later one."
            ),
            section="""\
```py
past = torch.ones(tokens, tokens).tril().bool()
scores = scores.masked_fill(past, -torch.inf)
```

The mask of what to keep is used as the mask of what to hide. Each token sees only its future, and
the last one sees nothing.

**How it shows.** An early token no longer changes a late output, but a late token changes an
early one. The last row may be NaN.

```text
right   1 0 0 0      inverted   0 1 1 1
        1 1 0 0                 0 0 1 1
        1 1 1 0                 0 0 0 1
        1 1 1 1                 0 0 0 0  -> NaN
```

Right:

```py
past = torch.ones(tokens, tokens).tril().bool()
scores = scores.masked_fill(~past, -torch.inf)
```
""",
        ),
        Mistake(
            "sdpa-mask-polarity",
            "wrong",
            says=(
                "scaled_dot_product_attention got a mask in which True means hidden, so each "
                "token sees exactly what it should not."
            ),
            fix="Pass ~mask: there, True means may attend.",
            symptom="An output depends on later tokens only.",
            section="""\
```py
hide = torch.ones(tokens, tokens).triu(diagonal=1).bool()
context = F.scaled_dot_product_attention(q, k, v, attn_mask=hide)
```

In `masked_fill` and in `nn.MultiheadAttention`, True means hide. In
`scaled_dot_product_attention`, True means *may attend*, so the same mask does the opposite.

**How it shows.** Each output depends on later tokens only. The last row sees nothing: NaN or
zeros, depending on the version of PyTorch.

```text
            masked_fill   nn.MultiheadAttention   sdpa
True means  hide          hide                    may attend
```

Right:

```py
context = F.scaled_dot_product_attention(q, k, v, attn_mask=~hide)
# or, without a mask of your own:
context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
```
""",
        ),
        Mistake(
            "mask-fill-not-inf",
            "wrong",
            says="Masked entries get a score near 0, which the softmax turns into a real weight.",
            fix="Fill masked entries with -inf before the softmax.",
            symptom="A hidden token still changes the output, a little.",
            section="""\
```py
scores = scores.masked_fill(future, 0)  # or 1e-9, or scores * lower_triangle
```

A score of 0 is an ordinary score: exp(0) = 1. Hidden tokens get a real weight, often more than
the visible ones.

**How it shows.** A hidden token changes the output, and the fitted fill value is near 0. (1e-9 is
a very small number; -1e9 was probably meant.)

```text
scores    .5   .7    hidden: 0  0     hidden: -inf -inf
softmax  .29  .36    .18  .18         .45  .55  0  0
                     leaks            right
```

Right:

```py
scores = scores.masked_fill(future, -torch.inf)
```
""",
        ),
        Mistake(
            "mask-added-not-filled",
            "wrong",
            says="A mask of zeros and ones is added to the scores, which hides nothing.",
            fix="Fill masked entries with -inf: scores.masked_fill(mask == 0, -torch.inf).",
            symptom="A later token changes an earlier output, although there is a mask.",
            section="""\
```py
scores = scores + mask  # mask: zeros and ones
```

A mask that is added must hold 0 and -inf. Zeros and ones only shift the scores a little: nothing
is hidden.

**How it shows.** A later token changes an earlier output, and the output is exactly that of
scores with one added.

```text
scores     .3 .5 .1      + mask      1.3 .5 .1
                         + -inf       .3 -inf -inf
```

Right:

```py
scores = scores.masked_fill(mask == 0, -torch.inf)
```
""",
        ),
        Mistake(
            "mask-after-softmax",
            "wrong",
            says=(
                "Masked weights are set to zero after the softmax, so rows sum to less than one "
                "and the future leaks through the denominator."
            ),
            fix="Set the masked scores to -inf before the softmax.",
            symptom="The weights of a row sum to less than one, least in the first rows.",
            section="""\
```py
weights = scores.softmax(dim=-1)
weights = weights * torch.ones(tokens, tokens).tril()
```

The hidden weights are zero, but they were part of the denominator of the softmax. The rows sum to
less than one, and a hidden token still changes the weights of the others.

**How it shows.** The first row sums to far less than one, the last row to one. If the rows are
divided by their sums afterwards, it is right again: the checker accepts that.

```text
softmax          .2 .3 .1 .4      times tril   .2  0  0  0   = 0.2
                 .3 .3 .2 .2                   .3 .3  0  0   = 0.6
                 .1 .4 .2 .3                   .1 .4 .2  0   = 0.7
                 .2 .2 .3 .3                   .2 .2 .3 .3   = 1.0
```

Right:

```py
scores = scores.masked_fill(future, -torch.inf)
weights = scores.softmax(dim=-1)
```
""",
        ),
        Mistake(
            "mask-fill-too-small",
            "edge",
            says=(
                "Masked entries get a negative number that is not large enough: with large "
                "scores the future leaks."
            ),
            fix="Fill with -inf, or with torch.finfo(scores.dtype).min.",
            symptom=(
                "Right with small numbers; with large ones, a later token changes an earlier "
                "output."
            ),
            section="""\
```py
scores = scores.masked_fill(future, -100.0)
```

-100 hides a token as long as the other scores are near 0. The scores of a trained model can be
large: if all visible ones are near -100 too, the hidden token gets a real weight.

**How it shows.** Right on small numbers; with inputs a hundred times larger a later token changes
an earlier output.

```text
visible   hidden                 visible   hidden
   0       -100                    -99      -100
  1.0       0.0   right            .73       .27   leaks
```

Right:

```py
scores = scores.masked_fill(future, -torch.inf)
```
""",
        ),
        Mistake(
            "mask-fill-overflows-half",
            "edge",
            says="The fill value of the mask does not fit into float16, so half precision fails.",
            fix="Fill with -inf, or with torch.finfo(scores.dtype).min.",
            symptom="Right in float32; float16 raises an error.",
            section="""\
```py
scores = scores.masked_fill(future, -1e9)
```

The lowest number in float16 is -65504, so -1e9 does not fit and PyTorch raises. In float32 and
bfloat16 it works.

**How it shows.** `model.half()` raises: value cannot be converted to type at::Half without
overflow.

```text
dtype       lowest number     -1e9 fits
float16            -65504     no
bfloat16         -3.4e+38     yes
float32          -3.4e+38     yes
```

Right:

```py
scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)  # or -torch.inf
```
""",
        ),
        Mistake(
            "mask-not-sliced",
            "wrong",
            says="The mask always has context_length rows and columns, so shorter inputs fail.",
            fix="Slice the mask: mask[:tokens, :tokens].",
            symptom="Right when the input is exactly context_length long; shorter inputs fail.",
            section="""\
```py
scores = scores.masked_fill(self.mask, -torch.inf)  # mask: (context, context)
```

The mask has the size of the longest possible text, the scores have the size of this one.

**How it shows.** It works when a text is exactly context_length long, and raises on every shorter
one: The size of tensor a must match the size of tensor b.

```text
scores (4, 4)      mask (6, 6)
x x x x            0 1 1 1 . .
x x x x            0 0 1 1 . .      take mask[:4, :4]
x x x x            0 0 0 1 . .
x x x x            0 0 0 0 . .
                   . . . . . .
```

Right:

```py
scores = scores.masked_fill(self.mask[:tokens, :tokens], -torch.inf)
```
""",
        ),
        Mistake(
            "mask-not-a-buffer",
            "edge",
            says="The mask is a plain attribute, so .to(device) does not move it.",
            fix='Write self.register_buffer("mask", ..., persistent=False).',
            symptom="Right where it was built; after .to(device) two devices meet.",
            section="""\
```py
self.mask = torch.ones(context_length, context_length).triu(diagonal=1).bool()
```

A plain attribute is not moved by `.to(device)`. On the CPU everything works.

**How it shows.** The object has a tensor that is neither a parameter nor a buffer.

```text
model.to("cuda")
  W_query   cpu -> cuda
  mask      cpu              stays behind: two devices
```

Right:

```py
mask = torch.ones(context_length, context_length).triu(diagonal=1).bool()
self.register_buffer("mask", mask, persistent=False)
```
""",
        ),
        Mistake(
            "mask-ignored",
            "wrong",
            says="forward takes a mask and ignores it.",
            fix="Set the scores that the mask hides to -inf before the softmax.",
            symptom="The output is the same with every mask.",
            section="""\
```py
def forward(self, x, mask=None):
    ...
    weights = scores.softmax(dim=-1)  # the mask is not there
```

`forward` takes a mask and ignores it. The caller believes that the padding or the future is
hidden.

**How it shows.** A mask that hides 40 % of the cells changes no number, in any polarity.

```text
forward(x)             the same
forward(x, mask=m)     the same
```

Right:

```py
if mask is not None:
    scores = scores.masked_fill(mask == 0, -torch.inf)
```
""",
        ),
        Mistake(
            "mask-branch-fails",
            "wrong",
            says="Passing a mask raises an error, whatever its shape and its meaning.",
            fix="Run forward with a mask once, and fix the line that raises.",
            symptom="forward works without a mask and fails with every mask.",
            section="""\
```py
def forward(self, x, mask=None):
    ...
    if mask is not None:
        scores = scores.masked_fil(mask == 0, -torch.inf)  # no such method
```

The branch that uses the mask has never run: a misspelled name, or `if mask == True`, which PyTorch
refuses for more than one element. All tests without a mask pass.

**How it shows.** Every usual mask, `(n, n)` to `(b, 1, n, n)`, bool, integer or float, raises the
same error from the same line of the class.

```text
forward(x)             works
forward(x, mask=m)     AttributeError, for every m
```

Right:

```py
if mask is not None:
    scores = scores.masked_fill(mask == 0, -torch.inf)
```
""",
        ),
        Mistake(
            "default-mask-fails",
            "wrong",
            says="The mask is optional, but leaving it out raises an error.",
            fix="Write if mask is not None: around what uses the mask, or require the argument.",
            symptom="forward(x) fails although its signature allows it.",
            section="""\
```py
def forward(self, x, mask=None):
    ...
    scores = scores.masked_fill(mask == 0, -torch.inf)  # None == 0 is False
```

The signature says that the mask may be left out. Then `mask` is `None`, and the line that uses it
fails.

**How it shows.** `forward(x)` raises; `forward(x, mask)` works.

```text
forward(x)             TypeError
forward(x, mask=m)     works
```

Right:

```py
if mask is not None:
    scores = scores.masked_fill(mask == 0, -torch.inf)
```
""",
        ),
    ),
)
