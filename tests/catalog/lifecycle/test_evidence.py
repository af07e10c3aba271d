"""Evidence that a process has of a history, and servers that contradict it, compared with plain rules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.errors import CatalogReplacedError
from catalog.lifecycle.incarnation import Evidence, Incarnation, Incarnations
from core.clock import ManualClock

if TYPE_CHECKING:
    from catalog.database.pool import Database, Transaction

SERVER = "1/00000001/5/7"
HALF_AN_HOUR_S = 1800


def row_of(**changes: object) -> Any:  # noqa: ANN401  # a row of a query has any columns
    """Return the row of a healthy server in its first epoch."""
    columns: dict[str, object] = {
        "epoch": 0,
        "incarnation_id": UUID(int=1),
        "started_ms": 5,
        "reason": "",
        "server": SERVER,
        "found_server": SERVER,
        "is_current": True,
        "inserted": 100,
        "flushed": 100,
        "knows_commit": True,
        "oldest_commit_ms": 0,
        "unsettled_sessions": 0,
        "waiting_commits": 0,
    }
    return SimpleNamespace(**{**columns, **changes})


def incarnations(clock: ManualClock | None = None) -> Incarnations:
    monotonic = (clock or ManualClock()).monotonic
    database = SimpleNamespace(monotonic=monotonic, injected_now_ms=None)
    return Incarnations(cast("Database", database))  # nothing here asks a server


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("adopt"), st.integers(0, 2), st.sampled_from([None, 0, 5, 9])),
            st.tuples(st.just("commit"), st.integers(0, 2), st.sampled_from([0, 5, 9])),
            st.tuples(
                st.just("advance"), st.sampled_from([1, HALF_AN_HOUR_S - 1, HALF_AN_HOUR_S]), st.none()
            ),
        ),
        max_size=10,
    )
)
def test_evidence_is_of_the_known_incarnation_and_young(steps: list[tuple[str, int, int | None]]) -> None:
    """A position never falls within an incarnation, and a commit counts for half an hour."""
    clock = ManualClock()
    memory = incarnations(clock)
    known: int | None = None
    flushed, commits = [0], list[tuple[UUID, float]]()
    for number, (step, argument, position) in enumerate(steps):
        if step == "adopt":
            memory.adopt(row_of(epoch=argument, incarnation_id=UUID(int=argument), flushed=position))
            if known != argument:
                known, flushed, commits = argument, [0], []
            flushed.append(position or 0)
        elif step == "commit":
            memory.committed(UUID(int=number), argument, position or 0, 1)
            if known == argument:
                flushed.append(position or 0)
                commits.append((UUID(int=number), clock.monotonic()))
        else:
            clock.advance(argument)
        young = [each for each, at in commits[-1:] if clock.monotonic() - at < HALF_AN_HOUR_S]
        found = memory.evidence
        assert (found.incarnation.epoch if found.incarnation else None) == known
        assert (found.flushed, found.last_commit) == (max(flushed), young[0] if young else None)


def test_a_backlog_is_that_of_the_last_row() -> None:
    memory = incarnations()
    assert memory.warning() is None
    memory.adopt(row_of(unsettled_sessions=2, waiting_commits=3))
    assert (memory.backlog.unsettled_sessions, memory.backlog.waiting_commits) == (2, 3)
    assert "3 files" in (memory.warning() or "")
    memory.adopt(row_of(unsettled_sessions=2))
    assert memory.warning() is None


OTHER = UUID(int=2)
KNOWN = {"epoch": 3, "incarnation_id": UUID(int=1)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"server": None, "found_server": "2/1/5/7"}, None),
        ({"found_server": None}, None),
        ({"found_server": "2/00000001/5/7"}, "system 1.*system 2"),
        ({"found_server": "1/00000002/5/7"}, "timeline 00000001.*timeline 00000002"),
        ({"incarnation_id": OTHER, "epoch": 4, "inserted": 0, "knows_commit": False}, None),
        ({"incarnation_id": OTHER, "epoch": 3}, "epoch 3 that agents have seen is unknown"),
        ({"incarnation_id": OTHER, "epoch": 2}, "epoch 3 that agents have seen is unknown"),
        ({"inserted": 50}, None),
        ({"inserted": 49}, "ends at byte 49, and agents have seen byte 50"),
        ({"knows_commit": False, "oldest_commit_ms": 1_000}, "commit is unknown"),
        ({"knows_commit": False, "oldest_commit_ms": 1_001}, None),
    ],
)
def test_each_kind_of_evidence_has_a_border(changes: dict[str, object], reason: str | None) -> None:
    """A later incarnation makes the evidence of an earlier one void."""
    memory = incarnations()
    memory.adopt(row_of(**KNOWN, flushed=50))
    memory.committed(UUID(int=7), 3, 50, 1_000)
    row = row_of(**{**KNOWN, **changes})
    transaction = cast("Transaction", SimpleNamespace(rows=lambda *_: [row]))
    if reason is None:
        assert memory.check(transaction) is row
    else:
        with pytest.raises(CatalogReplacedError, match=reason):
            memory.check(transaction)


@pytest.mark.parametrize("server", [{}, {"found_server": "2/1/5/7"}])
def test_a_process_without_evidence_compares_only_the_server(server: dict[str, str]) -> None:
    memory = incarnations()
    row = row_of(**server, inserted=0, knows_commit=False)
    transaction = cast("Transaction", SimpleNamespace(rows=lambda *_: [row]))
    assert memory.evidence == Evidence(None, 0, None)
    if not server:
        assert memory.check(transaction) is row
        assert memory.adopt(row) == Incarnation(epoch=0, incarnation_id=UUID(int=1), started_ms=5, reason="")
    else:
        with pytest.raises(CatalogReplacedError, match="the server changed"):
            memory.check(transaction)
