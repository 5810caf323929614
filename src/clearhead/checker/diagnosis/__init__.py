"""From a class that runs to findings.

A `Subject` goes in; a `Report` comes out. Start with `class_check.py`.
"""
