"""The page that runs the model: typing, switches, experiments, links, and how it looks."""

import functools
import math
import re
from urllib.parse import parse_qs, quote, urlparse

import pytest
import torch

import clearhead
import page_cases
from clearhead.explainer.play_page import play_html
from clearhead.models import find_model
from clearhead.watcher.one_text import see
from page_layout import LINES, overlaps, serious_faults

TEXT = "Anna has a red ball. Tom has a blue ball. Anna has a"
VIEWS = ("sentence", "matrix", "steps", "whatif", "experiments")
SCREENS = {"desktop": (1280, 800), "phone": (390, 844), "projector": (1920, 1080)}
LIMIT = 12e6  # bytes


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    path = tmp_path_factory.mktemp("play") / "english.html"
    path.write_text(play_html("english"))
    return path


@pytest.fixture(scope="module")
def grammar(tmp_path_factory):
    path = tmp_path_factory.mktemp("play") / "grammar.html"
    path.write_text(play_html("grammar"))
    return path


def state(page):
    return {key: values[0] for key, values in parse_qs(urlparse(page.url).fragment).items()}


def settled(page, act):
    """Act, then wait until the page shows what the worker answered."""
    before = page.evaluate("() => performance.getEntriesByName('answer').length")
    act()
    page.evaluate(
        """async (before) => {
            while (performance.getEntriesByName("answer").length === before) {
                await new Promise((done) => setTimeout(done, 10));
            }
        }""",
        before,
    )


def words(page, where="#panel-sentence"):
    """The next words that are shown, with their probabilities."""
    items = page.locator(f"{where} .next-words .rank").all()
    return [
        (item.locator(".word").inner_text(), float(item.locator(".amount").inner_text()))
        for item in items
    ]


def test_it_is_one_file_below_the_limit(english, grammar):
    assert english.stat().st_size < LIMIT
    assert grammar.stat().st_size < LIMIT / 8
    for path in (english, grammar):
        assert path.read_bytes().isascii()


def test_typing_changes_tokens_attention_and_next_words(visit, english):
    seen = visit(english)
    page = seen.page
    settled(page, lambda: page.fill("#text", "The king and the man of"))
    tokens = page.locator("#panel-sentence .token .word").all_inner_texts()
    assert tokens == ["The", "␣king", "␣and", "␣the", "␣man", "␣of"]
    first = words(page)
    model, tokenizer = clearhead.load("english")
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode("The king and the man of")]))[0, -1]
    shares, best = torch.softmax(logits, -1).topk(8)
    expected = [tokenizer.decode([i]).replace(" ", "␣") for i in best.tolist()]
    assert [word for word, _ in first] == expected
    assert [share for _, share in first] == pytest.approx(shares.tolist(), abs=6e-4)
    settled(page, lambda: page.locator("#panel-sentence .next-words .rank").first.click())
    assert page.input_value("#text") == "The king and the man of" + expected[0].replace("␣", " ")
    assert "1 new one computed" in page.inner_text("#reading")
    assert state(page)["text"] == page.input_value("#text")
    assert seen.complaints == []


def test_heads_have_the_words_and_numbers_of_the_table(visit, english):
    seen = visit(english, f"text={quote(TEXT)}")
    loaded = find_model("english")
    reading = loaded.read(TEXT)
    rows = see(loaded.network, reading.tensor()).heads(reading.tensor()).rows
    shown = seen.page.locator("#panel-sentence .card").all_inner_texts()
    assert len(shown) == len(rows) == 48
    names = {"previous token": "previous", "first token": "sink", "same token": "same_token"}
    names |= {"after a copy": "induction"}
    named = 0
    for row, card in zip(rows, shown, strict=True):
        if found := re.search(r"(\D+) ([\d.]+)\nchance ([\d.]+)$", card):
            column = names[found[1].split("\n")[-1]]
            named += 1
            assert float(found[2]) == pytest.approx(getattr(row, column), abs=0.0051)
            assert float(found[3]) == pytest.approx(row.chance[column], abs=0.0051)
        else:
            spread = re.search(r"spreads over about (\d+) tokens?\nchance (\d+) tokens?$", card)
            assert float(spread[1]) == pytest.approx(math.exp(row.entropy), abs=0.51)
            assert float(spread[2]) == pytest.approx(math.exp(row.chance["entropy"]), abs=0.51)
    assert named > 5


def test_steps_show_the_numbers_of_a_trace(visit, english):
    from clearhead.explainer.examples import model_example

    made = model_example(TEXT, model="english", layer=3).trace
    seen = visit(english, f"text={quote(TEXT)}&view=steps&step=4c&layer=3&head=5&query=9")
    cells = seen.page.locator("#panel-steps .keys tbody tr td:last-child").all_inner_texts()
    found = torch.tensor([float(cell) for cell in cells])
    torch.testing.assert_close(found, made["attn_weights"][0, 5, 9], atol=6e-5, rtol=0)
    for step in made.steps:
        assert seen.page.locator(f".rail button:has-text('{step.number}')").count() >= 1
    seen.page.click("#tab-steps")
    code = seen.page.locator("#panel-steps pre").inner_text()
    assert code == made.step("4c").code
    seen.page.keyboard.press("n")
    assert "context_heads" in seen.page.locator("#panel-steps pre").inner_text()


