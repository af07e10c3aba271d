"""The request and response of one API in one version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from agent.kafka.codec.reading import Cursor, MalformedMessageError, struct_reader
from agent.kafka.codec.schema import api_key_of, schema_of, versions_of
from agent.kafka.codec.writing import Output, struct_writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kafka.codec.struct import Struct

__all__ = ["MalformedMessageError", "Message", "api_key_of", "message_versions", "read_message"]


@dataclass(frozen=True, slots=True)
class Message:
    """Readers and writers of one API in one version.

    `response_defaults` are the names of all fields of the response, in any version.
    """

    is_flexible: bool
    read_request: Callable[[Cursor], Struct]
    write_response: Callable[[Output, Struct], None]
    read_response: Callable[[Cursor], Struct]
    write_request: Callable[[Output, Struct], None]
    response_defaults: frozenset[str]

    @staticmethod
    @cache
    def of(name: str, version: int) -> Message:
        """Return the message `name` (such as `list_offsets`) in that version, from a cache."""
        request, response = schema_of(name, version, "request"), schema_of(name, version, "response")
        return Message(
            is_flexible=request.is_flexible,
            read_request=struct_reader(request),
            write_response=struct_writer(response),
            read_response=struct_reader(response),
            write_request=struct_writer(request),
            response_defaults=frozenset(response.all_defaults),
        )


def message_versions(name: str) -> tuple[int, int]:
    """Return the lowest and the highest version that has a schema."""
    versions = versions_of(name)
    return versions[0], versions[-1]


def read_message(name: str, version: int, cursor: Cursor) -> Struct:
    """Read the body of a request. Trailing bytes are no error: some clients send a few."""
    return Message.of(name, version).read_request(cursor)
