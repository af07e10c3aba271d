"""Jobs and commits whose statements are far larger than a socket's buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.database.pool import Database
from catalog.database.sql_files import Query
from catalog.jobs.json_format import write_spec
from catalog.model import JobState, PartitionId
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from catalog.database.pool import Transaction
    from core.clock import Clock
    from core.ids import Ids
    from tests.catalog.scene import Scene

_PARTITIONS = 20_000
_LENGTH = Query("length", "a test", b"SELECT length(%(text)s::text)")


def test_a_job_of_many_extents_is_committed_submitted_and_completed(scene: Scene) -> None:
    """The specification of a job over 20,000 extents has more than 3 MB."""
    topic = scene.topic(partitions=_PARTITIONS)
    sections = {PartitionId(topic.topic_id, number): [run_of(2)] for number in range(_PARTITIONS)}
    file = scene.file(sections)
    results = scene.catalog.commits.commit(file, with_extents=True)
    assert {result.runs[0].base_offset for result in results} == {0}
    assert scene.catalog.commits.commit(file, with_extents=True) == results

    short = scene.spec([extent for result in results for extent in result.extents])
    partitions = tuple(replace(partition, topic_name="long" * 20) for partition in short.partitions)
    spec = replace(short, partitions=partitions)
    assert len(write_spec(spec)) > 3_000_000
    scene.catalog.jobs.submit(spec)
    (job,) = scene.catalog.jobs.claim("application", 1)
    assert job.spec == spec
    scene.catalog.jobs.complete(scene.result(job))

    assert scene.catalog.jobs.get(spec.job_id).state is JobState.COMPLETED
    (last,) = scene.extents(topic, _PARTITIONS - 1)
    assert (last.record_count, last.length) == (1, 40)


@pytest.mark.parametrize("size", [100_000, 300_000, 1_000_000, 10_000_000])
def test_a_large_statement_returns_its_result(catalog_url: str, clock: Clock, ids: Ids, size: int) -> None:
    database = Database(catalog_url, clock, ids)

    def work(transaction: Transaction) -> list[int]:
        sent = [transaction.send(_LENGTH, {"text": "a" * size}) for _ in range(3)]
        transaction.wait()
        return [row[0] for cursor in sent for row in cursor.fetchall()]

    try:
        assert database.transact("test", work) == [size] * 3
    finally:
        database.close()
