"""What one agent process may be told: plain values, validated once, apart from injected parts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from agent.groups.settings import GroupSettings
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Limits and intervals of an agent; sizes are bytes, times are milliseconds unless the name says else.

    Every value is a positive integer except those listed in `_MAY_BE_ZERO`, and texts.
    """

    # Where it serves. Port 0 takes a free one.
    http_host: str = "127.0.0.1"
    http_port: int = 8080

    # Where it serves Kafka clients (None: nowhere), and the HOST:PORT that they are told (None: that place).
    kafka_host: str | None = None
    kafka_port: int = 9092
    kafka_advertised: str | None = None
    # The zone that it stands in, for clients that say theirs.
    rack: str | None = None
    # Requests of one connection that are open at a time; a reader may read nothing of its answers this long,
    # and only so long while more than half of the memory that it holds some of is held.
    kafka_max_pending_requests: int = 64
    kafka_slow_reader_ms: int = 60_000
    kafka_scarce_memory_ms: int = 10_000
    kafka_idle_ms: int = 600_000
    # Connections of Kafka clients, in all and from one address: max.connections, max.connections.per.ip
    kafka_max_connections: int = 10_000
    kafka_max_connections_per_ip: int = 2**31 - 1
    # A broker that was silent for this long is no longer shown to clients.
    broker_silent_ms: int = 10_000

    # Fetch sessions (KIP-227), and the partitions in all of them. After this long a session that is not used,
    # or is smaller than one that wants its place, may lose it: min.incremental.fetch.session.eviction.ms
    max_fetch_sessions: int = 1_000  # max.incremental.fetch.session.cache.slots
    max_fetch_session_partitions: int = 200_000
    fetch_session_evict_ms: int = 120_000

    # Whether topics that clients ask for are made when they do not exist: auto.create.topics.enable
    auto_create_topics: bool = False
    default_partitions: int = 1  # num.partitions

    # Local disks: directories of logs, or where agents that share it take one each. With neither there is no
    # copy of the tail, and no topic with storage.mode=local. Then what may wait to be appended to either.
    local_directories: tuple[Path, ...] = ()
    local_root: Path | None = None
    disk_threads: int = 4
    max_copy_bytes: int = 64 * MIB
    max_local_append_bytes: int = 128 * MIB

    # Consumer groups.
    groups: GroupSettings = field(default_factory=GroupSettings)

    # Write path: a file is closed this long after its first append, or at this size.
    flush_interval_ms: int = 250
    flush_bytes: int = 8 * MIB
    # Or once it has this much of a producer that may send hardly more before it is answered.
    stalled_flush_bytes: int = 1 * MIB
    # Everything that was taken and not answered yet; beyond it producers are asked to come back.
    max_buffered_bytes: int = 128 * MIB
    # Files that are closed and not answered yet: being uploaded, or waiting for their turn to commit.
    max_files_in_flight: int = 8
    # What an upload and a commit may be tried in all, and how the pauses between tries grow (with jitter).
    write_attempts: int = 5
    retry_pause_ms: int = 50
    max_retry_pause_ms: int = 2_000

    # Thread pools; calls beyond the threads and `max_waiting_calls` are refused, not queued.
    # Kernels serve producers; rendering serves readers, in Python for the most part, hence few threads.
    kernel_threads: int = 2
    rendering_threads: int = 1
    catalog_threads: int = 8
    hot_read_threads: int = 8
    cold_read_threads: int = 4
    max_waiting_calls: int = 1_000

    # Read path.
    # The newest batches that this agent committed itself, and what was read of objects.
    tail_bytes: int = 192 * MIB
    cache_bytes: int = 128 * MIB
    # What the catalog said is believed for so long: where partitions begin and end (commits are heard of at
    # once), and which extents they have; that must stay well below the grace of deleted objects, 60 s.
    known_bounds_ms: int = 1_000
    known_extents_ms: int = 20_000
    max_known_partitions: int = 100_000
    max_known_extents: int = 20_000
    # Extents of about this many bytes are looked up at once.
    known_extents_bytes: int = 64 * MIB
    # An extent committed this recently is read in the hot pool: those who catch up cannot delay the tail.
    hot_window_ms: int = 60_000
    # Ranges of one object that are at most this far apart are read by one GET, up to this length.
    coalesce_gap_bytes: int = 64 * KIB
    max_read_bytes: int = 32 * MIB
    # What is read ahead of a reader of one large section by one GET (0: nothing), and of all readers.
    read_ahead_bytes: int = 8 * MIB
    max_read_ahead_bytes: int = 48 * MIB
    # A section of at least this length is read through its index, when it has one.
    index_threshold_bytes: int = 1 * MIB
    default_fetch_bytes: int = 1 * MIB
    max_fetch_bytes: int = 64 * MIB
    max_fetch_extents: int = 256
    # Bytes that all fetches together read, or hold until they are handed out; beyond it readers come back.
    max_fetches_bytes: int = 256 * MIB
    max_wait_ms: int = 60_000
    # How often those who wait at the tail look again when no notification comes.
    poll_interval_ms: int = 1_000
    topic_cache_ms: int = 2_000

    # HTTP.
    max_request_bytes: int = 32 * MIB
    max_requests_bytes: int = 128 * MIB
    # How long a client may take to send a body, or to take the next piece of an answer, and how many
    # connections of HTTP clients there may be.
    body_timeout_ms: int = 60_000
    write_timeout_ms: int = 30_000
    max_connections: int = 4_000
    default_max_records: int = 1_000
    max_max_records: int = 100_000
    # After the order to stop: how long it serves on while /healthz answers 503, then the time to finish.
    drain_ms: int = 0
    stop_timeout_ms: int = 30_000

    # Session.
    heartbeat_interval_ms: int = 3_000
    # A store or catalog that failed without one success for this long is unhealthy.
    unhealthy_after_ms: int = 15_000

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if (
                isinstance(value, int)
                and not isinstance(value, bool)
                and value < (0 if each.name in _MAY_BE_ZERO else 1)
            ):
                raise InvalidInputError(
                    f"agent setting {each.name} is {value}", remedy="give a positive number"
                )
        self._require_at_most("flush_bytes", "max_buffered_bytes")
        self._require_at_most("default_fetch_bytes", "max_fetch_bytes")
        self._require_at_most("max_fetch_bytes", "max_fetches_bytes")
        self._require_at_most("max_request_bytes", "max_requests_bytes")
        self._require_at_most("max_request_bytes", "max_buffered_bytes")
        self._require_at_most("default_max_records", "max_max_records")
        self._require_at_most("retry_pause_ms", "max_retry_pause_ms")

    def _require_at_most(self, small: str, large: str) -> None:
        if getattr(self, small) > getattr(self, large):
            raise InvalidInputError(
                f"agent setting {small} ({getattr(self, small)}) exceeds {large} ({getattr(self, large)})",
                remedy=f"lower {small} or raise {large}",
            )


_MAY_BE_ZERO = frozenset(
    {
        "http_port",
        "kafka_port",
        "flush_interval_ms",
        "cache_bytes",
        "read_ahead_bytes",
        "tail_bytes",
        "coalesce_gap_bytes",
        "drain_ms",
    }
)
