"""The forward pass, the tokenizers and the switches in JavaScript, compared with PyTorch."""

import base64

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clearhead
from clearhead.explainer.play_page import play_html
from clearhead.models import find_model

TOLERANCE = 1e-4
TEXTS = [
    "The cat sat on the mat.",
    "When Mary and John went to the store, John gave a drink to",
    "naïve café — “don't” costs 3½ €; Ω≈ç√ 猫が好き 👩‍👩‍👧 שלום مرحبا",
    "  two  spaces\n\n\tand\ttabs \u00a0\u0085\ufeff\u3000end  ",
    "a",
]
MORE_TEXTS = [
    "I'm you're he'll they've she'd it's 'S 'LL " + "'" * 4,
    "3.14159 1,000,000 ²³ ⅷ ٣ ½¼¾ ① Ⅷ ㊙ 100% of $5 & €7",
    "def f(x):\n    return x**2  # code\n<b>&amp;</b> {'a': [1, 2], \"b\": null} \\n \\x00",
    "\x00\x1b[31m \u200b\u200d\u2060 \u2028\u2029 a\u00adb tab\there end space ",
    "<|endoftext|>",
    "end.<|endoftext|>Begin <|endoftext",
    "é e\u0301 ﬁ ﬃ ǅ ὈΔΥΣΣΕΎΣ \u1e9e\u0130\u0131 e" + "\u0301" * 20,
    "Привет, мир! नमस्ते दुनिया ภาษาไทย 한국어 문장 中文没有空格的句子 日本語テキスト",
    "🙂🙃 🏳️‍🌈🇩🇪 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 mixed עברית and English",
    *("x" * 100, "ab" * 60, " " * 20, "\n" * 12, "word " * 50, "ا" * 30),
]
GRAMMAR_TEXTS = [
    "the cat that the dogs chase sees the",
    "The blue cat, sat",
    "Anna sees (the) dog , and anna chases the cat's dog . mary-ann <|endoftext|> the",
]
SWITCHES = {
    "causal off": {"causal": False},
    "no scaling": {"scale": "none"},
    "scaling by d_model": {"scale": "model"},
    "temperature": {"temperature": 0.37},
    "ablate a head": {"ablate": [[1, 2]]},
    "ablate a layer": {"ablate": [[0, -1], [2, 1]]},
    "knockout": {"knockout": [[1, 3, 5, 2], [0, 0, 4, 4]]},
    "knockout everywhere": {"knockout": [[-1, -1, 5, 1], [-1, -1, 0, 0]]},
    "shuffle": {"shuffle": 3},
    "together": {
        "causal": False,
        "scale": "none",
        "temperature": 3,
        "shuffle": 1,
        "ablate": [[2, 0]],
        "knockout": [[0, -1, 1, 4]],
    },
}

# A worker of the page's own source, with the page's own weights. Float arrays come back as base64.
START = """async () => {
    const about = JSON.parse(document.getElementById("about").textContent);
    const text = document.getElementById("engine").textContent;
    const bytes = Uint8Array.from(atob(document.getElementById("model").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const worker = new Worker(URL.createObjectURL(new Blob([text])));
    const ask = (message) => new Promise((done) => {
        worker.onmessage = ({ data }) => done(data);
        worker.postMessage(message);
    });
    await ask({ sizes: about.sizes, tokenizer: about.tokenizer, buffer });
    const packed = (value) => {
        if (ArrayBuffer.isView(value)) {
            const own = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
            let text = "";
            for (let i = 0; i < own.length; i += 8192) text += String.fromCharCode(...own.subarray(i, i + 8192));
            return { floats: btoa(text) };
        }
        if (Array.isArray(value)) return value.map(packed);
        if (value === null || typeof value !== "object") return value;
        return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, packed(each)]));
    };
    window.askEngine = async (message) => packed(await ask(message));
}"""  # noqa: E501


def unpacked(value):
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    if isinstance(value, dict):
        if "floats" in value:
            return torch.from_numpy(np.frombuffer(base64.b64decode(value["floats"]), "<f4").copy())
        return {name: unpacked(each) for name, each in value.items()}
    return value


@pytest.fixture(scope="module", params=["english", "grammar"])
def engine(request, browser, tmp_path_factory):
    """A function from a text and switches to the answer of the worker, and the loaded model."""
    file = tmp_path_factory.mktemp("play") / f"{request.param}.html"
    file.write_text(play_html(request.param))
    page = browser.new_page()
    page.goto(file.as_uri())
    page.evaluate(START)

    def ask(text, switches=None):
        message = {"number": 1, "text": text, "switches": switches, "all": True}
        return unpacked(page.evaluate("(message) => window.askEngine(message)", message))

    yield ask, find_model(request.param)
    page.close()


