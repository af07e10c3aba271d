"""S3 server that rejects every request with one error, as a real one does with an expired token."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator


class FailingStore(ThreadingHTTPServer):
    """Server of `status` and `code`; counts its requests."""

    daemon_threads = True

    def __init__(self, status: int, code: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.body = f"<Error><Code>{code}</Code><Message>of a test</Message></Error>".encode()
        self.requests = 0

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FailingStore

    def do_GET(self) -> None:
        """Reject the request."""
        self.server.requests += 1
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 -- names of the base class

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@contextmanager
def failing_store(status: int, code: str) -> Iterator[FailingStore]:
    """Run a server for the block."""
    with FailingStore(status, code) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
