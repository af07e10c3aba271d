"""The response to a Produce request, as a struct or, if every partition succeeded, directly as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Layout
from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from agent.kafka.codec.writing import Output, write_count, write_encoded
from agent.kafka.errors import ErrorCode, KafkaError, code_of, code_of_refusal, message_of
from agent.write.validation import append_rules_of
from object_format.errors import InvalidRecordError
from object_format.record_batch.append_rules import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from agent.write.pending_append import AppendResult
    from agent.write.validation import ValidatedAppend


TOPIC_IDS_SINCE = 13
"""The first version that names topics by their ids."""
ZSTD_SINCE = 7
"""The first version whose clients may compress with zstd."""


@dataclass(slots=True, kw_only=True)
class PartitionOutcome:
    """One partition of a request: its validated batches and the result of their append.

    With an `error`, nothing was appended. Without an `error` and a `result`, the append is not committed yet.
    """

    name: str
    topic_id: UUID | None
    index: int
    validated: ValidatedAppend | None = None
    result: AppendResult | None = None
    error: Exception | None = None


def build_produce_response(outcomes: Sequence[PartitionOutcome]) -> Struct:
    """Return the response to a request of any version."""
    topics: dict[tuple[str, UUID | None], Struct] = {}
    for outcome in outcomes:
        topic = topics.setdefault(
            (outcome.name, outcome.topic_id),
            Struct(name=outcome.name, topic_id=outcome.topic_id, partition_responses=[]),
        )
        topic.partition_responses.append(_partition(outcome))
    return Struct(responses=list(topics.values()))


def _partition(outcome: PartitionOutcome) -> Struct:
    error = outcome.error
    if error is None and outcome.validated is not None:
        if outcome.result is not None:
            return _appended(outcome.index, outcome.validated, outcome.result)
        error = KafkaError(ErrorCode.request_timed_out, "the records were not committed in time")
    error = error or KafkaError(ErrorCode.unknown_server_error)
    record_errors = error.record_errors if isinstance(error, InvalidRecordError) else ()
    return Struct(
        index=outcome.index,
        error_code=code_of(error),
        base_offset=-1,
        error_message=message_of(error),
        record_errors=[
            Struct(batch_index=record, batch_index_error_message=why) for _, record, why in record_errors
        ],
    )


def _appended(index: int, validated: ValidatedAppend, result: AppendResult) -> Struct:
    if result.refusal is not None:
        return Struct(
            index=index,
            error_code=code_of_refusal(result.refusal),
            base_offset=-1,
            error_message=result.detail,
        )
    if result.error is not None:
        return Struct(
            index=index,
            error_code=code_of(result.error),
            base_offset=-1,
            error_message=message_of(result.error),
        )
    append_time = append_rules_of(validated.topic.config).append_time
    return Struct(
        index=index,
        base_offset=result.base_offset,
        log_append_time=validated.batches[0].max_timestamp if append_time else -1,
        log_start_offset=result.log_start_offset,
    )


_FLEXIBLE_SINCE = 9
# Index, error code, base offset, append time; from version 5 the log start offset, from version 8 an empty
# list of record errors and a null message.
_PARTITIONS = (
    (_FLEXIBLE_SINCE, Layout(">ihqqqBBB"), (1, 0, 0)),
    (8, Layout(">ihqqqih"), (0, -1)),
    (5, Layout(">ihqqq"), ()),
)
_OLDEST_PARTITION = Layout(">ihqq")


def _partition_writer(version: int) -> Callable[[int, AppendResult], bytes]:
    """Return the function that encodes a successful append in that version."""
    for since, layout, rest in _PARTITIONS:
        if version >= since:
            pack = layout.pack
            return lambda index, result: pack(
                index, 0, result.base_offset, NO_TIMESTAMP, result.log_start_offset, *rest
            )
    return lambda index, result: _OLDEST_PARTITION.pack(index, 0, result.base_offset, NO_TIMESTAMP)


_WRITERS = [_partition_writer(version) for version in range(TOPIC_IDS_SINCE + 1)]


def write_appended(
    out: Output,
    names: Sequence[bytes],
    appends: Sequence[ValidatedAppend],
    results: Sequence[AppendResult | None],
    version: int,
) -> None:
    """Write the body of a response without errors: the same bytes that the response's schema gives."""
    write = _WRITERS[version]
    topics: dict[bytes, list[bytes]] = {}
    for name, append, result in zip(names, appends, results, strict=True):
        if result is not None:
            topics.setdefault(name, []).append(write(append.partition, result))
    is_flexible = version >= _FLEXIBLE_SINCE
    write_count(out, len(topics), is_flexible=is_flexible)
    for name, partitions in topics.items():
        if version < TOPIC_IDS_SINCE:
            write_encoded(out, name, is_flexible=is_flexible)
        else:
            out.tail += name
        write_count(out, len(partitions), is_flexible=is_flexible)
        out.tail += b"".join(partitions)
        if is_flexible:
            out.tail.append(0)
    out.tail += bytes(5 if is_flexible else 4)  # throttle time 0, and no tagged fields