@torch.no_grad()
def reference(model, ids, switches=None, positions=None):
    """Every number of the forward pass, with the switches, written out in PyTorch."""
    given = {"causal": True, "scale": "head", "temperature": 1, "ablate": [], "knockout": []}
    given |= switches or {}
    n, heads = len(ids), model.config["num_heads"]
    size = model.config["d_model"] // heads
    at = torch.arange(n) if positions is None else torch.tensor(positions)
    x = model.embedding.token(torch.tensor(ids))
    if model.embedding.position is not None:
        x = x + model.embedding.position(at)
    found = {"embedded": x, "layers": []}
    divisor = {"head": size**0.5, "model": (size * heads) ** 0.5, "none": 1.0}[given["scale"]]
    for number, block in enumerate(model.blocks):
        own = {}
        own["x"] = block.norm1(x)
        attention = block.attention
        for name in ("query", "key", "value"):
            plural = {"query": "queries", "key": "keys", "value": "values"}[name]
            own[plural] = getattr(attention, f"W_{name}")(own["x"])
        split = {
            name: own[name].view(n, heads, size).transpose(0, 1)
            for name in ("queries", "keys", "values")
        }
        if model.rope is not None:
            for name in ("queries", "keys"):
                split[name] = model.rope.rotate(split[name][None], at)[0]
                own[f"rotated_{name}"] = split[name].transpose(0, 1).reshape(n, -1)
        scores = split["queries"] @ split["keys"].transpose(1, 2) / divisor / given["temperature"]
        if given["causal"]:
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        for layer, head, query, key in given["knockout"]:
            if layer in (-1, number) and query < n and key < n:
                scores[slice(None) if head == -1 else head, query, key] = -torch.inf
        own["weights"] = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        context = own["weights"] @ split["values"]
        for layer, head in given["ablate"]:
            if layer in (-1, number):
                context[slice(None) if head == -1 else head] = 0.0
        own["context"] = context.transpose(0, 1).reshape(n, -1)
        own["output"] = attention.out_proj(own["context"])
        own["attended"] = x + own["output"]
        own["normed"] = block.norm2(own["attended"])
        own["wide"] = F.gelu(block.feed_forward.expand(own["normed"]), approximate="tanh")
        own["fed"] = block.feed_forward.project(own["wide"])
        x = own["after"] = own["attended"] + own["fed"]
        found["layers"].append(own)
    found["last"] = model.norm(x)
    found["logits"] = model.head(found["last"][-1])
    return found


def compare(found, expected):
    """The largest difference, relative to numbers larger than 1, over all arrays."""
    pairs = [(found[name], expected[name], name) for name in ("embedded", "last", "logits")]
    for number, own in enumerate(expected["layers"]):
        names = {name for name, array in found["layers"][number].items() if len(array)}
        assert names == set(own)
        pairs += [
            (found["layers"][number][name], array, f"{name} of layer {number}")
            for name, array in own.items()
        ]
    for mine, theirs, name in pairs:
        torch.testing.assert_close(
            mine,
            theirs.flatten(),
            atol=TOLERANCE,
            rtol=TOLERANCE,
            msg=lambda m, name=name: f"{name}: {m}",
        )


def check_text(engine, text):
    ask, loaded = engine
    found = ask(text)
    ids = loaded.reader.read(text).ids[: loaded.gpt2.config["context_length"]]
    assert found["ids"] == ids
    assert found["labels"] == loaded.reader.read(text).labels[: len(ids)]
    expected = reference(loaded.gpt2, ids)
    compare(found["before"], expected)
    with torch.no_grad():  # the reference is the model
        torch.testing.assert_close(
            expected["logits"], loaded.gpt2(torch.tensor([ids]))[0, -1], atol=2e-5, rtol=1e-4
        )
    shares, best = torch.softmax(expected["logits"], -1).topk(3)
    for given, share, token in zip(
        found["before"]["next"], shares.tolist(), best.tolist(), strict=False
    ):
        assert given["id"] == token
        assert given["share"] == pytest.approx(share, abs=1e-5)


def texts_of(engine):
    return GRAMMAR_TEXTS if engine[1].name == "the grammar model" else TEXTS


def test_every_number_is_that_of_pytorch(engine):
    for text in texts_of(engine):
        check_text(engine, text)


@pytest.mark.slow
def test_every_number_for_more_texts(engine):
    if engine[1].name == "the grammar model":
        pytest.skip("the grammar has few words")
    for text in MORE_TEXTS:
        check_text(engine, text)


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_is_the_same_change_in_pytorch(engine, name):
    ask, loaded = engine
    text, switches = texts_of(engine)[0], SWITCHES[name]
    found = ask(text, switches)
    positions = found["after"]["positions"]
    assert sorted(positions) == list(range(len(found["ids"])))
    assert (positions != sorted(positions)) == ("shuffle" in switches)
    compare(found["after"], reference(loaded.gpt2, found["ids"], switches, positions))
    plain = reference(loaded.gpt2, found["ids"])
    compare(found["before"], plain)
    difference = (found["after"]["logits"] - plain["logits"]).abs().max()
    assert difference > 100 * TOLERANCE  # the switch does something


def test_an_unchanged_beginning_is_not_computed_again(engine):
    ask, loaded = engine
    texts = ["the dog", "the dog sees the cat", "the dog sees the", "the girl sees the cat"]
    before = ask("the")["ids"]
    for text in texts:
        found = ask(text, {"temperature": 2.0})
        same = [a == b for a, b in zip(before, found["ids"], strict=False)]
        reused = same.index(False) if False in same else len(same)
        assert reused > 0
        assert found["computed"] == len(found["ids"]) - reused
        before = found["ids"]
        compare(found["before"], reference(loaded.gpt2, found["ids"]))
        compare(found["after"], reference(loaded.gpt2, found["ids"], {"temperature": 2.0}))


def test_a_long_text_is_cut_where_the_model_ends(engine):
    ask, loaded = engine
    most = loaded.gpt2.config["context_length"]
    text = "the dog sees the cat. " * 60
    found = ask(text)  # all numbers of the largest text
    assert len(found["ids"]) == most
    assert found["dropped"] == len(loaded.reader.read(text).ids) - most > 0
    compare(found["before"], reference(loaded.gpt2, found["ids"]))
    assert ask(" " if loaded.name == "the grammar model" else "")["empty"]


def test_words_outside_the_vocabulary(engine):
    ask, loaded = engine
    if loaded.name == "the grammar model":
        assert ask("The zebra sat")["unknown"] == ["zebra"]
    else:
        tokenizer = clearhead.load("english")[1]
        assert tokenizer.decode(ask("zebra")["ids"]) == "zebra"
