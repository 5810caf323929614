"""Run a submission in a separate process, and ask it questions.

The source of a file goes in; answers to "classes", "build", "load", "forward", "backward" come out,
each validated before it is used. Start with `submission.py`.
"""
