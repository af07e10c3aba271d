"""How fast the object stores read and write.

    python -m benchmarks.object_store [--json] [--quick]

The local directory is compared with plain files with the same fsync. S3 is compared with `http.client` and
the same server: a minimal one on loopback in a separate process, which stores nothing. `put_as_file` is the
same PUT with a file-like object over the buffers instead of joined buffers. Bodies consist of 32 buffers, as
in an agent.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
import socketserver
import tempfile
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import click
import orjson
from typing_extensions import override

from core.clock import SystemClock
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from object_store.s3.store import S3Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from object_store.interface import ObjectStore

MIB = 1 << 20
BUFFERS = 32
PURPOSE = Purpose.COMPACTION


class _Server(socketserver.StreamRequestHandler):
    """Minimal S3 server: a GET of `…/<size>` returns that many bytes."""

    rbufsize = MIB

    @override
    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    @override
    def handle(self) -> None:
        filler = memoryview(bytes(MIB))
        target = memoryview(bytearray(MIB))
        while line := self.rfile.readline():
            method, path, _ = line.decode().split()
            headers = {}
            while (header := self.rfile.readline().strip().lower()) != b"":
                name, _, value = header.partition(b":")
                headers[name] = value.strip()
            if headers.get(b"expect") == b"100-continue":
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = int(headers.get(b"content-length", 0))
            while length:
                length -= self.rfile.readinto(target[:length])
            size = int(path.rpartition("/")[2]) if method == "GET" else 0
            body = _document(path) if method == "POST" else b""
            head = f'HTTP/1.1 200 OK\r\nETag: "tag"\r\nContent-Length: {size or len(body)}\r\n\r\n'
            self.wfile.write(head.encode() + body)
            while size:
                size -= self.request.send(filler[:size])


def _document(path: str) -> bytes:
    """Return the response that starts or completes a multipart upload."""
    name = "InitiateMultipartUploadResult" if path.endswith("uploads") else "CompleteMultipartUploadResult"
    return f"<{name}><UploadId>1</UploadId></{name}>".encode()


def _serve(addresses: Connection) -> None:
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Server) as server:
        addresses.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def _running_server() -> Iterator[str]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


class _Buffers(io.RawIOBase):
    """Seekable file over separate buffers."""

    def __init__(self, buffers: list[bytes]) -> None:
        self._buffers = buffers
        self._size = sum(map(len, buffers))
        self._position = 0

    def __len__(self) -> int:
        return self._size

    @override
    def seekable(self) -> bool:
        return True

    @override
    def readable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (self._size if whence == os.SEEK_END else 0)
        return self._position

    @override
    def read(self, size: int = -1, /) -> bytes:
        each = len(self._buffers[0])
        index, inside = divmod(self._position, each)
        if index == len(self._buffers):
            return b""
        piece = memoryview(self._buffers[index])[inside : inside + size if size >= 0 else None]
        self._position += len(piece)
        return cast("bytes", piece)


def _rate(call: Callable[[], object], size: int, rounds: int) -> float:
    """Return median MB/s."""
    call()
    taken = []
    for _ in range(rounds):
        begin = perf_counter()
        call()
        taken.append(perf_counter() - begin)
    return round(size / median(taken) / 1e6, 1)


def _drain(store: ObjectStore, name: str) -> None:
    target = memoryview(bytearray(MIB))
    with closing(store.open_stream(name, purpose=PURPOSE)) as stream:
        while stream.readinto(target):
            pass


def _upload(store: ObjectStore, name: str, buffers: list[bytes]) -> None:
    upload = store.start_upload(name, purpose=PURPOSE)
    for buffer in buffers:
        upload.write(buffer)
    upload.complete()


def _cases(
    store: ObjectStore, name: str, buffers: list[bytes], rounds: int, plain: dict[str, float]
) -> dict[str, float]:
    size = sum(map(len, buffers))
    rates = {
        "put": _rate(lambda: store.put(name, buffers, purpose=PURPOSE), size, rounds),
        "upload": _rate(lambda: _upload(store, name, buffers), size, rounds),
        "stream": _rate(lambda: _drain(store, name), size, rounds),
        **{f"plain_{way}": rate for way, rate in plain.items()},
    }
    for way, against in (("put", "write"), ("upload", "write"), ("stream", "read")):
        rates[f"{way}_ratio"] = round(rates[way] / plain[against], 2)
    return rates


def _local(buffers: list[bytes], rounds: int) -> dict[str, float]:
    size = sum(map(len, buffers))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "plain"

        def write() -> None:
            with path.open("wb", buffering=0) as file:
                for buffer in buffers:
                    file.write(buffer)
                os.fsync(file.fileno())

        def read() -> None:
            target = bytearray(MIB)
            with path.open("rb", buffering=0) as file:
                while file.readinto(target):
                    pass

        plain = {"write": _rate(write, size, rounds), "read": _rate(read, size, rounds)}
        with closing(LocalStore(Path(directory) / "store", SystemIds(SystemClock()))) as store:
            return _cases(store, "v1/object", buffers, rounds, plain)


def _s3(buffers: list[bytes], rounds: int) -> dict[str, float]:
    size = sum(map(len, buffers))
    clock = SystemClock()
    with _running_server() as endpoint:
        connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
        body = b"".join(buffers)

        def write() -> None:
            connection.request("PUT", "/bucket/x", body)
            connection.getresponse().read()

        def read() -> None:
            target = bytearray(MIB)
            connection.request("GET", f"/bucket/{size}")
            response = connection.getresponse()
            while response.readinto(target):
                pass

        plain = {"write": _rate(write, size, rounds), "read": _rate(read, size, rounds)}
        connection.close()
        with closing(
            S3Store("bucket", "", endpoint=endpoint, region="us-east-1", clock=clock, ids=SystemIds(clock))
        ) as store:
            rates = _cases(store, str(size), buffers, rounds, plain)

            def put_as_file() -> None:
                store._calls.send(  # noqa: SLF001 - what `put` does, with another kind of body
                    "writing",
                    PURPOSE,
                    lambda client: client.put_object(
                        Bucket="bucket", Key="x", Body=cast("IO[bytes]", _Buffers(buffers))
                    ),
                )

            rates["put_as_file"] = _rate(put_as_file, size, rounds)
    return rates


def measure(*, quick: bool) -> dict[str, Any]:
    """Return MB/s by store and object size, with ratios to the plain alternatives."""
    os.environ.update(
        AWS_ACCESS_KEY_ID="none", AWS_SECRET_ACCESS_KEY="none", AWS_EC2_METADATA_DISABLED="true"
    )
    report: dict[str, Any] = {"unit": "MB/s"}
    for mebibytes in (1, 8) if quick else (1, 8, 64):
        buffers = [os.urandom(mebibytes * MIB // BUFFERS) for _ in range(BUFFERS)]
        rounds = 5 if quick else max(5, 200 // mebibytes)
        report[f"local_{mebibytes}_mib"] = _local(buffers, rounds)
        report[f"s3_{mebibytes}_mib"] = _s3(buffers, rounds)
    return report


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="Fewer rounds and no large objects.")
def main(*, as_json: bool, quick: bool) -> None:
    """Print the report."""
    report = measure(quick=quick)
    if as_json:
        print(orjson.dumps(report).decode())
        return
    for case, rates in report.items():
        if isinstance(rates, dict):
            print(f"{case}: " + ", ".join(f"{way} {rate}" for way, rate in rates.items()))


if __name__ == "__main__":
    main()
