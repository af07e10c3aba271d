"""The bodies of the HTTP API. What is described here is what is checked, and what `/docs` shows.

A key, value or header value is a JSON string when its bytes are valid UTF-8. Otherwise it is their base64,
and the field's sibling `…_encoding` says so; null is null. A record as it is read can be produced as it is.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

_STRICT = ConfigDict(extra="forbid", strict=True)
_INT64_MAX = 2**63 - 1

# In one request: small records take many times their JSON in memory while they are handled.
MAX_RECORDS = 100_000

Encoding = Literal["base64"]
Timestamp = Annotated[int, Field(ge=-1, le=_INT64_MAX, description="milliseconds since the Unix epoch")]


class HeaderBody(TypedDict):
    """One header of a record."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]  # the documented way to configure a TypedDict

    key: str
    value: NotRequired[str | None]
    value_encoding: NotRequired[Encoding]


class RecordBody(TypedDict):
    """One record to produce; every field may be left out.

    Without `timestamp` it gets the agent's time. `partition` overrides the partitioner. `offset` is accepted,
    so that a record may be sent as it was read, and ignored.
    """

    __pydantic_config__ = _STRICT  # type: ignore[misc]  # the documented way to configure a TypedDict

    key: NotRequired[str | None]
    value: NotRequired[str | None]
    headers: NotRequired[list[HeaderBody]]
    timestamp: NotRequired[Timestamp | None]
    partition: NotRequired[int | None]
    key_encoding: NotRequired[Encoding]
    value_encoding: NotRequired[Encoding]
    offset: NotRequired[int]


class ProduceBody(TypedDict):
    """Records to produce, in the order in which they are to stand in their partitions."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]  # the documented way to configure a TypedDict

    records: Annotated[list[RecordBody], Field(max_length=MAX_RECORDS)]


PRODUCE_BODY = TypeAdapter(ProduceBody)


class CreateTopicBody(BaseModel):
    """A topic to create; `config` takes Kafka's names, e.g. `{"cleanup.policy": "compact"}`."""

    model_config = _STRICT

    name: str
    partitions: int = Field(default=1, ge=1)
    config: dict[str, str] = Field(default_factory=dict)


class TopicAnswer(BaseModel):
    """A topic; `config` holds the values that are in force, `overrides` those that were set for it."""

    name: str
    topic_id: str
    partitions: int
    created_ms: int
    config: dict[str, str]
    overrides: dict[str, str]


class TopicsAnswer(BaseModel):
    """Every topic, by name."""

    topics: list[TopicAnswer]


class PartitionAnswer(BaseModel):
    """Where a partition begins and ends."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    first_dirty_offset: int
    leader_epoch: int


class PartitionsAnswer(BaseModel):
    """The partitions of a topic, by number."""

    topic: str
    partitions: list[PartitionAnswer]


class RecordAnswer(BaseModel):
    """A record that was read; the `…_encoding` fields are there for base64 only."""

    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: list[dict[str, str | None]]
    key_encoding: Encoding | None = None
    value_encoding: Encoding | None = None


class RecordsAnswer(BaseModel):
    """Records from one partition; go on reading at `next_offset`."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    next_offset: int
    records: list[RecordAnswer]


class Refusal(BaseModel):
    """Why one record was not appended."""

    code: str
    message: str


class ProduceResult(BaseModel):
    """What became of one record: where it stands, or why it was refused."""

    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None
    error: Refusal | None = None


class ProduceAnswer(BaseModel):
    """One result per record, in the order of the request."""

    results: list[ProduceResult]
    accepted: int
    refused: int


class ErrorDetail(BaseModel):
    """What was wrong, and what to do; some errors add fields such as `high_watermark`."""

    model_config = ConfigDict(extra="allow")

    code: str
    message: str
    remedy: str | None = None


class ErrorAnswer(BaseModel):
    """Every answer with a status of 400 or more."""

    error: ErrorDetail
