"""Mistakes in the class itself, and with other lengths, devices, dtypes, batches and caches."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "The class and how it is used",
    (
        Mistake(
            "no-super-init",
            "wrong",
            says=(
                "The class assigns layers before nn.Module is initialised, so building it raises "
                "AttributeError."
            ),
            fix="Call super().__init__() first in __init__.",
            symptom="The object cannot be built.",
            section="""\
```py
class Attention(nn.Module):
    def __init__(self, d_in, d_out):
        self.W_query = nn.Linear(d_in, d_out)
```

`nn.Module` must be initialised before it can hold layers. Building the class raises
AttributeError: cannot assign module before Module.__init__() call.

**How it shows.** The object cannot be built.

```text
super().__init__()    makes the lists of parameters, buffers, modules
self.W_query = ...    is put into one of them
```

Right:

```py
class Attention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out)
```
""",
        ),
        Mistake(
            "misspelled-init",
            "wrong",
            says=(
                "The name of the constructor is misspelled, so Python uses that of nn.Module, "
                "which does not take these arguments."
            ),
            fix="Write def __init__ with two underscores on each side.",
            symptom="The object cannot be built with its arguments.",
            section="""\
```py
class Attention(nn.Module):
    def _init_(self, d_in, d_out):
        super().__init__()
```

Python looks for `__init__`, with two underscores on each side, and finds only that of
`nn.Module`, which takes no d_in.

**How it shows.** TypeError: the constructor got unexpected arguments.

```text
_init_      an ordinary method that nobody calls
__init__    called by Attention(...)
```

Right:

```py
class Attention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
```
""",
        ),
        Mistake(
            "misspelled-forward",
            "wrong",
            says="No method is named forward, so calling the module raises NotImplementedError.",
            fix="Write def forward(self, x).",
            symptom="The object can be built, but not called.",
            section="""\
```py
def foward(self, x):
    ...
```

`module(x)` calls `self.forward(x)`. A method of another name is never found.

**How it shows.** The object can be built; calling it raises NotImplementedError.

```text
module(x) -> nn.Module.__call__ -> self.forward(x)
                                   foward: not found
```

Right:

```py
def forward(self, x):
    ...
```
""",
        ),
        Mistake(
            "crashes",
            "wrong",
            says="The class raises an error in its own code, whatever it is given.",
            fix="Run the class once by itself, and fix the line that raises.",
            symptom="The object cannot be built or called.",
            section="""\
```py
class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // self.num_head  # no such attribute
```

A misspelled attribute or name, an attribute that is read before it is set, or a call without an
argument that it needs. The report quotes the error and its line.

**How it shows.** Every way to build and call the class ends with the same error at the same line.

```text
Attention(512, 8)     AttributeError: 'Attention' object has no attribute 'num_head'
Attention(64, 4)      AttributeError: 'Attention' object has no attribute 'num_head'
```

Right:

```py
self.head_dim = d_model // self.num_heads
```
""",
        ),
        Mistake(
            "no-return",
            "wrong",
            says="forward returns nothing, or no tensor.",
            fix="Return the output at the end of forward.",
            symptom="Calling the module gives no tensor.",
            section="""\
```py
def forward(self, x):
    context = weights @ values
    self.out_proj(context)  # and no return
```

A Python function without `return` returns None, and so does `forward`.

**How it shows.** The output is None, or no tensor.

```text
out = attention(x)
out              None
```

Right:

```py
    return self.out_proj(context)
```
""",
        ),
        Mistake(
            "fails-at-some-lengths",
            "edge",
            says="It fails for some numbers of tokens.",
            fix="Read the sizes from the shape of the input, and name the axes that you squeeze.",
            symptom="Some input lengths raise an error.",
            section="""\
```py
x = x.view(batch, 6, d_in)  # or squeeze(), or a table of one fixed length
```

A size is hard-coded that should come from the input, or an axis of length 1 is lost. It works for
the lengths that were tried.

**How it shows.** One token, three tokens or the longest allowed number of tokens raises.

```text
tokens    1      3      7      context_length
          fails  works  works  works
```

Right:

```py
batch, tokens, d_in = x.shape
```
""",
        ),
        Mistake(
            "breaks-with-length",
            "wrong",
            says="It computes attention at some lengths, and something else at others.",
            fix=(
                "Count positions from the start of the text, not from the start of a block or a "
                "buffer."
            ),
            symptom="Right for short texts, wrong for longer ones.",
            section="""\
```py
for start in range(0, tokens, block):
    positions = torch.arange(min(block, tokens - start))  # counted from the start of the block
    future = torch.arange(tokens) > positions[:, None]
```

Long texts are processed in blocks, or a table has a fixed size, and a position is counted from
the start of the block. Up to the length of one block everything is right, and tests with a short
text pass.

**How it shows.** The checker runs texts of 1, 2, 3, 19 and 67 tokens (no longer than the context
length, if there is one), then one of about a thousand tokens, fewer where the class is slow, for
which it builds the class with a longer context. It compares each output with the form that it
found. The evidence names the length from
which the outputs differ. If the source mentions a window or sparse attention, the finding is a
question, not a verdict.

