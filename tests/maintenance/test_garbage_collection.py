"""Objects and rows that garbage collection deletes, and those that it must not delete."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from catalog.errors import CatalogUnavailableError, SessionFencedError
from catalog.lifecycle.garbage import RETRY_PAUSES
from catalog.model import PartitionId, ProducerStamp, RunRefusal
from catalog.transactions.local_partitions import FirstBatch, Verification
from core.errors import InvalidInputError
from maintenance.garbage_collection import collect_garbage, expire_rows
from maintenance.report import MaintenanceReport
from maintenance.settings import MaintenanceSettings
from maintenance.transaction_timeouts import abort_timed_out
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.errors import ForeignStoreError, LostIdentityError, ObjectsNotDeletedError
from object_store.names import IDENTITY_NAME, compacted_name, ingestion_name
from object_store.open import StoreConfig, open_store
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.fixtures.s3 import bucket_of
from tests.object_store.s3.fault_proxy import Fault, running_proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.lifecycle.garbage import CatalogFile
    from catalog.transactions.repository import EndedTransaction
    from catalog.transactions.rules import ProducerIdentity
    from object_store.local.store import LocalStore
    from tests.fixtures.s3 import S3Server
    from tests.planner.system import System

pytestmark = pytest.mark.integration

GRACE_S = 60
SETTINGS = MaintenanceSettings(
    grace_ms=GRACE_S * 1000, session_silence_ms=10 * GRACE_S * 1000, topic_delete_delay_ms=0
)


def collect(system: System, settings: MaintenanceSettings = SETTINGS) -> MaintenanceReport:
    return collect_garbage(system.catalog, system.store, system.clock, settings)


def objects(system: System) -> set[str]:
    return {info.name for info in system.store.list("", purpose=Purpose.GC)}


def compacted_once(system: System) -> PartitionId:
    key = PartitionId(system.topic("keyed", cleanup_policy="compact").topic_id, 0)
    for _ in range(3):
        system.produce({key: [(b"a", b"1"), (b"b", b"1")]})
    plan_and_submit(system.catalog, system.clock, system.ids, PlannerSettings())
    return key


def test_inputs_of_a_finished_job_are_deleted_after_the_grace_period(system: System) -> None:
    compacted_once(system)
    system.run_jobs()
    before = objects(system)
    system.clock.advance(GRACE_S)
    assert collect(system) == MaintenanceReport()
    assert objects(system) == before
    system.clock.advance(1)
    report = collect(system)
    assert (report.dead_files, report.dead_bytes > 0, report.orphans) == (3, True, 0)
    assert [file.object_name for file in system.catalog.garbage.known_files("")] == list(objects(system))
    assert collect(system) == MaintenanceReport()


def test_files_of_an_open_job_are_never_deleted(system: System) -> None:
    key = compacted_once(system)
    system.catalog.topics.delete("keyed")
    system.clock.advance(5 * GRACE_S)
    report = collect(system)
    assert (report.dead_files, report.orphans) == (0, 0)
    assert len(objects(system)) == 3
    (job,) = system.catalog.jobs.claim("a test", 1)
    assert job.attempt_id is not None
    system.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "its topic was deleted")
    system.clock.advance(5 * GRACE_S)
    assert collect(system).dead_files == 3
    assert objects(system) == set()
    assert system.catalog.topics.states([key]) == []


def test_uncommitted_objects_of_a_live_session_are_not_deleted(system: System) -> None:
    key = PartitionId(system.topic("plain").topic_id, 0)
    commit = system.upload({key: [(b"a", b"1")]})
    system.clock.advance(5 * GRACE_S)
    assert collect(system) == MaintenanceReport()
    system.catalog.commits.commit(commit)
    assert len(system.read_log(key)) == 1


@pytest.mark.parametrize("how", ["ended", "silent"])
def test_uncommitted_objects_are_deleted_once_their_session_is_over(system: System, how: str) -> None:
    key = PartitionId(system.topic("plain").topic_id, 0)
    system.produce({key: [(b"a", b"1")]})
    left = system.upload({key: [(b"a", b"2")]})
    if how == "ended":
        system.catalog.sessions.end(system.session_id)
    system.clock.advance(11 * GRACE_S)
    if how == "silent":
        settings = replace(SETTINGS, fence_confirm_ms=5_000)
        assert collect(system, settings) == MaintenanceReport()  # marks
        system.clock.advance(5)
        report = collect(system, settings)
        assert (report.fenced_sessions, report.orphans) == (1, 0)
        system.clock.advance(GRACE_S + 1)
    report = collect(system)
    assert (report.orphans, report.orphan_bytes) == (1, left.size)
    assert len(objects(system)) == 1
    with pytest.raises(SessionFencedError):
        system.catalog.commits.commit(left)
    assert len(system.read_log(key)) == 1


def test_an_orphan_that_was_committed_after_the_first_look_is_not_deleted(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog's files and the store's objects are read at different moments."""
    key = PartitionId(system.topic("plain").topic_id, 0)
    for value in (b"1", b"2"):
        system.produce({key: [(b"a", value)]})
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(GRACE_S + 1)
    monkeypatch.setattr(system.catalog.garbage, "known_files", lambda *_, **__: [])
    report = collect(system)
    assert report.orphans == 0
    assert len(objects(system)) == 2
    assert len(system.read_log(key)) == 2


