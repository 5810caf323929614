"""How a class is built, fed and called.

A class of a submission goes in; a `Subject` that answers to (batch, tokens, width) comes out. Start
with `building.py`.
"""
