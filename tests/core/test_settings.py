from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from pydantic import TypeAdapter, ValidationError

from core.errors import InvalidInputError
from core.settings import (
    Bytes,
    check_bounds,
    check_order,
    description_of,
    internal,
    is_public,
    setting,
    setting_name,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    cache_bytes: Bytes = setting(1024, "Size of the cache.", le=4096)
    pause_ms: int = setting(5, "Pause.", ge=0, name="retry_pause_ms")
    threads: int = internal(2, "Threads.")
    is_on: bool = setting(False, "Switch.")

    def __post_init__(self) -> None:
        check_bounds(self, "section")
        check_order(self, "section", "pause_ms", "cache_bytes")


PARSER = TypeAdapter(Section)


def test_fields_are_public_or_internal_and_have_a_name_and_a_description() -> None:
    assert [(setting_name(each), is_public(each)) for each in fields(Section)] == [
        ("cache_bytes", True),
        ("retry_pause_ms", True),
        ("threads", False),
        ("is_on", True),
    ]
    assert description_of(Section, "pause_ms") == "Pause."


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cache_bytes": 0}, r"section setting cache_bytes is 0 \(give at least 1\)"),
        ({"cache_bytes": 5000}, r"section setting cache_bytes is 5000 \(give at most 4096\)"),
        ({"pause_ms": -1}, "section setting retry_pause_ms is -1"),
        ({"threads": 0}, "section setting threads is 0"),
        ({"pause_ms": 2000}, r"retry_pause_ms \(2000\) exceeds cache_bytes \(1024\) \(lower retry_pause_ms"),
    ],
)
def test_a_section_that_code_creates_is_checked(values: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Section(**values)  # type: ignore[arg-type]  # mypy does not know which of them is a bool


def test_text_is_parsed_by_the_names_of_the_settings() -> None:
    section = PARSER.validate_python({"cache_bytes": "2KiB", "retry_pause_ms": "0", "is_on": "true"})
    assert section == Section(cache_bytes=2048, pause_ms=0, is_on=True)


@pytest.mark.parametrize("values", [{"cache_bytes": "0"}, {"cache_bytes": "5KiB"}, {"retry_pause_ms": "-1"}])
def test_text_is_checked_by_the_same_bounds(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        PARSER.validate_python(values)


@pytest.mark.parametrize("text", ["8 elephants", "-3", ""])
def test_a_size_that_cannot_be_parsed_is_an_error(text: str) -> None:
    with pytest.raises(ValidationError, match="not a size"):
        PARSER.validate_python({"cache_bytes": text})
