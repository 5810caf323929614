"""The file's own demonstration, under `if __name__ == "__main__":`, as a class that can be asked.

What the checker builds and calls by itself is one class. A model takes ids, masks, lengths and
caches of its own, and its file often shows how. That is run up to the first calls of a module;
these are kept, and can be repeated with other tensors.
"""

import ast
from collections.abc import Collection

from clearhead.checker.source.call_sites import last_name, parsed

DEMO = "DemonstrationOfTheFile"  # the class
_CALLS = 4  # of the module that are kept

_TEXT = """

class {name}:
    def __init__(self):
        import copy, inspect, torch
        calls = []

        def plain(value):
            if isinstance(value, torch.Tensor):
                return value.detach().clone()
            if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
                return type(value)(plain(one) for one in value)
            return copy.deepcopy(value)

        def first(value):
            if isinstance(value, torch.Tensor):
                return value.detach().clone()
            inside = value.values() if isinstance(value, dict) else value
            found = (first(one) for one in inside) if isinstance(inside, (list, tuple)) else ()
            return next((one for one in found if one is not None), None)

        class Enough(BaseException):
            pass

        real, state = torch.nn.Module.__call__, {{"inside": False}}

        def spy(module, *args, **keywords):
            if type(module).__module__ != __name__ or state["inside"]:
                return real(module, *args, **keywords)
            given = inspect.signature(module.forward).bind(*args, **keywords).arguments
            if calls and module is not state["module"]:
                return real(module, *args, **keywords)
            if not calls:
                state["module"], state["fresh"] = module, copy.deepcopy(module.eval())
            calls.append([{{n: plain(v) for n, v in given.items()}}, None])
            state["inside"] = True
            try:
                out = real(module, *args, **keywords)
            finally:
                state["inside"] = False
            calls[-1][1] = first(out)
            if len(calls) == {calls}:
                raise Enough
            return out

        torch.nn.Module.__call__ = spy
        try:
            with torch.no_grad():
                exec(compile({body!r}, "the demonstration", "exec"), globals())
        except (Enough, Exception, SystemExit):
            pass
        finally:
            torch.nn.Module.__call__ = real
        calls = [one for one in calls if one[1] is not None]
        if not calls:
            raise RuntimeError("the demonstration calls no module of the file")
        tensors = {{n: v for n, v in calls[0][0].items() if isinstance(v, torch.Tensor)}}
        self.owner, self.names = type(state["module"]).__name__, ",".join(tensors)
        self.kinds = ",".join(sorted({{type(one).__name__ for one in state["module"].modules()}}))

        def run(module, values, alone=False):
            given = {{}} if alone else {{n: plain(v) for n, v in calls[0][0].items()}}
            given.update(zip(tensors, (plain(one) for one in values)))
            with torch.no_grad():
                return first(module(**given))

        def forward(what, *values):
            if what == "given":
                return list(tensors.values())
            if what == "pieces":
                return [next(iter(one[0].values())) for one in calls] + [one[1] for one in calls]
            module = copy.deepcopy(state["fresh"])
            torch.manual_seed(0)
            if what == "after":
                half = len(values) // 2
                run(module, values[:half])
                torch.manual_seed(0)
                return run(module, values[half:])
            return run(module, values, what == "alone")

        type(self).forward = staticmethod(forward)
"""


def with_demo(source: str, judged: Collection[str]) -> str | None:
    """The file with its demonstration as a class after it.

    Args:
        source: The file.
        judged: Its attention classes.

    Returns:
        None if there is no demonstration, or no other class that builds one of these.
    """
    tree = parsed(source)
    owners = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name not in judged]
    built = {last_name(n.func) for o in owners for n in ast.walk(o) if isinstance(n, ast.Call)}
    body = [
        ast.unparse(one)
        for node in tree.body
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        for one in node.body
    ]
    if not body or not built & {*judged}:
        return None
    return source + _TEXT.format(name=DEMO, calls=_CALLS, body="\n".join(body))
