"""A proxy in front of an S3 server that injects faults of networks and servers into selected requests."""

from __future__ import annotations

import hashlib
import random
import re
import socket
import struct
import threading
import time
from base64 import b64encode
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
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
    delay_seconds: float = 0.0  # the server receives the request later by this time
    status: int = 0  # respond with this status instead of forwarding the request
    code: str = ""  # in the error document of such a response
    body: bytes = b""  # of such a response, instead of the error document
    lose_response: bool = False  # forward the request, but drop the response; with a delay, drop it first
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
    """A proxy with planned faults, which happen in the order of their plan.

    With `lacks_new_checksums`, it behaves as a server without the checksums that S3 has had since 2022.
    `late` counts the requests that the server received after their client had been disconnected.
    """

    upstream: str
    endpoint: str = ""
    log: list[ReceivedRequest] = field(default_factory=list)
    late: int = 0
    lacks_new_checksums: bool = False
    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thawed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thawed.set()

    def freeze(self) -> None:
        """Hold all requests from now on, as a server does that hangs."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Forward the held requests, and further ones at once."""
        self._thawed.set()

    def wait_until_thawed(self) -> None:
        """Wait while the proxy is frozen."""
        self._thawed.wait()

    def count_late(self) -> None:
        """Note that the server has received a request of a disconnected client."""
        with self._lock:
            self.late += 1

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


_ENTRY = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)


def _drop_last_entry(body: bytes) -> bytes:
    """A listing that lags: the entry that comes last in the page is not there yet."""
    entries = _ENTRY.findall(body)
    return body.replace(entries[-1], b"", 1) if entries else body


_KINDS: dict[str, Callable[[str], Fault]] = {
    "slow": lambda method: Fault(method=method, delay_seconds=0.15),
    "late": lambda method: Fault(method=method, delay_seconds=0.5, lose_response=True),
    "internal error": lambda method: Fault(method=method, status=500, code="InternalError"),
    "slow down": lambda method: Fault(method=method, status=503, code="SlowDown"),
    "lost response": lambda method: Fault(method=method, lose_response=True),
    "reset after execution": lambda method: Fault(method=method, lose_response=True, reset=True),
    "truncated": lambda method: Fault(method=method, keep_bytes=100),
    "reset within the body": lambda method: Fault(method=method, keep_bytes=1_000, reset=True),
    "lagging list": lambda method: Fault(method=method, rewrite=_drop_last_entry),
}


@dataclass
class RandomFaultProxy(FaultProxy):
    """A proxy that injects a fault into the share `rate` of requests; `counts` has the faults by kind."""

    rate: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def begin(self, seed: int, rate: float) -> None:
        """Draw faults with this seed and rate from now on."""
        self._random = random.Random(seed)
        self.rate = rate

    @override
    def take(self, method: str, path: str, range_: str) -> Fault | None:
        with self._lock:
            if self._random.random() >= self.rate:
                return None
            kinds = [kind for kind in _KINDS if (kind == "lagging list") <= ("list-type=2" in path)]
            kind = self._random.choice(kinds)
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return _KINDS[kind](method)


P = TypeVar("P", bound=FaultProxy)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def do_any(self) -> None:
        fault = self.proxy.take(self.command, self.path, self.headers.get("Range", ""))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = fault or self._refusal(body) or Fault(method=self.command)
        self.proxy.wait_until_thawed()
        if fault.before is not None:
            fault.before()
        is_late = fault.lose_response and fault.delay_seconds > 0
        if is_late:
            self._end(fault)
        time.sleep(fault.delay_seconds)
        if fault.status:
            self._respond_without_server(fault)
        elif is_late:
            self._request(fault, body)
            self.proxy.count_late()
        else:
            self._forward(fault, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any  # noqa: N815 - names that http.server calls

    def _refusal(self, body: bytes) -> Fault | None:
        """Return the response of such a server to a checksum that it does not know or does not find."""
        if not self.proxy.lacks_new_checksums:
            return None
        if any(name.lower().startswith(("x-amz-checksum-", "x-amz-sdk-checksum-")) for name in self.headers):
            return Fault(method=self.command, status=501, code="NotImplemented")
        if self.command == "POST" and self.path.endswith("?delete"):
            digest = b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
            if self.headers.get("Content-MD5") != digest:
                return Fault(method=self.command, status=400, code="InvalidDigest")
        return None

    def _respond_without_server(self, fault: Fault) -> None:
        body = fault.body or f"<Error><Code>{fault.code}</Code><Message>planned</Message></Error>".encode()
        self.send_response(fault.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _request(self, fault: Fault, body: bytes) -> tuple[HTTPResponse, bytes]:
        """Send the request to the server; return its response and the body of that."""
        headers = dict(self.headers.items())  # with the client's host, which its signature covers
        if fault.without_range:
            headers.pop("Range", None)
        upstream = urlsplit(self.proxy.upstream)
        assert upstream.hostname is not None
        connection = HTTPConnection(upstream.hostname, upstream.port, timeout=240)
        try:
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def _forward(self, fault: Fault, body: bytes) -> None:
        response, content = self._request(fault, body)
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
        else:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)

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
            proxy.thaw()
            server.shutdown()
            thread.join()
