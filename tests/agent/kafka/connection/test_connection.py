"""Connections of an agent: pipelined requests, malformed requests, and responses with errors."""

from __future__ import annotations

import socket
import struct
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kafka.api_registry import APIS
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from object_format.codecs.codec import Codec
from object_format.record_batch.headers import write_checksum
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, read_response, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.agent.faulty_store import FaultyStore
    from tests.agent.kafka.brokers import BrokerThread

_HELLO = Struct(client_software_name="test", client_software_version="1")


def assert_alive(broker: BrokerThread) -> None:
    """Check that the agent still serves another client."""
    with Wire(broker.host_and_port) as wire:
        assert wire.ask("api_versions", 4, _HELLO).error_code == 0


def produce_request(
    values: Sequence[bytes], *, acks: int = -1, producer: tuple[int, int, int] = (-1, -1, -1)
) -> Struct:
    """Return a request with one batch of `values`; `producer` is id, epoch and base sequence."""
    count = len(values)
    batch = encode_batch([1] * count, [b"key"] * count, values, producer=producer)
    partition = Struct(index=0, records=batch)
    return Struct(acks=acks, timeout=600_000, topic_data=[Struct(name="granite", partition_data=[partition])])


def only_partition(response: Struct) -> Struct:
    """Return the only partition of a Produce response."""
    found: Struct = response.responses[0].partition_responses[0]
    return found