```text
block of 4      keys  0 1 2 3 4 5 6 7
query 3               x x x x . . . .
query 4, wrong        x . . . . . . .    index 0 in its block
query 4, right        x x x x x . . .
```

Right:

```py
    positions = torch.arange(start, min(start + block, tokens))
```
""",
        ),
        Mistake(
            "breaks-with-size",
            "wrong",
            says="It computes attention with some sizes or dtypes, and something else with others.",
            fix=(
                "Derive every size from the arguments or the input, and let no branch depend on "
                "the batch size, the number of heads or the dtype."
            ),
            symptom="Right in small tests, wrong in a larger model.",
            section="""\
```py
heads = min(self.num_heads, 4)  # left over from a small test
q = q.view(batch, tokens, heads, -1).transpose(1, 2)
```

A number that was written for one model stays in the code, or a branch depends on a size. In the
model that it was tested with, the output is right.

**How it shows.** The checker draws its sizes at random, and `--seed` repeats them. It also runs a
larger batch, a class with many heads and large widths, and float32 beside float64, and compares
each with the form that it found.

```text
heads    2  3  4  5  8
         ok ok ok -- --
```

Right:

```py
q = q.view(batch, tokens, self.num_heads, self.head_dim).transpose(1, 2)
```
""",
        ),
        Mistake(
            "depends-on-earlier-call",
            "wrong",
            says=(
                "Something that was kept from an earlier text, such as a mask of its length, is "
                "used for the next one, which it does not fit."
            ),
            fix=(
                "Create it again when it does not fit: if self.mask is None or len(self.mask) < "
                "tokens."
            ),
            symptom="The output depends on which text was run before.",
            section="""\
```py
def causal_mask(self, tokens):
    if self.mask is None:  # made once, for the first text
        self.mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return self.mask[:tokens, :tokens]
```

A mask, a table or a cache is created for the first text and kept. If the next text is longer, the
slice of what was kept is too small. A new object is right at every length, so a test with one
text passes. After a text of one token no error is raised: a mask with one entry broadcasts to
every shape, and hides nothing.

**How it shows.** Where another length fails or gives another output, the checker builds a new
object with the same weights and runs that text only. If the new object is right, the earlier text
is the cause. The checker also runs a new object on one token first, and then on the usual text.

```text
texts of            4 tokens    7 tokens
one object          works       fails
a new one for each  works       works
```

Right:

```py
    if self.mask is None or len(self.mask) < tokens:
```
""",
        ),
        Mistake(
            "changes-its-input",
            "wrong",
            says=(
                "The caller's tensor is modified in place, so a residual connection, or anything "
                "else that reads it afterwards, gets other numbers."
            ),
            fix="Create a new tensor: x = x + positions, not x += positions.",
            symptom="After the call, the input is no longer what it was.",
            section="""\
```py
def with_positions(self, x, positions):
    x += positions  # the caller's tensor
    return x
```

`+=`, `*=` and the methods that end in `_` change the tensor itself. The caller uses the same
tensor, and so may other parts of the forward pass: here the values get the positions too,
although only queries and keys should, and so does the residual connection around the class.

**How it shows.** The inputs are compared before and after the call, without and with each
argument that takes positions. A cache that is passed may change: that is its purpose.

```text
                 before    after
x += positions   x         x + positions     the same tensor
x = x + ...      x         x                 a new tensor beside it
```

Right:

```py
    x = x + positions
```
""",
        ),
        Mistake(
            "attends-across-batch",
            "wrong",
            says=(
                "Tokens attend to the same position of the other texts in the batch, and not to "
                "their own text."
            ),
            fix="Pass (tokens, batch, d), or write nn.MultiheadAttention(..., batch_first=True).",
            symptom="Changing one sentence changes the output of another.",
            section="""\
```py
self.attn = nn.MultiheadAttention(dim, heads)  # wants (tokens, batch, dim)
...
batch, tokens, dim = x.shape
out, _ = self.attn(x, x, x)
```

`nn.MultiheadAttention` expects the tokens first, unless `batch_first=True`. With the batch first,
each token attends to the same position of all other texts, and never to its own text. The shapes
fit, and the loss goes down a little.

**How it shows.** Changing one text changes the outputs of the others; changing a token changes no
other output of its own text. A class that means (tokens, batch, d) is right: if its source says
so, in a comment or in the names of the axes, nothing is reported; if it does not say, the finding
is a question, not a verdict.

```text
            token 0   token 1   token 2
text 0        |         |         |
text 1        |         |         |       each column attends to itself
text 2        |         |         |
```

Right:

```py
self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
```
""",
        ),
        Mistake(
            "fails-with-one-sentence",
            "edge",
            says=(
                "A batch of one sentence fails, or gives another output than the same sentence "
                "in a larger batch."
            ),
            fix="Keep the batch axis: squeeze only axes that you name, and never axis 0.",
            symptom="A batch of one sentence fails, or gives another output.",
            section="""\
