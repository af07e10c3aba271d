"""Driver for kcat. It cannot administer topics, and has the codecs of its librdkafka."""

from __future__ import annotations

import re
import subprocess
from collections import deque
from typing import IO, Any

from tests.agent.kafka.work import Work
from tests.real_clients.drivers.request_loop import serve
from tests.real_clients.drivers.security import Security

_TIMEOUT_SECONDS = 120
_IGNORE_ERRORS = ("-E",)  # otherwise it ends at errors from which librdkafka recovers
_NAMES = {"0": "0", "1": "1", "-1": "all"}
_security: list[str] = []


def secure(**given: str) -> None:
    """Set how the clients of further requests connect."""
    properties = Security(**given).librdkafka()
    _security[:] = [option for each in properties.items() for option in ("-X", "=".join(each))]


def _kcat(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", *_IGNORE_ERRORS, *_security, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def traits() -> dict[str, Any]:
    features = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    built = [codec for codec in ("snappy", "lz4", "zstd") if codec in features.lower()]
    return {"codecs": ["none", "gzip", *built], "acks": [0, 1, -1], "idempotent": True}


def produce(
    *, bootstrap: str, topic: str, values: list[str], codec: str, acks: int, idempotent: bool
) -> None:
    settings = (f"acks={_NAMES[str(acks)]}", f"enable.idempotence={str(idempotent).lower()}")
    lines = "".join(f"{value}:{value}\n" for value in values)
    options = [option for setting in settings for option in ("-X", setting)]
    _kcat("-b", bootstrap, "-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, *options, stdin=lines)


def _offset(bootstrap: str, topic: str, when: int) -> int:
    found = re.search(r"offset (-?\d+)", _kcat("-b", bootstrap, "-Q", "-t", f"{topic}:0:{when}"))
    assert found is not None
    return int(found[1])


def bounds(*, bootstrap: str, topic: str, timestamp: int) -> list[int]:
    return [_offset(bootstrap, topic, when) for when in (-2, -1, timestamp)]


def read(*, bootstrap: str, topic: str, offset: int, count: int, group: str) -> list[tuple[int, str]]:
    del group
    where = ("-t", topic, "-p", "0", "-o", str(offset), "-c", str(count))
    lines = _kcat("-b", bootstrap, "-C", *where, "-f", "%o %s\n").splitlines()
    return [(int(number), value) for number, value in (line.split() for line in lines)]


class Member:
    """A kcat process in a group, and its output."""

    def __init__(self, bootstrap: str, topic: str, group: str, session: int) -> None:
        self.records: list[tuple[int, int, str]] = []
        self.assigned = 0
        self._leaving = False
        self._last_log_lines: deque[str] = deque(maxlen=10)
        settings = (
            "auto.offset.reset=earliest",
            "auto.commit.interval.ms=100",
            f"session.timeout.ms={session}",
            "heartbeat.interval.ms=200",
        )
        options = [option for setting in settings for option in ("-X", setting)]
        self.process = subprocess.Popen(
            [
                "kcat",
                *_IGNORE_ERRORS,
                "-b",
                bootstrap,
                *options,
                "-u",
                "-f",
                "%p %o %s\n",
                "-G",
                group,
                topic,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        records, log = self.process.stdout, self.process.stderr
        self._readers = [
            Work(lambda: self._read_records(records)),
            Work(lambda: self._read_log(log)),
        ]

    def _read_records(self, stream: IO[str]) -> None:
        for line in stream:
            partition, offset, value = line.split()
            self.records.append((int(partition), int(offset), value))

    def _read_log(self, stream: IO[str]) -> None:
        for line in stream:
            self._last_log_lines.append(line)
            if "rebalanced" in line:
                self.assigned = 0 if "revoked" in line else line.count("[")

    def check(self) -> None:
        """Raise if the process has ended without `leave`."""
        for reader in self._readers:
            reader.check()
        if not self._leaving and self.process.poll() is not None:
            raise RuntimeError(f"kcat ended with {self.process.returncode}: {''.join(self._last_log_lines)}")

    def leave(self) -> None:
        self._leaving = True
        self.process.terminate()
        self.process.wait(_TIMEOUT_SECONDS)
        for reader in self._readers:
            reader.finish()


_members: list[Member] = []


def join(*, bootstrap: str, topic: str, group: str, session: int) -> None:
    _members.append(Member(bootstrap, topic, group, session))


def seen(*, topic: str) -> dict[str, Any]:
    del topic
    _members[0].check()
    return {"assigned": _members[0].assigned, "records": list(_members[0].records)}


def leave() -> None:
    _members[0].leave()


if __name__ == "__main__":
    serve({each.__name__: each for each in (traits, secure, produce, bounds, read, join, seen, leave)})
