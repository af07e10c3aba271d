"""`siltstone warm-kernels` is the last step of an installation: afterwards no agent compiles anything."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
from confluent_kafka import Consumer, Producer

from tests.end_to_end.processes import TIMEOUT_SECONDS, as_url, environment, report

if TYPE_CHECKING:
    from pathlib import Path

_AGENT = """
import atexit, sys
from pathlib import Path
from numba.core import event
from siltstone.cli.main import main

recorder = event.RecordingListener()
event.register("numba:compile", recorder)
compiled = lambda: [str(each.data["dispatcher"]) for _, each in recorder.buffer if each.is_start]
atexit.register(lambda: Path(sys.argv[1]).write_text("\\n".join(compiled())))
sys.exit(main(sys.argv[2:]))
"""
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def _exchange(address: str, topic: str) -> None:
    """Produce with every codec, and read all of it back."""
    for codec in _CODECS:
        producer = Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 5})
        for number in range(20):
            producer.produce(topic, b"value" * 20, key=str(number))
        assert producer.flush(TIMEOUT_SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        found = consumer.consume(20 * len(_CODECS), TIMEOUT_SECONDS)
    finally:
        consumer.close()
    assert [message.error() for message in found] == [None] * (20 * len(_CODECS))


def test_after_warm_kernels_an_agent_compiles_nothing(tmp_path: Path, catalog_url: str) -> None:
    assert set(report("warm-kernels")) >= {"compiled", "directories", "seconds"}
    assert report("warm-kernels")["compiled"] == 0
    compiled = tmp_path / "compiled"
    data = ("--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url))
    command = (*("agent", "--stop-on-eof", "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0"), *data)
    with (
        (tmp_path / "agent.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", _AGENT, str(compiled), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(),
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = orjson.loads(process.stdout.readline())["kafka"]
            report("topics", "create", "t", "--config", "cleanup.policy=compact", *data)
            _exchange(address, "t")
            process.stdin.close()
            assert process.wait(TIMEOUT_SECONDS) == 0
        finally:
            process.kill()
    assert compiled.read_text().splitlines() == []