MODELS = pytest.mark.parametrize(
    "name", ["english", pytest.param("grammar", marks=pytest.mark.slow)]
)


@MODELS
def test_the_snippet_computes_the_same_numbers(visit, request, name, capsys):
    """Every switch at once: what "Copy as PyTorch" gives is run, and compared with the page."""
    text = {"english": TEXT, "grammar": "the dog that the cats chase sees the"}[name]
    switched = [
        "causal=0&scaling=none&temperature=2&shuffle=3&ablate=1.2_0.*&knockout=2.0.5.1_*.*.4.3",
        "scaling=model&knockout=*.*.5.0",
        "",
    ]
    page = visit(request.getfixturevalue(name)).page
    for switches in switched:
        fragment = f"text={quote(text)}&layer=2&head=0&query=5&{switches}&view=matrix"
        goes_there = "hash => { location.hash = hash }"
        settled(page, functools.partial(page.evaluate, goes_there, fragment))
        page.get_by_role("button", name="Copy as PyTorch").click()
        program = page.locator("dialog code").inner_text()
        page.keyboard.press("Escape")
        made = {}
        try:
            exec(program, made)
        finally:
            torch.set_grad_enabled(True)
        capsys.readouterr()
        row = made["seen"]["blocks.2.attention"][0, 0, 5]
        page.keyboard.press("3")
        page.get_by_role("button", name="SOFTMAX").click()
        cells = page.locator("#panel-steps .keys tbody tr td:last-child").all_inner_texts()
        found = torch.tensor([float(cell) for cell in cells])
        torch.testing.assert_close(found, row[: len(found)], atol=6e-5, rtol=0)
        page.click("#tab-sentence")
        shares = made["shares"].tolist()
        assert [share for _, share in words(page)][:5] == pytest.approx(shares, abs=6e-4)


def test_before_and_after_side_by_side(visit, english):
    seen = visit(english, f"text={quote(TEXT)}&view=whatif&layer=5&head=2")
    page = seen.page
    sides = page.locator("#panel-whatif .side")
    assert sides.nth(0).inner_text().split("\n")[1:] == sides.nth(1).inner_text().split("\n")[1:]
    assert "Nothing is switched" in page.inner_text("#panel-whatif .verdict")
    switch = [
        ("Causal mask", "Off", "causal", "0", "causal mask off"),
        ("Scores are divided by", "nothing", "scaling", "none", "scores not divided"),
        ("Temperature", "5", "temperature", "5", "temperature 5"),
    ]
    for group, button, name, value, said in switch:
        control = page.locator("#panel-whatif").get_by_role("group", name=group)
        chosen = control.get_by_role("button", name=button, exact=True)
        settled(page, chosen.click)
        assert state(page)[name] == value
        assert said in page.inner_text("#changes")
        assert (
            sides.nth(0).inner_text().split("\n")[1:] != sides.nth(1).inner_text().split("\n")[1:]
        )
        assert "% of the probability" in page.inner_text("#panel-whatif .verdict")
        assert chosen.evaluate("e => e === document.activeElement")  # the focus stays
        settled(page, page.get_by_role("button", name="Reset all").click)
        assert name not in state(page)
    for button, name, value in [
        ("Head 2", "ablate", "5.2"),
        ("All heads of layer 5", "ablate", "5.*"),
        ("In this head", "knockout", "5.2.16.4"),  # the key that the query attends to most
        ("Shuffle", "shuffle", "1"),
    ]:
        settled(
            page, page.locator("#panel-whatif").get_by_role("button", name=button, exact=True).click
        )
        assert state(page)[name] == value
        settled(page, page.get_by_role("button", name="Reset all").click)
    assert seen.complaints == []


@MODELS
def test_six_experiments(visit, request, name):
    seen = visit(request.getfixturevalue(name), "view=experiments")
    page = seen.page
    assert page.locator(".experiment").count() == 6
    for i in range(6):
        settled(page, page.locator(".experiment").nth(i).click)
        trials = page.locator(".trial .choice button")
        assert trials.first.get_attribute("aria-pressed") == "true"
        assert "Nothing is switched" in page.inner_text("#panel-experiments .verdict")
        for k in range(1, trials.count()):
            settled(page, trials.nth(k).click)
            assert trials.nth(k).get_attribute("aria-pressed") == "true"
            assert "% of the probability" in page.inner_text("#panel-experiments .verdict")
            assert "words of this model" not in page.inner_text("#reading")
        page.locator(".trial summary").click()
        assert len(page.locator(".trial details p").inner_text()) > 100
    assert seen.complaints == []


