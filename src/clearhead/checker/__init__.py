"""What people get wrong in attention code: the catalogue of mistakes, each one planted in our own.

The tests plant every mistake in a copy of this package and ask that the suite turns red, so that a
test which cannot fail is found out.
"""
