"""Running: a server in a thread of its own, on this machine only, until somebody closes it."""

from __future__ import annotations

import asyncio
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
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from uvicorn.protocols.http.h11_impl import H11Protocol

from clearhead import drawing
from clearhead.viewer.jobs import Progress, Work
from clearhead.viewer.routes import Site
from clearhead.viewer.token_labels import Labels

_MOST_CONNECTIONS = 256
_MOST_SECONDS = 5.0  # from the first byte of a request to its last


class View:
    """A running viewer; close it, or use it in a `with` block.

    Attributes:
        url: Where to look. The token in it is the key: who has it can look, too.
        port: Where it listens.
    """

    def __init__(self, work: Work, labels: Labels, *, model: str, port: int) -> None:
        token = secrets.token_urlsafe(24)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(
                f"port {port}: {reason}.\n  Leave it out, and a free one is chosen."
            ) from None
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/?token={token}"
        self.work = work
        self._site = Site(work, labels, model)
        config = uvicorn.Config(
            self._site.app(token=token, port=self.port),
            lifespan="off",
            ws="none",
            http=_Impatient,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="clearhead view", daemon=True
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError(f"the server did not start on port {self.port}.")
            time.sleep(0.005)
        work.start()

    def __repr__(self) -> str:
        return f"View({self.url})" if self._thread.is_alive() else "View(closed)"

    def wait(self) -> None:
        """Stay until Ctrl-C, then close; a bar in the terminal shows what is computed."""
        try:
            with _bar(self.work):
                while self._thread.is_alive():
                    self._thread.join(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop the server and free its port."""
        self._server.should_exit = True
        self.work.stop()
        self._thread.join(timeout=10.0)
        self._site.close()
        self._socket.close()

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
    """Show the page, where there is a screen; a browser in the terminal could not draw it."""
    screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if screen or sys.platform in ("darwin", "win32"):
        webbrowser.open(url)


class _Impatient(H11Protocol):
    """A connection that is closed when a request does not come to its end in a few seconds.

    Else a few hundred requests that are begun and never finished keep the owner out.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own type
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """More bytes of the same request do not give it more time."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()  # it is here, and being answered
        elif self._late is None:
            self._late = self.loop.call_later(_MOST_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


@contextmanager
def _bar(work: Work) -> Iterator[None]:
    """A progress bar while a map is walked over; nothing at other times, and nothing in a pipe."""
    err = drawing.console(sys.stderr)
    columns = TextColumn("{task.description}", markup=False), BarColumn()
    with Bar(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=1.0, visible=False)

        def show(now: Progress | None) -> None:
            if now is None:
                bar.update(task, visible=False)
                return
            name = drawing.shorten(work.names[now.place.layer], 40)
            words = f"{name}, head {work.number(now.place)}: {now.what}"
            bar.update(task, description=words, completed=now.share, visible=True)

        work.on_progress = show
        try:
            yield
        finally:
            work.on_progress = lambda now: None
