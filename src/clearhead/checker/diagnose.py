"""The first edition's name for `clearhead.checker.check_source`."""

from clearhead.checker.diagnosis.file_check import check_source

__all__ = ["check_source"]
