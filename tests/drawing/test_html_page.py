"""Pages as files: their data can be read back, they stay small, and they are safe."""

import base64
import hashlib
import html
import json
import re
import zlib

import numpy as np
import pytest
import torch

import page_cases
from clearhead import AttentionMap, Mask, MultiHeadAttention, Seen, ShapeError, drawing, trace
from clearhead.cli import main
from clearhead.drawing.html_page import Layer, Page, TooLarge
from clearhead.maps import page_layers
from clearhead.maps.axis_labels import axis_labels


def blocks(text):
    """The description of the data, and the unpacked binary blocks."""
    about = json.loads(re.search(r'id="about">(.*?)</script>', text)[1])
    found = re.findall(r'<script type="application/octet-stream" id="(.*?)">(.*?)</script>', text)
    return about, {name: zlib.decompress(base64.b64decode(data)) for name, data in found}


def numbers(data, size):
    """Numbers from separated bytes, as the page reads them."""
    return np.frombuffer(data, np.uint8).reshape(size, -1).T.copy().view(f"<f{size}").ravel()


def unpack(text):
    """The weights of every layer as the page reads them, NaN if hidden."""
    about, data = blocks(text)
    layers = []
    for i, layer in enumerate(about["layers"]):
        shape = (len(about["labels"][layer["rows"]]), len(about["labels"][layer["columns"]]))
        packed = -(-shape[0] * shape[1] // 8)
        bits = np.frombuffer(data[f"layer-{i}"][: packed * layer["masks"]], np.uint8)
        masks = np.unpackbits(bits.reshape(-1, packed), axis=1)[:, : shape[0] * shape[1]]
        left = numbers(data[f"layer-{i}"][packed * layer["masks"] :], about["bytes"])
        weights = np.full((len(layer["mask"]), *shape), np.nan, np.float32)
        start = 0
        for head, mask in enumerate(layer["mask"]):
            seen = masks[mask].reshape(shape).astype(bool)
            weights[head][seen] = left[start : start + seen.sum()]
            start += seen.sum()
        assert start == len(left)
        layers.append(weights)
    return layers


def a_map(tokens=7, heads=3, mask=None):
    generator = torch.Generator().manual_seed(tokens)
    q, k = torch.randn(2, 1, heads, tokens, 5, generator=generator)
    return AttentionMap(q, k, mask)


# The data.


@pytest.mark.parametrize("tokens", [7, 283], ids=["float32", "float16"])
def test_what_is_packed_comes_out_again(tokens):
    visible = torch.rand(1, 3, tokens, tokens) > 0.3  # another mask for every head
    weights = a_map(tokens, mask=Mask.causal() & Mask.custom(visible))
    (found,) = unpack(weights.page().html())
    expected = weights.dense()[0].masked_fill(weights.scores(0).isneginf(), torch.nan)
    if tokens == 283:
        expected = expected.half().float()
    np.testing.assert_array_equal(found, expected.numpy())


def test_a_query_that_sees_nothing():
    visible = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    visible[..., 3, :] = False
    (found,) = unpack(a_map(mask=Mask.custom(visible)).page().html())
    assert np.isnan(found[:, 3]).all()
    assert not np.isnan(found[:, 4]).any()


def test_a_bias_that_hides_counts_as_hidden():
    bias = torch.zeros(1, 1, 7, 7).masked_fill(torch.ones(7, 7).triu(1).bool(), -3.4e38)
    weights = AttentionMap(*torch.randn(2, 1, 2, 7, 5), bias=bias)
    (found,) = unpack(weights.page().html())
    np.testing.assert_array_equal(np.isnan(found[0]), np.triu(np.ones((7, 7), bool), 1))


@pytest.mark.parametrize(("mask", "most"), [(Mask.causal(), 1.4), (None, 2.7)])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0], ids=["even", "random", "peaked"])
def test_bytes_a_cell_in_the_file(tmp_path, mask, most, spread):
    q, k = torch.randn(2, 1, 12, 256, 64)
    AttentionMap(q * spread, k, mask).save(tmp_path / "x.html")
    size = (tmp_path / "x.html").stat().st_size
    assert size / (12 * 256 * 256) <= most
    print(f"{size / (12 * 256 * 256):.3f} bytes a cell")


