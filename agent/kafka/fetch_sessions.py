"""Fetch sessions (KIP-227): the agent remembers which partitions a client reads.

In a session, a request names only the partitions that change, and a response only those with news. Sessions
belong to one agent. After a restart, or at another agent, the session is not found, and the client starts a
new one. The number of sessions is bounded; a client that gets none is served without a session. The rules are
those of Kafka's FetchSession.scala, except that a session belongs to the principal that started it. To any
other, it does not exist: an id that was found by trying shows no names, and ends no session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from typing_extensions import override

from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agent.read.memory_reads import PartitionRead
    from agent.security.identity import Principal
    from core.clock import Clock
    from core.ids import Ids

NO_SESSION = 0
FINAL_EPOCH = -1
"""The epoch of a request that ends its session, or has none."""

_INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1
PartitionKey: TypeAlias = "tuple[bytes, int]"
"""A partition as requests name it: the bytes of the topic's name, or `by_id` of its id, and the index."""


class SessionRequest(NamedTuple):
    """The session and the partitions that a request of `owner` names."""

    owner: Principal
    session_id: int
    epoch: int
    wanted: Mapping[PartitionKey, PartitionRead]
    forgotten: Sequence[PartitionKey]
    by_id: bool


class PartitionStatus(NamedTuple):
    """The outcome for one partition. The client gets it every time if it `failed` or was `redirected`."""

    high_watermark: int
    log_start_offset: int
    has_records: bool
    failed: bool = False
    redirected: bool = False


@dataclass(slots=True)
class _CachedPartition:
    """One partition of a session: the client's request for it, and its status in the last response."""

    wanted: PartitionRead
    high_watermark: int = -1
    log_start_offset: int = -1

    def update(self, status: PartitionStatus) -> bool:
        """Remember the status; return True if the response must contain it."""
        high_watermark, log_start_offset, has_records, failed, redirected = status
        moved = high_watermark != self.high_watermark or log_start_offset != self.log_start_offset
        # After an error the next response contains the partition, even if nothing else changes.
        self.high_watermark = -1 if failed else high_watermark
        self.log_start_offset = log_start_offset
        return has_records or moved or failed or redirected


@dataclass(slots=True, eq=False)
class _Session:
    session_id: int
    owner: Principal
    by_id: bool
    created: float
    used: float
    epoch: int
    partitions: dict[PartitionKey, _CachedPartition]
    # Set at each use, if the session is older than the eviction time by then: a larger one may replace it.
    is_evictable: bool = False


class FetchContext(Protocol):
    """One fetch request in its session. Call `begin`, read the partitions, then call `complete`."""

    @property
    def wanted(self) -> Mapping[PartitionKey, PartitionRead]:
        """Every partition to read. Earlier ones have priority if the response cannot have all."""
        ...

    @property
    def is_current(self) -> bool:
        """True if no other request has used the session since it was found, so that this one may begin."""
        ...

    def begin(self) -> None:
        """Apply the request to its session."""
        ...

    def complete(self, statuses: Iterable[PartitionStatus]) -> tuple[int, list[bool] | None]:
        """Return the session id, and for each partition whether the response contains it (None: all do).

        Statuses and results are in the order of `wanted`. Raises INVALID_FETCH_SESSION_EPOCH if another
        request has used the session meanwhile.
        """
        ...

    def complete_throttled(self) -> int:
        """Return the session id of an empty response, in which a throttled client learns nothing.

        A request that would start a session starts none, as in Kafka.
        """
        ...


