"""The server of the viewer: exact at every zoom level, limited in memory, and private."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx
import numpy as np
import pytest
import torch

import clearhead
import view_cases
from clearhead import AttentionMap, Mask, Seen, ShapeError, cli
from clearhead.viewer import jobs, routes, server, tile_pyramid
from clearhead.viewer.jobs import HeadIndex, SizedCache, Worker
from clearhead.viewer.token_labels import Labels

TESTS = Path(__file__).parents[1]


class Client:
    """Sends requests to a running viewer, as its own page does."""

    def __init__(self, page):
        parts = urlsplit(page.url)
        self.page, self.token = page, parts.query.removeprefix("token=")
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{parts.port}", headers={"x-clearhead-token": self.token}
        )

    def __call__(self, path, **parameters):
        return self.http.get(f"/api/{path}", params=parameters)

    def wait(self, layer=0, batch=0, head=0, seconds=30.0):
        """Wait until this head is ready."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer = self("state", layer=layer, batch=batch, head=head).json()
            if answer["heads"][head]["ready"] or answer["heads"][head]["error"]:
                return answer
            time.sleep(0.01)
        raise TimeoutError(answer)

    def raw(self, line, **headers):
        """The status of a raw request, sent exactly as given."""
        with socket.create_connection(("127.0.0.1", self.page.port), timeout=10) as s:
            given = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
            s.sendall(f"{line} HTTP/1.1\r\n{given}Connection: close\r\n\r\n".encode("latin-1"))
            return int(s.makefile("rb").readline().split()[1])


@pytest.fixture(scope="module")
def tokens():
    return view_cases.tokens(397)


@pytest.fixture(scope="module")
def client(tokens):
    seen = view_cases.seen(397, 2, heads=3, head_dim=16)
    ids = view_cases.ids(tokens)
    with clearhead.view(seen, tokens=tokens, ids=ids, browser=False, wait=False) as page:
        client = Client(page)
        client.wait()
        yield client
        client.http.close()


# Grids: the same attention at every zoom level.


def dense_shares(weights, rows, cols):
    """The expected cells of a grid, computed from all weights."""
    queries, keys = weights.shape
    by_row = torch.arange(queries) * rows // queries
    by_col = torch.arange(keys) * cols // keys
    sums = torch.zeros(rows, cols, dtype=weights.dtype)
    sums.index_put_((by_row[:, None].expand(-1, keys), by_col.expand(queries, -1)), weights, True)
    return sums / torch.bincount(by_row, minlength=rows)[:, None]


def stitched(pyramid, level):
    grid = pyramid.grids[level]
    high, wide = grid.tiles()
    rows = [np.hstack([pyramid.tile(level, r, c) for c in range(wide)]) for r in range(high)]
    return torch.from_numpy(np.vstack(rows))


MASKS = {
    "causal": Mask.causal(),
    "none": None,
    "window": Mask.causal() & Mask.window(37),
    "padding": Mask.causal() & Mask.padding([271]),
}


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("overview", "queries"), [(53, 89), (53, 311), (4096, 89)])
def test_every_grid_holds_the_same_attention(mask, overview, queries, monkeypatch):
    monkeypatch.setattr(tile_pyramid, "_OVERVIEW", overview)
    monkeypatch.setattr(tile_pyramid, "TILE", 64)
    q, k = torch.randn(1, 4, queries, 5).double(), torch.randn(1, 2, 311, 5).double()
    one = AttentionMap(q, k, MASKS[mask]).select(heads=3)
    weights = one[0, 0]
    pyramid = tile_pyramid.Pyramid(one)
    assert (pyramid.grids[-1].rows, pyramid.grids[-1].cols) == (queries, 311)
    assert max(pyramid.grids[0].rows, pyramid.grids[0].cols) <= 64
    base = next(grid for grid in pyramid.grids if grid.halvings == 0)
    for level, grid in enumerate(pyramid.grids):
        found = stitched(pyramid, level)
        assert found.shape == (grid.rows, grid.cols)
        torch.testing.assert_close(found.nan_to_num(0.0).sum(1), torch.ones(grid.rows))
        if grid.halvings <= 0:
            expected = dense_shares(weights, grid.rows, grid.cols)
        else:
            rows, cols = dense_shares_halved(weights, base, grid.halvings)
            expected = weights.new_zeros(grid.rows, grid.cols)
            index = rows[:, None].expand(-1, 311), cols.expand(queries, -1)
            expected.index_put_(index, weights, accumulate=True)
            expected /= torch.bincount(rows, minlength=grid.rows)[:, None]
        torch.testing.assert_close(found.nan_to_num(0.0).double(), expected, rtol=1e-5, atol=1e-7)


