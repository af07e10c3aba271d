"""Proxy of PostgreSQL's socket that counts round trips, and can lose a response or delay a COMMIT.

It can also refuse start-up parameters, as RDS Proxy does.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_SOCKET = ".s.PGSQL.5432"
# The text is that of RDS Proxy, with its apostrophe.
_REFUSAL = (
    "SFATAL\0VFATAL\0C0A000\0M"
    "Feature not supported: RDS Proxy currently doesn\N{RIGHT SINGLE QUOTATION MARK}t "
    "support command-line options.\0\0"
).encode()


class WireProxy:
    """Proxy with a Unix socket in `directory` that forwards connections to a server's Unix socket.

    `waits` counts the points where a client waits: Sync and Flush messages, each after another message.
    After `lose_next_commit`, the next COMMIT reaches the server, and the connection breaks before the
    response. After `delay_next_commit`, the client is disconnected at once, and the server gets the COMMIT
    later. With `refuses_options`, a client that sends parameters at start-up gets the error of RDS Proxy, and
    `refused` counts these. Each client keeps its connection to the server, as a pinned one of RDS Proxy.
    """

    def __init__(self, url: str, directory: Path, *, refuses_options: bool = False) -> None:
        self._target = str(Path(str(conninfo_to_dict(url)["host"])) / _SOCKET)
        self.url = make_conninfo(url, host=str(directory))
        self.waits = 0
        self.refused = 0
        self._refuses_options = refuses_options
        self._lose = False
        self._delay_seconds = 0.0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / _SOCKET))
        self._listener.listen(16)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()  # so that the last accepted connection is broken, too
        self.break_connections()
        for thread in self._threads:
            thread.join()

    def lose_next_commit(self) -> None:
        """Lose the response to the next COMMIT."""
        self._lose = True

    def delay_next_commit(self, seconds: float) -> None:
        """Disconnect the client of the next COMMIT, and forward the COMMIT after this time."""
        self._delay_seconds = seconds

    def break_connections(self) -> None:
        """Break every connection."""
        with self._lock:
            broken, self._open = self._open, []
        for each in broken:
            _shut(each)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]  # any callable
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            with self._lock:
                self._open += [client, server]
            losing = threading.Event()
            self._start(self._to_server, client, server, losing)
            self._start(self._to_client, server, client, losing)

    def _to_server(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        buffered = b""
        started = waited = False
        while data := _receive(client):
            buffered += data
            while (message := _first_message(buffered, started=started)) is not None:
                buffered = buffered[len(message) :]
                waits = started and message[:1] in {b"S", b"H"}
                self.waits += waits and not waited
                waited = waits
                if not started and self._refuses_options and b"\0options\0" in message:
                    self.refused += 1
                    client.sendall(b"E" + (len(_REFUSAL) + 4).to_bytes(4, "big") + _REFUSAL)
                    _disconnect(client)
                    data = b""  # the server sees a client that leaves
                if started and self._lose and b"COMMIT" in message:
                    self._lose = False
                    losing.set()
                if started and self._delay_seconds and b"COMMIT" in message:
                    delay, self._delay_seconds = self._delay_seconds, 0.0
                    _disconnect(client)
                    time.sleep(delay)
                started = True
            try:
                server.sendall(data)
            except OSError:
                break
        _shut(server)

    def _to_client(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        while data := _receive(server):
            if losing.is_set():
                if b"COMMIT\0" not in data:
                    continue  # a response to an earlier statement, lost as well
                break  # the server has committed, and the response is lost
            try:
                client.sendall(data)
            except OSError:
                break
        _shut(client)
        _shut(server)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def _disconnect(connection: socket.socket) -> None:
    """End both directions; the descriptor stays open for the threads that use it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _first_message(data: bytes, *, started: bool) -> bytes | None:
    """Return the first complete message of the client; the start-up message has no type byte."""
    head = 1 if started else 0
    if len(data) < head + 4:
        return None
    length = head + int.from_bytes(data[head : head + 4], "big")
    return data[:length] if len(data) >= length else None