class FetchSessions:
    """The sessions of this agent. Belongs to the event loop.

    There are at most `max_sessions`, with `max_partitions` in all of them. A new session evicts one that was
    not used for `evict_ms`, or a smaller one that is older than that.
    """

    def __init__(
        self, *, clock: Clock, ids: Ids, max_sessions: int, max_partitions: int, evict_ms: int
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._evict_seconds = evict_ms / 1000
        # Least recently used first.
        self._sessions: dict[int, _Session] = {}
        self.partition_count = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, request: SessionRequest) -> FetchContext:
        """Return the request's context. The session does not change until `begin`.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if request.epoch in {_INITIAL_EPOCH, FINAL_EPOCH}:
            return _FullFetch(request, self)
        session = self._own(request)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch,
                f"the session is in epoch {session.epoch}, not {request.epoch}",
            )
        if session.by_id != request.by_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        wanted = {key: cached.wanted for key, cached in session.partitions.items()}
        wanted.update(request.wanted)
        for key in request.forgotten:
            wanted.pop(key, None)
        if not wanted:
            return _FullFetch(request, self)
        return _IncrementalFetch(request, self, session, wanted)

    def _own(self, request: SessionRequest) -> _Session | None:
        """Return the session that a request names, if it belongs to the principal of the request."""
        session = self._sessions.get(request.session_id)
        return session if session is not None and session.owner == request.owner else None

    def clear(self) -> None:
        """End all sessions: they remember high watermarks of an earlier epoch."""
        self._sessions.clear()
        self.partition_count = 0

    def has(self, session: _Session) -> bool:
        """Return True if the session still exists."""
        return self._sessions.get(session.session_id) is session

    def update(self, session: _Session, request: SessionRequest) -> None:
        """Apply a request to its session."""
        partitions = session.partitions
        before = len(partitions)
        for key, wanted in request.wanted.items():
            cached = partitions.get(key)
            if cached is None:
                partitions[key] = _CachedPartition(wanted)
            else:
                cached.wanted = wanted
        for key in request.forgotten:
            partitions.pop(key, None)
        self.partition_count += len(partitions) - before
        session.epoch = _next_epoch(session.epoch)
        if self.partition_count > self._max_partitions:
            self.remove(session.session_id)
            self.evictions += 1
            raise KafkaError(ErrorCode.fetch_session_id_not_found, "the session has too many partitions")
        session.used = now = self._clock.monotonic()
        session.is_evictable = now - session.created > self._evict_seconds
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def remove(self, session_id: int) -> None:
        """Remove a session if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)

    def end(self, request: SessionRequest) -> None:
        """Remove the session that a request names, if it belongs to the principal of the request."""
        if self._own(request) is not None:
            self.remove(request.session_id)

    def create(self, request: SessionRequest, statuses: Iterable[PartitionStatus]) -> int:
        """Create a session and return its id; return `NO_SESSION` if the limits are reached."""
        wanted = request.wanted
        if not self._evict_for(len(wanted)):
            return NO_SESSION
        partitions = {key: _CachedPartition(each) for key, each in wanted.items()}
        for cached, each in zip(partitions.values(), statuses, strict=True):
            cached.update(each)
        now = self._clock.monotonic()
        epoch = _next_epoch(_INITIAL_EPOCH)
        session = _Session(self._new_id(), request.owner, request.by_id, now, now, epoch, partitions)
        self._sessions[session.session_id] = session
        self.partition_count += len(partitions)
        return session.session_id

    def _evict_for(self, size: int) -> bool:
        while len(self._sessions) >= self._max_sessions or self.partition_count + size > self._max_partitions:
            victim = self._victim(size)
            if victim is None:
                return False
            self.remove(victim.session_id)
            self.evictions += 1
        return True

    def _victim(self, size: int) -> _Session | None:
        """Return an unused session, or an old one with fewer partitions than the new session."""
        if not self._sessions:
            return None
        oldest = next(iter(self._sessions.values()))
        if self._clock.monotonic() - oldest.used > self._evict_seconds:
            return oldest
        smallest = min(
            (each for each in self._sessions.values() if each.is_evictable),
            key=lambda each: (len(each.partitions), each.session_id),
            default=None,
        )
        return smallest if smallest is not None and len(smallest.partitions) < size else None

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(self._ids.random_bytes(4), "big") & _MAX_EPOCH
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


class _FullFetch(FetchContext):
    """A request that names all its partitions. It ends the session that it names, if any.

    A request of the initial epoch starts a new session.
    """

    def __init__(self, request: SessionRequest, sessions: FetchSessions) -> None:
        self._request = request
        self._sessions = sessions

    @property
    @override
    def wanted(self) -> Mapping[PartitionKey, PartitionRead]:
        return self._request.wanted

    @property
    @override
    def is_current(self) -> bool:
        return True

    @override
    def begin(self) -> None:
        self._sessions.end(self._request)

    @override
    def complete(self, statuses: Iterable[PartitionStatus]) -> tuple[int, list[bool] | None]:
        session_id = NO_SESSION
        if self._request.epoch == _INITIAL_EPOCH:
            session_id = self._sessions.create(self._request, statuses)
        return session_id, None

    @override
    def complete_throttled(self) -> int:
        return NO_SESSION


class SessionlessFetch(FetchContext):
    """A request that neither has a session nor starts one. `wanted` is called only if needed."""

    def __init__(self, wanted: Callable[[], Mapping[PartitionKey, PartitionRead]]) -> None:
        self._wanted = wanted

    @property
    @override
    def wanted(self) -> Mapping[PartitionKey, PartitionRead]:
        return self._wanted()

    @property
    @override
    def is_current(self) -> bool:
        return True

    @override
    def begin(self) -> None:
        pass

    @override
    def complete(self, statuses: Iterable[PartitionStatus]) -> tuple[int, list[bool] | None]:
        return NO_SESSION, None

    @override
    def complete_throttled(self) -> int:
        return NO_SESSION


class _IncrementalFetch(FetchContext):
    """A request that names the partitions that changed since the last one."""

    def __init__(
        self,
        request: SessionRequest,
        sessions: FetchSessions,
        session: _Session,
        wanted: Mapping[PartitionKey, PartitionRead],
    ) -> None:
        self._request = request
        self._sessions = sessions
        self._session = session
        self._wanted = wanted
        self._epoch = _next_epoch(request.epoch)

    @property
    @override
    def wanted(self) -> Mapping[PartitionKey, PartitionRead]:
        return self._wanted

    @property
    @override
    def is_current(self) -> bool:
        return self._sessions.has(self._session) and self._session.epoch == self._request.epoch

    @override
    def begin(self) -> None:
        self._sessions.update(self._session, self._request)

    @override
    def complete(self, statuses: Iterable[PartitionStatus]) -> tuple[int, list[bool] | None]:
        session = self._session
        if session.epoch != self._epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch, "another request has used the session meanwhile"
            )
        partitions = session.partitions
        changed: list[bool] = []
        with_records: list[PartitionKey] = []
        for key, each in zip(self._wanted, statuses, strict=True):
            changed.append(partitions[key].update(each))
            if each.has_records:
                with_records.append(key)
        # The others come first in the next response, which may be too small for all partitions.
        if len(with_records) < len(partitions):
            for key in with_records:
                partitions[key] = partitions.pop(key)
        return session.session_id, changed

    @override
    def complete_throttled(self) -> int:
        return self._session.session_id


def _next_epoch(epoch: int) -> int:
    return 1 if epoch >= _MAX_EPOCH else epoch + 1
