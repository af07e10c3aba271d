"""One setting with a name, a type, a range and a default, as Kafka's ConfigDef has them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
# Kafka's ThrottledReplicaListValidator: partition:broker, or all of them.
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: what it is called, what it may be, and what it is when nobody sets it.

    `of` is what has it, `kind` Kafka's type in small letters, or `replicas` for a list of them. `besides` is
    a number that is taken outside of the range. `broker_name` is what Kafka calls the broker's setting that
    the default comes from; `remedy` is told instead of the allowed values.
    """

    name: str
    kind: str
    default: str
    documentation: str
    of: str = "topic"
    lowest: float | None = None
    highest: float | None = None
    besides: int | None = None
    choices: tuple[str, ...] = ()
    broker_name: str | None = None
    remedy: str | None = None

    @property
    def is_list(self) -> bool:
        """Whether values are lists, which can be appended to."""
        return self.kind in {"list", "replicas"}

    @property
    def allowed(self) -> str:
        """The allowed values, for a message to people."""
        if self.kind == "boolean":
            return " or ".join(self.choices or ("true", "false"))
        if self.kind == "replicas":
            return "partition:broker, separated by commas, or * for all"
        if self.kind == "list":
            return f"some of {', '.join(self.choices)}, separated by commas"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        article = "a number" if self.kind == "double" else "a whole number"
        besides = "" if self.besides is None else f", or {self.besides}"
        return (
            f"{article} from {_plain(self.lowest)} to {_plain(self.highest)}"
            if self._narrow
            else self._open_range(article)
        ) + besides

    @property
    def _narrow(self) -> bool:
        return self.highest is not None and self.highest < _INT_MAX

    def _open_range(self, article: str) -> str:
        return f"{article} from {_plain(self.lowest)}" if self.lowest is not None else article

    def parse(self, text: str) -> bool | int | float | str:
        """The typed value of `text`; InvalidConfigError names setting, value and what is allowed."""
        try:
            return self._parse(text.strip())
        except ValueError:
            raise InvalidConfigError(
                f"{self.of} setting {self.name} cannot be {text!r}",
                setting=self.name,
                remedy=self.remedy or f"give {self.allowed}",
            ) from None

    def check_new(self, text: str) -> None:
        """As `parse`, of a value that is about to be set: no choice twice (Kafka's ConfigDef.ValidList).

        What was stored before may have some.
        """
        self.parse(text)
        items = [item.lower() for item in items_of(text)]
        if self.kind == "list" and len(set(items)) < len(items):
            raise InvalidConfigError(
                f"{self.of} setting {self.name} cannot be {text!r}: it names a value twice",
                setting=self.name,
                remedy=self.remedy or f"give {self.allowed}",
            )

    def _parse(self, text: str) -> bool | int | float | str:
        if self.kind == "boolean":
            known = text.lower() in (self.choices or ("true", "false"))
            return text.lower() == "true" if known else _refuse()
        if self.is_list:
            return self._parse_list(text)
        if self.kind == "string":
            return text if text in self.choices else _refuse()
        return self._parse_number(text)

    def _parse_list(self, text: str) -> str:
        items = items_of(text)
        if self.kind == "replicas":
            if items != ["*"] and not all(map(_REPLICA.fullmatch, items)):
                _refuse()
            return ",".join(items)
        items = [item.lower() for item in items]
        if not set(items) <= set(self.choices):
            _refuse()
        return ",".join(choice for choice in self.choices if choice in items)

    def _parse_number(self, text: str) -> int | float:
        if not _NUMBER.fullmatch(text):
            _refuse()
        value = float(text) if self.kind == "double" else int(text)
        width = {"int": _INT_MAX, "long": _LONG_MAX, "double": float("inf")}[self.kind]
        lowest = -width - 1 if self.lowest is None else self.lowest
        highest = width if self.highest is None else self.highest
        return value if lowest <= value <= highest or value == self.besides else _refuse()


def items_of(text: str) -> list[str]:
    """The items of a list as text; as in Kafka, an empty text has none."""
    return [item.strip() for item in text.split(",")] if text.strip() else []


def known_setting(settings: Mapping[str, Setting], name: str) -> Setting:
    """The setting of that name; InvalidConfigError names the nearest that there is."""
    setting = settings.get(name)
    if setting is None:
        kind = next(iter(settings.values())).of
        near = difflib.get_close_matches(name, settings, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"known settings are {', '.join(settings)}"
        raise InvalidConfigError(f"there is no {kind} setting {name!r}", setting=name, remedy=remedy)
    return setting


def _plain(bound: float | None) -> str:
    """A bound as people write it: a whole number without an exponent."""
    return str(int(bound)) if bound is not None and float(bound).is_integer() else f"{bound:g}"


def _refuse() -> int:
    raise ValueError
