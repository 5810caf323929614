"""What the file says: its classes, functions and notebook cells.

Source text goes in; the classes to check and the lines of mistakes come out. Start with
`class_choice.py`.
"""
