"""The topics as consumer groups see them: by name and by pattern, remembered for a moment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import re2

from agent.groups.consumer.remembered import Remembered
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from catalog.model import Topic
    from core.clock import Clock

T = TypeVar("T")
_MAX_PATTERNS = 1_000
# Names times patterns on the event loop: some milliseconds.
_MATCHED_AT_ONCE = 500


class SeenTopic(NamedTuple):
    """What an assignment depends on."""

    topic_id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """All topics at some moment. As long as nothing changes, the view is the same object.

    What patterns match is remembered for so many of them; those of members are asked for again and again.
    """

    by_name: Mapping[str, SeenTopic]
    _matches: dict[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    def matching(self, pattern: str) -> frozenset[str]:
        """The names that a pattern matches as a whole; as RE2 has it, so that no pattern takes long."""
        found = self._matches.get(pattern)
        if found is None:
            found = _matching(pattern, self.by_name)
            self.remember({pattern: found})
        return found

    def unmatched(self, patterns: Iterable[str]) -> list[str]:
        """Those that `matching` has not been asked for yet: it would go through all names."""
        return [each for each in patterns if each not in self._matches]

    def matches(self, patterns: Iterable[str]) -> dict[str, frozenset[str]]:
        """What `matching` says of these patterns, found but not remembered; for any thread."""
        return {each: _matching(each, self.by_name) for each in patterns}

    def remember(self, matches: Mapping[str, frozenset[str]]) -> None:
        """Note what was found of patterns; the first ones are forgotten when there are too many."""
        for pattern, names in matches.items():
            while len(self._matches) >= _MAX_PATTERNS:
                del self._matches[next(iter(self._matches))]
            self._matches[pattern] = names

    def followed_by(self, topics: Iterable[Topic]) -> TopicView:
        """The view of these topics, this one if they are the same; for any thread.

        Patterns are matched with new names only.
        """
        by_name = {each.name: SeenTopic(each.topic_id, each.partition_count) for each in topics}
        if by_name == self.by_name:
            return self
        new, gone = by_name.keys() - self.by_name.keys(), self.by_name.keys() - by_name.keys()
        known = dict(self._matches)
        return TopicView(by_name, {each: _moved(each, known[each], new, gone) for each in known})

    def names(self, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
        """The names of those that exist."""
        wanted = set(topic_ids)
        return {topic.topic_id: name for name, topic in self.by_name.items() if topic.topic_id in wanted}


def _matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(compiled(pattern), names))


def _moved(
    pattern: str, matched: frozenset[str], new: AbstractSet[str], gone: AbstractSet[str]
) -> frozenset[str]:
    """What a pattern matches after some names came and others went; the same set where that is possible."""
    more = _matching(pattern, new)
    return matched if not more and matched.isdisjoint(gone) else (matched - gone) | more


def compiled(pattern: str) -> Callable[[str], bool]:
    """What tells whether a name matches; raises INVALID_REGULAR_EXPRESSION."""
    options = re2.Options()
    options.log_errors = False
    try:
        match = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}",
        ) from error
    return lambda name: match(name) is not None


class Call(Protocol):
    """Runs what blocks or takes long away from the event loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """What `work` returns."""
        ...


class TopicViews:
    """All topics as they are, or were a moment ago. Belongs to the event loop."""

    def __init__(
        self, look_up: Callable[[], Iterable[Topic]], *, call: Call, clock: Clock, refresh_ms: int
    ) -> None:
        self._look_up = look_up
        self._call = call
        self._remembered = Remembered("topics", self._look, clock=clock, refresh_ms=refresh_ms)
        self._matching = asyncio.Lock()

    async def current(self) -> TopicView:
        """The topics; as last known while the catalog does not answer."""
        return await self._remembered.current()

    async def match(self, view: TopicView, patterns: Collection[str]) -> None:
        """Let the loop not wait when the view is asked for these patterns next.

        As in Kafka, which has an executor for them; here one caller at a time, for members of a group have
        the same patterns.
        """
        if len(view.unmatched(patterns)) * len(view.by_name) <= _MATCHED_AT_ONCE:
            return
        async with self._matching:
            missing = view.unmatched(patterns)
            if missing:
                view.remember(await self._call(partial(view.matches, missing)))

    async def _look(self) -> TopicView:
        last = self._remembered.last or TopicView({})
        return await self._call(lambda: last.followed_by(self._look_up()))
