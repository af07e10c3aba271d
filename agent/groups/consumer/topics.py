"""Topics as consumer groups see them, and the names that subscription patterns match."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import re2

from agent.groups.errors import ErrorCode, GroupError
from agent.security.rights import DESCRIBE_TOPIC
from catalog.security.acl_bindings import ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from agent.security.acl_rules import AccessRules, Grantee
    from catalog.model import Topic

K = TypeVar("K")
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


class Selection(NamedTuple):
    """A pattern, and the client that subscribes with it: None if every client may describe every topic."""

    pattern: str
    grantee: Grantee | None


class Matches(NamedTuple):
    """What patterns match, and all names that the clients of these patterns may describe."""

    by_selection: Mapping[Selection, frozenset[str]]
    described: Mapping[Grantee, frozenset[str]]


@dataclass(frozen=True, slots=True)
class TopicView:
    """All topics at one moment, and who may describe them. While neither changes, it is the same object.

    As in Kafka, a pattern matches only topics that its member may describe. Kafka matches a pattern once for
    the group, with the rights of the member whose heartbeat asked for it; here each member has its own.

    The view caches the matches of up to 1000 patterns, with a million names in all, because every heartbeat
    evaluates the patterns of all members of its group. It caches as many names that clients may describe.
    `rules` is None if every client may do everything.
    """

    by_name: Mapping[str, TopicMetadata]
    rules: AccessRules | None = None
    _matches: dict[Selection, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)
    _described: dict[Grantee, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)
    _names: dict[UUID, str] = field(default_factory=dict, compare=False, repr=False)

    def select(self, pattern: str, principal: str, host: str) -> Selection:
        """Return the selection of a client that subscribes with a pattern."""
        if self.rules is None:
            return Selection(pattern, None)
        return Selection(pattern, self.rules.grantee(ResourceType.TOPIC, principal, host))

    def matching(self, selection: Selection) -> frozenset[str]:
        """Return the names that the pattern matches as a whole and that its client may describe.

        RE2 evaluates the pattern in linear time, so no pattern blocks the event loop for long.
        """
        found = self._matches.get(selection)
        if found is None:
            matches = self.compute_matches([selection])
            self.cache_matches(matches)
            found = matches.by_selection[selection]
        return found

    def uncached(self, selections: Iterable[Selection]) -> list[Selection]:
        """Return the selections whose matches are not cached: `matching` would go through all names."""
        return [each for each in selections if each not in self._matches]

    def compute_matches(self, selections: Collection[Selection]) -> Matches:
        """Return what these selections match, without caching it. Safe in any thread."""
        described: dict[Grantee, frozenset[str]] = {}
        for _, grantee in selections:
            if grantee is not None and grantee not in described:
                known = self._described.get(grantee)
                described[grantee] = self._may_describe(grantee, self.by_name) if known is None else known
        return Matches(
            {
                each: _match_names(
                    each.pattern, self.by_name if each.grantee is None else described[each.grantee]
                )
                for each in selections
            },
            described,
        )

    def cache_matches(self, matches: Matches) -> None:
        """Cache matches; evict the oldest entries of a full cache."""
        _add(self._matches, matches.by_selection)
        _add(self._described, matches.described)

    def _may_describe(self, grantee: Grantee, names: Iterable[str]) -> frozenset[str]:
        rules = self.rules
        return frozenset(
            [each for each in names if rules is None or rules.allows(*grantee, DESCRIBE_TOPIC, each)]
        )

    def updated(self, topics: Iterable[Topic] | None, rules: AccessRules | None = None) -> TopicView:
        """Return the view of these topics and rules, which is this view if both are the same.

        The topics are None if they have not changed. Cached patterns are matched with the new names only,
        unless the rules are others. Safe in any thread.
        """
        by_name = (
            self.by_name
            if topics is None
            else {each.name: TopicMetadata(each.topic_id, each.partition_count) for each in topics}
        )
        if rules is not self.rules:
            return TopicView(by_name, rules)
        if by_name == self.by_name:
            return self
        added, removed = by_name.keys() - self.by_name.keys(), self.by_name.keys() - by_name.keys()
        matches, described = dict(self._matches), dict(self._described)
        grantees = {*described, *(grantee for _, grantee in matches if grantee is not None)}
        more = {each: self._may_describe(each, added) for each in grantees}
        return TopicView(
            by_name,
            rules,
            {
                each: _changed(
                    names,
                    _match_names(each.pattern, added if each.grantee is None else more[each.grantee]),
                    removed,
                )
                for each, names in matches.items()
            },
            {each: _changed(names, more[each], removed) for each, names in described.items()},
        )

    def names(self, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
        """Return the names of the topics among these ids that exist."""
        if not self._names:
            self._names.update((topic.topic_id, name) for name, topic in self.by_name.items())
        return {each: self._names[each] for each in set(topic_ids) if each in self._names}


def _add(cached: dict[K, frozenset[str]], new: Mapping[K, frozenset[str]]) -> None:
    """Add sets of names; evict the oldest beyond the bounds."""
    size = sum(map(len, cached.values()))
    for key, names in new.items():
        size += len(names) - len(cached.pop(key, ()))
        while cached and (len(cached) >= _MAX_PATTERNS or size > _MAX_CACHED_NAMES):
            size -= len(cached.pop(next(iter(cached))))
        cached[key] = names


def _changed(names: frozenset[str], added: frozenset[str], removed: AbstractSet[str]) -> frozenset[str]:
    """Return names after others were added and removed; the same set if it is unchanged."""
    return names if not added and names.isdisjoint(removed) else (names - removed) | added


def _match_names(pattern: str, names: Collection[str]) -> frozenset[str]:
    compiled = compile_pattern(pattern)
    steps = compiled.programsize * sum(map(len, names))
    if steps > MAX_MATCH_STEPS:
        raise GroupError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{_shortened(pattern)}` is too complex for {len(names)} topics",
        )
    return frozenset([name for name in names if compiled.fullmatch(name) is not None])


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
