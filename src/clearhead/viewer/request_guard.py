"""Guard: decides which requests are answered. Every request passes it first.

The server listens on this machine only, but any website that is open in the browser can send
requests to it, and an attacker can point a domain to 127.0.0.1 (DNS rebinding). So a request must
name this server as its host, must not come from another site, and must carry the secret token that
was printed when the server started.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = b"x-clearhead-token"
_MOST_QUERY = 2048  # bytes


class Guard:
    """ASGI middleware that answers only requests from the viewer's own page.

    Args:
        app: The application to protect.
        token: The secret. It is part of the URL of the page, and a header of its requests.
        port: The port of the server.
        policy: The Content-Security-Policy of the page.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int, policy: str) -> None:
        self._app = app
        self._token = token.encode("ascii")
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}
        self._headers = [
            (b"content-security-policy", policy.encode("ascii")),
            (b"cache-control", b"no-store"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"x-frame-options", b"DENY"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer refused requests here, and pass all others on."""
        if scope["type"] != "http":
            return
        refused = self._refusal(scope)
        if refused is None:
            await self._app(scope, receive, self._with_headers(send))
            return
        status, reason = refused
        body = f"{reason}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await self._with_headers(send)(start)
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the reason, or None if the request may pass."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 403, "This server answers only requests to its own address."
        if any(origin not in self._origins for origin in headers.get(b"origin", [])):
            return 403, "This server answers only requests from its own page."
        site, aim = (headers.get(b"sec-fetch-" + name, []) for name in (b"site", b"dest"))
        followed = scope["path"] == "/" and aim == [b"document"]  # a link, such as in a notebook
        if not followed and any(each not in (b"same-origin", b"none") for each in site):
            return 403, "This server answers only requests from its own page."
        if scope["method"] != "GET":
            return 405, "Only GET is supported."
        if len(scope["query_string"]) > _MOST_QUERY:
            return 414, "The URL is too long."
        if not self._has_token(scope, headers.get(TOKEN_HEADER, [])):
            return 403, (
                "The token is missing or wrong. "
                "Open the complete URL that was printed when the server started."
            )
        return None

    def _has_token(self, scope: Scope, given: list[bytes]) -> bool:
        """Whether the token is valid: in the URL of the page, or in a header of other requests."""
        if scope["path"] == "/":
            try:
                query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=64)
            except ValueError:  # more fields than that
                return False
            given = [text.encode("utf-8") for text in query.get("token", [])]
        # Compared in constant time, so that the duration reveals nothing about the token.
        return len(given) == 1 and hmac.compare_digest(given[0], self._token)

    def _with_headers(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self._headers]}
            await send(message)

        return sending
