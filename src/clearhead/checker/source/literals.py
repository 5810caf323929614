"""Numbers in a file that look like typing errors."""

import ast

from clearhead.checker.source.call_sites import parsed


def literal_meant(file: str, line: int | None) -> str:
    r"""What was probably meant by a tiny number where a large one belongs; "" if there is none.

    Args:
        file: The whole file.
        line: The line in which a score is hidden.

    Examples:
        >>> literal_meant("s = s.masked_fill(m, -1e-9)", 1)
        ' You wrote -1e-9; -1e9 was probably meant.'
    """
    for node in ast.walk(parsed(file)):
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        number = node.operand if isinstance(node, ast.UnaryOp) and negative else node
        if not isinstance(number, ast.Constant) or number.lineno != line:
            continue
        text = ast.get_source_segment(file, number) or ""
        tiny = isinstance(number.value, float) and 0 < number.value < 1e-2
        if tiny and "e-" in text.lower():
            written = f"-{text}" if negative else text
            return f" You wrote {written}; -{text.lower().replace('e-', 'e')} was probably meant."
    return ""
