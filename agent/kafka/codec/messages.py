"""Requests and responses of one API in one version, with their headers' shapes."""

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
    """How one API's request and response are read and written in one version."""

    is_flexible: bool
    read_request: Callable[[Cursor], Struct]
    write_response: Callable[[Output, Struct], None]
    read_response: Callable[[Cursor], Struct]
    write_request: Callable[[Output, Struct], None]
    response_defaults: frozenset[str]

    @staticmethod
    @cache
    def of(name: str, version: int) -> Message:
        """The message called `name` (as `list_offsets`) in that version; made once."""
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
    """The lowest and the highest version that there is a schema for."""
    versions = versions_of(name)
    return versions[0], versions[-1]


def read_message(name: str, version: int, cursor: Cursor) -> Struct:
    """The body of a request. Bytes behind it are no error: some clients leave a few there."""
    return Message.of(name, version).read_request(cursor)