def dense_shares_halved(weights, base, halvings):
    """The cell of each query and key in a grid that is coarser than the overview."""
    queries, keys = weights.shape
    return (
        torch.arange(queries) * base.rows // queries >> halvings,
        torch.arange(keys) * base.cols // keys >> halvings,
    )


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (1, 70001), (1000, 32768), (32768, 32768), (2**20, 2**20)]
)
def test_grids_of_any_size(queries, keys):
    found = tile_pyramid.grids(queries, keys)
    assert (found[-1].rows, found[-1].cols) == (queries, keys)
    assert found[0].tiles() == (1, 1)
    base = next(grid for grid in found if grid.halvings == 0)
    assert base.rows * base.cols <= 4096**2
    for grid in found:
        # A tile that is computed on demand covers at most 2,048 tokens per side.
        if grid.halvings < 0:
            assert max(queries / grid.rows, keys / grid.cols) * tile_pyramid.TILE <= 2048


def test_a_bias_is_part_of_every_grid(monkeypatch):
    monkeypatch.setattr(tile_pyramid, "_OVERVIEW", 32)
    bias = torch.randn(1, 1, 101, 101)
    bias[0, 0, :, 60:] = torch.finfo(torch.float32).min
    one = AttentionMap(torch.randn(1, 1, 101, 6), torch.randn(1, 1, 101, 6), bias=bias)
    pyramid = tile_pyramid.Pyramid(one)
    for level, grid in enumerate(pyramid.grids):
        found = stitched(pyramid, level)
        expected = dense_shares(one[0, 0], grid.rows, grid.cols)
        torch.testing.assert_close(found.nan_to_num(0.0), expected)
    assert found[:, 60:].isnan().all()


# The worker: one job after another, with limited memory.


def test_the_cache_has_a_limit_in_bytes():
    kept = SizedCache(limit=100)
    for name in range(20):
        kept.put(name, np.zeros(3))  # 24 bytes
        kept.get(0)
    assert kept.nbytes == 96
    assert 0 in kept
    assert 19 in kept
    assert 1 not in kept
    kept.put("large", np.zeros(100))
    assert len(kept) == 1
    kept.put("large", np.zeros(2))
    assert kept.nbytes == 16


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def test_the_worker_computes_the_wanted_head_then_the_rest_of_the_layer():
    seen = view_cases.seen(61, 2, heads=3, head_dim=8)
    done = Worker({name: seen[name] for name in seen.layers})
    done.want(HeadIndex(1, 0, 2))
    order = []
    done.on_progress = lambda now: now and order.append((now.head, now.what))
    done.start()
    wait_for(lambda: len(done.scores) == 3)
    done.stop()
    order = list(dict.fromkeys(order))
    heads = [2, 0, 1]
    assert order == [
        *((HeadIndex(1, 0, head), "picture") for head in heads),
        *((HeadIndex(1, 0, head), "scores") for head in heads),
    ]
    table = seen.heads()
    for head in range(3):
        row = next(r for r in table.rows if (r.layer, r.head) == ("h.1.attn", head))
        assert done.scores[HeadIndex(1, 0, head)]["entropy"] == pytest.approx(row.entropy, rel=1e-4)


def test_another_wanted_head_cancels_the_current_job(monkeypatch):
    seen = view_cases.seen(61, 2, heads=2, head_dim=8)
    begun = threading.Event()

    class Slow:
        nbytes = 8

        def __init__(self, one, report):
            begun.set()
            while done._wanted.layer == 0:
                time.sleep(0.001)
            report(0.5)

    monkeypatch.setattr(jobs, "Pyramid", Slow)
    done = Worker({name: seen[name] for name in seen.layers})
    done.start()
    begun.wait(10)
    done.want(HeadIndex(1, 0, 1))
    wait_for(lambda: HeadIndex(1, 0, 1) in done.pyramids)
    assert HeadIndex(0, 0, 0) not in done.pyramids
    done.stop()


