"""The topics as consumer groups see them: by name and by pattern, remembered for a moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import re2

from agent.groups.consumer.remembered import Remembered
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from bedrock.clock import Clock
    from catalog.model import Topic

_MOST_PATTERNS = 1_000


class SeenTopic(NamedTuple):
    """What an assignment depends on."""

    topic_id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """All topics at some moment. As long as nothing changes, the view is the same object."""

    by_name: Mapping[str, SeenTopic]
    _matches: dict[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    def matching(self, pattern: str) -> frozenset[str]:
        """The names that a pattern matches as a whole; as RE2 has it, so that no pattern takes long."""
        found = self._matches.get(pattern)
        if found is None:
            matches = compiled(pattern)
            found = frozenset(filter(matches, self.by_name))
            if len(self._matches) >= _MOST_PATTERNS:
                self._matches.clear()
            self._matches[pattern] = found
        return found

    def names(self, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
        """The names of those that exist."""
        wanted = set(topic_ids)
        return {topic.topic_id: name for name, topic in self.by_name.items() if topic.topic_id in wanted}


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


class TopicViews:
    """All topics as they are, or were a moment ago. Belongs to the event loop."""

    def __init__(
        self, look_up: Callable[[], Awaitable[Sequence[Topic]]], *, clock: Clock, refresh_ms: int
    ) -> None:
        self._look_up = look_up
        self._remembered = Remembered("topics", self._look, clock=clock, refresh_ms=refresh_ms)

    async def current(self) -> TopicView:
        """The topics; as last known while the catalog does not answer."""
        return await self._remembered.current()

    async def _look(self) -> TopicView:
        found = await self._look_up()
        view = TopicView({each.name: SeenTopic(each.topic_id, each.partition_count) for each in found})
        last = self._remembered.last
        return last if view == last and last is not None else view
