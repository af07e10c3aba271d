"""Every metric of an agent changes by the request, or the fault, that it measures.

Each step says what happens, and which metrics must change by it. One test fails for a metric that no step
moves.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import resource
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import httpx
import psycopg
import pytest

from agent.authentication_settings import AuthenticationSettings
from agent.kafka.codec import Struct
from agent.listeners import KafkaListener, SaslMechanism, SecurityProtocol, TlsSettings
from agent.local_tier_settings import LocalTierSettings
from agent.read.fetch_plan import PartitionFetch
from agent.security.tls.certificates import Certificate
from agent.security.tls.handshakes import Handshakes
from agent.security.tls.transport import TlsListener
from core.clock import SystemClock
from local_tier.manager.log_copy import LogCopy
from object_store.binding import verify_binding
from object_store.local.store import LocalStore
from object_store.s3.limits import S3Limits
from object_store.s3.store import S3Store
from tests.agent.faulty_store import FaultyStore
from tests.agent.groups.classic_harness import encode_subscription
from tests.agent.kafka.apis import test_transactions as transactions
from tests.agent.kafka.authorization.principals import allow
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.connection.test_connection import produce_request
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.test_quotas import set_quotas
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.agent.kafka.wire import Wire, request_frame
from tests.agent.metrics.movements import Movements, family_values
from tests.agent.security.token_issuer import AUDIENCE, ISSUER, Issuer
from tests.agent.small_compaction import compact
from tests.fixtures.certificates import Authority
from tests.fixtures.s3 import bucket_of
from tests.object_store.s3.fault_proxy import Fault, FaultProxy, running_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from object_store.open import StoreConfig

pytestmark = pytest.mark.integration
NO_MEMORY: Final[dict[str, Any]] = {"tail_bytes": 0, "bounds_cache_ms": 1}
COLD: Final[dict[str, Any]] = {"local_directories": (), **NO_MEMORY}
_HEDGE_SAMPLES: Final = 3


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that happens to an agent with these settings, and the metrics that must change by it."""

    happens: Callable[[Scene], None]
    moves: frozenset[str]
    settings: dict[str, Any]
    on_s3: bool
    disks: int


STEPS: Final[dict[str, Step]] = {}


