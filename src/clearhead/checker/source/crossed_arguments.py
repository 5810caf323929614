"""Arguments that change places on their way to an inner class: dropout where the bias belongs."""

import ast
from dataclasses import replace

from clearhead.checker.harness.building import without_dropout
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import meaning_for
from clearhead.checker.harness.subject import Subject
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.call_sites import parsed
from clearhead.checker.source.class_text import Text


def dropout_makes_bias(case: Case, subject: Subject, flag: str) -> bool:
    """Whether the bias comes and goes with the dropout, and not with its own flag.

    Args:
        case: The class.
        subject: How it was built: with a bias and with dropout.
        flag: The argument that should set the bias.
    """
    if not any(meaning_for(p) == "p" for p in case.info.init) or subject.sizes.p == 0:
        return False
    off = replace(subject, keywords={**subject.keywords, flag: False})
    calm = without_dropout(case, off)
    if calm is None:
        return False
    gone = sorted(set(subject.built.parameters) - set(calm.built.parameters))
    if not gone or not all("bias" in name for name in gone):
        return False
    dropped = case.session.build(case.info.name, off.arguments, off.keywords)
    if isinstance(dropped, Failure) or not set(gone) <= set(dropped.parameters):
        return False
    evidence = (
        f"With {flag}=False and dropout {subject.sizes.p} there is {', '.join(gone[:3])}; with "
        f"{flag}=False and dropout 0 there is not: the dropout sets the bias."
    )
    case.add("arguments-crossed", evidence, crossed_call(case.text))
    return True


def crossed_call(text: Text) -> int | None:
    r"""The line of a call that gives arguments by place, in another order than their names stand.

    Examples:
        >>> file = "class A:\n    def __init__(self, p, bias): ...\nA(bias, p)"
        >>> crossed_call(Text(file, 1, "B", file))
        3
    """
    tree = parsed(text.file)
    wanted = {
        owner.name: [argument.arg for argument in method.args.args[1:]]
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        names = wanted.get(node.func.id, [])
        for given, name in zip(node.args, names, strict=False):
            if isinstance(given, ast.Name) and given.id != name and given.id in names:
                return given.lineno
    return None
