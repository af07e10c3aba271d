"""Fetch sessions (KIP-227): what a client reads is remembered, and it only says and hears what changes.

Sessions are this agent's alone: a client that comes to another agent, or to this one after a restart, is told
that its session is not known, and begins a new one. There is room for so many; whoever finds none is served
without a session. The rules are those of Kafka's FetchSession.scala.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from typing_extensions import override

from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agent.read.memory_reads import Wanted
    from core.clock import Clock
    from core.ids import Ids

NO_SESSION = 0
FINAL = -1
"""The epoch of a request that ends its session, or has none."""

_INITIAL = 0
_MAX_EPOCH = 2**31 - 1
Key: TypeAlias = "tuple[bytes, int]"
"""A partition as requests name it: the topic's name as bytes or, `by_id`, its identifier, and a number."""


class SessionRequest(NamedTuple):
    """What a request says of its session and of partitions."""

    session_id: int
    epoch: int
    wanted: Mapping[Key, Wanted]
    forgotten: Sequence[Key]
    by_id: bool


class Seen(NamedTuple):
    """What the answer for one partition would say; one that `failed` or is `redirected` is told each time."""

    high_watermark: int
    log_start_offset: int
    has_records: bool
    failed: bool = False
    redirected: bool = False


@dataclass(slots=True)
class _Cached:
    """One partition of a session: what is asked for, and what was last said of it."""

    wanted: Wanted
    high_watermark: int = -1
    log_start_offset: int = -1

    def has_news(self, seen: Seen) -> bool:
        """Whether the client must hear this; remembers that it will."""
        high_watermark, log_start_offset, has_records, failed, redirected = seen
        moved = high_watermark != self.high_watermark or log_start_offset != self.log_start_offset
        # After an error the partition is told of once more, whatever has become of it.
        self.high_watermark = -1 if failed else high_watermark
        self.log_start_offset = log_start_offset
        return has_records or moved or failed or redirected


@dataclass(slots=True, eq=False)
class _Session:
    session_id: int
    by_id: bool
    created: float
    used: float
    epoch: int
    partitions: dict[Key, _Cached]
    # Noted when it was last used: it had had its time by then, and may go for a larger one.
    is_settled: bool = False


class FetchContext(Protocol):
    """What one request reads, and what of its answer goes out: `begin`, then read, then `answered`."""

    @property
    def wanted(self) -> Mapping[Key, Wanted]:
        """Every partition to read, in the order in which there is room for them."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether the session is still as it was found, so that the request may begin."""
        ...

    def begin(self) -> None:
        """The request is taken: what it says of its session holds from now on."""
        ...

    def answered(self, seen: Iterable[Seen]) -> tuple[int, list[bool] | None]:
        """The session that the client has from now on, and which answers it must hear: None for all of them.

        Both lists are in the order of `wanted`. Raises INVALID_FETCH_SESSION_EPOCH when another request has
        come in between.
        """
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

    def find(self, request: SessionRequest) -> FetchContext:
        """What a request reads; nothing has changed until its `begin`.

        Raises FETCH_SESSION_ID_NOT_FOUND and its neighbours.
        """
        if request.epoch in {_INITIAL, FINAL}:
            return _Full(request, self)
        session = self._sessions.get(request.session_id)
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
            return _Full(request, self)
        return _Incremental(request, self, session, wanted)

    def has(self, session: _Session) -> bool:
        """Whether this is one of them."""
        return self._sessions.get(session.session_id) is session

    def update(self, session: _Session, request: SessionRequest) -> None:
        """Let the session be as the request wants it."""
        partitions = session.partitions
        before = len(partitions)
        for key, wanted in request.wanted.items():
            cached = partitions.get(key)
            if cached is None:
                partitions[key] = _Cached(wanted)
            else:
                cached.wanted = wanted
        for key in request.forgotten:
            partitions.pop(key, None)
        self.partition_count += len(partitions) - before
        session.epoch = _next(session.epoch)
        if self.partition_count > self._most_partitions:
            self.remove(session.session_id)
            self.evictions += 1
            raise KafkaError(ErrorCode.fetch_session_id_not_found, "the session has become too large")
        session.used = now = self._clock.monotonic()
        session.is_settled = now - session.created > self._evict_seconds
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def remove(self, session_id: int) -> None:
        """Let go of a session; of one that is not there as well."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)

    def create(self, wanted: Mapping[Key, Wanted], seen: Iterable[Seen], *, by_id: bool) -> int:
        """Remember what was asked and answered; the session's id, 0 when there is no room for one."""
        if not self._make_room(len(wanted)):
            return NO_SESSION
        partitions = {key: _Cached(each) for key, each in wanted.items()}
        for cached, each in zip(partitions.values(), seen, strict=True):
            cached.has_news(each)
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
            self.remove(victim.session_id)
            self.evictions += 1
        return True

    def _victim(self, size: int) -> _Session | None:
        """One that nobody uses, or one that has had its time and saves less than the new one will."""
        if not self._sessions:
            return None
        oldest = next(iter(self._sessions.values()))
        if self._clock.monotonic() - oldest.used > self._evict_seconds:
            return oldest
        smallest = min(
            (each for each in self._sessions.values() if each.is_settled),
            key=lambda each: (len(each.partitions), each.session_id),
            default=None,
        )
        return smallest if smallest is not None and len(smallest.partitions) < size else None

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(self._ids.random_bytes(4), "big") & _MAX_EPOCH
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


