"""Topics and group configurations from the catalog, cached because every heartbeat needs them.

While the catalog does not respond, heartbeats go on with the last known values.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from agent.groups.consumer.topics import TopicView
from catalog.config.values import GroupConfig
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from agent.groups.consumer.topics import Selection
    from agent.groups.interfaces import TopicTable
    from agent.security.acl_rules import AccessRules
    from catalog.topics.changes import TopicVersion
    from core.clock import Clock

T = TypeVar("T")
_log = structlog.get_logger(__name__)
# A lookup that takes longer than this delays no heartbeat. The catalog may time out after 30 seconds or more.
_MAX_WAIT_SECONDS = 1.0
# Matching this many names and patterns takes a few milliseconds, which the event loop can afford.
_MAX_MATCHES_ON_LOOP = 50
_DEFAULT_CONFIG = GroupConfig()


class CachedLookup(Generic[T]):
    """A value that is looked up once per refresh interval, by one call for all readers.

    Readers wait up to a second for a lookup, then use the last value. Before the first value they wait
    for the lookup, and its errors are raised. Belongs to the event loop.
    """

    def __init__(
        self, name: str, look_up: Callable[[], Awaitable[T]], *, clock: Clock, refresh_ms: int
    ) -> None:
        self.last: T | None = None
        self._name = name
        self._look_up = look_up
        self._clock = clock
        self._refresh_seconds = refresh_ms / 1000
        self._fresh_until = float("-inf")
        self._refreshing: asyncio.Task[T] | None = None
        self._wait_until = 0.0  # by the loop's clock

    async def get(self) -> T:
        """Return the value, at most one refresh interval old unless the lookup fails or is slow."""
        if self.last is not None and self._clock.monotonic() < self._fresh_until:
            return self.last
        loop = asyncio.get_running_loop()
        refreshing = self._refreshing
        if refreshing is None or refreshing.done():
            refreshing = self._refreshing = loop.create_task(self._refresh(), name=self._name)
            self._wait_until = loop.time() + _MAX_WAIT_SECONDS
        timeout = None if self.last is None else self._wait_until - loop.time()
        if timeout is None or timeout > 0:
            await asyncio.wait([refreshing], timeout=timeout)
        return refreshing.result() if self.last is None or refreshing.done() else self.last

    async def _refresh(self) -> T:
        try:
            self.last = await self._look_up()
        except SiltstoneError as error:
            if self.last is None:
                raise
            _log.warning(
                f"{self._name} could not be looked up; the last known values are used", reason=str(error)
            )
        self._fresh_until = self._clock.monotonic() + self._refresh_seconds
        return self.last


class GroupConfigCache:
    """The configurations of all groups that have one. Belongs to the event loop."""

    def __init__(
        self, look_up: Callable[[], Awaitable[Mapping[str, GroupConfig]]], *, clock: Clock, refresh_ms: int
    ) -> None:
        self._lookup = CachedLookup("group configurations", look_up, clock=clock, refresh_ms=refresh_ms)

    def of(self, group_id: str) -> GroupConfig:
        """Return the configuration of a group as of the last refresh."""
        return (self._lookup.last or {}).get(group_id, _DEFAULT_CONFIG)

    async def refresh(self) -> None:
        """Look the configurations up again if the refresh interval is over."""
        await self._lookup.get()


class BlockingCall(Protocol):
    """Function that runs blocking or slow work outside the event loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return the result of `work`."""
        ...


class TopicCache:
    """The view of all topics and of the rights to describe them. Belongs to the event loop.

    A refresh lists the topics only if their version in the catalog is another one.
    """

    def __init__(
        self,
        topics: TopicTable,
        *,
        call: BlockingCall,
        clock: Clock,
        refresh_ms: int,
        rules: Callable[[], AccessRules | None] = lambda: None,
    ) -> None:
        """`rules` returns what decides about clients now; None if every client may do everything."""
        self._topics = topics
        self._version: TopicVersion | None = None  # of the topics in the view
        self._rules = rules
        self._call = call
        self._lookup = CachedLookup("topics", self._update, clock=clock, refresh_ms=refresh_ms)
        self._match_lock = asyncio.Lock()

    async def get(self) -> TopicView:
        """Return the current view."""
        return await self._lookup.get()

    async def match(self, view: TopicView, selections: Collection[Selection]) -> None:
        """Cache what these patterns match; many names are matched outside the event loop.

        Kafka has an executor for that. Here one caller works at a time, because members of a group usually
        share their patterns.
        """
        if len(view.uncached(selections)) * len(view.by_name) <= _MAX_MATCHES_ON_LOOP:
            return
        async with self._match_lock:
            missing = view.uncached(selections)
            if missing:
                view.cache_matches(await self._call(partial(view.compute_matches, missing)))

    async def _update(self) -> TopicView:
        last = self._lookup.last or TopicView({})
        rules = self._rules()
        known = self._version

        def update() -> tuple[TopicView, TopicVersion | None]:
            listed = self._topics.changed_since(known)
            if listed is None:
                return last.updated(None, rules), known
            return last.updated(listed.topics, rules), listed.version

        view, self._version = await self._call(update)
        return view