def step(
    moves: str,
    *,
    on_s3: bool = False,
    disks: int = 1,
    **settings: Any,  # noqa: ANN401  # any setting
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Add a function to the steps; `moves` has the names of metrics, without their usual prefix."""

    def add(happens: Callable[[Scene], None]) -> Callable[[Scene], None]:
        names = frozenset(
            name if name.startswith("kafka_consumergroup") else f"siltstone_{name}" for name in moves.split()
        )
        STEPS[happens.__name__] = Step(
            happens=happens, moves=names, settings=settings, on_s3=on_s3, disks=disks
        )
        return happens

    return add


@dataclass
class Scene:
    """An agent that is watched, over a catalog and a store."""

    start: Callable[..., BrokerThread]
    catalog: Catalog
    store: FaultyStore
    ids: Ids
    tmp_path: Path
    broker: BrokerThread
    expected: frozenset[str]
    proxy: FaultProxy | None
    movements: Movements = field(default_factory=Movements)

    def http(self, broker: BrokerThread | None = None) -> httpx.Client:
        """Return a client of an agent."""
        server = (broker or self.broker).agent.http.servers[0]
        return httpx.Client(base_url=f"http://{server.address}", timeout=240, trust_env=False)

    def wire(self) -> Wire:
        """Return a connection to the agent."""
        return Wire(self.broker.host_and_port)

    def produce(self, *values: str, topic: str = "t", broker: BrokerThread | None = None) -> None:
        """Append to partition 0 with one request over HTTP; any response is fine."""
        records = [{"key": "k", "value": each} for each in values]
        with self.http(broker) as client:
            client.post(f"/v1/topics/{topic}/partitions/0/records", json={"records": records})

    def read(self, offset: int = 0, **query: int) -> None:
        """Read records over HTTP."""
        with self.http() as client:
            path = "/v1/topics/t/partitions/0/records"
            client.get(path, params={"offset": offset, **query}).raise_for_status()

    def until_moved(self, action: Callable[[], object] = lambda: None) -> None:
        """Repeat `action` until all expected metrics have moved."""
        self.movements.until(set(self.expected), action)

    @contextmanager
    def blocked_store(self, *values: str) -> Iterator[None]:
        """Let the upload of a request hang within the block."""
        self.store.gate.clear()
        begun = self.store.puts_begun
        producing = threading.Thread(target=self.produce, args=values)
        producing.start()
        try:
            until(lambda: self.store.puts_begun > begun)
            yield
        finally:
            self.store.gate.set()
            producing.join()


def fetch_request(session: tuple[int, int] = (0, -1), *, partitions: int = 1, **fields: Any) -> Struct:  # noqa: ANN401  # any field
    """Return a Fetch of the first partitions."""
    wanted = [
        Struct(partition=each, fetch_offset=0, partition_max_bytes=1 << 24) for each in range(partitions)
    ]
    given = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 24, **fields}
    return Struct(
        replica_id=-1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[Struct(topic="t", partitions=wanted)],
        **given,
    )


@step(
    """append_seconds appended_bytes_total appended_records_total catalog_calls_total catalog_seconds_total
    catalog_statements_total fetch_seconds fetch_session_partitions fetch_sessions fetched_bytes_total
    fetches_total http_requests_total ingestion_buffer_seconds ingestion_commit_seconds ingestion_file_bytes
    ingestion_put_seconds kafka_connections kafka_requests_total local_log_bytes local_logs open_files
    pool_catalog_calls pool_commits_calls pool_groups_calls pool_kernels_calls pool_lookups_calls
    pool_parsing_calls pool_rendering_calls
    pool_session_calls store_bytes_out_total store_requests_total tail_bytes tail_cache_pending_bytes
    tail_cache_written_bytes_total tail_hits_total""",
    heartbeat_interval_ms=20,
)
def records_are_produced_and_read(scene: Scene) -> None:
    produce(scene.broker.address, "t", [(b"k", b"v")])
    with scene.wire() as wire:
        wire.ask("fetch", 12, fetch_request((0, 0)))

        # Calls of some pools are short, so the watching thread may miss the first ones.
        def act() -> None:
            scene.produce(*["x" * 50] * 2_000)
            scene.read(max_records=10_000)

        scene.until_moved(act)


@step("fetch_wake_up_seconds")
def a_fetch_waits_for_records(scene: Scene) -> None:
    with scene.wire() as wire:
        first = wire.ask("fetch", 12, fetch_request((0, 0)))
        producing = threading.Timer(0.1, scene.produce, ("x",))
        producing.start()
        wire.ask("fetch", 12, fetch_request((first.session_id, 1), min_bytes=1, max_wait=60_000))
        producing.join()


@step("parsed_bytes pool_uploads_calls request_bytes write_buffer_bytes write_files_in_flight")
def the_store_is_slow(scene: Scene) -> None:
    with scene.blocked_store("x"):
        scene.until_moved()


@step(
    "early_close_idle_seconds early_closes_held_back_total ingestion_files_closed_total",
    flush_interval_ms=50,
    early_close_bytes=100,
    early_close_idle_ms=1,
    early_puts_per_second=1,
)
def files_are_closed_early(scene: Scene) -> None:
    """Requests that come before the acknowledgement of others teach the idle time."""
    with ThreadPoolExecutor(2) as threads:
        scene.until_moved(lambda: list(threads.map(scene.produce, ["x" * 200] * 2)))


@step("write_rejections_total", max_buffered_bytes=2_000, max_request_bytes=2_000, flush_bytes=1_000)
def the_write_buffer_is_full(scene: Scene) -> None:
    value = base64.b64encode(scene.ids.random_bytes(1_200)).decode()  # does not become much shorter
    with scene.blocked_store(value):
        scene.until_moved(lambda: scene.produce(value))


@step("request_rejections_total", max_requests_bytes=12_000, max_request_bytes=12_000)
def the_memory_for_requests_is_full(scene: Scene) -> None:
    """Small bodies are always read, so these are large."""
    with scene.blocked_store("x" * 9_000):
        scene.until_moved(lambda: scene.produce("y" * 9_000))


@step("fetch_bytes")
def a_client_reads_no_response(scene: Scene) -> None:
    value = base64.b64encode(scene.ids.random_bytes(600_000)).decode()
    for _ in range(12):
        scene.produce(value)
    with scene.wire() as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(request_frame("fetch", 12, 7, fetch_request()))
        scene.until_moved()


@step(
    """block_cache_hits_total cache_bytes cache_joined_total cache_misses_total extracted_bytes_total
    pool_hot_reads_calls store_bytes_in_total""",
    **COLD,
)
def objects_are_read(scene: Scene) -> None:
    """Two readers share a request, and a later one finds the batches in the cache."""
    scene.produce(*[str(number) * 40 for number in range(500)])
    started, proceed = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        proceed.wait()

    scene.store.before_read = hold
    readers = [threading.Thread(target=scene.read) for _ in range(2)]
    try:
        for reader in readers:
            reader.start()
        assert started.wait(240)
        scene.movements.until({"siltstone_cache_joined_total", "siltstone_pool_hot_reads_calls"})
    finally:
        proceed.set()
        for reader in readers:
            reader.join()
    scene.read()


@step(
    "cache_hits_total pool_cold_reads_calls read_ahead_bytes_total read_ahead_total",
    hot_window_ms=1,
    index_threshold_bytes=1,
    read_ahead_bytes=10_000,
    **COLD,
)
def old_objects_are_read_in_order(scene: Scene) -> None:
    topic = scene.catalog.topics.get("t")
    for start in range(0, 2_000, 100):
        scene.produce(*[f"{start + number}" * 10 for number in range(100)])
    compact(scene.catalog, scene.store, scene.ids, topic, keep=lambda _: True)
    offset = 0

    def act() -> None:
        nonlocal offset
        read_path = scene.broker.agent.data.read_path
        wanted = PartitionFetch(topic=topic, partition=0, offset=offset, max_bytes=2_000)
        offset = scene.broker.run(read_path.fetch_one(wanted)).next_offset
        scene.broker.run(read_path.read_ahead.idle())

    scene.until_moved(act)


@step(
    "ingestion_files_failed_total store_errors_total store_resumes_total store_retries_total",
    on_s3=True,
    **COLD,
)
def the_store_fails(scene: Scene) -> None:
    """A request is rejected and sent again, a stream breaks and is resumed, a credential is refused."""
    assert scene.proxy is not None
    scene.proxy.plan(Fault(method="PUT", status=503, code="SlowDown"))
    scene.produce("x" * 2_000)
    scene.proxy.plan(Fault(method="GET", keep_bytes=100))
    scene.read()
    scene.proxy.plan(Fault(method="PUT", status=403, code="AccessDenied", times=10))
    scene.produce("z")


@step("store_hedges_total store_hedges_won_total", on_s3=True, **COLD)
def a_write_hangs(scene: Scene) -> None:
    """A write hangs, and its second call is faster."""
    assert scene.proxy is not None
    for _ in range(_HEDGE_SAMPLES):
        scene.produce("x")
    done = threading.Event()
    scene.proxy.plan(Fault(method="PUT", before=done.wait))
    scene.produce("y")
    done.set()


@step("tls_handshakes_total tls_reloads_total")
def a_client_speaks_no_tls_and_a_certificate_is_renewed(scene: Scene) -> None:
    authority = Authority(scene.tmp_path)
    issued = authority.issue("server", "127.0.0.1")
    metrics = scene.broker.agent.metrics
    settings = TlsSettings(certificate=issued.certificate, key=issued.key)
    certificate = Certificate("SSL", settings, metrics)
    handshakes = Handshakes(seconds=240, max_handshakes=1, metrics=metrics)
    listener = TlsListener("SSL", certificate, handshakes, rules="DEFAULT")

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: listener.connection(asyncio.Protocol), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"plain text")
        with suppress(OSError):
            await reader.read()
        writer.close()
        server.close()

    scene.broker.run(serve())
    authority.issue("server", "127.0.0.1")
    certificate.refresh()


@step("catalog_failures_total catalog_retries_total")
def the_catalog_fails(scene: Scene) -> None:
    """Connections break, so calls are repeated; a topic exists already, so a call fails."""
    conninfo = scene.catalog._database.conninfo
    with psycopg.connect(conninfo, autocommit=True) as connection, scene.http() as client:

        def act() -> None:
            connection.execute(
                b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                b"WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
            client.post("/v1/topics", json={"name": "t", "partitions": 1})

        scene.until_moved(act)


@step("rejected_runs_total", topic_cache_ms=3_600_000)
def another_agent_deletes_the_topic(scene: Scene) -> None:
    scene.produce("x")
    scene.catalog.topics.delete("t")
    scene.produce("y")


@step("ended_transactions_total")
def a_transaction_ends(scene: Scene) -> None:
    request = {"transactional_id": "t", "transaction_timeout": 1000}
    with Wire(scene.broker.host_and_port) as wire:
        found = wire.ask("init_producer_id", 4, Struct(**request, producer_id=-1, producer_epoch=-1))
        producer = {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
        wire.ask("add_offsets_to_txn", 3, Struct(transactional_id="t", **producer, group_id="g"))
        end = Struct(transactional_id="t", **producer, committed=True)
        while wire.ask("end_txn", 3, end).error_code:  # its event loop has just stalled
            time.sleep(0.05)


def _transact(scene: Scene, wire: Wire) -> Struct:
    """Begin a transaction with a batch in a local topic; return its producer."""
    scene.catalog.topics.create("granite", 1, {"storage.mode": "local"})
    producer = transactions.init(wire)
    transactions.add(wire, producer, 0)
    transactions.produce(wire, producer, 0, b"x")
    return producer


@step("local_transaction_markers_total")
def a_transaction_of_a_local_topic_ends(scene: Scene) -> None:
    with scene.wire() as wire:
        transactions.end(wire, _transact(scene, wire), commits=True)
        scene.until_moved()


@step("local_unknown_transactions_total")
def the_catalog_loses_a_transaction_of_a_local_topic(scene: Scene) -> None:
    with scene.wire() as wire:
        _transact(scene, wire)
        with psycopg.connect(scene.catalog._database.conninfo) as connection:
            connection.execute("DELETE FROM siltstone.local_transaction_partitions")
        markers = scene.broker.agent.data.local_logs.markers
        assert markers is not None
        scene.until_moved(lambda: scene.broker.agent._loop.call_soon_threadsafe(markers.check_again))


@step("kafka_connections_closed_total", kafka_max_connections_per_ip=1)
def a_quota_is_reached(scene: Scene) -> None:
    with scene.wire(), scene.wire() as second:
        assert second.is_closed()


@step("quota_clients quota_throttles_total quota_throttle_seconds_total quota_throttled_clients")
def a_client_exceeds_its_quota(scene: Scene) -> None:
    set_quotas(scene.broker, {"client-id": None}, producer_byte_rate=12.0)  # two batches have 146 bytes
    with Wire(scene.broker.host_and_port, client_id="writer") as wire:
        for _ in range(2):
            wire.ask("produce", 9, produce_request([b"x"]))
        scene.until_moved()


@step(
    "authentications_total jwks_refreshes_total pool_logins_calls pool_signing_keys_calls "
    "pool_users_calls unauthenticated_connections",
    kafka_listeners=(
        KafkaListener(
            name="SASL",
            port=0,
            protocol=SecurityProtocol.SASL_PLAINTEXT,
            mechanisms=(SaslMechanism.PLAIN, SaslMechanism.OAUTHBEARER),
        ),
    ),
    authentication=AuthenticationSettings(
        connection_failed_authentication_delay_ms=1,
        user_cache_ms=1,
        jwks_retry_ms=1,
        sasl_oauthbearer_jwks_endpoint_url="http://127.0.0.1:1/keys",
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_expected_audience=AUDIENCE,
    ),
)
def clients_fail_to_log_in(scene: Scene) -> None:
    token = f"n,,\x01auth=Bearer {Issuer().token()}\x01\x01"

    def log_in() -> None:
        for mechanism, message in (("PLAIN", "\0ada\0wrong"), ("OAUTHBEARER", token)):
            with scene.wire() as wire:
                wire.ask("sasl_handshake", 1, Struct(mechanism=mechanism))
                wire.send(request_frame("sasl_authenticate", 2, 8, Struct(auth_bytes=message.encode())))
                wire.receive()

    scene.until_moved(log_in)


@step(
    "authorizations_denied_total audit_lines_suppressed_total",
    authorizer_enable=True,
    audit_log_lines_per_second=0,
)
def a_client_lacks_a_right(scene: Scene) -> None:
    scene.produce("x")


@step("acls acl_age_seconds", authorizer_enable=True)
def an_acl_is_added(scene: Scene) -> None:
    scene.catalog.acls.add(allow("ada", "Read Topic t"))


@step("fetch_session_evictions_total", max_fetch_sessions=1, fetch_session_evict_ms=1)
def a_second_fetch_session_replaces_the_first(scene: Scene) -> None:
    def act() -> None:
        with scene.wire() as one, scene.wire() as other:
            one.ask("fetch", 12, fetch_request((0, 0)))
            time.sleep(0.01)
            other.ask("fetch", 12, fetch_request((0, 0), partitions=2))

    scene.until_moved(act)


@step("loop_lag_seconds loop_lag_max_seconds")
def the_event_loop_is_busy(scene: Scene) -> None:
    scene.broker._loop.call_soon_threadsafe(time.sleep, 0.7)  # longer than the interval of the measurement


@step("open_file_limit")
def the_limit_of_open_files_changes(scene: Scene) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        scene.until_moved()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@step("local_disk_calls tail_cache_hits_total tail_cache_restarts_total", **NO_MEMORY)
def the_tail_is_read_from_a_disk(scene: Scene) -> None:
    """Another agent commits in between."""
    other = scene.start()
    for broker in (scene.broker, other, scene.broker):
        scene.produce("x", broker=broker)
        broker.run(broker.agent.data.local_logs.tail_cache.idle())
    scene.until_moved(lambda: scene.read(2))


@step("tail_cache_dropped_files_total", max_tail_cache_pending_bytes=1)
def a_disk_cannot_keep_up(scene: Scene) -> None:
    scene.produce("x")


@step("pool_disks_calls")
def logs_are_created(scene: Scene) -> None:
    """Each topic has a new log."""
    numbers = itertools.count()

    def create() -> None:
        name = f"rock{next(numbers)}"
        scene.catalog.topics.create(name, 1, {"storage.mode": "local"})
        scene.produce("x", topic=name)

    scene.until_moved(create)


@step("local_stray_logs")
def the_catalog_loses_a_topic(scene: Scene) -> None:
    """Its log is kept as a stray."""
    topic = scene.catalog.topics.create("rock", 1, {"storage.mode": "local"})
    scene.produce("x", topic="rock")
    with psycopg.connect(scene.catalog._database.conninfo) as connection:
        for table in ("partitions", "topics"):
            connection.execute(f"DELETE FROM siltstone.{table} WHERE topic_id = %s", (topic.topic_id,))
    storage = scene.broker.agent.data.local_logs.storage
    assert storage is not None
    scene.until_moved(storage.sync_topics)


_QUICK_CLEANER = LocalTierSettings(
    log_cleaner_backoff_ms=1, log_cleaner_dedupe_buffer_size=2**20, log_retention_check_interval_ms=10
)


_SOME_BATCH: Final = 61  # bytes of a batch's header


def _compacted(scene: Scene) -> Callable[[], None]:
    """Create a compacted local topic whose segments roll at once; return a function that appends to it."""
    config = {
        "storage.mode": "local",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "max.compaction.lag.ms": "1",
        "segment.ms": "1",
    }
    scene.catalog.topics.create("rock", 1, config)
    return lambda: scene.produce("x", topic="rock")


@step(
    """local_cleanings_total local_cleaner_read_bytes_total local_cleaner_written_bytes_total
    local_cleaner_dirty_percent local_cleaner_delay_seconds local_cleaner_idle_seconds""",
    local_tier=_QUICK_CLEANER,
)
def a_local_topic_is_compacted(scene: Scene) -> None:
    scene.until_moved(_compacted(scene))


@step("local_uncleanable_logs local_uncleanable_bytes", local_tier=_QUICK_CLEANER)
def a_segment_has_a_flipped_bit(scene: Scene) -> None:
    """Its log cannot be cleaned."""
    append = _compacted(scene)
    (disk,) = scene.broker.settings.local_directories

    def damage() -> None:
        append()
        for path in (disk / "rock-0").glob("*.log"):
            with suppress(FileNotFoundError), path.open("r+b") as file:  # a cleaning may have replaced it
                if file.seek(0, os.SEEK_END) > _SOME_BATCH:
                    file.seek(-1, os.SEEK_END)
                    last = file.read(1)[0]
                    file.seek(-1, os.SEEK_END)
                    file.write(bytes([last ^ 1]))

    scene.until_moved(damage)


@step("local_cleaner_dead_threads", local_tier=_QUICK_CLEANER)
def a_cleaner_thread_ends(scene: Scene) -> None:
    """An unexpected error ends it."""
    storage = scene.broker.agent.data.local_logs.storage
    assert storage is not None
    for cleaner in storage.manager.cleaners.values():
        with patch.object(cleaner.manager, "grab_filthiest_log", side_effect=AssertionError):
            scene.until_moved()


@step("local_logs_set_aside local_logs_waiting_for_deletion")
def a_local_topic_is_deleted(scene: Scene) -> None:
    """Its log waits until the topic is purged, which happens to the first of two."""
    storage = scene.broker.agent.data.local_logs.storage
    assert storage is not None
    for name in ("rock", "sand"):
        scene.catalog.topics.create(name, 1, {"storage.mode": "local"})
        scene.produce("x", topic=name)
        scene.catalog.topics.delete(name)
        storage.sync_topics()
        if name == "rock":
            scene.catalog.garbage.remove_deleted()
    scene.until_moved(storage.sync_topics)


def _move(scene: Scene) -> None:
    """Begin to move the log of a local topic to the other disk."""
    topic = scene.catalog.topics.create("rock", 1, {"storage.mode": "local"})
    scene.produce("x", topic="rock")
    reader = scene.broker.agent.data.local_logs.reader
    target = next(each for each in scene.broker.settings.local_directories if not [*each.glob("rock-0")])
    scene.broker.run(reader.move(topic, 0, target))


@step("local_moved_bytes_total local_moved_logs_total local_moves", disks=2)
def a_local_log_moves(scene: Scene) -> None:
    proceed = threading.Event()
    read = LogCopy.read

    def hold(copy: LogCopy) -> object:
        proceed.wait()
        return read(copy)

    with patch.object(LogCopy, "read", hold):
        _move(scene)
        scene.movements.until({"siltstone_local_moves"})
        proceed.set()
        scene.until_moved()


@step("local_failed_moves_total", disks=2)
def a_local_log_cannot_move(scene: Scene) -> None:
    with patch.object(LogCopy, "read", side_effect=AssertionError):
        _move(scene)
        scene.until_moved()


@step("local_directories_away local_directories_offline local_logs_offline")
def a_disk_fails(scene: Scene) -> None:
    """A file takes the place of its directory, which has the log of a local topic."""
    scene.catalog.topics.create("rock", 1, {"storage.mode": "local"})
    scene.produce("x", topic="rock")
    (disk,) = scene.broker.settings.local_directories
    shutil.rmtree(disk)
    disk.touch()
    scene.until_moved(lambda: scene.produce("x"))


@step(
    """kafka_consumergroup_current_offset kafka_consumergroup_lag kafka_consumergroup_lag_sum
    consumer_lag_omitted_partitions group_bytes group_downgrades_total group_groups_expired_total
    group_members group_members_expired_total group_offset_commits_rejected_total group_offset_commits_total
    group_rebalances_total group_upgrades_total groups""",
    groups=replace(
        QUICK_GROUPS,
        consumer_lag_interval_ms=50,
        consumer_lag_max_partitions=1,
        offsets_retention_check_interval_ms=20,
    ),
)
def groups_come_and_go(scene: Scene) -> None:
    """A classic group commits, is upgraded and downgraded; its members and its offsets expire."""
    scene.produce("x")
    with scene.wire() as wire:
        member_id = join(wire).member_id
        generation = join(wire, member_id).generation_id
        names = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
        stamp = {"group_id": "g", "generation_id": generation, "member_id": member_id}
        wire.ask("sync_group", 5, Struct(**stamp, **names))
        commit(wire, member_id, generation)
        commit(wire, member_id, generation + 7)
        beat(wire)
        beat(wire, member_epoch=-1)
        scene.movements.until(
            {
                name
                for name in scene.expected
                if "lag" in name or name == "siltstone_group_members_expired_total"
            }
        )
    with psycopg.connect(scene.catalog._database.conninfo) as connection:
        connection.execute("UPDATE committed_offsets SET committed_ms = 0")
        connection.execute("UPDATE consumer_groups SET state_ms = 0")
    scene.until_moved()


def restore_an_older_catalog(scene: Scene) -> None:
    """Remove every commit and let the catalog look like another server, as a restore from a backup does."""
    with psycopg.connect(scene.catalog._database.conninfo) as connection:
        for table in ("extents", "commit_results", "files"):
            connection.execute(f"DELETE FROM {table}".encode())
        connection.execute(
            "UPDATE partitions SET last_stable_offset = 0, high_watermark = 0, log_end_offset = 0, "
            "live_bytes = 0, dirty_bytes = 0, ingestion_extents = 0, max_timestamp = -1"
        )
        connection.execute("UPDATE catalog_incarnation SET server = regexp_replace(server, '/[^/]*', '/0')")


@step("catalog_epoch lost_files_total lost_records_total readopted_files_total readopted_records_total")
def the_catalog_loses_a_commit(scene: Scene) -> None:
    scene.produce("x")
    restore_an_older_catalog(scene)
    scene.until_moved(lambda: scene.produce("y"))


@step("readoption_rejected_records_total")
def a_lost_record_is_of_a_topic_that_is_deleted(scene: Scene) -> None:
    """Another process has deleted it since the failover, or its deletion would come before the record."""
    scene.produce("x")
    scene.catalog.topics.delete("t")
    with psycopg.connect(scene.catalog._database.conninfo) as connection:
        connection.execute(
            "UPDATE deleted_partitions SET state = jsonb_set(state, '{deleted_epoch}', '2147483647')"
        )
    restore_an_older_catalog(scene)
    scene.until_moved()


@step("unsettled_sessions waiting_lost_files", automatic_readoption=False, heartbeat_interval_ms=50)
def a_lost_commit_waits_for_an_operator(scene: Scene) -> None:
    """The session of another agent, which has been silent for long, waits as well."""
    scene.catalog.sessions.register(scene.ids.new_uuid(), "an agent that has died")
    with psycopg.connect(scene.catalog._database.conninfo) as connection:
        connection.execute("UPDATE sessions SET heartbeat_ms = 1 WHERE description LIKE '%died'")
    scene.produce("x")
    restore_an_older_catalog(scene)
    scene.until_moved()


def join(wire: Wire, member_id: str = "") -> Struct:
    """Join a classic group."""
    return wire.ask(
        "join_group",
        9,
        Struct(
            group_id="g",
            session_timeout=1_500,
            rebalance_timeout=1_500,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[Struct(name="range", metadata=encode_subscription("t"))],
        ),
    )


def commit(wire: Wire, member_id: str, generation: int) -> None:
    """Commit offsets of two partitions."""
    partitions = [
        Struct(partition_index=each, committed_offset=0, committed_metadata="") for each in range(2)
    ]
    wire.ask(
        "offset_commit",
        8,
        Struct(
            group_id="g",
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[Struct(name="t", partitions=partitions)],
        ),
    )


def beat(wire: Wire, **fields: Any) -> Struct:  # noqa: ANN401  # any field
    """Send a heartbeat of the consumer protocol."""
    given = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 10_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
        **fields,
    }
    return wire.ask("consumer_group_heartbeat", 1, Struct(**given))


@pytest.fixture
def clock() -> Clock:
    """The system clock; no test depends on elapsed time."""
    return SystemClock()


@pytest.fixture
def start(
    catalog: Catalog, clock: Clock, ids: Ids, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Scene]]:
    """Provide a function that starts the agent of a step."""
    with ExitStack() as stack:

        def make(name: str) -> Scene:
            chosen = STEPS[name]
            proxy = None
            inner: ObjectStore = LocalStore(tmp_path / "objects", ids)
            if chosen.on_s3:
                config: StoreConfig = request.getfixturevalue("s3_config")
                assert config.endpoint is not None
                proxy = stack.enter_context(running_proxy(config.endpoint))
                limits = S3Limits(first_pause_seconds=0.001, attempts=3, hedge_samples=_HEDGE_SAMPLES)
                inner = S3Store(
                    bucket_of(config),
                    "p",
                    endpoint=proxy.endpoint,
                    region=config.region,
                    clock=clock,
                    ids=ids,
                    limits=limits,
                )
            store = FaultyStore(stack.enter_context(closing(inner)))
            numbers = itertools.count()

            def start_broker() -> BrokerThread:
                directories = tuple(tmp_path / f"disk{next(numbers)}" for _ in range(chosen.disks))
                changes = {"local_directories": directories, **chosen.settings}
                broker = BrokerThread(catalog, store, clock, ids, changes)
                stack.callback(broker.stop)
                broker.start()
                return broker

            verify_binding(store, catalog.store_binding, ids)
            catalog.topics.create("t", 2, {"compression.type": "uncompressed"})
            return Scene(
                start=start_broker,
                catalog=catalog,
                store=store,
                ids=ids,
                tmp_path=tmp_path,
                broker=start_broker(),
                expected=chosen.moves,
                proxy=proxy,
            )

        yield make


@pytest.mark.parametrize("name", STEPS)
def test_metrics_change_when(name: str, start: Callable[[str], Scene]) -> None:
    scene = start(name)
    with scene.movements.watching(scene.broker.agent.metrics.registry):
        STEPS[name].happens(scene)
        scene.until_moved()


# Only the start of an agent moves them: tests/agent/local_topics/test_local_topics.py.
_MOVED_BY_RECOVERY: Final = frozenset(
    {"siltstone_local_logs_to_recover", "siltstone_local_segments_to_recover"}
)
# They need a server with standbys: tests/agent/runtime/test_catalog_server_metrics.py moves them.
_MOVED_BY_STANDBYS: Final = frozenset(
    {
        "siltstone_catalog_unsafe_commits",
        "siltstone_catalog_standbys",
        "siltstone_catalog_synchronous_standbys",
        "siltstone_catalog_replication_lag_bytes",
    }
)


def test_every_metric_is_moved_by_a_step(start: Callable[[str], Scene]) -> None:
    """A metric that nothing can move must not exist.

    Only an agent that authorizes clients has all metrics.
    """
    scene = start("an_acl_is_added")
    moved = (_MOVED_BY_STANDBYS | _MOVED_BY_RECOVERY).union(*(each.moves for each in STEPS.values()))

    assert set(family_values(scene.broker.agent.metrics.registry)) == moved
