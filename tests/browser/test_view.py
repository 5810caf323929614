"""The viewer in a real browser: exact numbers at every zoom level, the keyboard, hostile texts."""

import re
import runpy
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

import clearhead
import page_cases
import view_cases

TOKENS = 2309


@pytest.fixture(scope="module")
def viewer():
    tokens = view_cases.tokens(TOKENS)
    seen = view_cases.seen(TOKENS, 2, heads=5, head_dim=16)
    ids = view_cases.ids(tokens)
    with clearhead.view(seen, tokens=tokens, ids=ids, browser=False, wait=False) as page:
        yield page


def opened(visit, viewer, fragment="", **options):
    made = visit(viewer.url, fragment, **options)
    complete(made.page)
    return made


def complete(page):
    """Wait until all tiles in view are drawn."""
    page.wait_for_timeout(50)  # a frame or two, until a key press takes effect
    page.wait_for_selector('#map[data-complete="true"]')
    page.wait_for_timeout(50)


def readout(page):
    """The cell under the cursor: query, key, number, whether it is one weight, and the text."""
    element = page.locator("#readout")
    page.wait_for_selector('#readout[data-value]:not([data-value=""])')
    data = {name: element.get_attribute(f"data-{name}") for name in ("query", "key", "value")}
    exact = element.get_attribute("data-exact") == "true"
    number = float(data["value"])
    return int(data["query"]), int(data["key"]), number, exact, element.inner_text()


def fragment_with(page, words):
    """The fragment of the URL, as soon as it contains these words."""
    for _ in range(200):
        if words in page.url:
            return page.url.split("#")[1]
        page.wait_for_timeout(50)
    raise AssertionError(page.url)


def heads(page):
    return page.locator("#heads li")


def test_every_number_under_the_pointer_is_the_weight(visit, viewer):
    page = opened(visit, viewer, "layer=1&head=2&query=1700&key=1690&zoom=20").page
    m = viewer.worker.maps[1]
    box = page.locator("#map").bounding_box()
    seen = set()
    for x, y in [(150, 120), (333, 517), (610, 222), (801, 603), (480, 480), (900, 130)]:
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.wait_for_timeout(60)
        query, key, number, exact, words = readout(page)
        assert exact
        assert f"query {query:,}" in words
        seen.add((query, key))
        if key > query:
            assert number != number
            assert words.startswith("hidden")
        else:
            weight = float(m[0, 2, query, key])
            assert number == pytest.approx(weight, rel=1e-5)
            first = words.splitlines()[0].translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-"))
            shown = float(first.replace(" × 10-", "e-"))
            assert shown == pytest.approx(weight, rel=1e-3)
    assert len(seen) == 6


def test_a_cell_of_the_whole_map_is_a_share_of_attention(visit, viewer):
    page = opened(visit, viewer, "head=1").page
    wait_for_head(page, 1)
    page.locator("#map").focus()
    page.keyboard.press("ArrowDown")
    for _ in range(30):
        page.keyboard.press("Shift+ArrowLeft")
    page.wait_for_timeout(100)
    query, key, number, exact, words = readout(page)
    assert not exact
    assert key == 0
    queries, keys = re.findall(r"(\d[\d,]*) to (\d[\d,]*)", words.replace(",", ""))
    rows, cols = (slice(int(a), int(b) + 1) for a, b in (queries, keys))
    block = viewer.worker.maps[0][0, 1, rows, cols]
    assert rows.start == query
    assert number == pytest.approx(float(block.sum() / block.shape[0]), rel=1e-4)


def wait_for_head(page, head):
    page.wait_for_selector(f'#heads li[data-head="{head}"] canvas[data-look]')
    complete(page)


def test_the_scale_has_the_colours_of_python(visit, viewer, same_scale):
    same_scale(opened(visit, viewer).page, "#bar")


def test_it_sends_requests_only_to_its_own_server(visit, viewer):
    made = opened(visit, viewer)
    page = made.page
    page.keyboard.press("]")
    complete(page)
    page.locator("#map").focus()
    for key in ("+", "+", "+", "ArrowRight", "Enter", "l", "d", "."):
        page.keyboard.press(key)
    complete(page)
    own = f"http://127.0.0.1:{viewer.port}/"
    assert made.requests
    assert all(address.startswith(own) for address in made.requests)
    assert made.complaints == []


def test_keyboard_only(visit, viewer):
    page = opened(visit, viewer).page
    for _ in range(20):
        if page.evaluate("document.activeElement.id") == "map":
            break
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "map"
    page.keyboard.press("]")
    wait_for_head(page, 1)
    assert heads(page).nth(1).locator("button").get_attribute("aria-pressed") == "true"
    for key in ("+",) * 9:
        page.keyboard.press(key)
    page.keyboard.press("d")
    complete(page)
    query, key, _, exact, _ = readout(page)
    assert exact
    assert query == key
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(60)
    assert readout(page)[:2] == (query - 1, key - 2)
    page.keyboard.press("Enter")
    row = page.locator("#row-list button")
    row.first.wait_for()
    best = viewer.worker.maps[0][0, 1, query - 1].topk(3)
    shown = [int(row.nth(i).locator(".number").inner_text().replace(",", "")) for i in range(3)]
    assert shown == best.indices.tolist()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#row-list') !== null"):
            break
    page.keyboard.press("Enter")
    complete(page)
    assert readout(page)[:2] == (query - 1, shown[0])
    page.keyboard.press(".")
    page.wait_for_timeout(100)
    assert page.locator("#layer").input_value() == "1"
    page.keyboard.press("0")
    complete(page)


