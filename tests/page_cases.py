"""Pages for tests: a sentence, a small model, a map with many cells, hostile strings."""

import torch

from clearhead import AttentionMap, Mask, MultiHeadAttention, Rope, Seen, Trace, trace
from clearhead.explainer.examples import Example, untrained_example

SENTENCE = "the cat sat on the mat"


def sentence() -> Example:
    """What `clearhead explain` shows."""
    return untrained_example(SENTENCE)


def words(count: int) -> list[str]:
    """Words of a text that repeats itself."""
    text = "When the rain had stopped , the old woman opened the window and looked out . "
    return (text * (count // 10 + 1)).split()[:count]


def model(tokens: int = 40, layers: int = 2, heads: int = 3) -> Seen:
    """A model whose heads attend to the previous token, the first, copies, and anything."""
    generator = torch.Generator().manual_seed(0)
    position = torch.randn(tokens + 1, 32, generator=generator)
    known = {word: i for i, word in enumerate(dict.fromkeys(words(tokens)))}
    meaning = torch.randn(len(known), 32, generator=generator)[[known[w] for w in words(tokens)]]
    seen = Seen("TinyModel")
    for layer in range(layers):
        q = torch.randn(1, heads, tokens, 32, generator=generator)
        k = torch.randn(1, heads, tokens, 32, generator=generator)
        for head in range(heads):
            match (layer + head) % 4:
                case 0:  # the previous token
                    q[0, head], k[0, head] = position[:-1], position[1:]
                case 1:  # the first token
                    q[0, head, :, 0], k[0, head, :, 0], k[0, head, 0, 0] = 8, 0, 4
                case 2:  # copies
                    q[0, head], k[0, head] = meaning, meaning
        seen.add(f"blocks.{layer}.attention", AttentionMap(q, k, Mask.causal()))
    return seen


def large() -> AttentionMap:
    """More cells than are stored in float32, with some hidden at random."""
    torch.manual_seed(0)
    mask = Mask.causal() & Mask.custom(torch.rand(1, 1, 211, 211) > 0.1)
    return AttentionMap(torch.randn(1, 4, 211, 16), torch.randn(1, 4, 211, 16), mask)


def everything() -> Trace:
    """A trace with every kind of step: norm, rotation, repeated keys, a window."""
    torch.manual_seed(0)
    module = MultiHeadAttention(
        6, 12, 16, 0.0, num_heads=3, num_kv_heads=1, window=4, rope=Rope(), qk_norm=True
    )
    return trace(module, torch.randn(1, 7, 6), tokens=words(7))


def right_to_left() -> Trace:
    """Hebrew and Arabic, and a word longer than any screen."""
    torch.manual_seed(0)
    tokens = ["שלום", "עולם", "مرحبا", "بالعالم", "ש" * 70, "123", "!"]
    module = MultiHeadAttention(6, 6, 16, 0.0, num_heads=2)
    return trace(module, torch.randn(1, 7, 6), tokens=tokens)


def hostile() -> list[str]:
    """More than 200 strings that break pages that insert text as markup or scripts."""
    act = "window.hacked=1;alert(1)"
    plain = [
        f"</script><img src=x onerror={act}>",
        f"</script><script>{act}</script>",
        f"<script>{act}</script>",
        f"<img src=x onerror={act}>",
        f"<svg onload={act}>",
        f"<svg><script>{act}</script></svg>",
        f"<svg><animate onbegin={act} attributeName=x dur=1s>",
        f"<iframe src='javascript:{act}'></iframe>",
        f"<body onload={act}>",
        f"<details open ontoggle={act}>",
        f"<input autofocus onfocus={act}>",
        f"<math><mi href='javascript:{act}'>x</mi></math>",
        "<link rel=stylesheet href=//evil.example/x.css>",
        "<base href=//evil.example/>",
        "<meta http-equiv=refresh content='0;url=//evil.example'>",
        "<style>*{display:none}</style>",
        "<form action=//evil.example><button>x</button></form>",
        "<!--",
        "-->",
        "<!-- script -->",
        "<!-- data -->",
        "<![CDATA[",
        "]]>",
        f"javascript:{act}",
        f"'-({act})-'",
        f'"-({act})-"',
        f"`${{{act}}}`",
        f"${{{act}}}",
        f"{{{{{act}}}}}",
        f"\\';{act};//",
        f'\\";{act};//',
        "\\u003cscript>",
        "&lt;script&gt;",
        "&#60;img src=x&#62;",
        '{"a": 1}',
        '"}]}',
        "[]",
        "null",
        "undefined",
        "NaN",
        "__proto__",
        "constructor",
        "toString",
        "hasOwnProperty",
        "#view=steps&theme=dark",
        "%3Cscript%3E",
        "../../etc/passwd",
        "url(//evil.example)",
        "@import '//evil.example';",
        "expression(alert(1))",
        "var(--accent)",
        "}*{color:red}",
        "A" * 3000,
        "",
        " ",
        "   ",
        "\t",
        "\n",
        "\r\n",
        "\0",
        "\x1b[31m",
        "\x7f",
        "\x9b31m",
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ufffe",
        "\ud800",
        "\udfff",
        "a\ud800b",
        "\U000e0001",
        "\u202e evil",
        "\u2066a\u2069",
        "\u200b",
        "\u200d",
        "e" + "\u0301" * 200,
        "\u0489" * 40,
        "👩‍👩‍👧‍👦",
        "ﷺ" * 20,
        "שלום <b>",
    ]
    around = [
        "'{}",
        '"{}',
        "'>{}",
        '">{}',
        "</title>{}",
        "</style>{}",
        "\u202e{}",
        "\0{}",
        "&quot;{}",
    ]
    strings = [*plain, *(form.format(text) for form in around for text in plain[:16])]
    return list(dict.fromkeys(strings))
