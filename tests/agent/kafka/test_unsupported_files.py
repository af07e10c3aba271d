"""A file with a feature that this version does not know is refused on every path, before a byte is read."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx
import psycopg
import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.model import JobInput, JobPartition, JobSpec
from maintenance.fsck import DifferenceKind, fsck
from object_format.segment_file import UnsupportedFormatError
from object_store.accounting import Purpose, RequestKind
from planner.planner import plan
from planner.settings import PlannerSettings
from spark_jobs.shuffle.plan import PlanChoice, choose_plan
from spark_jobs.task.compaction_task import run_compaction
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration


def exact_job(catalog: Catalog, ids: Ids) -> JobSpec:
    """Return a job over the first partition of the only topic."""
    (topic,) = catalog.topics.list()
    extents = catalog.extents.from_offset(topic.topic_id, 0, 0)
    return JobSpec(
        job_id=ids.new_uuid(),
        created_ms=1,
        now_ms=1,
        hash_seed=bytes(16),
        table_bytes=1 << 16,
        reason="a test",
        inputs=tuple(
            JobInput(file_id=each.file_id, object_name=each.object_name, size=0, extents=(each,))
            for each in extents
        ),
        partitions=(
            JobPartition(
                topic_id=topic.topic_id,
                partition=0,
                topic_name=topic.name,
                cleanup_policy="compact",
                compression_type="producer",
                deduplicate=True,
                reaches_log_start=True,
                base_offset=0,
                upper_offset=extents[-1].last_offset + 1,
                delete_retention_ms=0,
            ),
        ),
    )


def reads_of_records(store: FaultyStore) -> int:
    """Return the number of GETs for data; maintenance in the agent may read other objects at any time."""
    made = store.counts.snapshot()
    purposes = (Purpose.FETCH, Purpose.COMPACTION)
    return sum(made.of(RequestKind.GET, purpose).requests for purpose in purposes)


def fetch_error(broker: BrokerThread) -> int:
    """Return the error code of a fetch of the first record."""
    part = Struct(partition=0, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1 << 20)
    topics = [Struct(topic="keyed", partitions=[part])]
    body = Struct(replica_id=-1, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("fetch", 11, body)
    code: int = response.responses[0].partitions[0].error_code
    return code


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("required_features = 'encrypted-blocks@0.4'", "the feature encrypted-blocks of Siltstone 0.4"),
        ("format_version = 2", "format version 2"),
    ],
)
def test_no_path_reads_a_file_with_an_unknown_feature(
    start_broker: Callable[..., BrokerThread],
    catalog: Catalog,
    catalog_url: str,
    store: FaultyStore,
    clock: Clock,
    ids: Ids,
    column: str,
    message: str,
) -> None:
    """Fetch and HTTP, by offset and by time, the planner, a task, the shuffle and fsck refuse it."""
    first = start_broker()
    first.create_topic("keyed", cleanup_policy="compact")
    produce(first.address, "keyed", [(b"a", b"old")])
    first.stop()
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute(f"UPDATE files SET {column}".encode())
    spec = exact_job(catalog, ids)
    broker = start_broker()
    reads = reads_of_records(store)

    assert fetch_error(broker) == ErrorCode.kafka_storage_error
    for query in ("offset=0", "timestamp=1"):
        url = f"http://{broker.http_address}/v1/topics/keyed/partitions/0/records?{query}"
        response = httpx.get(url, timeout=60)
        assert response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
        assert "too old for a stored file" in response.text
    with pytest.raises(UnsupportedFormatError, match=message):
        run_compaction(spec, store, attempt_id=ids.new_uuid(), clock=clock, ids=ids)
    with pytest.raises(UnsupportedFormatError, match=message):
        choose_plan(spec, PlanChoice.SHUFFLE)
    assert plan(catalog, clock, PlannerSettings(force=True)).jobs == ()
    assert reads_of_records(store) == reads

    report = fsck(catalog, store, clock, deep=True)
    assert [each.kind for each in report.differences] == [DifferenceKind.UNSUPPORTED]
    assert message in report.differences[0].found
    assert "files_read" not in report.checked

    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute("UPDATE files SET format_version = 1, required_features = ''")
    assert fetch_error(broker) == ErrorCode.none
    assert len(plan(catalog, clock, PlannerSettings(force=True)).jobs) == 1
