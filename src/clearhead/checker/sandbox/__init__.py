"""Run a submission in a process of its own, and ask it questions.

The text of a file goes in; answers to "classes", "build", "load", "forward", "backward" come out,
each one examined before it is used. Start with `submission.py`.
"""
