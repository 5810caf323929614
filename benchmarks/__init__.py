"""Benchmarks: each one measures a part of Clearhead beside the usual alternatives.

In: settings, from the command line (`python -m benchmarks.attention --help`) or from the list of
parts in `__main__.py`. Out: JSON in `results/`, from which `speed_page.py` and `charts.py` write
docs/speed.md. Start reading at `attention.py`; contestants register in `contestants.py`.
"""
