"""View: the server, in its own thread, reachable from this machine only."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import uvicorn
from h11 import ProtocolError
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from uvicorn.protocols.http.h11_impl import H11Protocol

from clearhead import drawing
from clearhead.viewer.jobs import Progress, Worker
from clearhead.viewer.routes import Site
from clearhead.viewer.token_labels import Labels

_MOST_CONNECTIONS = 256
_MOST_SECONDS = 5.0  # for a request to arrive completely


class View:
    """A running viewer. Close it, or use it in a `with` block.

    Attributes:
        url: The URL of the page. It contains a secret token: anyone who has it can see the page.
        port: The port of the server.
    """

    def __init__(self, worker: Worker, labels: Labels, *, model: str, port: int) -> None:
        token = secrets.token_urlsafe(24)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(
                f"port {port}: {reason}.\n  Leave it out to use a free port."
            ) from None
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/?token={token}"
        self.worker = worker
        self._site = Site(worker, labels, model)
        config = uvicorn.Config(
            self._site.app(token=token, port=self.port),
            lifespan="off",
            ws="none",
            http=_TimeLimited,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
        self._errors = _bugs_only()
        logging.getLogger("uvicorn").addHandler(self._errors)
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="clearhead view", daemon=True
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError(f"The server did not start on port {self.port}.")
            time.sleep(0.005)
        worker.start()

    def __repr__(self) -> str:
        return f"View({self.url})" if self._thread.is_alive() else "View(closed)"

    def wait(self) -> None:
        """Block until Ctrl-C, then close. A progress bar shows what is being computed."""
        try:
            with _bar(self.worker):
                while self._thread.is_alive():
                    self._thread.join(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop the server and free its port."""
        self._server.should_exit = True
        self.worker.stop()
        self._thread.join(timeout=10.0)
        self._site.close()
        self._socket.close()
        logging.getLogger("uvicorn").removeHandler(self._errors)

    def __enter__(self) -> View:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_browser(url: str) -> None:
    """Open the page if there is a display. A browser in a terminal could not draw it."""
    screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if screen or sys.platform in ("darwin", "win32"):
        webbrowser.open(url)


def _bugs_only() -> logging.Handler:
    """Print what the server logs only if it is a bug; any request can cause the rest.

    Without a handler, Python prints all warnings.
    """
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    handler.addFilter(
        lambda record: bool(record.exc_info and not isinstance(record.exc_info[1], ProtocolError))
    )
    return handler


class _Server(uvicorn.Server):
    """Closes the sockets of all connections before its event loop ends."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Abort what is left after the graceful shutdown."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            if isinstance(connection, H11Protocol):
                connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes a socket one turn after its transport


class _TimeLimited(H11Protocol):
    """Closes a connection if a request does not arrive completely within a few seconds.

    Otherwise a few hundred unfinished requests would use up all connections.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start the timer for a request. Further bytes of the same request do not extend it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()  # complete, and being answered
        elif self._late is None:
            self._late = self.loop.call_later(_MOST_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


@contextmanager
def _bar(worker: Worker) -> Iterator[None]:
    """A progress bar while something is computed; nothing in a pipe."""
    err = drawing.console(sys.stderr)
    columns = TextColumn("{task.description}", markup=False), BarColumn()
    with Bar(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=1.0, visible=False)

        def show(now: Progress | None) -> None:
            if now is None:
                bar.update(task, visible=False)
                return
            name = drawing.shorten(worker.names[now.head.layer], 40)
            text = f"{name}, head {worker.number(now.head)}: {now.what}"
            bar.update(task, description=text, completed=now.share, visible=True)

        worker.on_progress = show
        try:
            yield
        finally:
            worker.on_progress = lambda now: None
