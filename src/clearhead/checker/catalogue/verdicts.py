"""Findings that say how far the check came, or what an assignment asks for."""

from clearhead.checker.catalogue.mistake import Family, Mistake

FAMILY = Family(
    "Findings that are not mistakes of their own",
    (
        Mistake(
            "cannot-run",
            "wrong",
            says="The file could not be imported, or the class could not be built or called.",
            section="""\
The file could not be imported, or the class could not be built or called. This is not a verdict
on its attention. The report shows the error, and the frames of the traceback that lie in the file
itself.

```text
at import     a package is missing, or a line outside the class fails
at build      the constructor needs something that its argument names do not tell
at forward    forward needs something other than the usual inputs
timeout       it took longer than the limits allow
```

A class that needs other arguments needs an adapter: `clearhead check mine.py --write-adapter
adapter.py`.
""",
        ),
        Mistake(
            "not-what-was-asked",
            "wrong",
            says="It is not what the assignment asks for.",
            section="""\
The attention may be right, but the policy of the assignment asks for something else: another
class, causal attention, or several heads.

```text
policy      causal = true
the class   4 heads of size 8, not causal
```
""",
        ),
        Mistake(
            "unexplained",
            "wrong",
            says=(
                "Something is wrong that no known mistake explains: a property fails that every "
                "attention has."
            ),
            fix="Compare with a plain attention, step by step, from the step that is named.",
            section="""\
Something is wrong, and no known mistake gives these numbers. A property fails that every
attention has; the evidence names the property, and the step at which the numbers differ from
those of plain attention.

```text
change token 3           outputs that may change
causal attention         3 4 5 ...
without a mask           all
another text             none
```

The properties: a later token must not change an earlier output of causal attention; one text must
not change another of the same batch; equal tokens must give their own value back, because the
weights of a row sum to one; without a mask, tokens in another order must give the same outputs in
that order; every output of the query, key and value layers must be used.
""",
        ),
        Mistake(
            "unsure",
            "edge",
            says="The checker does not know whether this is right.",
            fix="If the class is called in an unusual way, write an adapter.",
            section="""\
All these properties hold, but the numbers are not those of a known form. That is not a verdict
against the code: it may be a kind of attention that the checker does not know.

```text
correct    a right form gives the same numbers
wrong      a mistake gives the same numbers, or a property fails
unsure     neither
```
""",
        ),
    ),
)
