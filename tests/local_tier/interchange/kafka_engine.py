"""Kafka's log engine in a separate process, for comparisons with ours (`Engine.java`)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tests.fixtures import kafka_tools

if TYPE_CHECKING:
    from local_tier.config import LogConfig
    from local_tier.log.unified_log import UnifiedLog

_SOURCE = Path(__file__).parent / "Engine.java"
State = dict[str, Any]


class KafkaError(Exception):
    """An exception of Kafka's; the message is its class."""


class KafkaEngine:
    """One Java process that serves any number of logs, one call at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            kafka_tools.command(str(_SOURCE)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, *words: object) -> str:
        """Run a command and return its values; raise KafkaError if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        status, _, values = self._process.stdout.readline().strip().partition(" ")
        if status != "ok":
            raise KafkaError(values or "the process has ended")
        return values

    def open(
        self,
        directory: Path,
        config: LogConfig,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
    ) -> KafkaLog:
        """Open the log in a partition directory, which exists afterwards."""
        directory.mkdir(parents=True, exist_ok=True)
        settings = [f"{name}={value}" for name, value in kafka_settings(config).items()]
        self.ask("open", directory, str(clean).lower(), recovery_point, log_start_offset, *settings)
        return KafkaLog(self, directory)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class KafkaLog:
    """A log that Kafka has open."""

    engine: KafkaEngine
    directory: Path

    def ask(self, command: str, *words: object) -> str:
        return self.engine.ask(command, self.directory, *words)

    def append(self, data: bytes, leader_epoch: int, origin: str = "CLIENT") -> tuple[int, int]:
        """Append as a leader; return the first and the last offset."""
        first, last = self.ask("append", leader_epoch, origin, data.hex()).split()
        return int(first), int(last)

    def follow(self, data: bytes, leader_epoch: int) -> tuple[int, int]:
        """Append batches with offsets, as a follower."""
        first, last = self.ask("follow", leader_epoch, data.hex()).split()
        return int(first), int(last)

    def state(self) -> State:
        """Return what `state_of` returns for a log of ours."""
        return dict(orjson.loads(self.ask("state")))


def kafka_settings(config: LogConfig) -> dict[str, object]:
    """Return Kafka's settings of a log."""
    policies = [name for name, is_set in (("compact", config.compact), ("delete", config.delete)) if is_set]
    return {
        "internal.segment.bytes": config.segment_bytes,
        "segment.ms": config.segment_ms,
        "segment.index.bytes": config.segment_index_bytes,
        "index.interval.bytes": config.index_interval_bytes,
        "retention.ms": config.retention_ms,
        "retention.bytes": config.retention_bytes,
        "max.message.bytes": config.max_message_bytes,
        "cleanup.policy": ",".join(policies),
        "delete.retention.ms": config.delete_retention_ms,
        "min.compaction.lag.ms": config.min_compaction_lag_ms,
        "max.compaction.lag.ms": config.max_compaction_lag_ms,
        "file.delete.delay.ms": config.file_delete_delay_ms,
        "message.timestamp.after.max.ms": 2**63 - 1,
    }


def state_of(log: UnifiedLog) -> State:
    """Return everything that both engines say about a log."""
    return {
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "segments": [[segment.base_offset, segment.size] for segment in log.segments],
        "epochs": [[entry.epoch, entry.start_offset] for entry in log.leader_epochs],
        "producers": [
            [
                producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                -1 if producer.current_txn_first_offset is None else producer.current_txn_first_offset,
            ]
            for producer_id, producer in sorted(log.known_producers().items())
        ],
    }
