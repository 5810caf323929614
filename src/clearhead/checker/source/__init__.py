"""What the file says: its classes, functions and notebook cells.

Text goes in; classes to check, and the lines of a mistake, come out. Start with `class_choice.py`.
"""
