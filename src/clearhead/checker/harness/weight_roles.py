"""What a parameter is for, by its name: queries, keys, values, output, or several at once."""

import re

_BEFORE = r"(?:w|to|fc|lin|linear|proj|l|mat|get|c)?"
_AFTER = (
    r"(?:s|w|proj|projection|lin|linear|linears|fc|mat|net|layer|weight|weights|p|map|list|heads?|"
    r"n|ln|norm)*"
)
_ROLE = {
    "q": re.compile(
        f"^{_BEFORE}(?:q|quer[a-z]*|qry|que|consultas?|anfragen?|abfragen?|requetes?){_AFTER}$"
    ),
    "k": re.compile(
        f"^{_BEFORE}(?:k|key[a-z]*|ky|claves?|chaves?|schluessel|schlüssel|cles?){_AFTER}$"
    ),
    "v": re.compile(f"^{_BEFORE}(?:v|val[a-z]*|werte?){_AFTER}$"),
}
_OUT = re.compile(
    f"^{_BEFORE}(?:o|outs?|outputs?|proj|projection|fc|dense|unify[a-z]*|combine|merge|mix[a-z]*|"
    f"final|concat|linear|wo|salida|saida|sortie|ausgabe|aus){_AFTER}$"
)
_FUSED = re.compile(r"qkv|kqv|query_?key_?value|c_attn|in_proj|wqkv")


def words(path: str) -> list[str]:
    """The lower-case words of a parameter's path: `attn.toQueries.weight` -> attn, to, queries."""
    path = re.sub(r"\.?(weight|bias)$", "", path)
    path = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path)
    return [word for word in re.split(r"[\W_]+", path.lower()) if word]


def role_of(path: str) -> str:
    """Which of q, k, v, o, qkv, kv a path names; "" if it names none.

    Examples:
        >>> [role_of(p) for p in ("W_query.weight", "to_kv.weight", "c_attn.weight", "out_proj")]
        ['q', 'kv', 'qkv', 'o']
    """
    small = path.lower()
    parts = words(path)
    found = {role for role, pattern in _ROLE.items() if any(map(pattern.match, parts))}
    if _FUSED.search(small) or found == {"q", "k", "v"}:
        return "qkv"
    if any(part in ("kv", "tokv", "wkv", "kvproj") for part in parts) or found == {"k", "v"}:
        return "kv"
    if len(found) == 1:
        return found.pop()
    if any(map(_OUT.match, parts)):
        return "o"
    return ""


CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")


def takes_last(kind: str) -> bool:
    """Whether a layer's weights are (out, in): Linear and torch's convolutions, not `Conv1D`."""
    return "Linear" in kind or kind in CONVOLUTIONS
