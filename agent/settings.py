"""Settings of one agent process: plain values, validated once, apart from the parts that are injected.

Sizes are bytes. The suffix of a name gives the unit of a time. Fields declared with `setting` are open to
users; the others are limits that tests and benchmarks change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - pydantic evaluates the annotations when it parses a section

from agent.authentication_settings import AuthenticationSettings
from agent.group_settings import GroupSettings
from agent.listeners import HttpListener, KafkaListener
from agent.local_tier_settings import LocalTierSettings
from core.settings import Bytes, check_bounds, check_order, internal, setting
from maintenance.settings import MaintenanceSettings  # noqa: TC001 - pydantic evaluates the annotations

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Limits, intervals and addresses of one agent."""

    # Listeners
    http_listeners: tuple[HttpListener, ...] = (HttpListener(),)
    http_allowed_hosts: tuple[str, ...] = ()
    health_host: str = internal("127.0.0.1", "Address on which the agent serves its health alone.")
    health_port: int = internal(
        0, "Port on which the agent serves its health alone; 0 takes a free one.", ge=0
    )
    kafka_listeners: tuple[KafkaListener, ...] = ()
    allow_insecure_listeners: bool = internal(
        False, "Accept a listener outside loopback without TLS or without authentication."
    )
    rack: str | None = setting(
        None,
        "Availability zone of an agent. Kafka clients that state a zone are directed to agents in it.",
    )

    # Kafka connections
    kafka_max_pending_requests: int = internal(
        64, "Maximum number of open requests of one connection; the agent then reads no further request."
    )
    kafka_slow_reader_ms: int = internal(
        60_000, "Time after which the agent disconnects a client that reads none of its responses."
    )
    kafka_scarce_memory_ms: int = internal(
        10_000,
        "Replaces `kafka_slow_reader_ms` while the memory pool of the client's responses is more than half "
        "full.",
    )
    tls_handshake_ms: int = internal(10_000, "Time in which a client must complete a TLS handshake.")
    max_tls_handshakes: int = internal(
        1_000,
        "Maximum number of incomplete TLS handshakes; for another one, the agent ends the oldest of an "
        "address that has most.",
    )
    certificate_poll_ms: int = internal(
        5_000, "Interval at which the agent looks for changes of the files of certificates."
    )
    kafka_idle_ms: int = internal(600_000, "Time after which an idle connection is closed.")
    kafka_max_connections: int = setting(
        10_000,
        "Maximum number of connections of Kafka clients; an agent closes further connections at once.",
        name="max_connections",
    )
    kafka_max_connections_per_ip: int = setting(
        2**31 - 1,
        "Maximum number of connections of Kafka clients from one IP address.",
        name="max_connections_per_ip",
    )
    kafka_max_connection_creation_rate: int = setting(
        2**31 - 1,
        "Maximum number of connections of Kafka clients that an agent accepts per second, on average over the"
        " windows of quotas; it delays further ones, and closes those that would wait too long.",
        name="max_connection_creation_rate",
    )
    broker_silent_ms: int = internal(
        10_000, "Time after which a broker that sent no heartbeat is no longer shown to clients."
    )

    # Client quotas
    quota_window_num: int = setting(
        11, "Number of windows over which an agent measures the rates of clients that have quotas."
    )
    quota_window_size_seconds: int = setting(1, "Length of each of these windows.")
    controller_quota_window_num: int = setting(
        11,
        "Number of windows whose creations and deletions of partitions a client with a quota may use up at"
        " once.",
    )
    controller_quota_window_size_seconds: int = setting(1, "Length of each of these windows.")
    quota_poll_ms: int = internal(2_000, "Interval at which an agent looks for changed client quotas.")
    max_quota_clients: int = internal(
        10_000,
        "Maximum number of clients whose rates an agent measures; it evicts those that were idle for the "
        "longest time.",
    )

    # Fetch sessions (KIP-227)
    max_fetch_sessions: int = internal(1_000, "Maximum number of fetch sessions.")
    max_fetch_session_partitions: int = internal(
        200_000, "Maximum number of partitions in all fetch sessions together."
    )
    fetch_session_evict_ms: int = internal(
        120_000,
        "Time after which a new fetch session may replace an unused or smaller one.",
    )

    # Topics
    auto_create_topics: bool = setting(
        True,
        "Create a topic that does not exist when a Kafka client requests it.",
        name="auto_create_topics_enable",
    )
    default_partitions: int = setting(
        1, "Partitions of a topic that is created without a partition count.", name="num_partitions"
    )

    # Authorization
    authorizer_enable: bool = setting(
        False,
        "Check the ACLs before every operation of a client. Otherwise every client may do everything.",
    )
    super_users: str = setting(
        "",
        "Principals that need no ACL for anything: TYPE:NAME, separated by semicolons, such"
        " as `User:admin;User:CN=backup,O=Example`.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "Allow every principal all operations on a resource that has no ACL."
    )
    audit_log_lines_per_second: int = setting(
        100, "Maximum number of authorizations that an agent logs per second; it counts the others.", ge=0
    )
    acl_poll_ms: int = internal(
        500, "Interval at which an agent compares its ACLs with the catalog if no notification arrives."
    )

    # Local disks
    local_directories: tuple[Path, ...] = ()
    local_root: Path | None = internal(
        None, "Directory below which the agent claims its log directory, if none is given."
    )
    disk_threads: int = internal(4, "Threads for local disks.")
    max_tail_cache_pending_bytes: Bytes = internal(
        64 * MIB, "Batches that wait to be appended to the tail cache."
    )
    max_local_append_bytes: Bytes = internal(128 * MIB, "Batches that wait to be appended to local topics.")

    local_tier: LocalTierSettings = field(default_factory=LocalTierSettings)

    groups: GroupSettings = field(default_factory=GroupSettings)

    authentication: AuthenticationSettings = field(default_factory=AuthenticationSettings)

    # None: this agent runs no maintenance.
    maintenance: MaintenanceSettings | None = None

    # Write path
    flush_interval_ms: int = setting(
        250,
        "Time for which an agent collects batches before it writes them to the object store as one file.",
        ge=0,
        le=60_000,
    )
    flush_bytes: Bytes = setting(
        8 * MIB, "Size at which an agent writes a file before the flush interval ends.", le=1024 * MIB
    )
    early_close_bytes: Bytes = setting(
        64 * KIB,
        "Size from which an agent writes a file before the flush interval ends if waiting gains nothing,"
        " because its producers wait for responses. A file with batches of a transaction needs no size.",
    )
    early_puts_per_second: int = setting(
        100,
        "Maximum number of files that an agent writes early per second; 0: it writes none early.",
        ge=0,
    )
    early_puts_per_gb: int = setting(
        2000,
        "Maximum number of files that an agent writes early per 10^9 bytes; 0: it writes none early. A local"
        " directory charges no requests and has no such limit.",
        ge=0,
    )
    stalled_flush_bytes: Bytes = internal(
        MIB,
        "Bytes of an idempotent producer in a file at which it counts as stalled at its third open request.",
    )
    early_close_idle_ms: int = internal(
        2, "Least time without arrivals after which a file is written early; the agent learns a longer one."
    )
    max_buffered_bytes: Bytes = setting(
        128 * MIB,
        "Memory for batches that are not committed yet; an agent asks producers to retry while it is full.",
    )
    max_files_in_flight: int = internal(
        8, "Maximum number of files that are being uploaded or wait to be committed."
    )
    write_attempts: int = internal(5, "Maximum number of attempts of an upload or a commit.")
    retry_pause_ms: int = internal(50, "First pause between two attempts; pauses grow and have jitter.")
    max_retry_pause_ms: int = internal(2_000, "Longest pause between two attempts.")

    automatic_readoption: bool = setting(
        True,
        "Commit acknowledged files again that a failover or a restore of the catalog has lost. Otherwise they"
        " wait for `siltstone fsck --readopt --apply`.",
    )

    # Object store
    hedge_requests: bool = setting(
        True,
        "Send a PUT or GET of S3 a second time if it takes longer than 99.9 % of the last ones, and use the"
        " response that arrives first.",
    )

    # Transactions
    transaction_max_timeout_ms: int = setting(
        900_000,
        "Largest transaction.timeout.ms that a producer may ask for.",
        ge=1,
    )

    # Thread pools
    kernel_threads: int = internal(2, "Threads that run kernels for producers.")
    rendering_threads: int = internal(
        1, "Threads that render records for HTTP consumers; few, because they run Python code."
    )
    parsing_threads: int = internal(
        1, "Threads that parse large requests; few, because they run Python code."
    )
    catalog_threads: int = internal(8, "Threads that query the catalog.")
    lookup_threads: int = internal(4, "Threads that look up bounds and extents for fetches.")
    group_threads: int = internal(2, "Threads that read and write consumer groups.")
    hot_read_threads: int = internal(8, "Threads that read recent data from the object store.")
    cold_read_threads: int = internal(16, "Threads that read older data from the object store.")
    max_waiting_calls: int = internal(
        1_000, "Maximum number of calls that wait for a thread of one pool; further ones are rejected."
    )

    # Read path
    tail_bytes: Bytes = setting(
        192 * MIB, "Memory for the newest batches that an agent committed itself.", ge=0
    )
    cache_bytes: Bytes = setting(
        128 * MIB,
        "Memory for what an agent read from the object store: byte ranges, and batches extracted from them.",
        ge=0,
    )
    bounds_cache_ms: int = internal(
        1_000,
        "Time for which cached partition bounds are valid; notifications of commits to partitions for which"
        " fetches wait update them.",
    )
    extent_cache_ms: int = internal(
        20_000,
        "Time for which cached extents are valid; it must stay well below the grace period of objects.",
    )
    max_cached_bounds: int = internal(100_000, "Maximum number of partitions whose bounds are cached.")
    max_cached_extents: int = internal(20_000, "Maximum number of cached extents.")
    extent_lookup_bytes: Bytes = internal(64 * MIB, "Bytes of extents that one catalog query looks up.")
    hot_window_ms: int = internal(
        60_000,
        "Maximum age of an extent that the hot pool reads, so that catch-up reads do not delay the tail.",
    )
    coalesce_gap_bytes: Bytes = internal(
        64 * KIB, "Largest gap between two ranges of an object that are read by one GET.", ge=0
    )
    max_read_bytes: Bytes = internal(32 * MIB, "Largest range that one GET reads.")
    read_ahead_bytes: Bytes = setting(
        8 * MIB,
        "Bytes that an agent prefetches for a sequential reader at most; 0 turns prefetching off.",
        ge=0,
    )
    max_read_ahead_bytes: Bytes = internal(48 * MIB, "Memory for prefetched bytes of all readers.")
    index_threshold_bytes: Bytes = internal(
        MIB, "Minimum length of a section that is read through its index, if it has one."
    )
    default_fetch_bytes: Bytes = internal(MIB, "Bytes of a fetch that states no limit.")
    max_fetch_bytes: Bytes = internal(64 * MIB, "Largest response to one fetch.")
    max_fetch_extents: int = internal(256, "Maximum number of extents of a partition that one fetch reads.")
    max_lookup_extents: int = internal(4096, "Maximum number of extents that one catalog query returns.")
    max_fetches_bytes: Bytes = internal(
        256 * MIB, "Memory for the data of all open fetches; consumers retry while it is full."
    )
    max_wait_ms: int = internal(60_000, "Longest time for which a fetch waits for new records.")
    poll_interval_ms: int = internal(
        1_000, "Interval at which a waiting fetch checks for records if no notification arrives."
    )
    topic_cache_ms: int = internal(2_000, "Time for which cached topic metadata is valid.")

    # HTTP
    max_request_bytes: Bytes = setting(
        32 * MIB, "Largest request that an agent accepts, from Kafka clients and over HTTP."
    )
    max_requests_bytes: Bytes = internal(128 * MIB, "Memory for the request bodies of all clients.")
    max_parsed_bytes: Bytes = internal(
        128 * MIB, "Memory for the items of requests while the agent reads and handles them."
    )
    body_timeout_ms: int = internal(60_000, "Time in which a client must send a request body.")
    write_timeout_ms: int = internal(30_000, "Time in which a client must read the next part of a response.")
    http_head_timeout_ms: int = internal(
        10_000, "Time in which a client without an open request must send the head of its next one."
    )
    http_max_connections: int = internal(
        4_000,
        "Maximum number of connections of HTTP clients; for another one, the agent closes the one that has"
        " had no open request for the longest time.",
    )
    default_max_records: int = internal(1_000, "Number of records that a read over HTTP returns by default.")
    max_max_records: int = internal(100_000, "Maximum number of records that a read over HTTP may request.")

    # Shutdown
    drain_ms: int = setting(
        0,
        "Time for which an agent continues to serve after a stop signal, while `/readyz` reports 503.",
        ge=0,
    )
    stop_timeout_ms: int = setting(
        30_000,
        "Maximum time that a stopping agent waits, after `drain_ms`, for the requests that it accepted.",
    )

    # Session and health
    heartbeat_interval_ms: int = internal(2_000, "Interval of the heartbeats of the agent's session.")
    unready_heartbeat_ms: int = internal(
        2_500, "Time that a heartbeat may take until the catalog is not ready, because it does not commit."
    )
    unready_after_ms: int = internal(
        4_000, "Time without a successful call after which the object store or the catalog is not ready."
    )
    stuck_loop_ms: int = internal(
        60_000, "Time for which the event loop may be stuck before the process ends itself."
    )
    probe_interval_ms: int = internal(
        2_000, "Time without a successful call after which the agent probes the object store or the catalog."
    )
    probe_timeout_ms: int = internal(1_500, "Time in which a dependency must respond to a probe.")

    def __post_init__(self) -> None:
        check_bounds(self, "agent")
        for smaller, larger in _ORDERED:
            check_order(self, "agent", smaller, larger)


_ORDERED = (
    ("flush_bytes", "max_buffered_bytes"),
    ("default_fetch_bytes", "max_fetch_bytes"),
    ("max_fetch_bytes", "max_fetches_bytes"),
    ("max_request_bytes", "max_requests_bytes"),
    ("max_request_bytes", "max_buffered_bytes"),
    ("default_max_records", "max_max_records"),
    ("retry_pause_ms", "max_retry_pause_ms"),
    ("probe_interval_ms", "unready_after_ms"),
)
