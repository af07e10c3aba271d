"""Fetch sessions (KIP-227): what a client reads is remembered, and it only says and hears what changes.

Sessions are this agent's alone: a client that comes to another agent, or to this one after a restart, is told
that its session is not known, and begins a new one. There is room for so many; whoever finds none is served
without a session. The rules are those of Kafka's FetchSession.scala.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from agent.kafka.codec import Struct
    from bedrock.clock import Clock
    from bedrock.ids import Ids

NO_SESSION = 0
_INITIAL, _FINAL = 0, -1
_MOST_EPOCH = 2**31 - 1
# (name, topic id, partition): requests name topics by the one or the other.
Key: TypeAlias = "tuple[str, UUID | None, int]"


@dataclass(slots=True)
class _Cached:
    """One partition of a session: what is asked for, and what was last said of it."""

    wanted: Struct
    high_watermark: int = -1
    log_start_offset: int = -1

    def has_news(self, answer: Struct) -> bool:
        """Whether the client must hear this; remembers that it will. Errors are repeated while they last."""
        seen = (answer.__dict__.get("high_watermark", 0), answer.__dict__.get("log_start_offset", -1))
        failed = bool(answer.__dict__.get("error_code", 0))
        moved = seen != (self.high_watermark, self.log_start_offset)
        self.high_watermark, self.log_start_offset = (-1, seen[1]) if failed else seen
        redirected = answer.__dict__.get("preferred_read_replica", -1) != -1
        return failed or moved or redirected or any(map(len, answer.__dict__.get("records") or ()))


@dataclass(slots=True, eq=False)
class _Session:
    session_id: int
    by_id: bool
    created: float
    used: float
    epoch: int
    partitions: dict[Key, _Cached]


class FetchContext(Protocol):
    """What one request reads, and what of its answer goes out."""

    def wanted(self) -> list[tuple[Key, Struct]]:
        """Every partition to read, with what is asked of it."""
        ...

    def answered(self, answers: Sequence[tuple[Key, Struct]]) -> tuple[int, list[tuple[Key, Struct]]]:
        """The session that the client has from now on, and those answers that it must hear."""
        ...


class FetchSessions:
    """The sessions of this agent. Belongs to the event loop.

    At most `most_sessions`, and `most_partitions` in all of them: a new one takes the place of one that was
    not used for `evict_ms`, or of a smaller one that is older than that.
    """

    def __init__(
        self, *, clock: Clock, ids: Ids, most_sessions: int, most_partitions: int, evict_ms: int
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._most_sessions = most_sessions
        self._most_partitions = most_partitions
        self._evict_seconds = evict_ms / 1000
        # The one that was not used for longest comes first.
        self._sessions: dict[int, _Session] = {}
        self.partition_count = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: Struct, *, by_id: bool) -> FetchContext:
        """What a request reads; raises FETCH_SESSION_ID_NOT_FOUND and its neighbours."""
        asked = dict(_asked(request))
        if request.session_epoch in {_INITIAL, _FINAL}:
            self._remove(request.session_id)
            if request.session_epoch == _FINAL:
                return _Full(asked, None, by_id=by_id)
            return _Full(asked, self, by_id=by_id)
        session = self._find(request, by_id=by_id)
        self._update(session, asked, _forgotten(request))
        if not session.partitions:
            self._remove(session.session_id)
            return _Full(asked, None, by_id=by_id)
        session.epoch = _next(session.epoch)
        return _Incremental(session, session.epoch)

    def _find(self, request: Struct, *, by_id: bool) -> _Session:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch,
                f"the session is in epoch {session.epoch}, not {request.session_epoch}",
            )
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        return session

    def _update(self, session: _Session, asked: dict[Key, Struct], forgotten: Iterable[Key]) -> None:
        before = len(session.partitions)
        for key, wanted in asked.items():
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = _Cached(wanted)
            else:
                cached.wanted = wanted
        for key in forgotten:
            session.partitions.pop(key, None)
        self.partition_count += len(session.partitions) - before
        if self.partition_count > self._most_partitions:
            self._remove(session.session_id)
            self.evictions += 1
            raise KafkaError(ErrorCode.fetch_session_id_not_found, "the session has become too large")
        session.used = self._clock.monotonic()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)

    def create(self, answers: Sequence[tuple[Key, Struct]], asked: dict[Key, Struct], *, by_id: bool) -> int:
        """Remember what was asked and answered; the session's id, 0 when there is no room for one."""
        partitions = {key: _Cached(asked[key]) for key, _ in answers}
        if not self._make_room(len(partitions)):
            return NO_SESSION
        for key, answer in answers:
            partitions[key].has_news(answer)
        now = self._clock.monotonic()
        session = _Session(self._new_id(), by_id, now, now, _next(_INITIAL), partitions)
        self._sessions[session.session_id] = session
        self.partition_count += len(partitions)
        return session.session_id

    def _make_room(self, size: int) -> bool:
        while (
            len(self._sessions) >= self._most_sessions or self.partition_count + size > self._most_partitions
        ):
            victim = self._victim(size)
            if victim is None:
                return False
            self._remove(victim.session_id)
            self.evictions += 1
        return True

    def _victim(self, size: int) -> _Session | None:
        """One that nobody uses, or one that has had its time and saves less than the new one will."""
        if not self._sessions:
            return None
        before = self._clock.monotonic() - self._evict_seconds
        oldest = next(iter(self._sessions.values()))
        if oldest.used < before:
            return oldest
        smallest = min(
            (each for each in self._sessions.values() if each.created < before),
            key=lambda each: len(each.partitions),
            default=None,
        )
        return smallest if smallest is not None and len(smallest.partitions) < size else None

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(self._ids.random_bytes(4), "big") & _MOST_EPOCH
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


@dataclass(slots=True)
class _Full:
    """A request that says everything; `sessions` is None when it wants none."""

    asked: dict[Key, Struct]
    sessions: FetchSessions | None
    by_id: bool = field(kw_only=True)

    def wanted(self) -> list[tuple[Key, Struct]]:
        return list(self.asked.items())

    def answered(self, answers: Sequence[tuple[Key, Struct]]) -> tuple[int, list[tuple[Key, Struct]]]:
        if self.sessions is None:
            return NO_SESSION, list(answers)
        return self.sessions.create(answers, self.asked, by_id=self.by_id), list(answers)


@dataclass(slots=True)
class _Incremental:
    """A request that says what has changed. `epoch` tells whether another one has come in between."""

    session: _Session
    epoch: int

    def wanted(self) -> list[tuple[Key, Struct]]:
        return [(key, cached.wanted) for key, cached in self.session.partitions.items()]

    def answered(self, answers: Sequence[tuple[Key, Struct]]) -> tuple[int, list[tuple[Key, Struct]]]:
        session = self.session
        if session.epoch != self.epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch, "the same request has come twice")
        news = []
        for key, answer in answers:
            cached = session.partitions[key]
            if cached.has_news(answer):
                news.append((key, answer))
                if answer.__dict__.get("records"):
                    # Next time the others come first, for there may not be room for all.
                    del session.partitions[key]
                    session.partitions[key] = cached
        return session.session_id, news


def _asked(request: Struct) -> Iterable[tuple[Key, Struct]]:
    for topic in request.topics:
        for wanted in topic.partitions:
            yield (topic.topic, topic.topic_id, wanted.partition), wanted


def _forgotten(request: Struct) -> Iterable[Key]:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            yield topic.topic, topic.topic_id, partition


def _next(epoch: int) -> int:
    return 1 if epoch >= _MOST_EPOCH else epoch + 1
