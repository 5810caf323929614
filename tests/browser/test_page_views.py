"""The page in a real browser: exact numbers, and every view works with pointer and keyboard."""

import re
from urllib.parse import parse_qs, urlparse

import pytest
import torch

import page_cases


@pytest.fixture(scope="module")
def example():
    return page_cases.sentence()


@pytest.fixture(scope="module")
def sentence(folder, example):
    path = folder / "sentence.html"
    example.trace.save(path, title=example.text)
    return path


@pytest.fixture(scope="module")
def large(folder):
    path = folder / "large.html"
    page_cases.large().save(path)
    return path


def shown(text):
    """The number that the page shows."""
    text = text.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--"))
    return float(text.replace(" × 10-", "e-"))


def state(page):
    return {key: values[0] for key, values in parse_qs(urlparse(page.url).fragment).items()}


def point(page, query, key):
    """Move the pointer over a cell of the matrix."""
    canvas = page.locator("canvas.over")
    canvas.scroll_into_view_if_needed()
    left, top, cell = map(float, canvas.get_attribute("data-box").split())
    box = canvas.bounding_box()
    scrolled = page.locator(".scroller").evaluate("e => [e.scrollLeft, e.scrollTop]")
    x = box["x"] + left + (key + 0.5) * cell - scrolled[0]
    y = box["y"] + top + (query + 0.5) * cell - scrolled[1]
    page.mouse.move(x, y)
    return x, y


def test_no_request_at_all(visit, sentence, model):
    for file, offline in ((sentence, False), (model, True)):
        seen = visit(file, offline=offline)
        for view in ("matrix", "sentence", "heads"):
            seen.page.click(f"#tab-{view}")
        assert seen.requests == []
        assert seen.complaints == []


