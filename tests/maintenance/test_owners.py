"""State of the owners of objects, as the catalog knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from maintenance.owners import Owner, Owners, Ownership
from object_store.names import CompactedName, IngestionName, compacted_name, ingestion_name, parse
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import Job
    from tests.planner.system import System

pytestmark = pytest.mark.integration

OPEN = Owner(Ownership.OPEN, None, is_unsettled=False)
UNKNOWN = Owner(Ownership.UNKNOWN, None, is_unsettled=False)


def session_name(session_id: UUID) -> IngestionName:
    parsed = parse(ingestion_name(session_id, session_id))
    assert isinstance(parsed, IngestionName)
    return parsed


def job_name(job_id: UUID) -> CompactedName:
    parsed = parse(compacted_name(job_id, job_id, job_id))
    assert isinstance(parsed, CompactedName)
    return parsed


def claimed(system: System) -> Job:
    key = PartitionId(system.topic("plain").topic_id, 0)
    for _ in range(2):
        system.produce({key: [(b"a", b"1")]})
    plan_and_submit(system.catalog, system.clock, system.ids, PlannerSettings(force=True))
    (job,) = system.catalog.jobs.claim("a test", 1)
    return job


def test_an_owner_ended_before_any_later_time() -> None:
    ended = Owner(Ownership.ENDED, 5)
    assert [ended.ended_before(each) for each in (4, 5, 6)] == [False, False, True]
    assert not OPEN.ended_before(6)
    assert not Owner(Ownership.ENDED, 5).is_unsettled


def test_a_session_is_open_until_it_ends(system: System) -> None:
    name = session_name(system.session_id)
    assert Owners(system.catalog).of(name) == OPEN
    assert Owners(system.catalog).of(session_name(system.ids.new_uuid())) == UNKNOWN
    system.clock.advance(7)
    ended_ms = system.clock.now_ms()
    system.catalog.sessions.end(system.session_id)
    system.clock.advance(7)
    assert Owners(system.catalog).of(name) == Owner(Ownership.ENDED, ended_ms, is_unsettled=False)


def test_a_fenced_session_is_unsettled_after_a_loss(system: System) -> None:
    """Its last commits may be lost, so its objects stay."""
    now_ms = system.clock.now_ms()
    system.catalog.incarnations.declare_restore("a test")
    found = Owners(system.catalog).of(session_name(system.session_id))
    assert found == Owner(Ownership.ENDED, now_ms, is_unsettled=True)


@pytest.mark.parametrize("how", ["completed", "failed"])
def test_a_job_is_open_until_it_has_completed_or_failed(system: System, how: str) -> None:
    job = claimed(system)
    name = job_name(job.spec.job_id)
    assert job.attempt_id is not None
    assert Owners(system.catalog).of(name) == OPEN
    assert Owners(system.catalog).of(job_name(system.ids.new_uuid())) == UNKNOWN
    system.clock.advance(7)
    if how == "completed":
        system.catalog.jobs.complete(system.write_outputs(job))
    else:
        system.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a test")
    ended_ms = system.clock.now_ms()
    assert Owners(system.catalog).of(name) == Owner(Ownership.ENDED, ended_ms, is_unsettled=False)
    system.catalog.incarnations.declare_restore("a test")
    assert Owners(system.catalog).of(name) == Owner(Ownership.ENDED, ended_ms, is_unsettled=True)


def test_names_of_one_owner_cost_one_look(system: System) -> None:
    """Only the last owner is remembered."""
    owners = Owners(system.catalog)
    one, other = session_name(system.session_id), session_name(system.ids.new_uuid())
    for name, calls in ((one, 1), (one, 1), (other, 2), (other, 2), (one, 3)):
        assert owners.of(name) == (OPEN if name is one else UNKNOWN)
        assert system.catalog.operation_counts()["sessions.get"].calls == calls