def test_a_map_that_cannot_be_computed_is_reported(monkeypatch):
    class Broken:
        def __init__(self, one, report):
            raise RuntimeError("no memory for <b>this</b>")

    monkeypatch.setattr(jobs, "Pyramid", Broken)
    one = view_cases.structured(31, heads=1, head_dim=8)
    with clearhead.view(one, browser=False, wait=False) as page:
        client = Client(page)
        state = client.wait()
        assert state["heads"][0]["error"] == "RuntimeError: no memory for <b>this</b>"
        answer = client("tile", layer=0, batch=0, head=0, level=0, row=0, col=0)
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "application/json"
        client.http.close()


def test_labels_are_found():
    labels = Labels([[" In", "ter", "nation", "al", " cat", " Inter", "<b>", " cat"]])
    assert labels.find(0, "international") == ([0], 1)
    assert labels.find(0, "INTER") == ([0, 5], 2)
    assert labels.find(0, "cat") == ([4, 7], 2)
    assert labels.find(0, "<B>") == ([6], 1)
    assert labels.find(0, "") == ([], 0)
    assert labels.find(3, "cat") == ([], 0)
    assert Labels([["a", "b"] * 1500]).find(0, "a") == (list(range(0, 2000, 2)), 1500)


# The API.


def test_a_tile_is_the_weights(client):
    client.wait(1, 0, 2)
    levels = client("about").json()["layers"][1]["grids"]
    answer = client("tile", layer=1, batch=0, head=2, level=len(levels) - 1, row=1, col=0)
    shape = int(answer.headers["x-rows"]), int(answer.headers["x-cols"])
    assert shape == (397 - 256, 256)
    found = np.frombuffer(answer.content, "<f4").reshape(shape)
    m = client.page.worker.maps[1]
    np.testing.assert_allclose(found, m[0, 2, 256:, :256].numpy(), rtol=1e-5)


def test_a_row_and_its_labels(client, tokens):
    client.wait(0, 0, 1)
    found = client("row", layer=0, batch=0, head=1, query=390, count=5).json()
    best = client.page.worker.maps[0][0, 1, 390].topk(5)
    assert found["keys"] == best.indices.tolist()
    assert found["weights"] == pytest.approx(best.values.tolist())
    assert found["labels"] == ["␣" + tokens[key][1:] for key in found["keys"]]


def test_tokens_and_search(client, tokens):
    assert client("tokens", batch=0, start=390, count=100).json()["tokens"] == [
        "␣" + token[1:] for token in tokens[390:]
    ]
    found = client("search", batch=0, text="cat").json()
    assert found["matches"] == [i for i, token in enumerate(tokens) if token == " cat"]
    assert found["count"] == len(found["matches"])


# Safety.


def test_the_page_forbids_everything_but_itself(client):
    answer = client.http.get("/", params={"token": client.token})
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    # Nothing is loaded, and no attribute contains a style or a handler.
    assert not re.search(r"(src|href)=(?!\"data:,\")", answer.text.split("<script")[0])
    assert not re.search(r"<[^>]* (on\w+|style)=", answer.text.split("<script")[0])


