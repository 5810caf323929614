"""Many submissions: one row per file, a policy, a summary and a page.

A folder goes in; a CSV file, a page and a table for the terminal come out. Start with `batch.py`.
"""
