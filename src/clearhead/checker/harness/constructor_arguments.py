"""The names that constructors give to their parameters, and the sizes to pass for them."""

import ast
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from clearhead.checker.sandbox.submission import ClassInfo, Parameter
from clearhead.checker.source.call_sites import (
    Given,
    Tree,
    Usage,
    allowed_values,
    class_node,
    fields_read,
    method,
    parsed,
)


@dataclass(frozen=True)
class Sizes:
    """Sizes for one attempt, chosen so that no two axes can be confused."""

    d_in: int = 14
    heads: int = 3
    head_dim: int = 5
    kv_heads: int = 3
    tokens: int = 7
    batch: int = 2
    context: int = 11
    p: float = 0.3
    window: tuple[int, ...] | None = None  # in pixels, if the tokens are those of a window

    @property
    def d_out(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head_dim


ATTEMPTS = (
    Sizes(),
    Sizes(d_in=15),
    Sizes(d_in=24, heads=4, head_dim=6, kv_heads=2),
    Sizes(d_in=128, heads=8, head_dim=16, kv_heads=4, context=16),
)


@dataclass(frozen=True)
class Attempts:
    """The sizes to try.

    Args:
        plain: The usual sizes, in this order.
        one_head: If the constructor takes no number of heads: all widths are equal.
        grouped: If several heads share keys and values.
        wide: Many heads and large widths, once everything else is right.
    """

    plain: tuple[Sizes, ...] = ATTEMPTS
    one_head: Sizes = Sizes(d_in=15, heads=1, head_dim=15, kv_heads=1)
    grouped: Sizes = Sizes(d_in=20, heads=4, head_dim=6, kv_heads=2)
    wide: Sizes = Sizes(d_in=128, heads=8, head_dim=16, kv_heads=4, batch=3)


def attempts_for(seed: int) -> Attempts:
    """Sizes drawn at random, so that no class can know them in advance.

    Examples:
        >>> attempts_for(0) == Attempts(), attempts_for(5) == attempts_for(5)
        (True, True)
    """
    if seed == 0:
        return Attempts()
    draw = random.Random(seed)

    def drawn(heads: int, head_dim: int, kv_heads: int) -> Sizes:
        """Sizes that all differ, with a number of tokens that does not divide the width."""
        width = heads * head_dim
        tokens = draw.choice([n for n in (7, 8, 9, 11) if width % n and n % heads])
        taken = (heads, head_dim, kv_heads, tokens)
        batch = draw.choice([n for n in (2, 3, 4, 5, 6) if n not in taken])
        context = draw.choice([n for n in (13, 17, 19) if n not in (width, head_dim)])
        return Sizes(width, heads, head_dim, kv_heads, tokens, batch, context)

    heads, head_dim = draw.choice([(3, 5), (5, 3), (3, 7), (5, 7), (7, 3)])
    odd = drawn(heads, head_dim, heads)
    even = drawn(*draw.choice([(4, 6, 2), (6, 8, 3), (6, 8, 2), (8, 6, 4), (4, 10, 2)]))
    heads, head_dim = draw.choice([(8, 16), (4, 32), (16, 8), (8, 12)])
    large = drawn(heads, head_dim, heads // 2)
    return Attempts(
        (replace(odd, d_in=odd.d_out - 1), odd, even, large),
        replace(odd, heads=1, head_dim=odd.d_out, kv_heads=1),
        replace(even, d_in=even.d_out - 4),
        replace(large, batch=draw.choice([n for n in (3, 7, 9) if n != large.tokens])),
    )


_NAMES = {
    "d_in": "d_in in_dim input_dim dim_in in_features input_size in_channels d_input din indim "
    "in_ch input_dimension input_features dim_input embed_dim_in d_entrada dim_entrada d_ein "
    "d_eingabe d_entree dim_entree",
    "d_out": "d_out out_dim output_dim dim_out out_features output_size d_output dout outdim "
    "out_channels out_ch output_dimension d_salida dim_salida d_aus d_ausgabe d_sortie "
    "dim_sortie d_saida dim_saida",
    "d": "dim embed_dim d_model n_embd emb_dim hidden_size embed_size emb_size embedding_dim "
    "hidden_dim model_dim d c channels n_embed width emb embedding_size size features hidden "
    "d_embed dmodel dim_model num_hiddens n_state embed embeddim d_emb model_size units "
    "hidden_units n_units embed_dimension embedding_dimension emb_dimension attention_dim "
    "all_head_size attn_dim dimension key_size query_size value_size kdim vdim model_dimension "
    "d_hidden h_dim dims ch nc n_channels num_channels channel chan",
    "heads": "num_heads n_head n_heads heads h nhead num_head nheads numheads n_attention_heads "
    "num_attention_heads attention_heads head_count no_heads number_of_heads head_num num_q_heads "
    "n_q_heads num_query_heads nh n_h attn_heads heads_num q_heads n_q cabezas n_cabezas "
    "num_cabezas koepfe köpfe n_koepfe num_koepfe anzahl_koepfe tetes têtes n_tetes nb_tetes "
    "cabecas n_cabecas num_cabecas",
    "head_dim": "head_dim head_size d_k d_v dim_head d_head dk dv d_q d_qk d_kv dim_per_head "
    "dim_k dim_q dim_v head_width d_key d_value d_query qk_dim v_dim attention_head_size headdim "
    "dim_heads head_dimension size_per_head d_keys d_values key_dim value_dim head_ch "
    "head_channels num_head_channels",
    "kv_heads": "num_kv_heads n_kv_heads kv_heads num_key_value_heads n_kv_head "
    "num_kv n_kv kv_n_heads num_key_value kvheads",
    "kv_groups": "num_kv_groups group_num num_group n_group n_groups num_groups kv_groups "
    "groups num_query_groups n_kv_groups",
    "context": "context_length block_size ctx_len max_len seq_len context_len context_size n_ctx "
    "max_seq_len max_length seq_length sequence_length max_seq_length max_position_embeddings "
    "n_positions ctx_length max_context_length max_tokens num_tokens n_tokens context_window "
    "max_context seqlen maxlen window_size_max n_context max_position ctx t max_t length kontext "
    "kontextlaenge kontextlänge max_laenge max_länge contexto longitud_contexto longitud_maxima "
    "contexte longueur longueur_max max_longueur",
    "p": "dropout p attn_pdrop drop_rate dropout_rate p_drop attn_dropout dropout_p drop "
    "resid_pdrop attention_dropout proj_drop attn_drop dropout_prob drop_prob p_dropout "
    "resid_dropout attention_probs_dropout_prob hidden_dropout_prob dropout_ratio droprate pdrop "
    "embd_pdrop proj_dropout residual_dropout attn_dropout_rate drop_p",
    "bias": "qkv_bias bias use_bias attn_bias add_bias has_bias with_bias attention_bias "
    "add_bias_kv proj_bias out_bias sesgo biais",
    "config": "config cfg args conf hparams options opts params configuration hp model_args "
    "model_config settings hparam conf_dict",
    "batch_first": "batch_first",
    "vocab": "vocab vocab_size n_vocab num_embeddings voc_size ntoken vocabulary_size vocab_len",
    "causal": "causal is_causal masked use_mask use_causal_mask causal_mask autoregressive "
    "use_causal is_decoder is_masked apply_causal_mask",
    "rope": "rope use_rope rotary",
    "rope_dim": "rotary_dim rotary_ndims rope_dim rot_dim qk_rope_head_dim rope_head_dim",
    "rope_part": "rotary_pct rotary_percentage rotary_percent rope_pct rope_percent rope_fraction "
    "rotary_fraction partial_rotary_factor partial_rotary_fraction",
    "theta": "theta rope_theta base rope_base base_freq rotary_base freq_base",
    "eps": "eps epsilon norm_eps layer_norm_eps layernorm_eps rms_norm_eps",
    "device": "device",
    "dtype": "dtype",
}  # fmt: skip
MEANING = {name: meaning for meaning, names in _NAMES.items() for name in names.split()}
_LEFT_ALONE = {"kv_groups", "rope", "device", "dtype", "theta", "eps"}


def meaning_of(name: str) -> str:
    """What a constructor's parameter stands for; "" if its name says nothing.

    Examples:
        >>> [meaning_of(name) for name in ("n_embd", "num_heads", "blockSize", "colour")]
        ['d', 'heads', 'context', '']
    """
    small = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_")
    return MEANING.get(small) or MEANING.get(small.replace("_", "")) or ""


def meaning_for(parameter: Parameter) -> str:
    """What a constructor's parameter stands for; "config" if `with_configs` marked it as one."""
    if parameter.annotation == _CONFIG:
        return "config"
    known = meaning_of(parameter.name)
    if known or parameter.has_default:
        return known
    likely = likely_meaning(parameter.name)  # dropout_probability, number_of_attention_heads
    return likely if likely in ("p", "heads", "head_dim", "kv_heads") else ""


def likely_meaning(name: str) -> str:
    """What a field of a configuration stands for, if a part of its name reveals it; else "".

    Examples:
        >>> [likely_meaning(name) for name in ("p_attn", "modelWidth", "kv_head_count", "colour")]
        ['p', 'd', 'kv_heads', '']
    """
    small = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return meaning_of(name) or next((m for m, part in _PARTS if re.search(part, small)), "")


_PARTS = (
    ("p", r"drop|^p_|_p$|_prob"),
    ("device", r"device"),
    ("rope_part", r"(rope|rotary).*(pct|percent|frac)|partial.*(factor|ratio|frac)"),
    ("theta", r"theta|base|freq"),
    ("eps", r"eps(ilon)?$"),
    ("kv_heads", r"(kv|key|value|group).*head|head.*(kv|group)"),
    ("rope_dim", r"(rope|rotary).*(dim|size|width)"),
    ("nope_dim", r"nope.*(dim|size|width)"),
    ("head_dim", r"head.*(dim|size|width|features|channels)|(dim|size|width).*(per_)?head"),
    ("heads", r"head"),
    ("bias", r"bias"),
    ("causal", r"causal|autoregress|is_decoder|decoder$"),
    ("context", r"context|ctx|block|seq|length|position|max_?len|max_?span|tokens"),
    ("d", r"dim|width|emb|hidden|model|size|channels|features|rank$"),
)
_CONFIG = "a configuration"  # in place of an annotation
_NO_FIELDS = {"shape", "dtype", "device", "weight", "bias", "training"}
_PLAIN = ("int", "float", "bool", "str")


def with_configs(info: ClassInfo, code: str, file: str) -> ClassInfo:
    """The class, with the parameters marked that are configurations, whatever their name.

    A parameter is one if __init__ reads fields from it: `c.n_head`, `settings["n_head"]`.

    Args:
        info: The class.
        code: Its source.
        file: The whole file, which may contain the configuration's defaults.
    """
    scope: ast.AST = class_node(file, info.name) or parsed(code)
    init = method(class_node(file, info.name), "__init__") or ast.Module([], [])
    marked = tuple(
        replace(p, annotation=_CONFIG)
        if meaning_of(p.name) == "config"
        or (_may_be_config(p) and fields_read(file, init, p.name).keys() - _NO_FIELDS)
        else p
        for p in info.init
    )
    found: dict[str, object] = {}
    functions = [n for n in ast.walk(parsed(file)) if isinstance(n, ast.FunctionDef)]
    properties = {n.name for n in functions if len(n.args.args) == 1}  # see `Config`
    for p in marked:
        if p.annotation == _CONFIG:
            found |= _flat(file, fields_read(file, scope, p.name), properties | _NO_FIELDS)
    return replace(info, init=marked, fields=tuple(sorted(found.items())))


def _flat(file: str, tree: Tree, leave: set[str], above: str = "") -> dict[str, object]:
    """The leaves of a tree of fields, `model.attention.heads`, with their plain defaults."""
    found: dict[str, object] = {}
    for name, below in tree.items():
        if name in leave:
            continue
        inner = {n: t for n, t in below.items() if n not in _NO_FIELDS}
        if inner and not (meaning_of(name) and not any(map(likely_meaning, inner))):
            found |= _flat(file, inner, leave, f"{above}{name}.")
        else:
            found[above + name] = _default_in(file, name)
    return found


def _may_be_config(parameter: Parameter) -> bool:
    plain = parameter.annotation.partition("[")[0].split(" ")[0] in _PLAIN
    return not (parameter.kind.startswith("VAR") or parameter.has_default or plain)


def _default_in(file: str, name: str) -> object:
    """The plain value that a field has in a class of the file, or in a call: `rope_base=1e4`.

    For `Field(64, gt=0)` and `field(default=64)`, it is 64.
    """
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            known = isinstance(target, ast.Name) and target.id == name
        elif isinstance(node, ast.keyword):
            known = node.arg == name
        elif isinstance(node, ast.arguments):
            pairs = zip(reversed(node.args), reversed(node.defaults), strict=False)
            told = [v.value for one, v in pairs if one.arg == name and isinstance(v, ast.Constant)]
            if told and told[0] is not None:
                return told[0]
            continue
        else:
            continue
        inner = node.value if known else None
        if isinstance(inner, ast.Call) and not isinstance(node, ast.keyword):
            given = [*inner.args[:1], *(k.value for k in inner.keywords if k.arg == "default")]
            inner = given[0] if given else None
        if isinstance(inner, ast.Constant) and isinstance(inner.value, bool | int | float | str):
            return inner.value
    return allowed_values(parsed(file)).get(name)


def value_of(meaning: str, sizes: Sizes, meanings: set[str]) -> object:
    """What to pass for a meaning, given the other meanings that the constructor takes."""
    single = "head_dim" in meanings and "heads" not in meanings
    turned = max(sizes.head_dim * 3 // 8 * 2, 2)  # features of a head that get rotary positions
    return {
        "d_in": sizes.d_in,
        "d_out": sizes.d_out,
        "d": sizes.d_in if meanings & {"d_out"} or single else sizes.d_out,
        "heads": sizes.heads,
        "head_dim": sizes.head_dim,
        "rope_dim": turned,
        "rope_part": turned / sizes.head_dim,
        "nope_dim": sizes.head_dim - turned,
        "kv_heads": sizes.kv_heads,
        "kv_groups": sizes.kv_heads,
        "context": sizes.context,
        "p": sizes.p,
        "bias": True,
        "batch_first": True,
        "vocab": 211,
        "rope": False,
        "causal": True,
        "device": None,
        "dtype": None,
        "theta": 10000.0,
        "eps": 1e-5,
    }[meaning]


Constructor = tuple[Sizes, list[object], dict[str, object]]


def constructors(
    info: ClassInfo,
    window: tuple[int, ...] | None = None,
    usage: Usage | None = None,
    sizes: Attempts | None = None,
) -> Iterator[Constructor]:
    """Ways to build a class, likely ones first, a handful at most.

    Args:
        info: The class.
        window: What to pass for an argument of unknown name that may be a window: a size for each
            axis, or one number if they are all equal.
        usage: How the file itself builds it.
        sizes: The sizes to try.
    """
    known = sizes or Attempts()
    sites = () if usage is None else usage.built
    parameters = [p for p in info.init if not p.kind.startswith("VAR")]
    meanings = {p.name: meaning_for(p) or _told_meaning(p, sites) for p in parameters}
    meanings |= _products(parameters, meanings)
    present = set(meanings.values())
    if "heads" in present:  # then these are the widths of all heads together
        named = [n for n in meanings if re.fullmatch(r"(?i)dim_[qkv]|[qkv]_dim", n)]
        own = any(m == "head_dim" for n, m in meanings.items() if n not in named)
        meanings |= {n: "d" for n in named if own or n.lower().startswith("dim")}
        present = set(meanings.values())
    attempts: list[Sizes] = list(known.plain)
    if present & {"kv_heads", "kv_groups"}:
        grouped = known.grouped
        attempts = [grouped, replace(grouped, d_in=grouped.d_out), *attempts]
        attempts.sort(key=lambda one: one.kv_heads == one.heads)  # those that share keys first
    if "config" in present:
        attempts = attempts[2:] if not present & {"kv_heads", "kv_groups"} else attempts[1:]
    if "heads" not in present or "head_dim" in present:
        attempts.append(known.one_head)
    if window is not None and len(set(window)) == 1:
        attempts = [one for one in attempts if one.heads != window[0]]
    open_ones = [p for p in parameters if not meanings[p.name] and _wants_number(p)]
    same = [each for each in attempts if each.d_in == each.d_out] if len(open_ones) > 1 else []
    for place, each in enumerate([*attempts, *same]):
        made = each
        arguments: list[object] = []
        keywords: dict[str, object] = {}
        unknown = [made.d_in] if not present & {"d", "d_in"} else []
        unknown += [made.heads] if "heads" not in present else []
        unknown += [made.context]
        unknown = unknown if place < len(attempts) else []  # then all of them get the width
        for parameter in parameters:
            meaning = meanings[parameter.name]
            value: object = {"__config__": config(made, info.fields)}
            if meaning != "config":
                value = _argument(parameter, meaning, made, present, unknown, sites)
            if usage is not None and not meaning and not parameter.has_default:
                flag = type(value) is int and parameter.name in usage.flags
                value = usage.allowed.get(parameter.name, False if flag else value)
            if window is not None and may_be_window(parameter):
                value = window[0] if len(set(window)) == 1 else list(window)
                made = replace(made, tokens=math.prod(window), window=window)
            if usage is not None and value is not _SKIP and not parameter.has_default:
                value = _callable(parameter.name, usage, sites) or value
            if value is _SKIP:
                continue
            if parameter.kind == "POSITIONAL_ONLY":
                arguments.append(value)
            else:
                keywords[parameter.name] = value
        yield made, arguments, keywords


def _products(parameters: Sequence[Parameter], meanings: Mapping[str, str]) -> dict[str, str]:
    """Widths of all heads, whatever they are called, where the defaults say so: 256 = 8 * 32."""
    told = {meanings[p.name]: p.default for p in parameters if type(p.default) is int}
    heads, width = told.get("heads"), told.get("head_dim")
    if not isinstance(heads, int) or not isinstance(width, int) or "d_out" in told:
        return {}
    return {
        p.name: "d_out" for p in parameters if not meanings[p.name] and p.default == heads * width
    }


def with_objects(
    info: ClassInfo, file: str, sizes: Sizes, keywords: Mapping[str, object]
) -> tuple[Sizes, dict[str, object]] | None:
    """The arguments with configurations of the file's own classes; None if there are none.

    A configuration that has a default and whose class is unknown is left out. The dropout rate is
    then unknown too, and 0 in the sizes.

    Args:
        info: The class.
        file: The whole file.
        sizes: The sizes it is built with.
        keywords: Its constructor's arguments.
    """
    changed = dict(keywords)
    init = method(class_node(file, info.name), "__init__")
    said = {} if init is None else {one.arg: one.annotation for one in init.args.args}
    for parameter in info.init:
        if parameter.annotation == _CONFIG and parameter.name in keywords:
            annotation = said.get(parameter.name)
            made = _object(file, "" if annotation is None else ast.unparse(annotation), sizes)
            if made is not None:
                changed[parameter.name] = made
            elif parameter.has_default:
                del changed[parameter.name]
                sizes = replace(sizes, p=0.0)
    return (sizes, changed) if changed != keywords else None


def _object(file: str, annotation: str, sizes: Sizes, depth: int = 3) -> dict[str, object] | None:
    """An object of a class of the file, with the sizes in its fields; None if that is unclear."""
    named = re.findall(r"\w+", annotation)
    node = next(filter(None, (class_node(file, name) for name in named)), None)
    if node is None or not depth:
        return None
    init = method(node, "__init__")
    if init is not None:
        fields = [(one.arg, one.annotation) for one in init.args.args[1:]]
        required = {name for name, _ in fields[: len(fields) - len(init.args.defaults)]}
    else:
        own = [n for n in node.body if isinstance(n, ast.AnnAssign)]
        fields = [(n.target.id, n.annotation) for n in own if isinstance(n.target, ast.Name)]
        required = {ast.unparse(n.target) for n in own if n.value is None}
    values: dict[str, object] = {}
    for name, said in fields:
        meaning = likely_meaning(name) if name in required else meaning_of(name)
        inner = _object(file, "" if said is None else ast.unparse(said), sizes, depth - 1)
        if inner is not None:
            values[name] = inner
        elif meaning in _SIZES or name in required:
            values[name] = guessed(name, sizes)
    return {"__object__": node.name, "arguments": [], "keywords": values} if values else None


_SIZES = ("d", "d_in", "d_out", "heads", "head_dim", "kv_heads", "context", "p", "bias", "vocab")


def each_field(value: object, change: Callable[[str, object], object], name: str = "") -> object:
    """An argument of a constructor with every field of its configurations changed.

    Examples:
        >>> each_field({"__config__": {"p": 1, "in": {"__config__": {"p": 2}}}}, lambda n, v: -v)
        {'__config__': {'p': -1, 'in': {'__config__': {'p': -2}}}}
    """
    if isinstance(value, dict):
        for kind in ("__config__", "keywords"):
            if kind in value:
                inner = {n: each_field(v, change, n) for n, v in value[kind].items()}
                return {**value, kind: inner}
        return value
    return change(name, value)


def _told_meaning(parameter: Parameter, sites: Sequence[dict[str, Given]]) -> str:
    """The meaning of a parameter whose name says nothing, according to the file's own calls."""
    given = [site[parameter.name].name for site in sites if parameter.name in site]
    found = [m for m in map(meaning_of, given) if m and m != "config"]
    return found[0] if found and not parameter.has_default else ""


def _told_value(parameter: Parameter, sites: Sequence[dict[str, Given]]) -> object:
    """The value that all of the file's own calls pass for a parameter; _SKIP if they do not."""
    given = [site[parameter.name] for site in sites if parameter.name in site]
    values = [one.value for one in given if one.known]
    same = values and len(values) == len(given) and all(v == values[0] for v in values)
    plain = same and (values[0] is None or isinstance(values[0], bool | int | float | str))
    return values[0] if plain else _SKIP


_LAYERS = (
    ("norm", "LayerNorm"), ("act", "GELU"), ("drop", "Dropout"), ("conv", "Conv1d"), ("", "Linear"),
)  # fmt: skip


def _callable(name: str, usage: Usage, sites: Sequence[dict[str, Given]]) -> object:
    """A layer for a parameter that is called, judging by its name or the file's own calls."""
    if name in usage.makers:
        told = [site[name].name for site in sites if name in site and site[name].name]
        layer = next(layer for part, layer in _LAYERS if part in name.lower())
        return {"__callable__": told[0] if told else layer, "else": layer}
    return None


def may_be_window(parameter: Parameter) -> bool:
    """Whether a parameter of unknown meaning may be a window's height and width."""
    named = re.search(r"win|grid|resolution|shape|patch|size|ws|area|hw", parameter.name.lower())
    return named is not None and not meaning_for(parameter)


WINDOWS = {2: (3, 4), 3: (2, 2, 3)}  # pixels, by the number of axes
SQUARE = (3, 3)
_SKIP = object()


def _argument(
    parameter: Parameter,
    meaning: str,
    sizes: Sizes,
    present: set[str],
    unknown: list[int],
    sites: Sequence[dict[str, Given]],
) -> object:
    told = _told_value(parameter, sites)
    if not meaning and told is not _SKIP:
        return told
    if meaning == "causal" and parameter.has_default and parameter.default is None:
        return _SKIP  # it may be the mask itself
    if meaning and not (parameter.has_default and meaning in _LEFT_ALONE):
        return value_of(meaning, sizes, present)
    if parameter.has_default:
        return _SKIP
    annotation = parameter.annotation.lower()
    if "bool" in annotation:
        return False
    if "float" in annotation:
        return 0.1
    if "str" in annotation and "int" not in annotation:
        return ""
    if re.search(r"layer|idx|index", parameter.name):
        return 0
    if re.search(_NEUTRAL, parameter.name):
        return 1
    return unknown.pop(0) if unknown else sizes.d_out


def _wants_number(parameter: Parameter) -> bool:
    """Whether a parameter without a meaning must get a number, perhaps a width."""
    known = re.search(rf"layer|idx|index|{_NEUTRAL}", parameter.name)
    other = re.search(r"bool|float|str", parameter.annotation.lower())
    return not (parameter.has_default or known or other or parameter.kind.startswith("VAR"))


_NEUTRAL = r"ratio|factor|stride|reduction|expansion"


def guessed(name: str, sizes: Sizes) -> object:
    """A value for a field of a configuration, or a constant, of which only the name is known.

    Examples:
        >>> [guessed(name, Sizes()) for name in ("HEADS", "use_flash", "my_device", "BATCH_SIZE")]
        [3, False, None, 2]
    """
    small = name.lower()
    meaning = likely_meaning(name)
    if "batch" in small and meaning != "batch_first":
        return sizes.batch
    if meaning not in ("", "config", "kv_groups", "causal"):
        return value_of(meaning, replace(sizes, d_in=sizes.d_out), {"heads", "head_dim"})
    if re.match(r"use_|is_|has_|with_|enable|do_|flash|debug|verbose|return_|\w+_by_", small):
        return False
    if re.search(rf"layer|depth|idx|index|seed|{_NEUTRAL}", small):
        return 1
    if re.search(r"scal|multiplier", small):
        return 1.7  # a scale of 1 would look like no scale
    if re.search(r"config$|params$|parameters$|kwargs$", small):
        return {"__config__": {}}
    return None


_NOT_IN_CONFIG = ("", "config", "device", "dtype", "kv_groups", "causal", "theta", "eps")


def _by_its_default(name: str) -> bool:
    """Whether a field keeps the value that the file gives it."""
    meaning = MEANING.get(name) or likely_meaning(name)
    return meaning in ("", "theta", "eps", "causal", "rope")


def config(sizes: Sizes, fields: Sequence[tuple[str, object]] = ()) -> dict[str, object]:
    """A configuration with every known name, and with fields whose names reveal their meaning."""
    own = [(name, value) for name, value in fields if "." not in name]
    likely = {name: likely_meaning(name) for name, _ in own if name not in MEANING}
    values = {n: v for n, v in own if v is not None and _by_its_default(n)}
    for name, meaning in {**MEANING, **likely}.items():
        if meaning not in _NOT_IN_CONFIG:
            value = value_of(meaning, replace(sizes, d_in=sizes.d_out), {"heads", "head_dim"})
            values[name] = values[name.upper()] = value
    for outer in dict.fromkeys(name.partition(".")[0] for name, _ in fields if "." in name):
        below = [(n.partition(".")[2], v) for n, v in fields if n.startswith(f"{outer}.")]
        values[outer] = {"__config__": config(sizes, below)}
    return values