def test_the_policy_is_enforced(visit, sentence):
    """A script that was not in the file when it was written does not run."""
    seen = visit(sentence)
    seen.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.added = 1";
            document.body.append(script);
            const image = document.createElement("img");
            image.src = "https://example.com/x.png";
            document.body.append(image);
        }"""
    )
    assert seen.page.evaluate("() => window.added") is None
    refused = [each for each in seen.complaints if "Content Security Policy" in each]
    assert any("script" in each for each in refused)
    assert any("example.com/x.png" in each for each in refused)


def test_the_number_under_the_pointer_is_the_weight(visit, large):
    weights, hidden = page_cases.large().dense()[0], page_cases.large().scores(0).isneginf()
    seen = visit(large, "view=matrix&head=2&scale=log", height=1000)
    cells = [(210, 3), (100, 50), (210, 209), (3, 1), (77, 200), (50, 49), (120, 0)]
    hidden_ones = 0
    for query, key in cells:
        point(seen.page, query, key)
        text = seen.page.inner_text("#number")
        assert f"query {query}, key {key}" in seen.page.inner_text("#readout")
        if hidden[2, query, key]:
            hidden_ones += 1
            assert text == "hidden"
        else:
            expected = weights[2, query, key].half().item()
            assert shown(text) == pytest.approx(expected, rel=5e-5)
    assert hidden_ones >= 1


def test_a_small_map_is_exact(visit, sentence, example):
    seen = visit(sentence, "view=matrix&head=1")
    for query, key in [(5, 2), (3, 3), (1, 0)]:
        point(seen.page, query, key)
        expected = example.trace["attn_weights"][0, 1, query, key].item()
        assert shown(seen.page.inner_text("#number")) == pytest.approx(expected, rel=5e-5)
    seen.page.mouse.move(0, 0)
    before = seen.page.inner_text("#readout")
    x, y = point(seen.page, 4, 1)
    seen.page.mouse.click(x, y)
    seen.page.mouse.move(0, 0)  # the clicked cell stays selected
    assert seen.page.inner_text("#readout") != before
    assert state(seen.page)["query"] == "4"
    assert state(seen.page)["key"] == "1"


def test_keyboard_only(visit, sentence):
    seen = visit(sentence, "view=heads")
    page, press = seen.page, seen.page.keyboard.press
    focused = "() => document.activeElement.className + ' ' + document.activeElement.textContent"

    def tab_to(selector):
        for _ in range(30):
            press("Tab")
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"the tab key never came to {selector}")

    tab_to(".card")
    press("ArrowRight")
    assert "Head 1" in page.evaluate(focused)
    press("Enter")  # opens the head
    assert state(page)["view"] == "matrix"
    assert state(page)["head"] == "1"

    tab_to("canvas.over")
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        press(key)
    status = page.inner_text("#status")
    assert re.match(r"mat attends to cat: 0\.\d+", status), status
    press("Home")
    assert state(page)["key"] == "0"
    press("l")
    assert state(page)["scale"] == "log"
    press("Enter")  # this query, in the sentence
    assert state(page)["view"] == "sentence"

    press("w")
    assert state(page)["way"] == "to"
    press("Escape")
    tab_to("#panel-sentence .token")
    press("ArrowRight")
    press("Enter")
    assert state(page)["pin"] == "1"
    assert state(page)["key"] == "1"
    press("Escape")
    assert "pin" not in state(page)

    press("4")
    assert state(page)["view"] == "steps"
    press("n")
    press("n")
    assert state(page)["step"] == "3"
    press("b")
    assert state(page)["step"] == "2"
    press("[")
    assert state(page)["head"] == "0"
    press("?")
    assert page.locator("dialog h2").inner_text() == "How to read this page"
    press("Escape")
    page.wait_for_selector("dialog", state="detached")
    press("t")
    assert state(page)["theme"] == "dark"
    assert seen.complaints == []


def test_a_link_leads_to_the_same_place(visit, model):
    fragment = "view=sentence&layer=1&head=2&query=17&key=3&show=several&several=0.2&way=to&pin=1"
    seen = visit(model, fragment)
    lead = seen.page.inner_text("#panel-sentence .lead")
    assert lead.startswith("What attends to had: 2 heads")
    seen.page.click("#tab-matrix")
    assert state(seen.page) | {"view": "matrix", "layer": "1", "head": "2"} == state(seen.page)
    seen.page.evaluate("() => { location.hash = 'view=matrix&layer=0&head=1&query=20&key=0' }")
    seen.page.wait_for_selector("text=query 20, key 0")
    other = visit(model, "view=x&head=-1&query=1e9&key=abc&layer=77&several=a.b&%%%")
    assert other.complaints == []
    assert other.page.locator("#panel-sentence .token").count() == 40


def test_heads_say_what_they_do_and_can_be_sorted(visit, model):
    seen = visit(model, "view=heads")
    texts = seen.page.locator(".card .does").all_inner_texts()
    table = page_cases.model().page(tokens=page_cases.words(40))
    assert texts == [pattern for layer in table.layers for pattern in layer.patterns]
    assert any(text.startswith("previous token 0.") for text in texts)
    assert any(text.startswith("first token 0.") for text in texts)
    seen.page.get_by_label("Order").select_option("previous")
    scores = [n for layer in table.layers for n in layer.scores["previous"]]
    best = texts[max(range(len(scores)), key=scores.__getitem__)]
    assert seen.page.locator(".card .does").first.inner_text() == best


def test_chosen_heads_keep_their_numbers(visit, folder):
    path = folder / "chosen.html"
    page_cases.large().select(heads=[3, 1]).save(path)
    page = visit(path, "view=heads").page
    assert page.locator(".heads button").all_inner_texts()[0].startswith("Head 3")
    page.evaluate("() => { location.hash = 'view=matrix&head=1' }")
    page.wait_for_selector("#panel-matrix:not([hidden])")
    assert (
        page.locator("#panel-matrix .over")
        .get_attribute("aria-label")
        .startswith("Attention weights, head 1")
    )
    assert page.locator("#panel-matrix option").all_inner_texts()[0].startswith("3: ")
    page = visit(path, "view=sentence").page
    assert "head 3" in page.locator("#panel-sentence").inner_text()


def test_the_sentence_shows_the_weights(visit, model):
    weights = page_cases.model()["blocks.0.attention"][0]
    seen = visit(model, "view=sentence&head=1&query=20")
    page = seen.page
    amounts = page.locator("#panel-sentence .token .amount")
    for key in (0, 5, 19):
        assert amounts.nth(key).inner_text() == f"{weights[1, 20, key].item():.2f}"
    assert amounts.nth(21).inner_text() == "hidden"
    page.locator("#panel-sentence .token").nth(9).hover()
    assert amounts.nth(10).inner_text() == "hidden"
    assert amounts.nth(0).inner_text() == f"{weights[1, 9, 0].item():.2f}"
    page.get_by_role("button", name="All", exact=True).click()
    page.locator("#panel-sentence .token").nth(9).hover()
    assert amounts.nth(0).inner_text() == f"{weights[:, 9, 0].mean().item():.2f}"
    page.get_by_role("button", name="What attends to it").click()
    page.locator("#panel-sentence .token").nth(2).hover()
    assert amounts.nth(1).inner_text() == "hidden"
    assert amounts.nth(30).inner_text() == f"{weights[:, 30, 2].mean().item():.2f}"


def test_cross_attention_has_two_lines(visit, folder):
    torch.manual_seed(0)
    from clearhead import AttentionMap

    weights = AttentionMap(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8))
    weights.save(
        folder / "cross.html", tokens=["a", "b", "c"], context_tokens=["v", "w", "x", "y", "z"]
    )
    seen = visit(folder / "cross.html", "view=sentence&query=1")
    lines = seen.page.locator("#panel-sentence .tokens")
    assert [line.locator(".token").count() for line in lines.all()] == [3, 5]
    shown_amount = lines.nth(1).locator(".amount").nth(4).inner_text()
    assert shown_amount == f"{weights[0, 0, 1, 4].item():.2f}"
    lines.nth(1).locator(".token").nth(2).click()
    assert lines.nth(0).locator(".amount").nth(2).inner_text() == (
        f"{weights[0, 0, 2, 2].item():.2f}"
    )
    assert seen.complaints == []


def cells(page, column):
    """The numbers of one column of the table of keys."""
    texts = page.locator(f".keys tbody tr td:nth-of-type({column})").all_inner_texts()
    return [shown(text.replace("inf", "Infinity").replace("Infinity", "inf")) for text in texts]


def test_the_steps_show_the_numbers_of_the_trace(visit, sentence, example):
    trace, query, head = example.trace, 2, 1
    seen = visit(sentence, f"view=steps&query={query}&head={head}&step=1&key=1")
    page = seen.page

    def boxes(index):
        line = page.locator(".step-body .strip").nth(index).locator(".box")
        return [shown(text) for text in line.all_inner_texts()]

    def close(found, tensor, decimals):
        torch.testing.assert_close(
            torch.tensor(found), tensor.float(), rtol=0, atol=0.5001 * 10**-decimals
        )

    for index, name in enumerate(["x", "queries", "keys", "values"]):
        close(boxes(index), trace[name][0, query], 2)
    visited = [page.inner_text("#step-title")]
    while page.get_by_role("button", name="Next").is_enabled():
        page.get_by_role("button", name="Next").click()
        title = page.inner_text("#step-title")
        visited.append(title)
        match title.split()[0]:
            case "2":
                close(boxes(1), trace["queries_split"][0, query, 0], 2)
                close(boxes(2), trace["queries_split"][0, query, 1], 2)
            case "3":
                close(boxes(4), trace["queries_heads"][0, head, 4], 2)
            case "4a":
                close(cells(page, 2), trace["attn_scores"][0, head, query], 4)
                total = page.inner_text(".product .total td")
                close([shown(total)], trace["attn_scores"][0, head, query, 1:2], 4)
            case "4b":
                close(cells(page, 2), trace["masked_scores"][0, head, query], 4)
            case "4c":
                close(cells(page, 2), trace["scaled_scores"][0, head, query], 4)
                close(cells(page, 5), trace["attn_weights"][0, head, query], 4)
            case "4d":
                total = page.locator(".keys tfoot .box").all_inner_texts()
                close([shown(text) for text in total], trace["context_heads"][0, head, query], 2)
            case "5":
                close(boxes(2), trace["context_vec"][0, query], 2)
            case "6":
                close(boxes(1), trace["output"][0, query], 2)
    assert [title.split()[0] for title in visited] == [step.number for step in trace.steps]
    assert seen.complaints == []


WALK = """() => {
    const shows = [];
    const next = document.querySelector(".turn").lastChild;
    const title = document.querySelector("#step-title"), panel = title.closest(".panel");
    for (;;) {
        shows.push([title.innerText, panel.innerText]);
        if (next.disabled) return shows;
        next.click();
    }
}"""


def test_every_form_of_attention_can_be_walked_through(visit, folder, example):
    from clearhead.explainer.examples import untrained_example

    traces = {"everything": page_cases.everything(), "rtl": page_cases.right_to_left()}
    traces["simplified"] = untrained_example(None, variant="simplified").trace
    traces["encoder"] = untrained_example("a b c", variant="encoder").trace
    for name, trace in traces.items():
        trace.save(folder / f"{name}.html")
        seen = visit(folder / f"{name}.html", f"view=steps&step={trace.steps[0].number}")
        shows = seen.page.evaluate(WALK)
        titles = [f"{step.number} {step.title}" for step in trace.steps]
        assert [title for title, _ in shows] == titles
        for title, text in shows:
            assert "NaN" not in text, title
            assert "undefined" not in text, title
        seen.page.evaluate("() => { location.hash = 'view=steps&step=4c' }")
        seen.page.wait_for_selector("#step-title:has-text('softmax')")
        weights = trace["attn_weights"].reshape(-1, *trace["attn_weights"].shape[-2:])
        row = len(trace.tokens) - 1  # the page begins with the last query
        found = torch.tensor(cells(seen.page, 4 + ("scaled_scores" in trace.names)))
        torch.testing.assert_close(found, weights[0, row], rtol=0, atol=6e-5)
        assert seen.complaints == [], name


def test_save_as_svg_and_png(visit, sentence, tmp_path):
    seen = visit(sentence, "query=3&key=1")
    for view in ("heads", "matrix", "sentence", "steps"):
        seen.page.emulate_media(color_scheme="dark" if view == "sentence" else "light")
        seen.page.evaluate("hash => { location.hash = hash }", f"view={view}&query=3&key=1")
        seen.page.wait_for_selector(f"#panel-{view}:not([hidden])")
        with seen.page.expect_download() as svg:
            seen.page.keyboard.press("s")
        assert svg.value.suggested_filename == f"the-cat-sat-on-the-mat-{view}-head-0.svg"
        text = svg.value.path().read_text()
        assert text.startswith("<svg")
        assert {"heads": ">first token ", "steps": ">on<"}.get(view, ">cat<") in text
        assert "foreignObject" not in text
        with seen.page.expect_download() as png:
            seen.page.keyboard.press("p")
        data = png.value.path().read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 4000
        (tmp_path / f"{view}.svg").write_text(text)
        alone = visit((tmp_path / f"{view}.svg").as_uri())  # it can be opened on its own
        assert alone.page.locator("svg text").count() > 3
        assert alone.complaints == []
    assert seen.complaints == []
    assert seen.requests == [] or all(url.startswith("blob:") for url in seen.requests)


def test_the_matrix_as_svg_has_every_weight(visit, sentence, example):
    seen = visit(sentence, "view=matrix&head=0")
    with seen.page.expect_download() as svg:
        seen.page.keyboard.press("s")
    numbers = re.findall(r">(\d\.\d\d)</text>", svg.value.path().read_text())
    weights = example.trace["attn_weights"][0, 0]
    expected = [f"{weights[i, j].item():.2f}" for i in range(6) for j in range(i + 1)]
    assert numbers[: len(expected)] == expected


def test_in_a_notebook_s_frame(visit, tmp_path, example):
    """As in JupyterLab, VS Code and Colab: a sandboxed frame without an origin."""
    (tmp_path / "notebook.html").write_text(f"<!doctype html>{example.trace._repr_html_()}")
    seen = visit((tmp_path / "notebook.html").as_uri())
    frame = seen.page.frame_locator("iframe")
    frame.get_by_role("tab", name="Matrix").click()
    assert re.match(r"[\d.]+|hidden", frame.locator("#number").inner_text())
    frame.get_by_role("tab", name="Steps").click()
    frame.get_by_role("button", name="Next").click()
    assert frame.locator("#step-title").inner_text() == "2 SPLIT"
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith("about:")] == []


def test_a_damaged_file_is_reported(visit, sentence, tmp_path):
    text = sentence.read_text()
    broken = tmp_path / "broken.html"
    broken.write_text(re.sub(r'(id="layer-0">.{20})', r"\1AAAA", text))
    seen = visit(broken.as_uri())
    seen.page.wait_for_selector(".message:has-text('could not be read')")


def test_a_page_of_a_model_has_a_layer_switch(visit, tmp_path):
    from clearhead.explainer.examples import model_example
    from clearhead.explainer.presentation import save

    file = tmp_path / "model.html"
    save(model_example("the cat sat on the mat", model="grammar", layer=1), file)
    page = visit(file).page
    assert page.inner_text("#subtitle").startswith("the grammar model")
    assert state(page).get("layer", "1") == "1"
    assert "layer 1 of 0 to 2" in page.inner_text("#flow")
    page.locator("#panel-sentence").get_by_label("Layer").select_option("2")
    assert state(page)["layer"] == "2"
    page.click("#tab-steps")
    assert "those of layer 1" in page.inner_text("#panel-steps")
    page.get_by_role("button", name="Show layer 1").click()
    assert page.locator("#panel-steps .strip").count() > 3