HOST = "127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("line", "headers"),
    [
        ("GET /api/about", {"Host": "evil.example"}),
        ("GET /api/about", {"Host": "127.0.0.1"}),
        ("GET /api/about", {"Host": "127.0.0.1:1"}),
        ("GET /api/about", {"Host": "127.0.0.1:{port}.evil.example"}),
        ("GET /api/about", {"Host": "localhost.evil.example:{port}"}),
        ("GET /?token={token}", {"Host": "evil.example:{port}"}),
        ("GET /api/about", {"Host": HOST, "Origin": "http://evil.example"}),
        ("GET /api/about", {"Host": HOST, "Origin": "null"}),
        ("GET /api/about", {"Host": HOST, "Origin": "http://127.0.0.1:1"}),
        ("GET /api/about", {"Host": HOST, "Origin": "https://127.0.0.1:{port}"}),
        ("GET /api/about", {"Host": HOST, "Sec-Fetch-Site": "cross-site"}),
        ("GET /api/about", {"Host": HOST, "Sec-Fetch-Site": "same-site"}),
        ("GET /?token={token}", {"Host": HOST, "Sec-Fetch-Site": "cross-site"}),
        (
            "GET /?token={token}",
            {"Host": HOST, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"},
        ),
        (
            "GET /api/about",
            {"Host": HOST, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"},
        ),
    ],
)
def test_requests_from_elsewhere_are_refused(client, line, headers):
    names = {"port": client.page.port, "token": client.token}
    headers = {key.replace("-", "_"): value.format(**names) for key, value in headers.items()}
    assert client.raw(line.format(**names), **headers, x_clearhead_token=client.token) == 403


def test_two_hosts_or_none_are_refused(client):
    host = HOST.format(port=client.page.port)
    assert client.raw("GET /api/about", x_clearhead_token=client.token) in (400, 403)
    with socket.create_connection(("127.0.0.1", client.page.port), timeout=10) as s:
        given = f"Host: {host}\r\nHost: evil.example\r\nx-clearhead-token: {client.token}\r\n"
        s.sendall(f"GET /api/about HTTP/1.1\r\n{given}Connection: close\r\n\r\n".encode())
        assert int(s.makefile("rb").readline().split()[1]) in (400, 403)


def test_its_own_page_is_not_refused(client):
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{client.page.port}"
        given = {"Host": host, "Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
        assert client.raw("GET /api/about", **given, x_clearhead_token=client.token) == 200


def test_a_link_may_be_followed_from_anywhere(client):
    given = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "document"}
    host = HOST.format(port=client.page.port)
    assert client.raw(f"GET /?token={client.token}", Host=host, **given) == 200
    assert client.raw("GET /?token=wrong", Host=host, **given) == 403


def test_many_fields_are_no_token(client):
    """They caused a traceback and status 500."""
    host = HOST.format(port=client.page.port)
    assert client.raw(f"GET /?{'a=1&' * 70}", Host=host) == 403


def test_requests_that_never_end_do_not_keep_the_owner_out(client, monkeypatch):
    """A few hundred of them used up all connections."""
    monkeypatch.setattr(server, "_MOST_SECONDS", 2.0)  # a busy machine is slow to connect
    address = ("127.0.0.1", client.page.port)
    held = [socket.create_connection(address, timeout=10) for _ in range(300)]
    try:
        for number, each in enumerate(held):
            if number % 3:
                each.sendall(b"GET / HTTP/1.1\r\nHost: ")
        for _ in range(4):  # another byte does not extend the time
            time.sleep(0.1)
            held[1].sendall(b"x")
        assert [each.recv(1) for each in held] == [b""] * 300
    finally:
        for each in held:
            each.close()
    assert client("about").status_code == 200


@pytest.mark.parametrize("token", [None, "", "x", "{token}x", "{short}", "é", "{token},{token}"])
def test_the_token_is_needed(client, token):
    host = HOST.format(port=client.page.port)
    given = token and token.format(token=client.token, short=client.token[:-1])
    headers = {} if token is None else {"x_clearhead_token": given}
    assert client.raw("GET /api/about", Host=host, **headers) == 403
    query = "" if token is None else "?" + urlencode({"token": given})
    assert client.raw(f"GET /{query}", Host=host) == 403
    # The page's address is no key to the rest, nor the header to the page.
    assert client.raw(f"GET /api/about?token={client.token}", Host=host) == 403
    assert client.raw("GET /", Host=host, x_clearhead_token=client.token) == 403


def test_the_token_is_long_and_new_each_time(client):
    with clearhead.view(client.page.worker.maps[0], browser=False, wait=False) as other:
        assert len(client.token) >= 32
        assert client.token not in other.url


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "PATCH"])
def test_only_get(client, method):
    assert client.http.request(method, "/api/about").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/../../etc/passwd",
        "/api/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/assets/view.js",
        "/api/about/",
        "//api/about",
        "/api/about%00",
        "/api//about",
        "/\\..\\..\\etc\\passwd",
        "/api/",
        "/favicon.ico",
        "/api/tile/../about",
    ],
)
def test_there_are_no_other_paths(client, path):
    host = HOST.format(port=client.page.port)
    assert client.raw(f"GET {path}", Host=host, x_clearhead_token=client.token) in (400, 404)


