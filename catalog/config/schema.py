"""Definition of one setting: its name, type, default, valid values and documentation.

The model is Kafka's `ConfigDef`. Everything that a reference page of topic or group configuration needs is
in `Setting`: `name`, `kind`, `default`, `valid_values` and `documentation`.
"""

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
# Kafka's ThrottledReplicaListValidator accepts partition:broker pairs, or * alone.
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Definition of one setting.

    `resource` is the kind of resource that has the setting: topic, group or broker. `kind` is Kafka's type in
    lower case (boolean, int, long, double, string, list), or `replicas` for a list of partition:broker
    pairs. `special_value` is a number outside [minimum, maximum] that is valid, too. `broker_name` is Kafka's
    name of the broker setting that supplies the default. Error messages show `remedy` instead of
    `valid_values`.
    """

    name: str
    kind: str
    default: str
    documentation: str
    resource: str = "topic"
    minimum: float | None = None
    maximum: float | None = None
    special_value: int | None = None
    choices: tuple[str, ...] = ()
    broker_name: str | None = None
    remedy: str | None = None

    @property
    def is_list(self) -> bool:
        """Return True if values are lists, which clients can append to."""
        return self.kind in {"list", "replicas"}

    @property
    def valid_values(self) -> str:
        """Return the valid values as text for messages and documentation."""
        if self.kind == "boolean":
            return " or ".join(self.choices or ("true", "false"))
        if self.kind == "replicas":
            return "partition:broker, separated by commas, or * for all"
        if self.kind == "list":
            return f"some of {', '.join(self.choices)}, separated by commas"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return self._valid_numbers()

    def _valid_numbers(self) -> str:
        text = "a number" if self.kind == "double" else "an integer"
        if self.minimum is not None and self.maximum is not None and self.maximum < _INT_MAX:
            text += f" from {_format_bound(self.minimum)} to {_format_bound(self.maximum)}"
        elif self.minimum is not None:
            text += f" of at least {_format_bound(self.minimum)}"
        return text if self.special_value is None else f"{text}, or {self.special_value}"

    def parse(self, text: str) -> bool | int | float | str:
        """Return the typed value of `text`.

        InvalidConfigError names the setting, the value and the valid values.
        """
        try:
            return self._parse(text.strip())
        except ValueError:
            raise InvalidConfigError(
                f"{self.resource} setting {self.name} cannot be {text!r}",
                setting=self.name,
                remedy=self.remedy or f"use {self.valid_values}",
            ) from None

    def canonical(self, text: str) -> str:
        """Return a value in the form in which Kafka shows it (ConfigDef.convertToString); validate it first.

        As in Kafka, an item that a list contains twice counts once.
        """
        value = self.parse(text)
        if self.is_list:
            items = split_list(text if self.kind == "replicas" else text.lower())
            return ",".join(dict.fromkeys(items))
        return str(value).lower() if self.kind == "boolean" else str(value)

    def _parse(self, text: str) -> bool | int | float | str:
        if self.kind == "boolean":
            return (
                text.lower() == "true" if text.lower() in (self.choices or ("true", "false")) else _reject()
            )
        if self.is_list:
            return self._parse_list(text)
        if self.kind == "string":
            return text if text in self.choices else _reject()
        return self._parse_number(text)

    def _parse_list(self, text: str) -> str:
        items = split_list(text)
        if self.kind == "replicas":
            if items != ["*"] and not all(map(_REPLICA.fullmatch, items)):
                _reject()
            return ",".join(items)
        items = [item.lower() for item in items]
        if not set(items) <= set(self.choices):
            _reject()
        return ",".join(choice for choice in self.choices if choice in items)

    def _parse_number(self, text: str) -> int | float:
        if not _NUMBER.fullmatch(text):
            _reject()
        value = float(text) if self.kind == "double" else int(text)
        limit = {"int": _INT_MAX, "long": _LONG_MAX, "double": float("inf")}[self.kind]
        minimum = -limit - 1 if self.minimum is None else self.minimum
        maximum = limit if self.maximum is None else self.maximum
        return value if minimum <= value <= maximum or value == self.special_value else _reject()


def split_list(text: str) -> list[str]:
    """Return the items of a comma-separated list; as in Kafka, empty text has no items."""
    return [item.strip() for item in text.split(",")] if text.strip() else []


def find_setting(schema: Mapping[str, Setting], name: str) -> Setting:
    """Return the setting of that name; InvalidConfigError suggests the closest known name."""
    setting = schema.get(name)
    if setting is None:
        resource = next(iter(schema.values())).resource
        close = difflib.get_close_matches(name, schema, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"known settings are {', '.join(schema)}"
        raise InvalidConfigError(f"there is no {resource} setting {name!r}", setting=name, remedy=remedy)
    return setting


def _format_bound(bound: float) -> str:
    """Format a bound; whole numbers get no exponent."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def _reject() -> int:
    raise ValueError
