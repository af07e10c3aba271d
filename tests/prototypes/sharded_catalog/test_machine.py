"""Random histories of files with parts in two databases, against a model of the states of their parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from catalog.errors import InvalidCommitError, SessionFencedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from catalog.model import FileCommit
    from tests.prototypes.sharded_catalog.cluster import Cluster

_BOTH: Final = (0, 1)
_SHARDS = st.sampled_from([(0,), (1,), _BOTH, _BOTH])
_RETRY_MS: Final = 30 * 60_000  # an agent commits no older file
_PENDING, _LIVE, _DEAD, _VOID = "pending", "live", "dead", "void"


class Death(BaseException):
    """Death of the collecting process."""


@dataclass
class File:
    """A file, and the states of its parts; a closed session may have voided a pending one."""

    commit: FileCommit
    written_ms: int
    parts: dict[int, str] = field(default_factory=dict)


class ShardedMachine(RuleBasedStateMachine):
    """Two shards. An object may be missing only if no shard needs it, now or later."""

    cluster: ClassVar[Cluster]

    def __init__(self) -> None:
        super().__init__()
        self.files: list[File] = []
        self.closed: set[tuple[UUID, int]] = set()
        self.sessions: list[UUID] = []
        self.begin_session()

    @rule()
    def begin_session(self) -> None:
        if len(self.sessions) < 3:
            self.cluster.begin_session()
            self.sessions.append(self.cluster.session_id)

    @rule(shards=_SHARDS)
    def write(self, shards: tuple[int, ...]) -> None:
        file = self.cluster.file(*shards)
        self.files.append(File(file, self.cluster.clock.now_ms(), dict.fromkeys(shards, _PENDING)))

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        file, shard = self._choose(data)
        if self.cluster.clock.now_ms() - file.written_ms > _RETRY_MS:
            return
        try:
            (result,) = self.cluster.commit_part(file.commit, shard)
        except SessionFencedError:
            assert self._is_closed(file, shard)
            assert file.parts[shard] == _PENDING
        except InvalidCommitError:
            assert file.parts[shard] == _VOID or self._is_closed(file, shard)
        else:
            assert result.runs[0].refusal is None
            assert file.parts[shard] != _VOID
            if file.parts[shard] == _PENDING:
                assert not self._is_closed(file, shard)
                file.parts[shard] = _LIVE

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        file, shard = self._choose(data)
        if self.cluster.clock.now_ms() - file.written_ms <= _RETRY_MS:
            assert self.cluster.commits.give_up(file.commit, shard).result()
            if file.parts[shard] == _PENDING:
                file.parts[shard] = _VOID

    @rule(shard=st.sampled_from(_BOTH))
    def expire(self, shard: int) -> None:
        self.cluster.expire(shard)
        for file in self.files:
            if file.parts.get(shard) == _LIVE:
                file.parts[shard] = _DEAD

    @rule(shard=st.sampled_from(_BOTH), number=st.integers(0, 2))
    def fence(self, shard: int, number: int) -> None:
        if number < len(self.sessions):
            session_id = self.sessions[number]
            self.cluster.catalog(shard).sessions.fence(session_id)
            self.closed.add((session_id, shard))

    @rule(seconds=st.sampled_from([0, 70, 70, 7 * 3600]), steps=st.integers(1, 8))
    def collect(self, seconds: int, steps: int) -> None:
        """Collect garbage, in a process that dies before some step of its changes."""
        self.cluster.clock.advance(seconds)
        left = steps

        def step() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Death

        changes = [
            (self.cluster.store, "delete"),
            *((self.cluster.catalog(shard).garbage, "delete_rows") for shard in _BOTH),
            *((self.cluster.catalog(shard).expiry, "mark_swept") for shard in _BOTH),
            *((self.cluster.shards[shard], "void") for shard in _BOTH),
        ]
        patches = [
            patch.object(target, name, side_effect=_after(step, getattr(target, name)))
            for target, name in changes
        ]
        try:
            for each in patches:
                each.start()
            self.cluster.garbage.collect()
        except Death:
            pass
        finally:
            for each in patches:
                each.stop()

    @invariant()
    def no_object_is_missed(self) -> None:
        records = {shard: {file_id for file_id, _, _ in self.cluster.records(shard)} for shard in _BOTH}
        for file in self.files:
            exists = self.cluster.exists(file.commit)
            for shard, state in file.parts.items():
                assert (file.commit.file_id in records[shard]) == (state == _LIVE)
                assert (
                    exists or state in {_DEAD, _VOID} or (state == _PENDING and self._is_closed(file, shard))
                )

    @override
    def teardown(self) -> None:
        """Let everything end, and verify that nothing is left."""
        for session_id in self.sessions:
            self.cluster.shards.fence(session_id)
        for shard in _BOTH:
            self.cluster.expire(shard)
        for _ in range(3):
            self.cluster.collect()
        assert not any(self.cluster.rows(shard) for shard in _BOTH)
        assert not any(self.cluster.exists(file.commit) for file in self.files)

    def _choose(self, data: st.DataObject) -> tuple[File, int]:
        file = data.draw(st.sampled_from(self.files[-4:]))
        return file, data.draw(st.sampled_from(sorted(file.parts)))

    def _is_closed(self, file: File, shard: int) -> bool:
        return (file.commit.session_id, shard) in self.closed


def _after(step: Callable[[], None], change: Callable[..., object]) -> Callable[..., object]:
    def run(*arguments: object, **options: object) -> object:
        step()
        return change(*arguments, **options)

    return run


def test_no_history_deletes_too_early_or_keeps_for_ever(cluster: Cluster) -> None:
    ShardedMachine.cluster = cluster
    run_state_machine_as_test(
        ShardedMachine,
        settings=settings(
            max_examples=settings().max_examples // 5,
            stateful_step_count=20,
            suppress_health_check=[HealthCheck.too_slow],
            deadline=None,
        ),
    )
