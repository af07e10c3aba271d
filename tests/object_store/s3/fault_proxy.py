"""A proxy in front of an S3 server that injects faults of networks and servers into selected requests."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of the next `times` requests with that method whose path and query contain `part`."""

    method: str
    part: str = ""
    times: int = 1
    before: Callable[[], object] | None = None  # called when the request arrives
    status: int = 0  # respond with this status instead of forwarding the request
    code: str = ""  # in the error document of such a response
    body: bytes = b""  # of such a response, instead of the error document
    lose_response: bool = False  # forward the request, but drop the response
    keep_bytes: int | None = None  # of the response's body; then end the connection
    reset: bool = False  # end the connection with RST instead of FIN
    stall: bool = False  # instead of ending, stay silent until the client disconnects
    without_range: bool = False  # remove the Range header from the request
    rewrite: Callable[[bytes], bytes] | None = None  # applied to the response's body


@dataclass(slots=True)
class ReceivedRequest:
    """A request that reached the proxy."""

    method: str
    path: str
    range: str


@dataclass
class FaultProxy:
    """A proxy with planned faults, which happen in the order of their plan."""

    upstream: str
    endpoint: str = ""
    log: list[ReceivedRequest] = field(default_factory=list)
    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, *faults: Fault) -> None:
        """Plan these faults after the ones that were planned before."""
        with self._lock:
            self._faults += [fault for fault in faults for _ in range(fault.times)]

    @property
    def all_happened(self) -> bool:
        """True if every planned fault has happened."""
        return not self._faults

    def count(self, method: str, part: str = "") -> int:
        """Return the number of such requests."""
        return sum(request.method == method and part in request.path for request in self.log)

    def take(self, method: str, path: str, range_: str) -> Fault | None:
        """Record a request; return the fault that is planned for it."""
        with self._lock:
            self.log.append(ReceivedRequest(method, path, range_))
            for index, fault in enumerate(self._faults):
                if fault.method == method and fault.part in path:
                    return self._faults.pop(index)
        return None


P = TypeVar("P", bound=FaultProxy)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def do_any(self) -> None:
        fault = self.proxy.take(self.command, self.path, self.headers.get("Range", ""))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = fault or Fault(method=self.command)
        if fault.before is not None:
            fault.before()
        if fault.status:
            self._respond_without_server(fault)
        else:
            self._forward(fault, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any  # noqa: N815 - names that http.server calls

    def _respond_without_server(self, fault: Fault) -> None:
        body = fault.body or f"<Error><Code>{fault.code}</Code><Message>planned</Message></Error>".encode()
        self.send_response(fault.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _forward(self, fault: Fault, body: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        if fault.without_range:
            headers.pop("Range", None)
        upstream = urlsplit(self.proxy.upstream)
        assert upstream.hostname is not None
        connection = HTTPConnection(upstream.hostname, upstream.port, timeout=240)
        try:
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if fault.lose_response:
            self._end(fault)
            return
        if fault.rewrite is not None:
            content = fault.rewrite(content)
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in {"connection", "transfer-encoding", "date", "server", "content-length"}:
                self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content if fault.keep_bytes is None else content[: fault.keep_bytes])
        if fault.keep_bytes is not None:
            self._end(fault)

    def _end(self, fault: Fault) -> None:
        self.close_connection = True
        self.wfile.flush()
        if fault.stall:
            self.connection.recv(1)
        if fault.reset:
            # With a linger time of zero, close() sends RST.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect: the tests do that on purpose."""


@contextmanager
def running_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Run a proxy on loopback in front of `upstream` during the block."""
    with serving(FaultProxy(upstream)) as proxy:
        yield proxy


@contextmanager
def serving(proxy: P) -> Iterator[P]:
    """Serve `proxy` on loopback during the block."""
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with _Server(("127.0.0.1", 0), handler) as server:
        proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
