"""A proxy before an S3 server that does to chosen requests what networks and servers do."""

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
    """What happens to the next `times` requests of that method whose path and query contain `part`."""

    method: str
    part: str = ""
    times: int = 1
    before: Callable[[], object] | None = None  # done when the request arrives
    status: int = 0  # answered without asking the server
    code: str = ""  # of an error document
    body: bytes = b""  # with `status`, instead of an error document
    lose_response: bool = False  # the server does it, nobody hears of it
    keep_bytes: int | None = None  # of the answer's body; then the connection ends
    reset: bool = False  # by a reset instead of an orderly end
    stall: bool = False  # instead of ending, say nothing until the client goes away
    without_range: bool = False  # the Range header does not reach the server
    rewrite: Callable[[bytes], bytes] | None = None  # what the answer's body becomes


@dataclass(slots=True)
class ReceivedRequest:
    """One request that reached the proxy."""

    method: str
    path: str
    range: str


@dataclass
class FaultProxy:
    """Faults are used up in the order in which they were planned."""

    upstream: str
    endpoint: str = ""
    log: list[ReceivedRequest] = field(default_factory=list)
    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, *faults: Fault) -> None:
        """Let these happen, after those that were planned before."""
        with self._lock:
            self._faults += [fault for fault in faults for _ in range(fault.times)]

    @property
    def all_happened(self) -> bool:
        """Whether nothing that was planned is left."""
        return not self._faults

    def count(self, method: str, part: str = "") -> int:
        """How many such requests came."""
        return sum(request.method == method and part in request.path for request in self.log)

    def take(self, method: str, path: str, range_: str) -> Fault | None:
        """Note a request; the fault that is planned for it."""
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
            self._answer_alone(fault)
        else:
            self._forward(fault, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any  # noqa: N815 - names that http.server looks for

    def _answer_alone(self, fault: Fault) -> None:
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
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if fault.lose_response:
            self._end(fault)
            return
        if fault.rewrite is not None:
            content = fault.rewrite(content)
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "transfer-encoding", "date", "server", "content-length"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
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
            # A linger of zero makes close() send RST.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what these tests are about."""


@contextmanager
def running_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy on loopback before `upstream`, for the length of the block."""
    with serving(FaultProxy(upstream)) as proxy:
        yield proxy


@contextmanager
def serving(proxy: P) -> Iterator[P]:
    """Let `proxy` serve on loopback for the length of the block."""
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