def test_the_limit_is_about_what_can_be_seen():
    """A causal map of 64,000,000 weights can be saved, because half of them are hidden."""
    q, k = torch.zeros(2, 1, 1, 8000, 1)
    page_layers.check_size([AttentionMap(q, k, Mask.causal()).lazy_scores], 0)
    tensor = torch.ones(8000, 8000, dtype=torch.bool).tril()
    page_layers.check_size([AttentionMap(q, k, Mask.custom(tensor)).lazy_scores], 0)
    small = AttentionMap(q[:, :, :5000], k[:, :, :5000])
    page_layers.check_size([small.lazy_scores], 0)
    message = r"64,000,000 weights are too many for one page. It can hold 33,554,432 visible "
    message += r"weights, or 67,108,864 including hidden ones"
    for m in (AttentionMap(q, k), AttentionMap(q, k, Mask.causal() | Mask.window(1, 3000))):
        with pytest.raises(TooLarge, match=message):
            m.page()
    seen = Seen()
    seen.add("a", small)
    seen.add("b", small)
    with pytest.raises(TooLarge, match=r"50,000,000(.|\n)*seen\[name\].select\(heads=\[0, 1\]\)"):
        seen.save("x.html")
    with pytest.raises(IndexError, match="batch: 1 is not one of the 1 sequences"):
        seen.page(batch=1)


def test_a_layer_whose_parts_do_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"weights: expected \(heads=1, rows=2, columns=3\)"):
        Layer("x", np.zeros((1, 2, 2)), None, ("a", "b"), ("a", "b", "c"), ("",))
    with pytest.raises(ValueError, match="hidden: expected"):
        Layer("x", np.zeros((1, 2, 2)), np.zeros((2, 2), bool), ("a", "b"), ("a", "b"), ("",))


# Words and labels.


def test_the_words_are_those_of_the_table_of_heads():
    """A page measures the stored weights, and `Seen.heads` streams them; the results agree."""
    seen, tokens = page_cases.model(), page_cases.words(40)
    known = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    table = seen.heads(torch.tensor([[known[token] for token in tokens]]))
    layers = seen.page(tokens=tokens).layers
    patterns = [pattern for layer in layers for pattern in layer.patterns]
    assert patterns == [row.looks_at for row in table.rows]
    for name in ("entropy", "distance", "previous", "sink", "same_token", "induction"):
        found = [number for layer in layers for number in layer.scores[name]]
        assert found == pytest.approx([getattr(row, name) for row in table.rows], abs=1e-5)


def test_labels():
    assert axis_labels(2, 2, None) == (("t0", "t1"), ("t0", "t1"))
    assert axis_labels(1, 3, None) == (("t2",), ("t0", "t1", "t2"))
    assert axis_labels(2, 3, ["a", "b"]) == (("a", "b"), ("t0", "t1", "t2"))
    assert axis_labels(1, 2, None, ["a", "b"]) == (("b",), ("a", "b"))
    assert axis_labels(3, 2, None, ["a", "b"])[0] == ("t0", "t1", "t2")
    with pytest.raises(ShapeError, match="tokens: expected one label per query, 2 of them, got 1"):
        axis_labels(2, 5, ["a"])
    with pytest.raises(ShapeError, match="context_tokens: expected one label per key, 5"):
        axis_labels(2, 5, ["a", "b"], ["a"])
    with pytest.raises(ShapeError, match="tokens: expected a list of 2 labels, got one string"):
        axis_labels(2, 2, "ab")
    with pytest.raises(
        ShapeError, match=r"tokens: expected one label per token, 40 of them, got 3"
    ):
        page_cases.model().page(tokens=["a", "b", "c"])
    with pytest.raises(IndexError, match="batch: 1 is not one of the 1 sequences"):
        a_map().page(batch=1)


def test_the_calls_of_generation_become_one_map():
    """With a cache, each call adds one row; together they are the causal map of the text."""
    q, k = torch.randn(2, 1, 2, 7, 5)
    seen = Seen("m")
    seen.add("h", AttentionMap(q[:, :, :4], k[:, :, :4], Mask.causal()))
    for i in range(4, 7):
        seen.add("h", AttentionMap(q[:, :, i : i + 1], k[:, :, : i + 1], Mask.causal()))
    (layer,) = seen.page(tokens=list("abcdefg")).layers
    whole = AttentionMap(q, k, Mask.causal())
    np.testing.assert_allclose(layer.weights, whole.dense()[0].numpy(), atol=1e-6)
    np.testing.assert_array_equal(layer.hidden[0], np.triu(np.ones((7, 7), bool), 1))
    assert layer.rows == layer.columns == tuple("abcdefg")
    seen.add("h", whole)  # another text: it does not continue the one before
    assert seen.page().layers[0].weights.shape == (2, 7, 7)


# The steps.


def test_the_steps_carry_the_numbers_of_the_trace():
    made = page_cases.everything()
    about, data = blocks(made.page().html())
    flat = numbers(data["walk"], 4)
    for name, view in about["walk"]["tensors"].items():
        strides = [4 * stride for stride in view["strides"]]
        array = np.lib.stride_tricks.as_strided(flat[view["offset"] :], view["shape"], strides)
        np.testing.assert_array_equal(array, made[name][0].numpy(), err_msg=name)
    assert {"x", "queries", "keys_rotated", "values_repeated", "output"} <= {
        *about["walk"]["tensors"]
    }
    assert about["walk"]["keys"] == "keys_repeated"
    assert about["walk"]["queries"] == "queries_rotated"
    assert [step["number"] for step in about["walk"]["steps"]] == [s.number for s in made.steps]


