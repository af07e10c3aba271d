"""The JSON bodies of the HTTP API: what requests are validated against, and what `/docs` describes.

A key, value or header value is a JSON string if its bytes are valid UTF-8. Otherwise it is a base64 string,
and a second field with the suffix `_encoding` says so. Null is null. A record in the form in which it is read
can be produced again.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

_STRICT = ConfigDict(extra="forbid", strict=True)
_INT64_MAX = 2**63 - 1

# Bound on one request: small records take many times the size of their JSON while they are processed.
MAX_RECORDS = 100_000

Encoding = Annotated[
    Literal["base64"], Field(description="`base64` if the field without `_encoding` is base64.")
]
Timestamp = Annotated[
    int, Field(ge=-1, le=_INT64_MAX, description="Milliseconds since the epoch; the agent's time by default.")
]


class HeaderBody(TypedDict):
    """One header of a record."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]  # the documented way to configure a TypedDict

    key: Annotated[str, Field(description="Name of the header.")]
    value: NotRequired[Annotated[str | None, Field(description="Text or null.")]]
    value_encoding: NotRequired[Encoding]


class RecordBody(TypedDict):
    """One record to produce. Every field is optional."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]  # the documented way to configure a TypedDict

    key: NotRequired[Annotated[str | None, Field(description="Text or null.")]]
    value: NotRequired[
        Annotated[
            str | None, Field(description="Text or null. In a compacted topic null deletes the record's key.")
        ]
    ]
    headers: NotRequired[Annotated[list[HeaderBody], Field(description="Headers in their order.")]]
    timestamp: NotRequired[Timestamp | None]
    partition: NotRequired[
        Annotated[int | None, Field(description="Overrides the partition of the path and of the key.")]
    ]
    key_encoding: NotRequired[Encoding]
    value_encoding: NotRequired[Encoding]
    offset: NotRequired[
        Annotated[
            int, Field(description="Ignored, so that a record can be sent in the form in which it was read.")
        ]
    ]


class ProduceBody(TypedDict):
    """Records to append. Records of the same partition keep their order."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]  # the documented way to configure a TypedDict

    records: Annotated[list[RecordBody], Field(max_length=MAX_RECORDS, description="The records to append.")]


PRODUCE_BODY = TypeAdapter(ProduceBody)


class CreateTopicBody(BaseModel):
    """A topic to create."""

    model_config = _STRICT

    name: str = Field(description="Name of the topic, by Kafka's rules.")
    partitions: int = Field(default=1, ge=1, description="Number of partitions.")
    config: dict[str, str] = Field(
        default_factory=dict,
        description='Settings by Kafka\'s names, for example `{"cleanup.policy": "compact"}`.',
    )


class TopicResponse(BaseModel):
    """A topic and its settings."""

    name: str = Field(description="Name of the topic.")
    topic_id: str = Field(description="Id of the topic, a UUID. A topic that is created again has a new one.")
    partitions: int = Field(description="Number of partitions.")
    created_ms: int = Field(description="Time of creation, in milliseconds since the epoch.")
    config: dict[str, str] = Field(description="All settings and the values in effect.")
    overrides: dict[str, str] = Field(description="The settings that were set for this topic.")


class TopicsResponse(BaseModel):
    """All topics, sorted by name."""

    topics: list[TopicResponse] = Field(description="The topics.")


class PartitionResponse(BaseModel):
    """The bounds of one partition."""

    partition: int = Field(description="Index of the partition.")
    log_start_offset: int = Field(description="First offset that can be read.")
    last_stable_offset: int = Field(description="First offset of an open transaction, or the high watermark.")
    high_watermark: int = Field(description="Offset after the last committed record.")
    log_end_offset: int = Field(description="Offset that the next record will get.")
    first_dirty_offset: int = Field(description="First offset that compaction has not deduplicated.")
    leader_epoch: int = Field(description="Epoch of the partition's leader.")


class PartitionsResponse(BaseModel):
    """The partitions of a topic, sorted by index."""

    topic: str = Field(description="Name of the topic.")
    partitions: list[PartitionResponse] = Field(description="The partitions.")


class RecordResponse(BaseModel):
    """A record in the form in which it is read."""

    offset: int = Field(description="Offset of the record.")
    timestamp: int = Field(description="Milliseconds since the epoch.")
    key: str | None = Field(description="Text, base64 or null.")
    value: str | None = Field(description="Text, base64 or null.")
    headers: list[dict[str, str | None]] = Field(description="Headers in their order.")
    key_encoding: Encoding | None = None
    value_encoding: Encoding | None = None


class RecordsResponse(BaseModel):
    """Consecutive records of one partition."""

    topic: str = Field(description="Name of the topic.")
    partition: int = Field(description="Index of the partition.")
    log_start_offset: int = Field(description="First offset that can be read.")
    high_watermark: int = Field(description="Offset after the last committed record.")
    next_offset: int = Field(description="Offset to continue from.")
    records: list[RecordResponse] = Field(description="The records, in the order of their offsets.")


class RecordError(BaseModel):
    """The reason why a record was not appended."""

    code: str = Field(description="Stable name of the error.")
    message: str = Field(description="Explanation for people.")


class ProduceResult(BaseModel):
    """The result of one record: its position in the log, or an error."""

    partition: int | None = Field(default=None, description="Partition of the record.")
    offset: int | None = Field(default=None, description="Offset of the record.")
    timestamp: int | None = Field(default=None, description="Timestamp that was stored.")
    error: RecordError | None = Field(default=None, description="Why the record was rejected.")


class ProduceResponse(BaseModel):
    """One result for each record, in the order of the request."""

    results: list[ProduceResult] = Field(description="The results.")
    accepted: int = Field(description="Number of records that were appended.")
    rejected: int = Field(description="Number of records that were rejected.")


class HealthResponse(BaseModel):
    """The health of the agent."""

    status: Literal["ok", "unhealthy"] = Field(description="Overall health.")
    problems: dict[str, str] = Field(description="Reasons by part of the agent; empty if the status is ok.")
    warnings: dict[str, str] = Field(
        default_factory=dict,
        description="Problems that an operator must solve, and that do not keep the agent from serving.",
    )


class ErrorDetail(BaseModel):
    """An error and its remedy. Some errors have further fields, such as `high_watermark`."""

    model_config = ConfigDict(extra="allow")

    code: str = Field(description="Stable name of the error.")
    message: str = Field(description="Explanation for people.")
    remedy: str | None = Field(default=None, description="What the client can do about it.")


class ErrorResponse(BaseModel):
    """The body of every response with a status of 400 or more."""

    error: ErrorDetail = Field(description="The error.")
