"""Turn a class that runs into findings.

A `Subject` goes in and a `Report` comes out. Start with `class_check.py`.
"""