GOOD = {"layer": "0", "batch": "0", "head": "0", "level": "1", "row": "0", "col": "0"}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "nonsense",
    ["-1", "99", "1e0", "NaN", "inf", "", " 0", "0x0", "cat", "9" * 400, "٣", "0;", "null", "0.0"],
)
def test_nonsense_is_refused(client, name, nonsense):
    answer = client("tile", **GOOD | {name: nonsense})
    assert answer.status_code == 400
    assert name in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("tile", {}),
        ("tile", {**GOOD, "more": "1"}),
        ("about", {"x": "1"}),
        ("state", {"layer": "0"}),
        ("row", {"layer": "0", "batch": "0", "head": "0", "query": "397", "count": "3"}),
        ("row", {"layer": "0", "batch": "0", "head": "0", "query": "0", "count": "51"}),
        ("row", {"layer": "0", "batch": "0", "head": "0", "query": "-1", "count": "3"}),
        ("tokens", {"batch": "0", "start": "397", "count": "1"}),
        ("tokens", {"batch": "0", "start": "0", "count": "4097"}),
        ("tokens", {"batch": "1", "start": "0", "count": "1"}),
        ("search", {"batch": "0"}),
    ],
)
def test_other_nonsense_is_refused(client, path, parameters):
    assert client(path, **parameters).status_code == 400


def test_a_parameter_twice_is_refused(client):
    query = urlencode([*GOOD.items(), ("row", "1")])
    assert client.http.get(f"/api/tile?{query}").status_code == 400


def test_a_long_address_is_refused(client):
    assert client("search", batch=0, text="x" * 3000).status_code == 414


def test_hostile_text_comes_back_as_text(client):
    for text in ("</script><script>alert(1)</script>", "\x00", "\u202e", "{{7*7}}", "%s%n"):
        answer = client("search", batch=0, text=text)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {"matches": [], "count": 0}


def test_it_listens_on_this_machine_only(client):
    assert client.page._socket.getsockname()[0] == "127.0.0.1"
    names = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in names - {"127.0.0.1"}:
        if address.startswith("127."):
            continue
        with pytest.raises(OSError):  # noqa: PT011  # refused or unreachable: any will do
            socket.create_connection((address, client.page.port), timeout=1)


