"""Kafka's `ssl.principal.mapping.rules`: from the subject of a certificate to the name of a user.

As in Kafka (SslPrincipalMapper), the first rule whose pattern matches the whole subject decides, and a client
without a matching rule is disconnected. Patterns are matched by RE2, so that no subject takes long. RE2 has
no look-around and no back-references within patterns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import re2

from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)
_BACK_REFERENCE: Final = re.compile(r"\$(\d+)")
_CASES: Final[dict[str, Callable[[str], str]]] = {"L": str.lower, "U": str.upper, "": str}
_SETTING: Final = "ssl_principal_mapping_rules"


class NoMatchingRuleError(InvalidInputError):
    """No rule applies to the subject of a client's certificate."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule; without a pattern it returns the subject itself."""

    pattern: Any = None  # a compiled pattern of re2, which has no types
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        """Return the name for a subject, None if the rule does not apply."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        return _CASES[self.case](self._replace_all(subject))

    def _replace_all(self, subject: str) -> str:
        """Do as Java's `replaceAll`, which also replaces an empty match after the last one."""
        parts, end, at = [], 0, 0
        while at <= len(subject) and (match := self.pattern.search(subject, at)) is not None:
            groups = [match.group(), *match.groups(default="")]
            parts += [subject[end : match.start()], expand(self.replacement, groups)]
            end = match.end()
            at = end + (match.start() == end)
        return "".join([*parts, subject[end:]])


class PrincipalMapper:
    """The rules of one listener."""

    def __init__(self, rules: str) -> None:
        self._rules = [
            rule for text in _SPLITTER.finditer(rules.strip()) if (rule := _parse(text[1])) is not None
        ]

    def name_of(self, subject: str) -> str:
        """Return the name of the user; raise NoMatchingRuleError if no rule applies."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise NoMatchingRuleError(
            f"no rule applies to the subject {subject!r}", remedy=f"add a rule to {_SETTING}"
        )


def _parse(text: str) -> _Rule | None:
    match = _PARSER.match(text)
    if match is None or match.end() != len(text):
        raise InvalidInputError(
            f"setting {_SETTING}: {text!r} is not a rule",
            remedy="write DEFAULT, or RULE:pattern/replacement/ with L or U after the last slash",
        )
    if match[1] is not None:
        return _Rule()
    if match[2] is None:
        return None  # an empty rule
    try:
        pattern = re2.compile(match[2])
    except re2.error as error:
        raise InvalidInputError(
            f"setting {_SETTING}: the pattern {match[2]!r} is not supported: {error}",
            remedy="use RE2's syntax, which has no look-around and no back-references",
        ) from None
    replacement = _escape_unknown_references(match[4], pattern.groups)
    expand(replacement, [""] * (1 + pattern.groups))
    return _Rule(pattern, replacement, match[6])


def _escape_unknown_references(text: str, groups: int) -> str:
    """Make a reference to a group that does not exist literal, as Kafka does if there is any group."""
    if not groups:
        return text

    def escape(match: re.Match[str]) -> str:
        if match[1].startswith("0"):
            return match[0]
        number = int(match[1])
        while number > groups and number >= 10:
            number //= 10
        return f"\\{match[0]}" if number > groups else match[0]

    return _BACK_REFERENCE.sub(escape, text)


def expand(replacement: str, groups: list[str]) -> str:
    """Return a replacement with its references replaced, as Java's `Matcher.appendReplacement` does.

    `groups` begins with the whole match. Raises InvalidInputError for a reference that Java would reject.
    """
    parts, at = [], 0
    while at < len(replacement):
        character = replacement[at]
        at += 1
        if character == "\\" and at < len(replacement):
            parts.append(replacement[at])
            at += 1
        elif character == "$":
            end = _end_of_reference(replacement, at, len(groups) - 1)
            parts.append(groups[int(replacement[at:end])])
            at = end
        else:
            parts.append(character)
    return "".join(parts)


def _end_of_reference(replacement: str, start: int, groups: int) -> int:
    """Return the end of the longest number that is a group."""
    end = start
    while end < len(replacement) and replacement[end].isascii() and replacement[end].isdigit():
        if int(replacement[start : end + 1]) > groups:
            break
        end += 1
    if end == start:
        raise InvalidInputError(
            f"setting {_SETTING}: the replacement {replacement!r} refers to a group that does not exist",
            remedy="write $1 for the first group of the pattern, and \\$ for a dollar sign",
        )
    return end