class _Full(FetchContext):
    """A request that says everything, or leaves nothing of its session: that one ends.

    Who begins, and no one else, wants a new one.
    """

    def __init__(self, request: SessionRequest, sessions: FetchSessions) -> None:
        self._request = request
        self._sessions = sessions

    @property
    @override
    def wanted(self) -> Mapping[Key, Wanted]:
        return self._request.wanted

    @property
    @override
    def is_current(self) -> bool:
        return True

    @override
    def begin(self) -> None:
        self._sessions.remove(self._request.session_id)

    @override
    def answered(self, seen: Iterable[Seen]) -> tuple[int, list[bool] | None]:
        session_id = NO_SESSION
        if self._request.epoch == _INITIAL:
            session_id = self._sessions.create(self._request.wanted, seen, by_id=self._request.by_id)
        return session_id, None


class Sessionless(FetchContext):
    """A request that neither has a session nor wants one; `wanted` is asked when it is needed."""

    def __init__(self, wanted: Callable[[], Mapping[Key, Wanted]]) -> None:
        self._wanted = wanted

    @property
    @override
    def wanted(self) -> Mapping[Key, Wanted]:
        return self._wanted()

    @property
    @override
    def is_current(self) -> bool:
        return True

    @override
    def begin(self) -> None:
        pass

    @override
    def answered(self, seen: Iterable[Seen]) -> tuple[int, list[bool] | None]:
        return NO_SESSION, None


class _Incremental(FetchContext):
    """A request that says what has changed."""

    def __init__(
        self,
        request: SessionRequest,
        sessions: FetchSessions,
        session: _Session,
        wanted: Mapping[Key, Wanted],
    ) -> None:
        self._request = request
        self._sessions = sessions
        self._session = session
        self._wanted = wanted
        self._epoch = _next(request.epoch)

    @property
    @override
    def wanted(self) -> Mapping[Key, Wanted]:
        return self._wanted

    @property
    @override
    def is_current(self) -> bool:
        return self._sessions.has(self._session) and self._session.epoch == self._request.epoch

    @override
    def begin(self) -> None:
        self._sessions.update(self._session, self._request)

    @override
    def answered(self, seen: Iterable[Seen]) -> tuple[int, list[bool] | None]:
        session = self._session
        if session.epoch != self._epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch, "the same request has come twice")
        partitions = session.partitions
        news: list[bool] = []
        with_records: list[Key] = []
        for key, each in zip(self._wanted, seen, strict=True):
            news.append(partitions[key].has_news(each))
            if each.has_records:
                with_records.append(key)
        # Next time the others come first, for there may not be room for all.
        if len(with_records) < len(partitions):
            for key in with_records:
                partitions[key] = partitions.pop(key)
        return session.session_id, news


def _next(epoch: int) -> int:
    return 1 if epoch >= _MAX_EPOCH else epoch + 1
