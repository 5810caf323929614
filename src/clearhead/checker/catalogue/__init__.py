"""The mistakes that people make in attention code, each with its sentence and its fix.

Start with `mistakes.py`.
"""
