"""Requests of agents, jobs and maintenance, as a running system was observed to send them."""

from __future__ import annotations

from typing import Final

import pytest

from benchmarks.beside_reality.workload import SETTINGS, Duration, workload
from cost_model.engine.counts import UPLOAD_PART_BYTES, Counts, Sample
from cost_model.engine.events import simulate_events
from cost_model.engine.measurements import add_rows, count_garbage_collection, fetches_per_second
from cost_model.rates.steady_rates import steady_rates_of

_DURATION: Final = Duration(warm_up_seconds=0, measured_seconds=60)


@pytest.fixture(scope="module")
def counts() -> Counts:
    return simulate_events(workload(_DURATION), SETTINGS, seed=1, max_samples=60).history[-1]


def test_an_object_of_one_part_is_written_with_one_put() -> None:
    counts = Counts()
    counts.upload(2 * UPLOAD_PART_BYTES, objects=2)
    assert (counts.put_compaction, counts.upload_requests) == (2, 2)


def test_a_larger_object_is_a_multipart_upload() -> None:
    counts = Counts()
    counts.upload(UPLOAD_PART_BYTES + 1, objects=1)
    assert (counts.put_compaction, counts.multipart_part, counts.upload_requests) == (0, 2, 4)


def test_a_file_is_open_for_the_flush_interval_after_its_first_batch(counts: Counts) -> None:
    """An agent with six batches a second waits a sixth of a second for the first one."""
    rates = steady_rates_of(workload(_DURATION), SETTINGS)
    assert rates.files == pytest.approx(3 / (1 + 1 / 6))
    assert counts.put_ingest == pytest.approx(60 * rates.files, rel=0.1)
    assert counts.ingestion_extents == pytest.approx(60 * rates.extents, rel=0.1)


def test_an_agent_reads_small_files_of_another_zone_with_one_get_at_most(counts: Counts) -> None:
    """The GET includes the bytes between the wanted sections."""
    defined = workload(_DURATION)
    rates = steady_rates_of(defined, SETTINGS)
    reads, read_bytes = fetches_per_second(defined, rates)
    assert 1.7 * rates.files < reads < 2 * rates.files
    assert read_bytes > 1.3 * 2 / 3 * rates.stored_bytes
    assert counts.get_fetch == pytest.approx(60 * reads, rel=0.1)
    assert counts.fetch_bytes == pytest.approx(60 * read_bytes, rel=0.15)


def test_a_new_catalog_has_no_rows_of_the_last_hour() -> None:
    """After a minute, it has the responses of a minute's files and the jobs of a minute."""
    defined = workload(_DURATION)
    begin, end = Sample(day=0.0), Sample(day=60 / 86_400)
    for sample in (begin, end):
        add_rows(sample, defined, files_per_second=10, jobs_per_second=0.1)
    assert end.rows - begin.rows == pytest.approx(606)


def test_the_prefix_of_a_job_is_listed_after_the_grace_period_and_a_day_later(counts: Counts) -> None:
    """In the first minute, the LISTs are those of unfinished uploads."""
    assert counts.jobs >= 2
    assert counts.list_gc <= 2


def test_a_round_after_which_no_job_has_ended_deletes_nothing() -> None:
    """Jobs are published once a minute, and rounds are every ten seconds."""
    counts = Counts(ingestion_jobs=10)
    count_garbage_collection(counts, dead=1000, seconds=600, planning_seconds=60)
    assert (counts.delete_calls, counts.deleted_objects) == (10, 1000)
