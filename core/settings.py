"""Declaration of settings: each field states its default, bounds and description once.

A section of settings is a frozen dataclass. `setting` declares a field that users may set in a file, in the
environment or on the command line. `internal` declares a field that only code sets.

The metadata of a field uses the argument names of `pydantic.Field`. Pydantic therefore applies the same
bounds when it reads a section from text that `check_bounds` applies to a section made in code.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, ByteSize, TypeAdapter, ValidationError

from core.errors import InvalidInputError

if TYPE_CHECKING:
    from dataclasses import Field

    from _typeshed import DataclassInstance

T = TypeVar("T")

_SIZE: TypeAdapter[ByteSize] = TypeAdapter(ByteSize)


def _parse_size(value: object) -> int:
    try:
        return int(_SIZE.validate_python(value))
    except ValidationError:
        raise ValueError(
            "it is not a size; give a number of bytes, or one with a unit such as 8MiB"
        ) from None


# A number of bytes; as text it may have a unit, such as `8MiB`.
Bytes = Annotated[int, BeforeValidator(_parse_size)]


def setting(
    default: T,
    description: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    name: str | None = None,
    ge_in_code: float | None = None,
) -> T:
    """Declare a dataclass field that users may set.

    A number is at least 1 unless `ge` says otherwise. `name` is the name of the setting where it differs from
    the name of the field. `ge_in_code` replaces `ge` for sections that are made in code: it lets tests wait
    for less time than is safe.
    """
    metadata = _metadata(default, description, ge, le, name, public=True)
    if ge_in_code is not None:
        metadata["json_schema_extra"]["ge_in_code"] = ge_in_code
    return field(default=default, metadata=metadata)


def internal(default: T, description: str, *, ge: float | None = None, le: float | None = None) -> T:
    """Declare a dataclass field that only code sets; bounds are as in `setting`."""
    return field(default=default, metadata=_metadata(default, description, ge, le, None, public=False))


def _metadata(
    default: object,
    description: str,
    ge: float | None,
    le: float | None,
    name: str | None,
    *,
    public: bool,
) -> dict[str, Any]:
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    given = {"description": description, "ge": 1 if ge is None and is_number else ge, "le": le, "alias": name}
    return {
        "json_schema_extra": {"public": public},
        **{key: value for key, value in given.items() if value is not None},
    }


def is_public(each: Field[Any]) -> bool:
    """Return True if users may set this field."""
    extra = each.metadata.get("json_schema_extra", {})
    return bool(extra.get("public"))


def setting_name(each: Field[Any]) -> str:
    """Return the name under which users know the field."""
    return str(each.metadata.get("alias", each.name))


def description_of(section: type[DataclassInstance], field_name: str) -> str:
    """Return the description of one field of a section."""
    return next(str(each.metadata["description"]) for each in fields(section) if each.name == field_name)


def check_bounds(section: DataclassInstance, kind: str) -> None:
    """Raise InvalidInputError if a field is out of its bounds; `kind` names the section in the message."""
    for each in fields(section):
        value = getattr(section, each.name)
        highest = each.metadata.get("le")
        extra = each.metadata.get("json_schema_extra", {})
        lowest = extra.get("ge_in_code", each.metadata.get("ge"))
        if lowest is not None and value < lowest:
            raise InvalidInputError(
                f"{kind} setting {setting_name(each)} is {value}", remedy=f"give at least {lowest}"
            )
        if highest is not None and value > highest:
            raise InvalidInputError(
                f"{kind} setting {setting_name(each)} is {value}", remedy=f"give at most {highest}"
            )


def check_order(section: DataclassInstance, kind: str, smaller: str, larger: str) -> None:
    """Raise InvalidInputError if field `smaller` of a section exceeds field `larger`."""
    low, high = getattr(section, smaller), getattr(section, larger)
    if low > high:
        names = {each.name: setting_name(each) for each in fields(section)}
        raise InvalidInputError(
            f"{kind} setting {names[smaller]} ({low}) exceeds {names[larger]} ({high})",
            remedy=f"lower {names[smaller]} or raise {names[larger]}",
        )
