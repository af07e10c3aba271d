"""The schemas compared with Kafka's message definitions, which its client library contains as JSON."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import orjson
import pytest

from agent.kafka.api_registry import APIS
from agent.kafka.codec.schema import FieldSchema, StructSchema, schema_of
from tests.fixtures import kafka_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import Api

_WIDE = {"error_code": "int16", "timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
# kio makes these nullable (the zero UUID, and -1 for a time). The encoding is the same.
_NULL_BY_VALUE = {"uuid", "int64"}


@cache
def definitions() -> dict[tuple[int, str], dict[str, Any]]:
    """Return Kafka's messages by API key and direction."""
    found = {}
    with ZipFile(kafka_tools.jar("kafka-clients")) as jar:
        for name in jar.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = re.sub(r"^\s*//.*$|//[^\"\n]*$", "", jar.read(name).decode(), flags=re.MULTILINE)
                message = orjson.loads(text)
                if "apiKey" in message:
                    found[message["apiKey"], message["type"]] = message
    return found


def contains(versions: str | None, version: int) -> bool:
    """Return True if a definition's version range (`none`, `3`, `2+` or `2-5`) contains the version."""
    if versions in {None, "none"}:
        return False
    assert versions is not None
    lowest, separator, highest = versions.removesuffix("+").partition("-")
    if versions.endswith("+"):
        return version >= int(lowest)
    return int(lowest) <= version <= int(highest if separator else lowest)


def expected(fields: Sequence[dict[str, Any]], shared: dict[str, Any], version: int) -> list[object]:
    """Return the fields of a struct in a version: untagged fields in order, then tagged ones."""
    untagged: list[object] = []
    tagged: list[tuple[int, object]] = []
    for field in fields:
        if not contains(field["versions"], version):
            continue
        is_tagged = contains(field.get("taggedVersions"), version)
        kind = field["type"].removeprefix("[]")
        inner = field.get("fields") or shared.get(kind)
        nullable = contains(field.get("nullableVersions"), version) and not is_tagged
        shape = (
            field["type"].startswith("[]"),
            nullable and kind not in _NULL_BY_VALUE,
            "struct" if inner else kind,
            expected(inner, shared, version) if inner else None,
        )
        if is_tagged:
            tagged.append((field["tag"], shape))
        else:
            untagged.append(shape)
    return [*untagged, *sorted(tagged, key=lambda each: each[0])]


def actual(struct: StructSchema) -> list[object]:
    """Return the same for one of our schemas."""

    def shape(field: FieldSchema) -> object:
        kind = _WIDE.get(field.kind, field.kind)
        nullable = field.is_nullable and kind not in _NULL_BY_VALUE
        return field.is_array, nullable, kind, actual(field.struct) if field.struct else None

    return [*map(shape, struct.untagged), *((field.tag, shape(field)) for field in struct.tagged)]


@pytest.mark.parametrize("api", APIS, ids=lambda api: str(api.name))
def test_every_version_has_the_fields_that_kafka_defines(api: Api) -> None:
    """Requests and responses of every stable version."""
    for direction in ("request", "response"):
        known = definitions()[api.key, direction]
        lowest, _, highest = known["validVersions"].partition("-")
        unstable = bool(definitions()[api.key, "request"].get("latestVersionUnstable"))
        assert (api.min_version, api.max_version) == (int(lowest), int(highest or lowest) - unstable)
        shared = {each["name"]: each["fields"] for each in known.get("commonStructs", ())}
        for version in range(api.min_version, api.max_version + 1):
            ours = schema_of(api.name, version, direction)
            assert ours.is_flexible == contains(known["flexibleVersions"], version)
            assert actual(ours) == expected(known["fields"], shared, version)
