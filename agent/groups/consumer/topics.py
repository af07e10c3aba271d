"""Topics as consumer groups see them, and the names that subscription patterns match."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import re2

from agent.groups.errors import ErrorCode, GroupError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from catalog.model import Topic

_MAX_PATTERNS = 1_000
_MAX_CACHED_NAMES = 1_000_000
MAX_PATTERN_BYTES = 16 * 1024
_MAX_PATTERN_MEMORY = 512 * 1024
_MAX_COMPILED = 64  # of that size
# A pattern takes up to 4 ns for each of its instructions and each byte of a name.
MAX_MATCH_STEPS = 500_000_000
_MAX_SHOWN = 200


class Pattern(Protocol):
    """A pattern that RE2 has compiled, and the number of its instructions."""

    programsize: int

    def fullmatch(self, text: str, /) -> object | None:
        """Return None unless the pattern matches the text as a whole."""
        ...


class TopicMetadata(NamedTuple):
    """The properties of a topic that assignments depend on."""

    topic_id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """All topics at one moment. While the topics do not change, the view is the same object.

    The view caches the matches of up to 1000 patterns, with a million names in all, because every heartbeat
    evaluates the patterns of all members of its group.
    """

    by_name: Mapping[str, TopicMetadata]
    _matches: dict[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)
    _names: dict[UUID, str] = field(default_factory=dict, compare=False, repr=False)

    def matching(self, pattern: str) -> frozenset[str]:
        """Return the names that a pattern matches as a whole.

        RE2 evaluates the pattern in linear time, so no pattern blocks the event loop for long.
        """
        found = self._matches.get(pattern)
        if found is None:
            found = _match_names(pattern, self.by_name)
            self.cache_matches({pattern: found})
        return found

    def uncached(self, patterns: Iterable[str]) -> list[str]:
        """Return the patterns whose matches are not cached: `matching` would go through all names."""
        return [each for each in patterns if each not in self._matches]

    def compute_matches(self, patterns: Iterable[str]) -> dict[str, frozenset[str]]:
        """Return what these patterns match, without caching it. Safe in any thread."""
        return {each: _match_names(each, self.by_name) for each in patterns}

    def cache_matches(self, matches: Mapping[str, frozenset[str]]) -> None:
        """Cache matches; evict the oldest entries of a full cache."""
        size = sum(map(len, self._matches.values()))
        for pattern, names in matches.items():
            size += len(names)
            while self._matches and (len(self._matches) >= _MAX_PATTERNS or size > _MAX_CACHED_NAMES):
                size -= len(self._matches.pop(next(iter(self._matches))))
            self._matches[pattern] = names

    def updated(self, topics: Iterable[Topic]) -> TopicView:
        """Return the view of these topics, which is this view if they are the same. Safe in any thread.

        Cached patterns are matched with the new names only.
        """
        by_name = {each.name: TopicMetadata(each.topic_id, each.partition_count) for each in topics}
        if by_name == self.by_name:
            return self
        added, removed = by_name.keys() - self.by_name.keys(), self.by_name.keys() - by_name.keys()
        cached = dict(self._matches)
        return TopicView(
            by_name, {each: _update_match(each, cached[each], added, removed) for each in cached}
        )

    def names(self, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
        """Return the names of the topics among these ids that exist."""
        if not self._names:
            self._names.update((topic.topic_id, name) for name, topic in self.by_name.items())
        return {each: self._names[each] for each in set(topic_ids) if each in self._names}


def _match_names(pattern: str, names: Collection[str]) -> frozenset[str]:
    compiled = compile_pattern(pattern)
    steps = compiled.programsize * sum(map(len, names))
    if steps > MAX_MATCH_STEPS:
        raise GroupError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{_shortened(pattern)}` is too complex for {len(names)} topics",
        )
    return frozenset([name for name in names if compiled.fullmatch(name) is not None])


def _update_match(
    pattern: str, matched: frozenset[str], added: AbstractSet[str], removed: AbstractSet[str]
) -> frozenset[str]:
    """Return the match after names were added and removed; the same set if the match is unchanged."""
    more = _match_names(pattern, added)
    return matched if not more and matched.isdisjoint(removed) else (matched - removed) | more


@lru_cache(maxsize=_MAX_COMPILED)
def compile_pattern(pattern: str) -> Pattern:
    """Return a compiled pattern. Raises INVALID_REGULAR_EXPRESSION, also for one that is too large."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_PATTERN_MEMORY
    if len(pattern) > MAX_PATTERN_BYTES:
        raise GroupError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{_shortened(pattern)}` has {len(pattern)} characters, and at most"
            f" {MAX_PATTERN_BYTES} are supported",
        )
    try:
        compiled: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        raise GroupError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{_shortened(pattern)}` is not a valid regular expression: {error}",
        ) from error
    return compiled


def _shortened(pattern: str) -> str:
    return pattern if len(pattern) <= _MAX_SHOWN else f"{pattern[:_MAX_SHOWN]}…"
