"""Policies side by side: planner settings from TOML files, or from KEY=VALUE pairs."""

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
    """`base`, with the settings that a TOML file has."""
    try:
        values = tomllib.loads(file.read_text())
    except OSError as failure:
        raise NotFoundError(
            f"policy file {file} cannot be read: {failure.strerror}", remedy="name a TOML file of settings"
        ) from None
    except tomllib.TOMLDecodeError as failure:
        raise InvalidInputError(f"policy file {file} is not TOML: {failure}", remedy="correct it") from None
    return changed(base, values, str(file))


def policy_from_text(text: str, base: PlannerSettings) -> PlannerSettings:
    """`base`, with settings given as KEY=VALUE, several with commas between."""
    values = {}
    for pair in text.split(","):
        name, equals, value = pair.strip().partition("=")
        if not equals:
            raise InvalidInputError(f"{pair!r} sets nothing", remedy="give KEY=VALUE, such as merge_fan_in=4")
        values[name] = value
    return changed(base, values, f"--set {text}")


def changed(base: PlannerSettings, values: Mapping[str, Any], origin: str) -> PlannerSettings:
    """`base` with changes; InvalidInputError names a setting that there is not, or a value it cannot have."""
    kinds = {each.name: str(each.type) for each in fields(PlannerSettings)}
    made: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"settings are {', '.join(kinds)}"
            raise InvalidInputError(f"{origin}: there is no planner setting {name!r}", remedy=remedy)
        kind = "size" if name.endswith("_bytes") or "_bytes_" in name else kinds[name]
        made[name] = _value(name, value, kind, origin)
    return replace(base, **made)


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
