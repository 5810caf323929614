"""The version and the extras, in a file of its own so that reading it imports nothing."""

__version__ = "0.2.0"


def install(extra: str) -> str:
    """The command that installs one of the extras in pyproject.toml.

    Examples:
        >>> print(install("view"))
        pip install 'clearhead[view]'. In a clone: pip install -c constraints.txt '.[view]'
    """
    return (
        f"pip install 'clearhead[{extra}]'. In a clone: pip install -c constraints.txt '.[{extra}]'"
    )