def test_a_link_leads_to_the_same_state(visit, english):
    switches = "causal=0&scaling=none&temperature=0.5&ablate=1.2_3.*&knockout=*.*.3.1&shuffle=2"
    fragment = (
        f"view=matrix&layer=2&head=3&query=3&key=1&text={quote('The cat sat on a mat')}&{switches}"
    )
    page = visit(english, fragment).page
    found = state(page)
    assert found == {key: values[0] for key, values in parse_qs(fragment).items()}
    assert page.locator("#changes .chip").count() == 8
    settled(
        page, lambda: page.evaluate("() => { location.hash = 'text=Hello+world&view=sentence' }")
    )
    assert page.locator("#panel-sentence .token").count() >= 2
    assert page.input_value("#text") == "Hello world"
    assert "causal" not in state(page)
    nonsense = visit(
        english,
        "ablate=99.1_1.99_a.b&knockout=9.0.1.1_-1&shuffle=x&scaling=constructor&layer=1e9"
        "&temperature=0&text=<img src=x onerror=alert(1)>%00&view=heads&experiment=77",
    )
    assert nonsense.page.locator("#changes").is_hidden()
    assert nonsense.complaints == []


def test_any_text_is_harmless(visit, english):
    seen = visit(english)
    strings = [text for text in page_cases.hostile() if 0 < len(text) < 300]
    text = " ".join(strings[:60]).replace("\0", "")
    settled(seen.page, lambda: seen.page.fill("#text", text))
    assert "not read" in seen.page.inner_text("#reading")
    for view in VIEWS:
        seen.page.click(f"#tab-{view}")
    assert seen.page.evaluate("() => window.hacked") is None
    assert seen.page.evaluate("() => document.querySelectorAll('img, iframe').length") == 0
    settled(seen.page, lambda: seen.page.fill("#text", "שלום עולם"))
    seen.page.click("#tab-sentence")
    assert seen.page.locator("#panel-sentence .tokens").get_attribute("dir") == "rtl"
    seen.page.fill("#text", "")
    seen.page.wait_for_selector("#reading:has-text('Type a sentence')")
    assert seen.page.locator("#main.outdated").count() == 1
    assert seen.complaints == []


def test_keyboard_only_and_no_request(visit, english):
    seen = visit(english, offline=True)
    page, press = seen.page, seen.page.keyboard.press
    page.focus("#text")
    settled(page, lambda: page.keyboard.type("4"))  # a digit is text here, not a shortcut
    assert page.input_value("#text").endswith("4")
    assert state(page)["view"] == "sentence"
    page.focus("#tab-sentence")
    for view in VIEWS[1:]:
        press("ArrowRight")
        assert state(page)["view"] == view
    press("1")
    page.locator("#panel-sentence .card[tabindex='0']").focus()
    press("ArrowRight")
    assert page.locator("#panel-sentence .card[aria-current]").count() == 1
    page.locator(".flow-part").nth(2).focus()
    press("Enter")
    assert state(page)["view"] == "steps"
    assert page.locator(".flow-part[aria-current]").inner_text().startswith("Q, K, V")
    assert [url for url in seen.requests if not url.startswith("blob:")] == []
    assert seen.complaints == []


@pytest.mark.parametrize(
    "screen", ["desktop", "phone", pytest.param("projector", marks=pytest.mark.slow)]
)
def test_no_overlap_and_no_cut_text(visit, english, screen):
    width, height = SCREENS[screen]
    fragment = f"text={quote(TEXT)}&causal=0&ablate=1.2"
    seen = visit(english, fragment, width=width, height=height, dark=screen == "phone")
    for view in VIEWS:
        seen.page.click(f"#tab-{view}")
        found = seen.page.evaluate(LINES)
        where = f"{screen}, {view}"
        assert found["cut"] == [], where
        assert not found["wide"], f"{where}: the page is wider than the screen"
        assert overlaps(found["lines"]) == [], where


@pytest.mark.parametrize(
    "dark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "dark"]
)
def test_axe_finds_no_serious_fault(visit, english, dark):
    seen = visit(english, f"text={quote(TEXT)}&causal=0", dark=dark)
    for view in VIEWS:
        seen.page.click(f"#tab-{view}")
        assert serious_faults(seen.page) == [], view


def test_save_as_svg_and_png(visit, english):
    seen = visit(english, f"text={quote(TEXT)}&layer=5&head=2")
    for view in VIEWS:
        seen.page.click(f"#tab-{view}")
        for key, start in (("s", b"<svg"), ("p", b"\x89PNG"))[: 2 if view == "steps" else 1]:
            with seen.page.expect_download() as saved:
                seen.page.keyboard.press(key)
            assert f"-{view}-" in saved.value.suggested_filename
            data = saved.value.path().read_bytes()
            assert data.startswith(start)
            assert len(data) > 2000
    assert seen.complaints == []


def test_a_damaged_file_is_reported(visit, english, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(re.sub(r'(id="model">.{20})', r"\1AAAA", english.read_text(), count=1))
    seen = visit(broken.as_uri())
    seen.page.wait_for_selector(".message:has-text('could not be started')")