def test_responses_come_in_the_order_of_pipelined_requests(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    frames = []
    for number in range(30):
        frames.append(request_frame("produce", 9, 2 * number, produce_request([str(number).encode()])))
        frames.append(request_frame("api_versions", 0, 2 * number + 1, Struct()))
    with Wire(broker.host_and_port) as wire:
        wire.send(b"".join(frames))
        responses = [wire.receive() for _ in frames]
    assert [response[0] for response in responses if response] == list(range(60))
    produced = [read_response("produce", 9, response[1]) for response in responses[::2] if response]
    assert [only_partition(response).base_offset for response in produced] == list(range(30))


def test_a_frame_may_arrive_byte_by_byte(broker: BrokerThread) -> None:
    frame = request_frame("api_versions", 3, 5, _HELLO)
    with Wire(broker.host_and_port) as wire:
        for byte in frame:
            wire.send(bytes([byte]))
        response = wire.receive()
    assert response is not None
    assert response[0] == 5


def test_a_large_frame_is_received_as_a_whole(broker: BrokerThread) -> None:
    broker.create_topic("granite", max_message_bytes="10000000")
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("produce", 9, produce_request([b"x" * 1_000_000] * 3))
        assert only_partition(response).error_code == 0
        assert wire.ask("api_versions", 0, Struct()).error_code == 0


@pytest.mark.parametrize("length", [-1, 0, 7, 2**31 - 1])
def test_an_impossible_length_closes_the_connection(broker: BrokerThread, length: int) -> None:
    with Wire(broker.host_and_port) as wire:
        wire.send(struct.pack(">i", length))
        assert wire.is_closed()
    assert_alive(broker)


def test_an_unknown_version_of_api_versions_gets_a_response_of_version_0(broker: BrokerThread) -> None:
    with Wire(broker.host_and_port) as wire:
        wire.send(struct.pack(">ihhih", 10, 18, 99, 4, -1))
        response = wire.receive()
    assert response is not None
    decoded = read_response("api_versions", 0, response[1])
    assert decoded.error_code == ErrorCode.unsupported_version
    assert [(key.api_key, key.min_version, key.max_version) for key in decoded.api_keys] == [(18, 0, 4)]


def test_an_unknown_api_closes_the_connection(broker: BrokerThread) -> None:
    with Wire(broker.host_and_port) as wire:
        wire.send(struct.pack(">ihhih", 10, 9999, 0, 4, -1))
        assert wire.is_closed()


def test_trailing_bytes_of_a_request_are_ignored(broker: BrokerThread) -> None:
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("metadata", 12, Struct(topics=[]), tail=b"\0\0\0")
    assert len(response.brokers) == 1


def test_produce_is_advertised_from_version_0(broker: BrokerThread) -> None:
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("api_versions", 4, _HELLO)
    assert [key.min_version for key in response.api_keys if key.api_key == 0] == [0]


def test_sequences_are_checked_and_duplicates_get_their_first_offset(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    with Wire(broker.host_and_port) as wire:
        producer = wire.ask("init_producer_id", 4, Struct(transaction_timeout=1000))

        def send(first: int, *values: bytes, epoch: int = 0) -> Struct:
            request = produce_request(values, producer=(producer.producer_id, epoch, first))
            return only_partition(wire.ask("produce", 9, request))

        assert send(0, b"a", b"b", b"c").base_offset == 0
        assert send(3, b"d").base_offset == 3
        assert send(0, b"a", b"b", b"c").base_offset == 0
        assert send(5, b"gap").error_code == ErrorCode.out_of_order_sequence_number
        assert send(0, b"e", epoch=1).base_offset == 4
        assert send(2, b"old", epoch=0).error_code == ErrorCode.invalid_producer_epoch
        described = wire.ask(
            "describe_producers", 0, Struct(topics=[Struct(name="granite", partition_indexes=[0])])
        )
    (known,) = described.topics[0].partitions[0].active_producers
    assert (known.producer_id, known.producer_epoch, known.last_sequence) == (producer.producer_id, 1, 0)


def test_log_directories_report_the_size_of_partitions(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    with Wire(broker.host_and_port) as wire:
        wire.ask("produce", 9, produce_request([b"x" * 1000]))
        (directory,) = wire.ask("describe_log_dirs", 4, Struct(topics=None)).results
    assert directory.topics[0].partitions[0].partition_size > 1000


def test_records_sent_with_acks_0_are_committed_after_the_client_disconnects(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    frames = [
        request_frame("produce", 9, number, produce_request([b"value"], acks=0)) for number in range(20)
    ]
    with Wire(broker.host_and_port) as wire:
        wire.send(b"".join(frames))
    topic = broker.catalog.topics.get("granite")
    until(lambda: broker.catalog.topics.partitions(topic.topic_id)[0].high_watermark == 20)


@pytest.mark.parametrize("end", ["unsupported", "rejected", "length", "half closed"])
def test_requests_before_the_end_of_a_connection_get_responses(broker: BrokerThread, end: str) -> None:
    """Even if their records are not committed yet."""
    broker.create_topic("granite")
    rejected = bytearray(request_frame("produce", 9, 2, produce_request([b"v"], acks=0)))
    rejected[-4] ^= 1
    behind = {
        "unsupported": struct.pack(">ihhih", 10, 99, 0, 2, -1),
        "rejected": bytes(rejected),
        "length": struct.pack(">i", -1),
    }
    with Wire(broker.host_and_port) as wire:
        wire.send(request_frame("produce", 9, 1, produce_request([b"first"])) + behind.get(end, b""))
        if end == "half closed":
            wire.socket.shutdown(socket.SHUT_WR)
        response = wire.receive()
        assert response is not None
        assert only_partition(read_response("produce", 9, response[1])).base_offset == 0
        assert wire.is_closed()


def test_more_requests_than_the_limit_of_open_ones_are_handled_in_time(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Large requests with acks 0, and small ones with an immediate or an asynchronous response."""
    broker = start_broker(kafka_max_pending_requests=3)
    broker.create_topic("granite")
    heartbeat = Struct(group_id="group", generation_id=1, member_id="member")
    frames = [request_frame("produce", 9, 0, produce_request([b"x" * 270_000], acks=0))] * 12
    frames += [
        request_frame("heartbeat", 4, 0, heartbeat),
        request_frame("api_versions", 0, 0, Struct()),
    ] * 20
    with Wire(broker.host_and_port) as wire:
        wire.send(b"".join(frames))
        assert all(wire.receive() for _ in range(40))
        assert only_partition(wire.ask("produce", 9, produce_request([b"last"]))).base_offset == 12


def test_requests_after_a_rejected_one_with_acks_0_are_ignored(broker: BrokerThread) -> None:
    """The rejection closes the connection. As in Kafka, later records are not in the log."""
    broker.create_topic("granite")
    bad, good = (bytearray(request_frame("produce", 9, 1, produce_request([b"v"], acks=0))) for _ in range(2))
    bad[-4] ^= 1
    with Wire(broker.host_and_port) as wire:
        wire.send(bytes(bad + good * 3))
        assert wire.is_closed()
    with Wire(broker.host_and_port) as wire:
        assert only_partition(wire.ask("produce", 9, produce_request([b"first"]))).base_offset == 0


def test_topics_are_found_by_id(broker: BrokerThread) -> None:
    topic = broker.create_topic("granite")
    with Wire(broker.host_and_port) as wire:
        batch = encode_batch([1], [b"key"], [b"value"])
        partition = Struct(index=0, records=batch)
        sent = Struct(topic_id=topic.topic_id, partition_data=[partition])
        response = wire.ask("produce", 13, Struct(acks=-1, timeout=600_000, topic_data=[sent]))
        assert only_partition(response).base_offset == 0
        wanted = Struct(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic_request = Struct(topic_id=topic.topic_id, partitions=[wanted])
        fetched = wire.ask("fetch", 17, Struct(max_wait=1000, min_bytes=1, topics=[topic_request]))
        unknown = Struct(topic_id=broker.agent.session.session_id, partitions=[wanted])
        missing = wire.ask("fetch", 17, Struct(max_wait=1000, min_bytes=1, topics=[unknown]))
    assert bytes(fetched.responses[0].partitions[0].records) == batch
    assert missing.responses[0].partitions[0].error_code == ErrorCode.unknown_topic_id


def test_a_record_without_a_key_for_a_compacted_topic_is_reported(broker: BrokerThread) -> None:
    broker.create_topic("granite", cleanup_policy="compact")
    batch = encode_batch([1, 1], [b"key", None], [b"a", b"b"])
    partition = Struct(index=0, records=batch)
    request = Struct(acks=-1, timeout=1000, topic_data=[Struct(name="granite", partition_data=[partition])])
    with Wire(broker.host_and_port) as wire:
        response = only_partition(wire.ask("produce", 9, request))
    assert response.error_code == ErrorCode.invalid_record
    assert [error.batch_index for error in response.record_errors] == [1]


def test_two_batches_for_a_partition_are_rejected_before_decompression(broker: BrokerThread) -> None:
    """Errors inside compressed batches are not looked for then."""
    broker.create_topic("granite")
    batch = bytearray(encode_batch([1], [b"key"], [b"value"], codec=Codec.ZSTD))
    batch[61:] = bytes(len(batch) - 61)
    write_checksum(memoryview(batch), 0, len(batch))
    responses = []
    with Wire(broker.host_and_port) as wire:
        for count in (1, 2):
            request = produce_request([b"value"])
            request.topic_data[0].partition_data[0].records = bytes(batch * count)
            responses.append(only_partition(wire.ask("produce", 9, request)))
    assert [response.error_code for response in responses] == [
        ErrorCode.corrupt_message,
        ErrorCode.invalid_record,
    ]
    assert "not 2" in responses[1].error_message


def test_a_flipped_bit_is_a_corrupt_message(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    request = produce_request([b"value"])
    partition = request.topic_data[0].partition_data[0]
    partition.records = partition.records[:-1] + bytes([partition.records[-1] ^ 1])
    with Wire(broker.host_and_port) as wire:
        response = only_partition(wire.ask("produce", 9, request))
    assert response.error_code == ErrorCode.corrupt_message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"fetch_offset": 5}, ErrorCode.offset_out_of_range),
        ({"partition": 9}, ErrorCode.unknown_topic_or_partition),
        ({"current_leader_epoch": 3}, ErrorCode.unknown_leader_epoch),
    ],
)
def test_a_failed_fetch_reports_its_error(
    broker: BrokerThread, changes: dict[str, int], code: ErrorCode
) -> None:
    broker.create_topic("granite")
    wanted = Struct(**{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, **changes})
    request = Struct(max_wait=100, min_bytes=1, topics=[Struct(topic="granite", partitions=[wanted])])
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("fetch", 12, request)
    assert response.responses[0].partitions[0].error_code == code


def test_a_full_write_buffer_is_a_retriable_error(
    start_broker: Callable[..., BrokerThread], store: FaultyStore
) -> None:
    """Earlier requests get their responses once the store accepts the file."""
    small = {
        "max_buffered_bytes": 3000,
        "flush_bytes": 3000,
        "max_request_bytes": 3000,
        "max_requests_bytes": 30_000,
    }
    broker = start_broker(**small)
    broker.create_topic("granite")
    store.gate.clear()
    with Wire(broker.host_and_port) as wire:
        try:
            for number in range(4):
                wire.send(request_frame("produce", 9, number, produce_request([b"x" * 1000])))
            until(lambda: broker.agent.data.write_path.budget.rejections == 2)
        finally:
            store.gate.set()
        responses = [wire.receive() for _ in range(4)]
    codes = [
        only_partition(read_response("produce", 9, response[1])).error_code
        for response in responses
        if response
    ]
    assert codes == [0, 0, ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas]


def test_an_idle_connection_is_closed(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(kafka_idle_ms=50)
    with Wire(broker.host_and_port) as wire:
        assert wire.is_closed()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_random_changes_of_a_request_never_stop_the_agent(broker: BrokerThread, data: st.DataObject) -> None:
    api = data.draw(st.sampled_from(APIS))
    version = data.draw(st.integers(api.min_version, api.max_version))
    frame = bytearray(request_frame(api.name, version, 3, Struct()))
    if data.draw(st.booleans()):
        frame += data.draw(st.binary(max_size=60))
    for _ in range(data.draw(st.integers(0, 6))):
        position = data.draw(st.integers(8, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
    frame[:4] = struct.pack(">i", len(frame) - 4)
    with Wire(broker.host_and_port) as wire:
        wire.send(bytes(frame))
        wire.socket.shutdown(1)
        response = wire.receive()
        assert response is None or response[0] == struct.unpack_from(">i", frame, 8)[0]
    assert_alive(broker)


def _damaged(name: str, version: int) -> Iterator[bytes]:
    """Damaged requests of that API and version: truncated, changed, or with trailing bytes."""
    rng = Random(f"{name} {version}")
    whole = request_frame(name, version, 3, Struct(), tail=rng.randbytes(4))
    body = bytearray(whole[4:])
    yield bytes(body[: rng.randrange(8, len(body) - 3)])
    for _ in range(2):
        changed = bytearray(body)
        for position in rng.choices(range(8, len(body)), k=3):
            changed[position] = rng.randrange(256)
        yield bytes(changed)


def test_damaged_requests_of_every_version_affect_no_other_client(broker: BrokerThread) -> None:
    """Another client gets its responses meanwhile, and no memory stays in use."""
    with Wire(broker.host_and_port) as other:
        for api in APIS:
            for version in range(api.min_version, api.max_version + 1):
                for body in _damaged(api.name, version):
                    with Wire(broker.host_and_port) as wire:
                        wire.send(struct.pack(">i", len(body)) + body)
                        wire.socket.shutdown(1)
                        response = wire.receive()
                        assert response is None or response[0] == 3, (api.name, version)
            assert other.ask("api_versions", 4, _HELLO).error_code == 0
    server = broker.agent.kafka.server
    assert server is not None
    until(lambda: not server._connections)
    budgets = (
        broker.agent.resources.request_budget,
        broker.agent.data.read_path.budget,
        broker.agent.data.write_path.budget,
    )
    until(lambda: [budget.used for budget in budgets] == [0, 0, 0])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(body=st.binary(min_size=0, max_size=300))
def test_random_bytes_never_stop_the_agent(broker: BrokerThread, body: bytes) -> None:
    with Wire(broker.host_and_port) as wire:
        wire.send(struct.pack(">i", len(body)) + body)
        wire.socket.shutdown(1)
        while wire.receive() is not None:
            pass
    assert_alive(broker)
