"""One Java process that lives on, so that neither its start nor its cold code is measured.

It reads a request from a line and writes the response to a line. It ends when its standard input is closed,
thus also when this process dies.
"""

from __future__ import annotations

import re
import subprocess
from itertools import count
from pathlib import Path
from statistics import fmean, median
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.beside_kafka.load import Load, LoadError
from benchmarks.beside_kafka.security import java_settings
from tests.fixtures import kafka_tools
from tests.fixtures.pipes import is_readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

_SOURCES = Path(__file__).parent / "java"
_PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
_CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
# 1000 records sent, 980.4 records/sec (0.96 MB/sec), 4.50 ms avg latency, 300.00 ms max latency, 2 ms 50th, …
_PRODUCED = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec .* (\d+) ms 50th, .* (\d+) ms 99th, .* 99\.9th", re.MULTILINE
)
# start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms,
# fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
_CONSUMED = re.compile(
    r"^\d{4}-[^,]*, \d{4}-[^,]*, ([\d.]+), [\d.]+, (\d+), [\d.]+, (-?\d+), (-?\d+), ", re.MULTILINE
)
# producer-metrics:batch-size-avg:{client-id=producer-0}  : 15943.210
_METRIC = re.compile(r"^producer-metrics:([a-z-]+):\{client-id=producer-\d+\}\s*: ([\d.]+)", re.MULTILINE)
_KIB, _MIB = 2**10, 2**20


class JavaProcess:
    """A source file of `java/`, running with Kafka's classes."""

    def __init__(self, source: str, *, heap: str) -> None:
        self._heap = heap
        self._source = str(_SOURCES / source)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def request(self, line: bytes, seconds: float) -> Any:  # noqa: ANN401  # JSON
        """Return the response to a request. If there is none in time, the process ends."""
        if self._process is None:
            options = (f"-Xmx{self._heap}", "-Duser.language=en")
            self._process = subprocess.Popen(
                kafka_tools.command(self._source, options=options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        response = b""
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
            if is_readable(self._process.stdout, seconds):
                response = self._process.stdout.readline()
        finally:
            if not response:
                self.stop()
        if not response:
            raise LoadError(f"Java did not respond within {seconds:.0f} s")
        return orjson.loads(response)


class JavaTransactions:
    """Transactional producers of Java, in threads of one process, with default settings."""

    name = "java"

    def __init__(self, java: JavaProcess) -> None:
        self._java = java

    def transact(
        self,
        settings: Mapping[str, str],
        topic: str,
        *,
        clients: int,
        partitions: int,
        transactions: int,
        records: int,
        record_bytes: int,
        seconds: float,
    ) -> Load:
        """Run this number of transactions with each client, sequentially."""
        request = {
            "settings": java_settings(settings),
            "topic": topic,
            "clients": clients,
            "partitions": partitions,
            "transactions": transactions,
            "records": records,
            "record_bytes": record_bytes,
        }
        response = self._java.request(orjson.dumps(request), seconds)
        if response["errors"]:
            raise LoadError(f"transactions of Java: {response['errors'][0]}")
        return Load(
            megabytes=0.0,
            seconds=response["seconds"],
            p50_ms=response["p50_ms"],
            p99_ms=response["p99_ms"],
            transactions=transactions * clients,
        )


class JavaClients:
    """Kafka's own perf tools, in threads of one process. Clients have default settings."""

    name = "java"

    def __init__(self, java: JavaProcess) -> None:
        self._java = java
        self._groups = count()

    def _run(
        self, tool: str, settings: Mapping[str, str], clients: Sequence[Sequence[str]], seconds: float
    ) -> str:
        # A file, because the tools split an argument at each "=".
        with NamedTemporaryFile("w", suffix=".properties") as file:
            file.writelines(f"{name}={value}\n" for name, value in java_settings(settings).items())
            file.flush()
            arguments = [["--command-config", file.name, *each] for each in clients]
            response = self._java.request(orjson.dumps({"class": tool, "clients": arguments}), seconds)
        if response["errors"]:
            raise LoadError(f"{tool.rpartition('.')[2]}: {response['errors'][0]}")
        output: str = response["output"]
        return output

    def produce(
        self,
        settings: Mapping[str, str],
        topic: str,
        *,
        clients: int,
        records: int,
        record_bytes: int,
        codec: str,
        seconds: float,
    ) -> Load:
        """Produce as many records from each client, and wait until all are acknowledged."""
        arguments = [
            [
                "--topic", topic,
                "--num-records", str(records),
                "--record-size", str(record_bytes),
                "--throughput", "-1",
                "--print-metrics",
                "--command-property",
                f"compression.type={codec}",
                f"client.id=producer-{number}",
            ]
            for number in range(clients)
        ]  # fmt: skip
        output = self._run(_PRODUCER, settings, arguments, seconds)
        found = [tuple(map(float, each)) for each in _PRODUCED.findall(output)]
        sent = sum(each[0] for each in found)
        if sent != records * clients:
            raise LoadError(f"{sent:.0f} of {records * clients} records were acknowledged")
        longest = max(number / rate for number, rate, _, _ in found)
        return Load(
            megabytes=sent * record_bytes / 1e6,
            seconds=longest,
            p50_ms=median(each[2] for each in found),
            p99_ms=median(each[3] for each in found),
            requests=_requests(output, longest),
        )

    def consume(
        self,
        settings: Mapping[str, str],
        topic: str,
        *,
        clients: int,
        partitions: int,
        records: int,
        record_bytes: int,
        seconds: float,
    ) -> Load:
        """Read a topic from its start, each client in a new group; the time to join does not count."""
        del partitions, record_bytes  # the tool finds out
        arguments = [
            [
                "--topic", topic,
                "--num-records", str(records),
                "--timeout", str(int(seconds * 1000)),
                "--bootstrap-server", settings["bootstrap.servers"],
                "--group", f"{topic}-{next(self._groups)}",
                "--command-property",
                f"client.id=consumer-{number}",
            ]
            for number in range(clients)
        ]  # fmt: skip
        output = self._run(_CONSUMER, settings, arguments, seconds)
        found = [tuple(map(float, each)) for each in _CONSUMED.findall(output)]
        if len(found) != clients or any(each[1] < records for each in found):
            raise LoadError(f"{[each[1] for each in found]} of {records} records were read")
        return Load(
            megabytes=sum(each[0] for each in found) * _MIB / 1e6,
            seconds=max(each[3] for each in found) / 1000,
        )


def _requests(output: str, seconds: float) -> dict[str, float]:
    """Return the means over producers of what their metrics say of their requests."""
    metrics: dict[str, list[float]] = {}
    for name, value in _METRIC.findall(output):
        metrics.setdefault(name, []).append(float(value))
    found = {name: fmean(values) for name, values in metrics.items()}
    latency_ms = found["request-latency-avg"]
    return {
        "batch_kib": found["batch-size-avg"] / _KIB,
        "request_kib": found["request-size-avg"] / _KIB,
        "latency_ms": latency_ms,
        "in_flight": found["request-total"] / seconds * latency_ms / 1000,  # Little's law
    }