# Many requests at once.


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
def test_fifty_at_once_do_not_grow(monkeypatch):
    """Fifty requests at a time for tiles that are computed anew: memory does not grow."""
    monkeypatch.setattr(routes, "_TILE_BYTES", 2**22)
    monkeypatch.setattr(tile_pyramid, "_OVERVIEW", 512)
    one = view_cases.structured(4096, heads=1, head_dim=16)
    with clearhead.view(one, browser=False, wait=False) as page:
        client = Client(page)
        client.wait()
        levels = client("about").json()["layers"][0]["grids"]
        level = len(levels) - 2
        assert levels[level][0] == 2048

        def ask(i):
            connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
            query = urlencode(GOOD | {"level": level, "row": i // 8 % 8, "col": i % 8})
            connection.request(
                "GET", f"/api/tile?{query}", headers={"x-clearhead-token": client.token}
            )
            answer = connection.getresponse()
            size = len(answer.read())
            connection.close()
            return answer.status, size

        with ThreadPoolExecutor(50) as pool:
            before = None
            for _ in range(3):
                found = list(pool.map(ask, range(100)))
                assert {status for status, _ in found} == {200}
                assert {size for _, size in found} == {256 * 256 * 4}
                before = resident() if before is None else before
        assert resident() - before < 24 * 2**20
        assert page._site._tiles.nbytes <= 2**22
        client.http.close()


def test_too_many_are_told_to_come_back(monkeypatch):
    monkeypatch.setattr(routes, "_MOST_WAITING", 3)
    go_on = threading.Event()
    one = view_cases.structured(97, heads=1, head_dim=8)
    with clearhead.view(one, browser=False, wait=False) as page:
        client = Client(page)
        client.wait()
        tile = page.worker.pyramids.get(HeadIndex(0, 0, 0)).tile
        page.worker.pyramids.get(HeadIndex(0, 0, 0)).tile = lambda *a: (go_on.wait(10), tile(*a))[1]
        parameters = GOOD | {"level": 0}
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(client, "tile", **parameters) for _ in range(12)]
            wait_for(lambda: sum(each.done() for each in asked) == 9)
            go_on.set()
            answers = [each.result() for each in asked]
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [503] * 9
        assert next(a for a in answers if a.status_code == 503).headers["retry-after"] == "1"
        assert client("tile", **parameters).status_code == 200
        client.http.close()


# view() and the command.


def test_what_cannot_be_viewed():
    with pytest.raises(TypeError, match="expected a Seen from watch"):
        clearhead.view([1, 2])
    with pytest.raises(ValueError, match="No attention was seen yet"):
        clearhead.view(Seen())
    one = view_cases.structured(7, heads=1, head_dim=4)
    with pytest.raises(ShapeError, match="expected one label per key, 7 of them, got 6"):
        clearhead.view(one, tokens=list("abcdef"))
    with pytest.raises(ShapeError, match="expected a list of 7 labels, got one string"):
        clearhead.view(one, tokens="abcdefg")


def test_a_port_that_is_taken(client):
    one = view_cases.structured(7, heads=1, head_dim=4)
    with pytest.raises(ValueError, match=f"port {client.page.port}: Address already in use"):
        clearhead.view(one, port=client.page.port, browser=False, wait=False)


def test_without_starlette(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("clearhead.viewer.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(ImportError, match=r"pip install 'clearhead\[view\]'"):
        clearhead.view(view_cases.structured(7, heads=1, head_dim=4))


def test_several_sequences_have_their_own_labels():
    q, k = torch.randn(2, 2, 13, 4), torch.randn(2, 2, 13, 4)
    lists = [[f"a{i}" for i in range(13)], [f"b{i}" for i in range(13)]]
    with clearhead.view(AttentionMap(q, k), tokens=lists, browser=False, wait=False) as page:
        client = Client(page)
        client.wait(0, 1, 1)
        level = len(client("about").json()["layers"][0]["grids"]) - 1
        answer = client("tile", layer=0, batch=1, head=1, level=level, row=0, col=0)
        expected = page.worker.maps[0][1, 1].numpy()
        np.testing.assert_allclose(np.frombuffer(answer.content, "<f4"), expected.ravel(), 1e-5)
        assert client("tokens", batch=1, start=0, count=1).json()["tokens"] == ["b0"]
        client.http.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny GPT-2 with random weights and a tokenizer of few words."""
    transformers = pytest.importorskip("transformers")
    from tiny_checkpoints import save_words

    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=12, n_layer=2, n_head=3, n_positions=64, vocab_size=20)
    transformers.GPT2Model(config).save_pretrained(folder)
    save_words(folder, view_cases.WORDS)
    return folder


def test_the_command_watches_a_checkpoint(folder, tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat " * 20, encoding="utf-8")
    asked = {}
    monkeypatch.setattr(
        "clearhead.viewer.view", lambda seen, **options: asked.update(options, seen=seen)
    )
    with pytest.raises(SystemExit) as end:
        cli.main(
            ["view", "--model", str(folder), "--text", str(text), "--port", "7", "--no-browser"]
        )
    assert end.value.code == 0
    assert asked["seen"].layers == ["h.0.attn", "h.1.attn"]
    assert asked["seen"]["h.0.attn"].shape == (1, 3, 64, 64)
    assert asked["tokens"] == (["the", "cat", "sat", "on", "a", "mat"] * 20)[:64]
    assert asked["ids"].shape == (1, 64)
    assert (asked["port"], asked["browser"]) == (7, False)
    note = "has 120 tokens, but the model accepts 64: only the first 64 are used."
    assert note in capsys.readouterr().err


def test_ctrl_c_ends_a_real_process():
    """It prints its URL, answers, stops on Ctrl-C in the middle of a job, and frees the port."""
    script = "import clearhead, view_cases; clearhead.view(view_cases.structured(16384, 2, 16))"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)},
        # As in a terminal: a shell ignores the signal for processes in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        line = process.stdout.readline()
        url = re.fullmatch(r"Open (http://127\.0\.0\.1:(\d+)/\?token=(\S+))\n", line)
        assert url, line + process.stderr.read()
        assert process.stdout.readline() == "Press Ctrl-C to stop.\n"
        assert httpx.get(url[1]).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", int(url[2])))
