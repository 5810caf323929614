"""What notes on attention claim, each put to a small experiment that could come out the other way.

An experiment is one short function: `masking.mask_after_softmax()` runs one and gives its
`Finding`. Its arguments are what it examines, so that it can be run on something else.
`catalogue.CLAIMS` has them all; `clearhead claims` runs them. Importing this imports no torch.
"""