def test_what_shares_memory_is_stored_once():
    """Splitting and transposing copy nothing, so the file has these numbers once."""
    made = page_cases.sentence().trace
    about, data = blocks(made.page().html())
    views = about["walk"]["tensors"]
    assert views["queries"]["offset"] == views["queries_split"]["offset"]
    assert views["queries"]["offset"] == views["queries_heads"]["offset"]
    assert len(data["walk"]) == 4 * 6 * 8 * 7  # x, Q, K, V, context_heads, context_vec, output


# Safety.


def test_nothing_leaves_its_block():
    strings = page_cases.hostile()
    module = MultiHeadAttention(4, 4, 512, 0.0, num_heads=2)
    made = trace(module, torch.randn(1, len(strings), 4), tokens=strings)
    text = made.page(title=strings[0], notes=strings).html()
    text.encode("ascii")
    plain = page_cases.sentence().trace.page().html()
    for mark in ("<script", "</script", "<img", "<svg", "<!--", "<iframe", "<style"):
        more = text.count("layer-0") - plain.count("layer-0")
        assert text.count(mark) == plain.count(mark) + more, mark
    about, _ = blocks(text)
    assert about["labels"][0] == [drawing.visible(each) or "(empty)" for each in strings]


def test_the_policy_has_the_hash_of_every_script_and_style():
    text = page_cases.sentence().trace.page().html()
    policy = html.unescape(
        re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)[1]
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert re.search(r"\bhttps?:", policy) is None
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert re.search(r"https?://(?!www\.w3\.org/2000/svg)", text) is None
    assert not re.search(r"\.innerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


# Files and notebooks.


def test_the_end_of_the_name_decides(tmp_path):
    seen = page_cases.model()
    seen.save(tmp_path / "x.html")
    seen.save(tmp_path / "x.safetensors")
    assert list(Seen.load(tmp_path / "x.safetensors")) == seen.layers
    assert (tmp_path / "x.html").read_bytes().startswith(b"<!doctype html>")
    for thing in (a_map(), page_cases.sentence().trace):
        with pytest.raises(ValueError, match=r"\.html, \.svg(.|\n)*got '\.gif'(.|\n)*x\.html"):
            thing.save(tmp_path / "x.gif")
        with pytest.raises(ValueError, match=r"got '\.safetensors'|a single map cannot"):
            thing.save(tmp_path / "x.safetensors")
    with pytest.raises(
        ValueError, match=r"\.safetensors, \.html, \.svg, \.png, \.pdf, got 'no suffix'"
    ):
        seen.save(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        seen.save(tmp_path / "none" / "x.html")


def test_a_notebook_shows_the_page_in_a_frame():
    for thing in (a_map(), page_cases.model(12), page_cases.sentence().trace):
        frame = thing._repr_html_()
        inside = re.search(r'<iframe srcdoc="(.*?)" sandbox="(.*?)"', frame, re.DOTALL)
        assert inside[2] == "allow-scripts allow-downloads"
        assert html.unescape(inside[1]).startswith("<!doctype html>")
    weights = AttentionMap(*torch.zeros(2, 1, 4, 1024, 1))
    assert "too many to keep in a notebook" in weights._repr_html_()
    assert "iframe" not in weights._repr_html_()
    half = AttentionMap(*torch.zeros(2, 1, 2, 1024, 1))
    assert "too many to keep in a notebook" in half._repr_html_()


def test_explain_writes_a_page(tmp_path, capsys):
    file = tmp_path / "cat.html"
    text = "the cat sat on the mat"
    arguments = ["explain", text, "--untrained", "--query", "sat", "-o", str(file)]
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 0
    assert capsys.readouterr() == ("", f"Wrote {file}\n")
    about, _ = blocks(file.read_text())
    assert about["title"] == "the cat sat on the mat"
    assert about["start"] == {"query": 2}
    assert about["notes"][0].startswith("Untrained, random weights (seed 123)")
    for wrong, message in ((file / "x.html", "there is no folder"), (tmp_path / "x.doc", "'.doc'")):
        with pytest.raises(SystemExit) as done:
            main(["explain", "a b", "--untrained", "-o", str(wrong)])
        assert done.value.code == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["explain", "a b", "--untrained", "--json", "--step", "4c", "-o", str(file)])
    found = capsys.readouterr()
    assert found.err == f"Wrote {file}\n"
    assert json.loads(found.out)["steps"]
    start = blocks(file.read_text())[0]["start"]
    assert (start["view"], start["step"]) == ("steps", "4c")


def test_a_title_with_every_kind_of_character():
    text = Page("é <b> \ud800 \n 猫", ()).html()
    assert "<title>&#233; &lt;b&gt; \\ud800 \\n &#29483;</title>" in text