def test_a_live_file_that_was_proposed_as_dead_is_not_deleted(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proposals may come from a server that lags behind the primary, or that was one."""
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(GRACE_S + 1)
    propose = system.catalog.garbage.dead_files
    (live,) = [each for each in system.catalog.garbage.known_files("") if each.dead_ms is None]

    def propose_live_one_too(
        before_ms: int, limit: int, after: CatalogFile | None = None
    ) -> list[CatalogFile]:
        found = propose(before_ms, limit, after=after)
        return [*found, replace(live, dead_ms=0)] if after is None else found

    monkeypatch.setattr(system.catalog.garbage, "dead_files", propose_live_one_too)
    report = collect(system)
    assert report.dead_files == 3
    assert len(objects(system)) == 1


def test_a_young_orphan_is_not_deleted(system: System) -> None:
    key = PartitionId(system.topic("plain").topic_id, 0)
    system.upload({key: [(b"a", b"2")]})
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(GRACE_S - 1)
    assert collect(system) == MaintenanceReport()
    system.clock.advance(2)
    assert collect(system).orphans == 1


def test_outputs_of_a_lost_attempt_are_deleted_after_the_job_ends(system: System) -> None:
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


def test_foreign_names_and_objects_of_unknown_owners_are_not_deleted(system: System) -> None:
    unknown = UUID(int=7)
    names = {
        "v1/ingest/readme.txt",
        f"v1/ingest/{system.session_id}/notes",
        "elsewhere/file.seg",
        ingestion_name(unknown, unknown),
        compacted_name(unknown, unknown, unknown),
    }
    for name in names:
        system.put(name, [b"x"])
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(10 * GRACE_S)
    assert collect(system) == MaintenanceReport()
    assert objects(system) == names


def test_rows_of_objects_that_could_not_be_deleted_stay(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(2 * GRACE_S)
    refused: list[str] = []
    delete = system.store.delete

    def refuse_the_first(names: list[str], *, purpose: Purpose) -> None:
        refused.append(names[0])
        delete(names[1:], purpose=purpose)
        raise ObjectsNotDeletedError(system.store.url, {names[0]: "not today"})

    with monkeypatch.context() as patched:
        patched.setattr(system.store, "delete", refuse_the_first)
        report = collect(system)
    assert (report.dead_files, report.not_deleted) == (2, 1)
    known = {file.object_name for file in system.catalog.garbage.known_files("")}
    assert refused[0] in known
    assert known == objects(system)
    assert collect(system) == MaintenanceReport()
    system.clock.advance(RETRY_PAUSES["first_pause_ms"] / 1000)
    assert collect(system).dead_files == 1


def test_files_that_cannot_be_deleted_do_not_hold_up_the_others(
    system: System, s3_server: S3Server, s3_config: StoreConfig
) -> None:
    """A server denies all keys of the first requests; each file is tried again after a pause that doubles."""
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(2 * GRACE_S)
    dead = [file.object_name for file in system.catalog.garbage.known_files("") if file.dead_ms is not None]
    bucket = bucket_of(s3_config)
    first_pause_s = RETRY_PAUSES["first_pause_ms"] / 1000
    first, second = (
        Fault(
            method="POST",
            status=200,
            body=f"<DeleteResult><Error><Key>{name}</Key><Code>AccessDenied</Code></Error></DeleteResult>".encode(),
        )
        for name in dead[:2]
    )
    with (
        running_proxy(s3_server.endpoint) as proxy,
        closing(
            open_store(
                replace(s3_config, url=f"s3://{bucket}", endpoint=proxy.endpoint), system.clock, system.ids
            )
        ) as store,
    ):

        def deleted() -> tuple[int, int]:
            settings = replace(SETTINGS, batch=1)
            before = proxy.count("POST")
            report = collect_garbage(system.catalog, store, system.clock, settings)
            return report.dead_files, proxy.count("POST") - before

        proxy.plan(first, second)
        assert deleted() == (1, 3)
        assert deleted() == (0, 0)
        system.clock.advance(first_pause_s)
        proxy.plan(first)
        assert deleted() == (1, 2)
        system.clock.advance(2 * first_pause_s - 1)
        assert deleted() == (0, 0)
        system.clock.advance(1)
        assert deleted() == (1, 1)
    assert len(system.catalog.garbage.known_files("")) == 1


def test_owners_of_objects_that_cannot_be_deleted_do_not_hold_up_the_others(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = PartitionId(system.topic("plain").topic_id, 0)
    sessions = [system.session_id, system.ids.new_uuid(), system.ids.new_uuid()]
    for session_id in sessions[1:]:
        system.catalog.sessions.register(session_id, "another")
    for session_id in sessions:
        system.put(ingestion_name(session_id, system.ids.new_uuid()), [b"x"])
        system.catalog.sessions.end(session_id)
    denied = next(name for name in objects(system) if str(sessions[0]) in name)
    delete = system.store.delete

    def refuse(names: list[str], *, purpose: Purpose) -> None:
        delete([name for name in names if name != denied], purpose=purpose)
        if denied in names:
            raise ObjectsNotDeletedError(system.store.url, {denied: "not today"})

    system.clock.advance(2 * GRACE_S)
    monkeypatch.setattr("maintenance.garbage_collection.OWNERS_AT_ONCE", 1)
    with monkeypatch.context() as patched:
        patched.setattr(system.store, "delete", refuse)
        report = collect(system)
        assert (report.orphans, report.not_deleted) == (2, 1)
        assert collect(system) == MaintenanceReport()
    assert objects(system) == {denied}
    system.clock.advance(RETRY_PAUSES["first_pause_ms"] / 1000)
    assert collect(system).orphans == 1
    assert system.catalog.topics.states([key]) != []


def test_objects_of_earlier_versions_are_swept_and_then_cost_no_list(system: System) -> None:
    """Their names have no hash. While there are any, each owner costs two LISTs, afterwards one."""
    file_id = system.ids.new_uuid()
    system.put(f"v1/ingest/{system.session_id}/{file_id}.seg", [b"x"])
    system.put(ingestion_name(system.session_id, file_id), [b"x"])
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(GRACE_S + 1)

    def swept() -> tuple[int, int]:
        before = system.store.counts.snapshot()
        orphans = collect(system).orphans
        return orphans, (system.store.counts.snapshot() - before).as_dict()["gc"]["list_requests"]

    uploads, roots = 1, 1
    assert swept() == (2, uploads + roots + 2)
    assert objects(system) == set()
    system.clock.advance(24 * 3600)
    assert swept() == (0, uploads + roots + 1)


def test_objects_are_deleted_in_batches(system: System) -> None:
    compacted_once(system)
    system.run_jobs()
    key = PartitionId(system.topic("plain").topic_id, 0)
    for _ in range(3):
        system.upload({key: [(b"a", b"1")]})
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(2 * GRACE_S)
    report = collect(system, MaintenanceSettings(batch=2))
    assert (report.dead_files, report.orphans) == (3, 3)
    assert len(objects(system)) == 1
    counts = system.catalog.operation_counts()
    assert counts["deletions.confirm_dead_files"].calls == 2
    assert counts["deletions.confirm_orphans"].calls == 2


def test_ended_owners_are_removed_with_everything_that_they_wrote(system: System) -> None:
    """Sessions and jobs are removed after a day, with the objects that a late attempt wrote in between."""
    compacted_once(system)
    (job,) = system.catalog.jobs.claim("a test", 1)
    system.catalog.jobs.complete(system.write_outputs(job))
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(GRACE_S + 1)
    assert collect(system).removed_owners == 0
    assert job.attempt_id is not None
    late = compacted_name(job.spec.job_id, job.attempt_id, system.ids.new_uuid())
    system.put(late, [b"x"])
    system.clock.advance(GRACE_S)
    assert collect(system).orphans == 0
    assert late in objects(system)
    system.clock.advance(24 * 3600)
    report = collect(system)
    assert (report.removed_owners, report.orphans) == (2, 1)
    assert late not in objects(system)
    assert system.catalog.jobs.list() == []
    assert system.catalog.sessions.get(system.session_id) is None
    assert len(objects(system)) == 1
    before = system.store.counts.snapshot()
    assert collect(system) == MaintenanceReport()
    listed = (system.store.counts.snapshot() - before).as_dict()["gc"]["list_requests"]
    assert listed == 1  # for unfinished uploads; no prefix is listed


def test_a_transaction_that_cannot_be_aborted_does_not_hold_up_the_others(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = system.catalog.transactions
    for name in "ab":
        producer = transactions.initialize(name, 1000).producer
        transactions.add_partitions(name, producer, [PartitionId(system.topic(name).topic_id, 0)])
    system.clock.advance(2)
    abort = transactions.abort

    def fail(transactional_id: str, producer: ProducerIdentity, *, started_ms: int) -> EndedTransaction:
        if transactional_id == "a":
            raise CatalogUnavailableError("a lock is held", remedy="retry")
        return abort(transactional_id, producer, started_ms=started_ms)

    monkeypatch.setattr(transactions, "abort", fail)
    report = MaintenanceReport()
    with pytest.raises(CatalogUnavailableError):
        abort_timed_out(system.catalog, report)
    assert [each.transactional_id for each in system.catalog.transaction_lookups.timed_out()] == ["a"]
    assert report.aborted_transactions == 1


def test_every_page_of_transactions_that_timed_out_is_aborted(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be aborted is on each page."""
    transactions, lookups = system.catalog.transactions, system.catalog.transaction_lookups
    for name in "abcd":
        producer = transactions.initialize(name, 1000).producer
        transactions.add_partitions(name, producer, [PartitionId(system.topic(name).topic_id, 0)])
    system.clock.advance(2)
    first = lookups.timed_out(limit=1)[0].transactional_id
    abort = transactions.abort

    def fail(transactional_id: str, producer: ProducerIdentity, *, started_ms: int) -> EndedTransaction:
        if transactional_id == first:
            raise CatalogUnavailableError("a lock is held", remedy="retry")
        return abort(transactional_id, producer, started_ms=started_ms)

    report, pages = MaintenanceReport(), list[int]()
    monkeypatch.setattr(transactions, "abort", fail)
    monkeypatch.setattr(lookups, "timed_out", partial(lookups.timed_out, limit=2))
    with pytest.raises(CatalogUnavailableError):
        abort_timed_out(system.catalog, report, lambda: pages.append(report.aborted_transactions))
    assert [each.transactional_id for each in lookups.timed_out()] == [first]
    assert pages == [1, 2, 3]


def test_leaders_of_local_partitions_learn_of_an_aborted_transaction(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They append its marker. A transaction of other partitions is not announced to them."""
    catalog, announced = system.catalog, list[bool]()
    monkeypatch.setattr(catalog.local_transactions, "announce", lambda: announced.append(True))
    for name, is_local in (("object", False), ("local", True)):
        key = PartitionId(system.topic(name).topic_id, 0)
        producer = catalog.transactions.initialize(name, 1000).producer
        if is_local:
            catalog.local_leaders.claim({key: 7})
            catalog.transactions.add_partitions(name, producer, [], [key])
            verified = catalog.local_transactions.verify(name, producer, FirstBatch(key, 0, False))
            assert verified is Verification.VERIFIED
        else:
            catalog.transactions.add_partitions(name, producer, [key])
        system.clock.advance(2)
        abort_timed_out(catalog, MaintenanceReport())
        assert announced == [True] * is_local


def test_a_round_deletes_all_idle_transactional_ids(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of ids is not limited: a producer may use a new one for each transaction."""
    transactions = system.catalog.transactions
    for number in range(5):
        transactions.initialize(f"t-{number}", 1000)
    system.clock.advance(SETTINGS.transactional_id_expiration_ms / 1000)
    monkeypatch.setattr(transactions, "expire_idle", partial(transactions.expire_idle, limit=2))
    expire_rows(system.catalog, SETTINGS, MaintenanceReport())
    assert system.catalog.transaction_lookups.find([f"t-{number}" for number in range(5)]) == {}


def test_transactions_are_not_forgotten_while_readers_use_extents_that_they_looked_up(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []
    monkeypatch.setattr(system.catalog.transactions, "settle", times.append)
    for grace_ms in (0, 90_000):
        expire_rows(system.catalog, replace(SETTINGS, grace_ms=grace_ms), MaintenanceReport())
    assert times == [60_000, 90_000]


def test_idle_producers_expire_after_a_day(system: System) -> None:
    """These are Kafka's defaults: a producer that writes stays, and the check runs every ten minutes."""
    topic = system.topic("plain")
    key = PartitionId(topic.topic_id, 0)

    def write(producer_id: int, sequence: int) -> RunRefusal | None:
        stamp = ProducerStamp(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        commit = system.upload({key: [(b"a", b"1")]})
        (section,) = commit.sections
        run = replace(section.runs[0], producer=stamp)
        (result,) = system.catalog.commits.commit(replace(commit, sections=(replace(section, runs=(run,)),)))
        return result.runs[0].refusal

    def later(seconds: float) -> None:
        system.clock.advance(seconds)
        system.catalog.sessions.heartbeat(system.session_id)

    for producer_id in (1, 2):
        assert write(producer_id, 0) is None
    collect(system)
    later(12 * 3600)
    write(2, 1)
    later(12 * 3600 - 1)
    assert collect(system).expired_producers == 0
    later(599)
    assert collect(system).expired_producers == 0
    later(1)
    assert collect(system).expired_producers == 1
    key = PartitionId(topic.topic_id, 0)
    left = system.catalog.producers.of_partitions([key])
    assert [each.producer_id for each in left[key]] == [2]
    assert write(3, 17) is RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert write(1, 17) is None


def test_unfinished_uploads_are_aborted_once_their_owner_is_over(
    system: System, s3_server: S3Server, s3_config: StoreConfig
) -> None:
    """This needs S3, where an upload has the name of its object; uploads of live sessions and open jobs stay.

    moto reports that every upload began in 2010, so uploads of unknown owners are old enough.
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
            return collect_garbage(system.catalog, store, system.clock, SETTINGS).aborted_uploads

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


def test_uploads_of_unknown_owners_are_aborted_once_they_are_old(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of several uploads is looked up once."""
    now_ms, age_ms = system.clock.now_ms(), SETTINGS.unfinished_upload_ms
    unknown = ingestion_name(system.ids.new_uuid(), system.ids.new_uuid())
    live = ingestion_name(system.session_id, system.ids.new_uuid())
    verdicts: list[bool] = []

    def sweep(_: object, before_ms: int, *, purpose: Purpose, may_abort: Callable[[str, int], bool]) -> int:
        assert (before_ms, purpose) == (now_ms - age_ms, Purpose.GC)
        begun = (0, now_ms - age_ms - 1, now_ms - age_ms, now_ms)
        verdicts.extend(may_abort(unknown, each) for each in begun)
        verdicts.extend((may_abort(live, 0), may_abort("foreign", 0)))
        return 2

    monkeypatch.setattr(type(system.store), "sweep_unfinished", sweep)
    assert collect(system).aborted_uploads == 2
    assert verdicts == [True, True, False, False, False, False]
    assert system.catalog.operation_counts()["sessions.get"].calls == 2


def test_an_upload_of_an_unsettled_session_is_not_aborted(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended long ago, but the commit of the upload may be lost."""
    system.catalog.incarnations.declare_restore("a test")
    system.clock.advance(2 * GRACE_S)
    verdicts: list[bool] = []

    def sweep(*_: object, may_abort: Callable[[str, int], bool], **__: object) -> int:
        verdicts.append(may_abort(ingestion_name(system.session_id, system.ids.new_uuid()), 0))
        return 0

    monkeypatch.setattr(type(system.store), "sweep_unfinished", sweep)
    collect(system)
    assert verdicts == [False]


def test_uploads_of_a_job_of_a_newer_version_hold_up_nothing(
    system: System, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent of the older release collects garbage during an upgrade."""
    compacted_once(system)
    (job,) = system.catalog.jobs.claim("a newer driver", 1)
    assert job.attempt_id is not None
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE siltstone.jobs SET spec_version = 99,"
            " spec = jsonb_set(spec::jsonb, '{version}', '99')::json"
        )
    of_job = compacted_name(job.spec.job_id, job.attempt_id, system.ids.new_uuid())
    verdicts: list[bool] = []

    def sweep(*_: object, may_abort: Callable[[str, int], bool], **__: object) -> int:
        verdicts.append(may_abort(of_job, 0))
        return 0

    monkeypatch.setattr(type(system.store), "sweep_unfinished", sweep)
    collect(system)
    assert verdicts == [False]


def test_an_upload_of_a_session_that_was_not_found_at_first_is_not_aborted(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lags behind does not know the newest sessions."""
    live = ingestion_name(system.session_id, system.ids.new_uuid())
    verdicts: list[bool] = []

    def sweep(*_: object, may_abort: Callable[[str, int], bool], **__: object) -> int:
        verdicts.append(may_abort(live, 0))
        return 0

    monkeypatch.setattr(type(system.store), "sweep_unfinished", sweep)
    monkeypatch.setattr(system.catalog.sessions, "get", lambda _: None)
    collect(system)
    assert verdicts == [False]


def test_garbage_collection_of_a_wrong_store_is_rejected(system: System, other_store: LocalStore) -> None:
    """Every object is absent there. In the right store, dead files are deleted."""
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
    requests = (system.store.counts.snapshot() - before).as_dict()["check"]
    assert (requests["get_requests"], requests["list_requests"], requests["put_requests"]) == (1, 0, 0)
    assert IDENTITY_NAME in objects(system)


def test_garbage_collection_of_an_emptied_store_is_rejected(system: System) -> None:
    verify_binding(system.store, system.catalog.store_binding, system.ids)
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(2 * GRACE_S)
    known = system.catalog.garbage.known_files("")
    system.store.delete(sorted(objects(system)), purpose=Purpose.GC)
    with pytest.raises(LostIdentityError, match="is gone from"):
        collect(system)
    assert system.catalog.garbage.known_files("") == known


def test_the_row_of_a_dead_file_without_an_object_is_removed(system: System) -> None:
    """An earlier round stopped after it deleted the object."""
    verify_binding(system.store, system.catalog.store_binding, system.ids)
    compacted_once(system)
    system.run_jobs()
    system.clock.advance(2 * GRACE_S)
    dead = [file.object_name for file in system.catalog.garbage.known_files("") if file.dead_ms is not None]
    system.store.delete(dead, purpose=Purpose.GC)
    assert collect(system).dead_files == len(dead) == 3
    assert len(system.catalog.garbage.known_files("")) == 1


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(InvalidInputError):
        MaintenanceSettings(grace_ms=-1)
    with pytest.raises(InvalidInputError):
        MaintenanceSettings(batch=0)