```py
context = context.squeeze(0)  # or squeeze()
```

`squeeze` removes axes of length 1. In a batch of one sentence that is the batch axis, so the last
batch of an epoch, or the first request in production, fails or has another shape.

**How it shows.** The first sentence alone raises an error, or gives another output than in a
batch of two.

```text
(2, tokens, d) .squeeze(0)  ->  (2, tokens, d)
(1, tokens, d) .squeeze(0)  ->  (tokens, d)
```

Right:

```py
context = context.flatten(2)  # no squeeze is needed
```
""",
        ),
        Mistake(
            "cached-mask-misaligned",
            "wrong",
            says=(
                "With a cache, the causal mask starts at the first key again, so a new token "
                "sees only the beginning of the text."
            ),
            fix=(
                "Align the mask to the end: query i of the new ones may see key j if j <= past + "
                "i; a single new token needs no mask."
            ),
            symptom="Decoding token by token gives another output than the whole text at once.",
            section="""\
```py
keys = torch.cat([self.past_keys, keys], dim=2)
out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
```

With a cache there are fewer queries than keys: one new token, and all the past. `is_causal=True`
aligns the triangle with the top left corner, as if the new token were the first one of the text,
so it sees the first key only. Without the cache everything is right.

**How it shows.** A text is run at once, and again token by token with the cache. The two must be
equal. Here the second is exactly the output of a new token that sees the first keys only.

```text
one new query     keys   0  1  2  3  4
top left                 x  .  .  .  .
right                    x  x  x  x  x
```

Right:

```py
out = F.scaled_dot_product_attention(queries, keys, values, is_causal=self.past_keys is None)
```

That is enough for one new token at a time. For several, query `i` may see key `j` if `j <= past +
i`.
""",
        ),
        Mistake(
            "cache-differs",
            "wrong",
            says=(
                "Decoding token by token with the cache gives another output than the whole text "
                "at once."
            ),
            fix=(
                "Append the new keys and values, and count positions and mask from the length of "
                "the past."
            ),
            symptom="Decoding token by token gives another output than the whole text at once.",
            section="""\
```py
self.past_keys = keys  # only the newest ones
keys = torch.cat([self.past_keys, keys], dim=2)
```

Decoding with a cache must give the same output as the whole text at once. If keys are lost or
appended twice, if the values are not kept, or if positions start at 0 with each new token, the
outputs differ.

**How it shows.** A text is run at once, then token by token with a new object. The evidence says
by how much they differ, and which way of calling it is right. A cache that the checker could not
operate, such as an object of another class, is named in a note: it was not checked.

```text
at once           the cat sat on    ->  o0 o1 o2 o3
token by token    the               ->  o0
                      cat           ->     o1
                          sat       ->        o2      must be the same
```

Right:

```py
keys = torch.cat([self.past_keys, keys], dim=2)
self.past_keys = keys
```
""",
        ),
        Mistake(
            "made-on-cpu",
            "edge",
            says=(
                "A tensor is created on the CPU regardless of where the input is, so the class "
                "fails on a GPU."
            ),
            fix="Name the device: torch.ones(n, n, device=x.device), or keep it as a buffer.",
            symptom="Right on the CPU; fails on a GPU.",
            section="""\
```py
mask = torch.ones(tokens, tokens).triu(1).bool()
scores = scores.masked_fill(mask, -torch.inf)
```

`torch.ones` creates its tensor on the CPU unless a device is named. On a laptop everything works;
on a GPU two devices meet and PyTorch raises an error.

**How it shows.** The forward pass is run on meta tensors, as if weights and inputs were on a GPU.
This needs no GPU.

```text
scores   cuda:0
mask     cpu        Expected all tensors to be on the same device
```

Right:

```py
mask = torch.ones(tokens, tokens, device=x.device).triu(1).bool()
```
""",
        ),
        Mistake(
            "one-dtype-only",
            "edge",
            says=(
                "A tensor is created in float32 regardless of the input's dtype, so other dtypes "
                "fail."
            ),
            fix="Name the dtype: dtype=x.dtype, or cast back before the next product.",
            symptom="Right in float32; other dtypes raise an error.",
            section="""\
```py
scores = scores + torch.zeros(tokens, tokens).masked_fill(future, -torch.inf)
context = scores.softmax(dim=-1) @ values
```

A tensor is created in float32, whatever the dtype of the model. In bfloat16 a sum with it becomes
float32, and the product with bfloat16 values raises.

**How it shows.** The forward pass raises in bfloat16, with an error about dtypes.

```text
bfloat16 + float32   ->  float32
float32  @ bfloat16  ->  RuntimeError
```

Right:

```py
scores = scores + torch.zeros(tokens, tokens, dtype=scores.dtype).masked_fill(future, -torch.inf)
```
""",
        ),
    ),
)
