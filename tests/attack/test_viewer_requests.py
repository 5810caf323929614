"""Requests that are no HTTP: nothing reaches the terminal, and the page is still served."""

import subprocess
import sys

# In a process of its own: pytest's handlers would take the records that Python prints.
PROGRAM = r"""
import http.client, random, socket, sys
import torch, clearhead
from clearhead import AttentionMap, Mask

random.seed(0)
m = AttentionMap(torch.rand(1, 1, 9, 4), torch.rand(1, 1, 9, 4), Mask.causal())
with clearhead.view(m, browser=False, wait=False) as viewer:
    token = viewer.url.partition("=")[2]
    host = f"Host: 127.0.0.1:{viewer.port}\r\n".encode()
    requests = [
        b"GARBAGE\r\n\r\n", b"\r\n\r\n", b"\x00" * 99, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET  HTTP/1.1\r\n" + host + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST / HTTP/1.1\r\n" + host + b"Transfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 70000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X\x00Y: 1\r\n\r\n", b"GET / HTTP/1.1\r\n : 1\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\n" + host + b"\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"GET /%ff%fe?token=\xff HTTP/1.1\r\n" + host + b"\r\n",
        *(random.randbytes(200) for _ in range(60)),
        *(b"GET /" + random.randbytes(9) + b" HTTP/1.1\r\n" + host + b"\r\n" for _ in range(60)),
    ]
    for request in requests:
        with socket.create_connection(("127.0.0.1", viewer.port), timeout=10) as client:
            try:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                while client.recv(9999):
                    pass
            except OSError:
                pass
    left = [socket.create_connection(("127.0.0.1", viewer.port)) for _ in range(5)]
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port)
    connection.request("GET", f"/?token={token}")
    print(len(requests), connection.getresponse().status)
"""


def test_a_request_prints_nothing():
    """Any page that the browser shows can send such requests to the port."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "141 200\n"
    assert done.stderr == ""
