"""The web page of a board: a server on 127.0.0.1 that answers GET requests with a token only.

Who may read: the address of the page holds a random token, compared in constant time. The header
``Host`` must name this machine, which refuses a foreign name that resolves to 127.0.0.1 (DNS
rebinding); any port may be in it, so that an SSH tunnel works. A request with another ``Origin``
is refused. The page loads nothing from elsewhere, and its policy forbids it.

Every connection has a thread, so their number is bounded: pages by a semaphore, and of the others,
which may never send a request, the oldest is closed for a new one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from normscope.errors import StateError
from normscope.watch.board import Board

ADDRESS = "127.0.0.1"
_HOST = re.compile(r"(?:localhost|127\.0\.0\.1)(?::\d{1,5})?", re.ASCII)
_HEARTBEAT = 10.0  # seconds without news after which a stream shows that it is alive
_MOST_STREAMS = 32
_MOST_OTHERS = 64  # connections that are not streams: page loads, idle ones
_TIMEOUT = 30.0  # seconds of a connection that neither sends nor takes anything
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """The server of one board; `serve_forever` runs it.

    Args:
        board: what it shows.
        port: to listen on; 0 for any that is free.

    Raises:
        StateError: if the port is in use.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # connections that wait to be accepted

    def __init__(self, board: Board, port: int = 0) -> None:
        self.board = board
        self.token = secrets.token_urlsafe(16)
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self._others: dict[socket.socket, None] = {}  # connections without a stream, oldest first
        self._lock = threading.Lock()
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise StateError(
                f"port {port} of {ADDRESS} cannot be used ({error.strerror}); give another by "
                "--port, or none for any that is free."
            ) from error

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread; of too many without a stream, end the oldest."""
        with self._lock:
            self._others[request] = None
            oldest = next(iter(self._others)) if len(self._others) > _MOST_OTHERS else None
        if oldest is not None:
            self.forget(oldest)
            with suppress(OSError):  # closed meanwhile
                oldest.shutdown(socket.SHUT_RDWR)  # its thread then ends
        super().process_request(request, client_address)

    def forget(self, request: socket.socket) -> None:
        """Take a connection out of those that may be ended for a new one."""
        with self._lock:
            self._others.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error in one line; ignore connections that browsers close."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(
                f"normscope: the page could not be sent ({type(error).__name__}: {error})",
                file=sys.stderr,
                flush=True,
            )


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _TIMEOUT
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        refusal = self._refusal()
        if refusal:
            self._answer(HTTPStatus.FORBIDDEN, refusal)
            return
        if "/" not in self.path.partition("?")[0].removeprefix("/"):  # "events" is relative to it
            location = f"/{self.server.token}/"
            self._answer(HTTPStatus.FOUND, f"See {location}", {"Location": location})
            return
        pages: dict[str, Callable[[], None]] = {"": self._page, "events": self._stream}
        answer = pages.get(self._path_parts()[1])
        if answer is None:
            self._answer(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            answer()

    def _refuse_method(self) -> None:
        self.close_connection = True  # a body may follow, which is not read
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered.", {"Allow": "GET"})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # every method but GET
            return self._refuse_method
        raise AttributeError(name)

    def _path_parts(self) -> tuple[str, str]:
        """Return the token in the address, and what is behind it."""
        token, _, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        return token, rest

    def _refusal(self) -> str:
        """Return why a request is refused; "" if it is not."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            return "The host is not this machine; open the page by localhost or 127.0.0.1."
        origins = self.headers.get_all("Origin", [])
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return "Requests of other pages are refused."
        token = self._path_parts()[0].encode(errors="replace")
        if not secrets.compare_digest(token, self.server.token.encode()):
            return "The token is missing or wrong; open the address that normscope watch printed."
        return ""

    def _answer(
        self,
        status: HTTPStatus,
        text: str,
        headers: dict[str, str] | None = None,
        kind: str = "text/plain",
    ) -> None:
        content = text.encode()
        self.send_response(status)
        more = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**_HEADERS, **more, **(headers or {})}.items():
            self.send_header(name, value)
        if status is not HTTPStatus.OK:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _page(self) -> None:
        text, policy = _page()
        self._answer(HTTPStatus.OK, text, {"Content-Security-Policy": policy}, "text/html")

    def _stream(self) -> None:
        """Send events until the browser or the board closes."""
        if not self.server.streams.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open; close some.")
            return
        try:
            self.server.forget(self.connection)
            self.close_connection = True
            self.send_response(HTTPStatus.OK)
            for name, value in {**_HEADERS, "Content-Type": "text/event-stream"}.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self._send_events()
        except (ConnectionError, TimeoutError):
            pass  # the browser is gone
        finally:
            self.server.streams.release()

    def _send_events(self) -> None:
        version = 0
        while not self.server.board.is_closed:
            message = self.server.board.wait(version, _HEARTBEAT)
            if message is None:
                self._send("event: alive\ndata: 1\n\n")
                continue
            version = message["version"]
            self._send(f"data: {json.dumps(message, allow_nan=False)}\n\n")

    def _send(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def version_string(self) -> str:
        """Name the program only."""
        return "normscope"

    def log_message(self, *arguments: Any) -> None:
        """Print nothing: the terminal belongs to the command."""


@cache
def _page() -> tuple[str, str]:
    """Return the page with its style and script, and the policy that allows nothing else."""
    folder = files("normscope.watch") / "page"
    html, style, script = (
        (folder / f"watch.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js")
    )
    rules = (
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",
        f"script-src '{_digest(script)}'",
        f"style-src '{_digest(style)}'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    text = html.replace("/* style */", style, 1).replace("/* script */", script, 1)
    return text, "; ".join(rules)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def serve(board: Board, port: int = 0, announce: Callable[[str], None] = print) -> None:
    """Serve the page of a board until Ctrl-C.

    Args:
        board: open.
        port: on 127.0.0.1; 0 for any that is free.
        announce: called with the address of the page once it is served.
    """
    with Server(board, port) as server:
        announce(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
