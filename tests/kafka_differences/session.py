"""A sequence of requests to one broker, and its responses in the form in which two brokers are compared.

A step has a name and what the broker responded: names of error codes, epochs, offsets and counts. Addresses,
times, and ids that a broker chooses are left out. Requests are written here with Kafka's fields; a field that
is not given has its default.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import NO_PRODUCER, encode_batch
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import read_response, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from tests.agent.kafka.wire import Wire

UNCOMMITTED, COMMITTED = 0, 1
LATEST, EARLIEST, LARGEST_TIMESTAMP = -1, -2, -3

# Kafka returns these by chance: while it loads a coordinator, and while it writes the markers of a
# transaction. A client repeats the request, and so does a session.
_PASSING = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
}


_SECONDS = 60.0


class Session:
    """Two connections to a broker. `seen` has what the broker responded to each step.

    The second connection is for requests whose response waits for other requests.
    """

    def __init__(self, wire: Wire, second: Wire) -> None:
        self._wire, self._second = wire, second
        self.seen: dict[str, object] = {}

    def saw(self, step: str, response: object) -> None:
        """Record the response to a step, in comparable form."""
        assert step not in self.seen, f"two steps are called {step!r}"
        self.seen[step] = response

    def ask(self, api: str, version: int, **fields: object) -> Struct:
        """Send a request, again while its response has a code that passes, and return the last response."""
        request = Struct(**fields)
        responses: list[Struct] = []

        def responded() -> bool:
            responses[:] = [self._wire.ask(api, version, request)]
            return not _PASSING & {*_codes(responses[0])}

        until(responded, seconds=_SECONDS)
        return responses[0]

    def begin(self, api: str, version: int, **fields: object) -> Callable[[], Struct]:
        """Send a request on the second connection, and return a function that waits for its response."""
        self._second.send(request_frame(api, version, 1, Struct(**fields)))

        def end() -> Struct:
            received = self._second.receive()
            assert received is not None
            return read_response(api, version, received[1])

        return end

    def codes(self, step: str, api: str, version: int, **fields: object) -> Struct:
        """Send a request as a step, and record the error codes of its response, sorted."""
        response = self.ask(api, version, **fields)
        self.saw(step, sorted(map(code, _codes(response))))
        return response

    def find_coordinators(self) -> None:
        """Look up the coordinators of groups and transactions: only then does Kafka create their topics."""
        for kind in (0, 1):
            self.ask("find_coordinator", 3, key="any", key_type=kind)

    # Topics

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic, and wait until the broker leads its partitions."""
        settings = [Struct(name=key.replace("_", "."), value=value) for key, value in config.items()]
        topic = Struct(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
        response = self.ask("create_topics", 7, topics=[topic], timeout=60_000)
        assert code(response.topics[0].error_code) == "NONE"
        for partition in range(partitions):
            until(lambda: self.find_offset(name, LATEST, partition).error_code == ErrorCode.none)  # noqa: B023

    def topic_id(self, name: str) -> Any:  # noqa: ANN401  # as a struct has it
        """Return the id of a topic."""
        response = self.ask("metadata", 12, topics=[Struct(name=name)], allow_auto_topic_creation=False)
        return response.topics[0].topic_id

    # Records

    def produce(  # one for each field of the request
        self,
        step: str,
        topic: str,
        *values: bytes | None,
        partition: int = 0,
        version: int = 9,
        producer: tuple[int, int, int] = NO_PRODUCER,
        transactional_id: str | None = None,
        key: bytes | None = b"key",
        timestamp: int | None = None,
        acks: int = -1,
    ) -> None:
        """Produce a batch: code, base offset, and indexes of the records that were rejected.

        `producer` is (producer id, epoch, sequence number).
        """
        now = int(time.time() * 1000)  # a broker compares it with its clock
        batch = encode_batch(
            [now if timestamp is None else timestamp] * len(values),
            [key] * len(values),
            values,
            producer=producer,
            is_transactional=transactional_id is not None,
        )
        self.produce_bytes(
            step,
            topic,
            batch,
            partition=partition,
            version=version,
            transactional_id=transactional_id,
            acks=acks,
        )

    def produce_bytes(  # one for each field of the request
        self,
        step: str,
        topic: str,
        records: bytes,
        *,
        partition: int = 0,
        version: int = 9,
        transactional_id: str | None = None,
        acks: int = -1,
    ) -> None:
        """Produce bytes that may be no valid batch, otherwise like `produce`."""
        response = self.ask(
            "produce",
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout=60_000,
            topic_data=[Struct(name=topic, partition_data=[Struct(index=partition, records=records)])],
        )
        (produced,) = response.responses[0].partition_responses
        rejected = [each.batch_index for each in produced.record_errors or ()]
        self.saw(step, (code(produced.error_code), produced.base_offset, rejected))

    def fetch(
        self, step: str, topic: str, offset: int = 0, *, partition: int = 0, isolation: int = UNCOMMITTED
    ) -> None:
        """Fetch without a session: code, bounds of the log, base offsets of batches, aborted transactions."""
        wanted = Struct(partition=partition, fetch_offset=offset, partition_max_bytes=2**20)
        response = self.ask(
            "fetch",
            11,
            max_bytes=2**20,
            isolation_level=isolation,
            topics=[Struct(topic=topic, partitions=[wanted])],
        )
        (fetched,) = response.responses[0].partitions
        self.saw(
            step,
            {
                "code": code(fetched.error_code),
                "log start": fetched.log_start_offset,
                "last stable": fetched.last_stable_offset,
                "high watermark": fetched.high_watermark,
                "batches": [header.base_offset for _, header in iter_headers(data_of(fetched))],
                "aborted": sorted(each.first_offset for each in fetched.aborted_transactions or ()),
            },
        )

    def offset(
        self, step: str, topic: str, timestamp: int, *, partition: int = 0, isolation: int = UNCOMMITTED
    ) -> None:
        """Look up an offset by timestamp: code, offset and leader epoch."""
        found = self.find_offset(topic, timestamp, partition, isolation)
        self.saw(step, (code(found.error_code), found.offset, found.leader_epoch))

    def find_offset(
        self, topic: str, timestamp: int, partition: int = 0, isolation: int = UNCOMMITTED
    ) -> Struct:
        """Return what ListOffsets has of one partition."""
        wanted = Struct(partition_index=partition, timestamp=timestamp)
        response = self.ask(
            "list_offsets",
            11,
            replica_id=-1,
            isolation_level=isolation,
            topics=[Struct(name=topic, partitions=[wanted])],
        )
        found: Struct = response.topics[0].partitions[0]
        return found

    # Offsets of groups

    def commit(  # one for each field of the request
        self,
        step: str,
        group: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 8,
        epoch: int = -1,
        member: str = "",
        instance: str | None = None,
        metadata: str | None = "",
    ) -> None:
        """Commit the offset of one partition; `epoch` is the generation, or the epoch of the member."""
        committed = Struct(partition_index=partition, committed_offset=offset, committed_metadata=metadata)
        self.codes(
            step,
            "offset_commit",
            version,
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member,
            group_instance_id=instance,
            topics=[Struct(name=topic, partitions=[committed])],
        )

    def committed(
        self, step: str, group: str, topic: str, *partitions: int, require_stable: bool = False
    ) -> None:
        """Fetch committed offsets: the code of the group, and (partition, offset, metadata, code) of each."""
        response = self.ask(
            "offset_fetch",
            7,
            group_id=group,
            topics=[Struct(name=topic, partition_indexes=partitions or (0,))],
            require_stable=require_stable,
        )
        offsets = sorted(
            (each.partition_index, each.committed_offset, each.metadata, code(each.error_code))
            for each in response.topics[0].partitions
        )
        self.saw(step, (code(response.error_code), offsets))


def code(number: int) -> str:
    """Return the name of an error code."""
    return ErrorCode(number).name.upper()


def data_of(fetched: Struct) -> bytes:
    """Return the batches that a partition of a Fetch response has."""
    records = fetched.records or b""
    return bytes(records) if isinstance(records, bytes | memoryview) else b"".join(map(bytes, records))


def _codes(value: object) -> Iterator[int]:
    """Yield all error codes of a response."""
    if isinstance(value, Struct):
        for name, field in vars(value).items():
            if name in {"error_code", "partition_error_code"}:
                yield field
            else:
                yield from _codes(field)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _codes(each)
