"""Planner settings to compare with others, from TOML files or KEY=VALUE pairs."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from core.errors import InvalidInputError, NotFoundError
from planner.settings import PlannerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def policy_from_file(file: Path, base: PlannerSettings) -> PlannerSettings:
    """Return `base` with the settings of a TOML file."""
    try:
        values = tomllib.loads(file.read_text())
    except OSError as failure:
        raise NotFoundError(
            f"policy file {file} cannot be read: {failure.strerror}", remedy="name a TOML file of settings"
        ) from None
    except tomllib.TOMLDecodeError as failure:
        raise InvalidInputError(
            f"policy file {file} is not TOML: {failure}", remedy="correct the file"
        ) from None
    return with_changes(base, values, str(file))


def policy_from_text(text: str, base: PlannerSettings) -> PlannerSettings:
    """Return `base` with the settings of comma-separated KEY=VALUE pairs."""
    values = {}
    for pair in text.split(","):
        name, equals, value = pair.strip().partition("=")
        if not equals:
            raise InvalidInputError(f"{pair!r} has no value", remedy="give KEY=VALUE, such as merge_fan_in=4")
        values[name] = value
    return with_changes(base, values, f"--set {text}")


def with_changes(base: PlannerSettings, values: Mapping[str, Any], origin: str) -> PlannerSettings:
    """Return `base` with changes; raise InvalidInputError if a setting is unknown or a value is invalid."""
    kinds = {each.name: str(each.type) for each in fields(PlannerSettings)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"settings are {', '.join(kinds)}"
            raise InvalidInputError(f"{origin}: there is no planner setting {name!r}", remedy=remedy)
        kind = "size" if name.endswith("_bytes") or "_bytes_" in name else kinds[name]
        changes[name] = _value(name, value, kind, origin)
    return replace(base, **changes)


_ADAPTERS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "size": TypeAdapter(ByteSize),
    "int": TypeAdapter(int),
    "float": TypeAdapter(float),
    "bool": TypeAdapter(bool),
}


def _value(name: str, value: object, kind: str, origin: str) -> Any:  # noqa: ANN401 - of the setting's type
    try:
        return _ADAPTERS[kind].validate_python(value)
    except ValidationError as failure:
        rule = failure.errors()[0]["msg"]
        raise InvalidInputError(f"{origin}: {name} cannot be {value!r}", remedy=rule) from None
