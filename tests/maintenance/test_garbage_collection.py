"""What garbage collection deletes, and above all what it does not."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from catalog.errors import SessionFencedError
from catalog.model import PartitionId, ProducerStamp, RunRefusal
from core.errors import InvalidInputError
from maintenance.garbage_collection import GarbageReport, GarbageSettings, collect_garbage
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.errors import ForeignStoreError, LostIdentityError, ObjectsNotDeletedError
from object_store.names import IDENTITY_NAME, compacted_name, ingestion_name
from object_store.open import StoreConfig, open_store
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.fixtures.s3 import bucket_of

if TYPE_CHECKING:
    from object_store.local.store import LocalStore
    from tests.fixtures.s3 import S3Server
    from tests.planner.system import System

pytestmark = pytest.mark.integration

GRACE_S = 60
SETTINGS = GarbageSettings(grace_ms=GRACE_S * 1000, session_silence_ms=10 * GRACE_S * 1000)


def collect(system: System, settings: GarbageSettings = SETTINGS) -> GarbageReport:
    return collect_garbage(system.catalog, system.store, system.clock, settings)


def objects(system: System) -> set[str]:
    return {info.name for info in system.store.list("", purpose=Purpose.GC)}


def compacted_once(system: System) -> PartitionId:
    key = PartitionId(system.topic("keyed", cleanup_policy="compact").topic_id, 0)
    for _ in range(3):
        system.produce({key: [(b"a", b"1"), (b"b", b"1")]})
    plan_and_submit(system.catalog, system.clock, system.ids, PlannerSettings())
    return key


def test_inputs_of_a_finished_job_go_after_the_grace_and_not_before(system: System) -> None:
    compacted_once(system)
    system.run_jobs()
    before = objects(system)
    system.clock.advance(GRACE_S)
    assert collect(system) == GarbageReport()
    assert objects(system) == before
    system.clock.advance(1)
    report = collect(system)
    assert (report.dead_files, report.dead_bytes > 0, report.orphans) == (3, True, 0)
    assert [file.object_name for file in system.catalog.garbage.known_files("")] == list(objects(system))
    assert collect(system) == GarbageReport()


def test_files_of_an_open_job_stay_whatever_their_age(system: System) -> None:
    key = compacted_once(system)
    system.catalog.topics.delete("keyed")
    system.clock.advance(5 * GRACE_S)
    report = collect(system)
    assert (report.dead_files, report.orphans) == (0, 0)
    assert len(objects(system)) == 3
    (job,) = system.catalog.jobs.claim("a test", 1)
    assert job.attempt_id is not None
    system.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "its topic is gone")
    system.clock.advance(5 * GRACE_S)
    assert collect(system).dead_files == 3
    assert objects(system) == set()
    assert system.catalog.topics.states([key]) == []


def test_what_a_live_session_has_not_committed_yet_stays(system: System) -> None:
    key = PartitionId(system.topic("plain").topic_id, 0)
    commit = system.upload({key: [(b"a", b"1")]})
    system.clock.advance(5 * GRACE_S)
    assert collect(system) == GarbageReport()
    system.catalog.commits.commit(commit)
    assert len(system.read_log(key)) == 1


@pytest.mark.parametrize("how", ["ended", "silent"])
def test_what_a_session_left_uncommitted_goes_once_it_cannot_be_committed(system: System, how: str) -> None:
    key = PartitionId(system.topic("plain").topic_id, 0)
    system.produce({key: [(b"a", b"1")]})
    left = system.upload({key: [(b"a", b"2")]})
    if how == "ended":
        system.catalog.sessions.end(system.session_id)
    system.clock.advance(11 * GRACE_S)
    if how == "silent":
        report = collect(system)
        assert (report.fenced_sessions, report.orphans) == (1, 0)
        system.clock.advance(GRACE_S + 1)
    report = collect(system)
    assert (report.orphans, report.orphan_bytes) == (1, left.size)
    assert len(objects(system)) == 1
    with pytest.raises(SessionFencedError):
        system.catalog.commits.commit(left)
    assert len(system.read_log(key)) == 1


def test_a_young_orphan_stays(system: System) -> None:
    key = PartitionId(system.topic("plain").topic_id, 0)
    system.upload({key: [(b"a", b"2")]})
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(GRACE_S - 1)
    assert collect(system) == GarbageReport()
    system.clock.advance(2)
    assert collect(system).orphans == 1


def test_outputs_of_a_lost_attempt_stay_while_the_job_is_open(system: System) -> None:
    compacted_once(system)
    (job,) = system.catalog.jobs.claim("a test", 1)
    assert job.attempt_id is not None
    lost = system.write_outputs(job)
    system.catalog.jobs.release(job.spec.job_id, job.attempt_id)
    system.clock.advance(2 * GRACE_S)
    assert collect(system).orphans == 0
    assert system.run_jobs() == 1
    system.clock.advance(2 * GRACE_S)
    report = collect(system)
    assert (report.orphans, report.dead_files) == (1, 3)
    assert lost.files[0].object_name not in objects(system)
    assert len(objects(system)) == 1


def test_names_that_are_not_ours_and_owners_nobody_knows_are_left_alone(system: System) -> None:
    stranger = UUID(int=7)
    names = {
        "v1/ingest/readme.txt",
        f"v1/ingest/{system.session_id}/notes",
        "elsewhere/file.seg",
        ingestion_name(stranger, stranger),
        compacted_name(stranger, stranger, stranger),
    }
    for name in names:
        system.put(name, [b"x"])
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(10 * GRACE_S)
    assert collect(system) == GarbageReport()
    assert objects(system) == names


def test_rows_stay_for_objects_that_would_not_go(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(2 * GRACE_S)
    stubborn: list[str] = []
    delete = system.store.delete

    def refuse_the_first(names: list[str], *, purpose: Purpose) -> None:
        stubborn.append(names[0])
        delete(names[1:], purpose=purpose)
        raise ObjectsNotDeletedError(system.store.url, {names[0]: "not today"})

    with monkeypatch.context() as patched:
        patched.setattr(system.store, "delete", refuse_the_first)
        report = collect(system)
    assert (report.dead_files, report.not_deleted) == (2, 1)
    known = {file.object_name for file in system.catalog.garbage.known_files("")}
    assert stubborn[0] in known
    assert known == objects(system)
    assert collect(system).dead_files == 1


def test_everything_goes_in_batches(system: System) -> None:
    compacted_once(system)
    system.run_jobs()
    key = PartitionId(system.topic("plain").topic_id, 0)
    for _ in range(3):
        system.upload({key: [(b"a", b"1")]})
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(2 * GRACE_S)
    report = collect(system, GarbageSettings(batch=2))
    assert (report.dead_files, report.orphans) == (3, 3)
    assert len(objects(system)) == 1


def test_what_is_over_is_forgotten_and_leaves_no_trace(system: System) -> None:
    """Sessions and jobs go after a day, and with them what a late attempt wrote in between."""
    compacted_once(system)
    (job,) = system.catalog.jobs.claim("a test", 1)
    system.catalog.jobs.complete(system.write_outputs(job))
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(GRACE_S + 1)
    assert collect(system).forgotten_owners == 0
    assert job.attempt_id is not None
    late = compacted_name(job.spec.job_id, job.attempt_id, system.ids.new_uuid())
    system.put(late, [b"x"])
    system.clock.advance(GRACE_S)
    assert collect(system).orphans == 0
    assert late in objects(system)
    system.clock.advance(24 * 3600)
    report = collect(system)
    assert (report.forgotten_owners, report.orphans) == (2, 1)
    assert late not in objects(system)
    assert system.catalog.jobs.list() == []
    assert system.catalog.sessions.get(system.session_id) is None
    assert len(objects(system)) == 1
    before = system.store.counts.snapshot()
    assert collect(system) == GarbageReport()
    listed = (system.store.counts.snapshot() - before).as_dict()["gc"]["list_requests"]
    assert listed == 1  # unfinished uploads: a round costs what was left over, not what is stored


def test_idle_producers_are_forgotten_once_a_day_has_passed(system: System) -> None:
    """By Kafka's defaults; one that writes stays, and all are looked at every ten minutes at most."""
    topic = system.topic("plain")
    key = PartitionId(topic.topic_id, 0)

    def write(producer_id: int, sequence: int) -> RunRefusal | None:
        stamp = ProducerStamp(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        commit = system.upload({key: [(b"a", b"1")]})
        (section,) = commit.sections
        run = replace(section.runs[0], producer=stamp)
        (answer,) = system.catalog.commits.commit(replace(commit, sections=(replace(section, runs=(run,)),)))
        return answer.runs[0].refusal

    def later(seconds: float) -> None:
        system.clock.advance(seconds)
        system.catalog.sessions.heartbeat(system.session_id)

    for producer_id in (1, 2):
        assert write(producer_id, 0) is None
    collect(system)
    later(12 * 3600)
    write(2, 1)
    later(12 * 3600 - 1)
    assert collect(system).forgotten_producers == 0
    later(599)
    assert collect(system).forgotten_producers == 0
    later(1)
    assert collect(system).forgotten_producers == 1
    key = PartitionId(topic.topic_id, 0)
    left = system.catalog.producers.of_partitions([key])
    assert [each.producer_id for each in left[key]] == [2]
    assert write(3, 17) is RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert write(1, 17) is None


def test_unfinished_uploads_go_once_nobody_can_publish_them(
    system: System, s3_server: S3Server, s3_config: StoreConfig
) -> None:
    """On S3, where an upload says what it is to become; those of live sessions and open jobs stay for ever.

    moto says of every upload that it was begun in 2010, so that those of strangers are old.
    """
    key = compacted_once(system)
    (job,) = system.catalog.jobs.claim("a test", 1)
    assert job.attempt_id is not None
    ended, some = system.ids.new_uuid(), system.ids.new_uuid()
    system.catalog.sessions.register(ended, "another")
    of_job = compacted_name(job.spec.job_id, job.attempt_id, some)
    of_session, of_ended = ingestion_name(system.session_id, some), ingestion_name(ended, some)
    client, bucket = s3_server.client(), bucket_of(s3_config)
    for name in (of_job, of_session, of_ended, ingestion_name(some, some)):
        client.create_multipart_upload(Bucket=bucket, Key=name)

    def left() -> set[str]:
        return {each["Key"] for each in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])}

    with closing(open_store(replace(s3_config, url=f"s3://{bucket}"), system.clock, system.ids)) as store:

        def round_of_garbage() -> int:
            system.catalog.sessions.heartbeat(system.session_id)
            return collect_garbage(system.catalog, store, system.clock, SETTINGS).swept_uploads

        assert round_of_garbage() == 1
        assert left() == {of_job, of_session, of_ended}
        system.catalog.sessions.end(ended)
        system.clock.advance(GRACE_S)
        assert round_of_garbage() == 0
        system.clock.advance(1)
        assert round_of_garbage() == 1
        system.clock.advance(5 * GRACE_S)
        assert round_of_garbage() == 0
        assert left() == {of_job, of_session}
        system.catalog.jobs.complete(system.write_outputs(job))
        system.clock.advance(GRACE_S + 1)
        assert round_of_garbage() == 1
        assert left() == {of_session}
    assert len(system.read_log(key)) == 2