def test_a_word_is_found(visit, viewer):
    page = opened(visit, viewer).page
    page.keyboard.press("/")
    page.keyboard.type("RED box")
    page.keyboard.press("Enter")
    tokens = view_cases.tokens(TOKENS)
    matches = [i for i in range(TOKENS - 1) if (tokens[i], tokens[i + 1]) == (" red", " box")]
    page.get_by_text(f"1 of {len(matches)} matches").wait_for()
    complete(page)
    query, key, _, exact, words = readout(page)
    assert (query, key, exact) == (matches[0], matches[0], True)
    assert "␣red" in words
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    page.get_by_text(f"2 of {len(matches)} matches").wait_for()
    complete(page)
    assert readout(page)[0] == matches[1]


def test_a_link_leads_to_the_same_place(visit, viewer):
    page = opened(visit, viewer).page
    page.keyboard.press("]")
    page.keyboard.press("]")
    page.locator("#map").focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("l")
    fragment = fragment_with(page, "log=0")
    assert "head=2" in fragment
    again = opened(visit, viewer, fragment).page
    assert not again.locator("#log").is_checked()
    assert heads(again).nth(2).locator("button").get_attribute("aria-pressed") == "true"
    again.wait_for_timeout(300)  # the page updates its URL with a delay
    assert again.url.split("#")[1] == fragment


def test_nonsense_in_the_link_is_ignored(visit, viewer):
    made = opened(visit, viewer, "layer=-1&head=1e9&batch=NaN&query=cat&key=-5&zoom=Infinity&log=")
    assert made.page.locator("#layer").input_value() == "0"
    assert made.complaints == []


def test_the_head_list_has_its_scores(visit, viewer):
    page = opened(visit, viewer).page
    first = heads(page).nth(0).locator(".pattern")
    page.get_by_text("Head 0: previous token").wait_for()
    page.get_by_text("Head 1: first token").wait_for()
    page.get_by_text("Head 2: same token").wait_for()
    page.locator("#order").select_option("sink")
    assert first.inner_text().startswith("Head 1: first token")
    heads(page).nth(0).locator("button").click()
    assert heads(page).nth(0).locator("button").get_attribute("aria-pressed") == "true"


def test_hostile_tokens_do_nothing(visit):
    hostile = page_cases.hostile()
    assert len(hostile) > 200
    m = view_cases.structured(len(hostile), heads=1, head_dim=8)
    with clearhead.view(m, tokens=hostile, browser=False, wait=False) as viewer:
        made = opened(visit, viewer, "zoom=30")
        page = made.page
        page.locator("#map").focus()
        page.keyboard.press("d")
        for _ in range(len(hostile) // 16 + 1):
            page.keyboard.press("Shift+ArrowUp")
        for index in range(len(hostile)):
            if index % 12 == 11:  # the strongest keys of the row, with their labels
                page.keyboard.press("Enter")
            page.keyboard.press("ArrowDown")
        page.wait_for_timeout(100)
        assert readout(page)[0] == len(hostile) - 1
        page.keyboard.press("/")
        page.keyboard.type(hostile[0])
        page.keyboard.press("Enter")
        page.get_by_text(re.compile(r"1 of \d+ match(es)?")).wait_for()
        page.wait_for_timeout(100)
        assert hostile[0][:20] in page.locator("#readout").inner_text()
        assert page.evaluate("window.hacked === undefined")
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.scripts.length") == 1
        assert page.evaluate("document.querySelectorAll('style, svg, iframe, link').length") == 2
        assert made.complaints == []
        assert all(address.startswith("http://127.0.0.1:") for address in made.requests)


def test_hostile_names_do_nothing(visit):
    seen = clearhead.Seen('</title><script>alert(1)</script>"')
    seen.add("<img src=x onerror=alert(2)>", view_cases.structured(31, heads=1, head_dim=8))
    with clearhead.view(seen, browser=False, wait=False) as viewer:
        made = opened(visit, viewer)
        assert made.page.locator("h1").inner_text() == seen.model
        assert made.page.locator("#layer option").inner_text() == "<img src=x onerror=alert(2)>"
        assert made.complaints == []


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (390, True),
        pytest.param(1280, False, marks=pytest.mark.slow),
    ],
)
def test_it_fits_the_window_and_is_accessible(visit, viewer, width, dark):
    page = opened(visit, viewer, width=width, height=844, dark=dark).page
    page.get_by_text("Head 2: same token").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    faults = Axe().run(page).response["violations"]
    serious = [each["id"] for each in faults if each["impact"] in ("serious", "critical")]
    assert serious == []


def test_a_stopped_server_is_reported(visit):
    viewer = clearhead.view(
        view_cases.structured(31, heads=2, head_dim=8), browser=False, wait=False
    )
    page = opened(visit, viewer).page
    viewer.close()
    page.keyboard.press("]")
    page.get_by_text("The server does not answer").wait_for()


@pytest.mark.slow
def test_the_screenshot_for_the_documentation(browser, tmp_path):
    script = Path(__file__).with_name("screenshots.py")
    runpy.run_path(str(script))["take_viewer"](browser, tmp_path)
    assert 20_000 < (tmp_path / "view.png").stat().st_size < 300_000
