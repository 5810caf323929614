"""How a class is built, fed and called.

A submitted class goes in; a `Subject` that can be called with (batch, tokens, width) comes out.
Start with `building.py`.
"""