def test_the_wrong_store_forgets_nothing(system: System, other_store: LocalStore) -> None:
    """There, every object is absent; with its own store, the catalog lets go of what is dead."""
    verify_binding(system.store, system.catalog.store_binding, system.ids)
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(2 * GRACE_S)
    known = system.catalog.garbage.known_files("")
    with pytest.raises(ForeignStoreError, match=r"objects are in file:.*is another object store"):
        collect_garbage(system.catalog, other_store, system.clock, SETTINGS)
    assert system.catalog.garbage.known_files("") == known
    before = system.store.counts.snapshot()
    assert collect(system).dead_files == 3
    asked = (system.store.counts.snapshot() - before).as_dict()["check"]
    assert (asked["get_requests"], asked["list_requests"], asked["put_requests"]) == (1, 0, 0)
    assert IDENTITY_NAME in objects(system)


def test_a_store_that_was_emptied_makes_nobody_forget(system: System) -> None:
    verify_binding(system.store, system.catalog.store_binding, system.ids)
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(2 * GRACE_S)
    known = system.catalog.garbage.known_files("")
    system.store.delete(sorted(objects(system)), purpose=Purpose.GC)
    with pytest.raises(LostIdentityError, match="is gone from"):
        collect(system)
    assert system.catalog.garbage.known_files("") == known


def test_a_dead_file_whose_object_went_before_is_forgotten(system: System) -> None:
    """A round ended between the object and the row."""
    verify_binding(system.store, system.catalog.store_binding, system.ids)
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(2 * GRACE_S)
    dead = [file.object_name for file in system.catalog.garbage.known_files("") if file.dead_ms is not None]
    system.store.delete(dead, purpose=Purpose.GC)
    assert collect(system).dead_files == len(dead) == 3
    assert len(system.catalog.garbage.known_files("")) == 1


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        GarbageSettings(grace_ms=-1)
    with pytest.raises(InvalidInputError):
        GarbageSettings(batch=0)
