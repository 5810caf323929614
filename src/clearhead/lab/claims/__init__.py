"""Common claims about attention, each tested by a small experiment that could fail.

Enters: nothing, or something else to experiment on. Leaves: a `Finding` per claim. An experiment is
one short function: `mask_claims.mask_after_softmax()` runs one. Its arguments are what it examines,
so that it can be run on something else. To add a claim, write a function with the decorator
`@claim(...)` in one of the `*_claims.py` files. `catalogue.CLAIMS` collects them all, and
`clearhead claims` runs them. Importing this package does not import torch.
"""
