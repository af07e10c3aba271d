"""The fast check of all batches of an append, compared with a check of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from core.errors import SiltstoneError
from local_tier.config import LogConfig
from local_tier.files.file_system import RealFileSystem
from local_tier.log.append_checks import CheckedBatches, check_producers
from local_tier.log.unified_log import Isolation
from local_tier.producers.batches import producer_batches
from local_tier.producers.producer_state_entry import AppendOrigin, BatchMetadata, ProducerAppendInfo
from local_tier.producers.producer_state_manager import ProducerStateManager
from object_format.codecs.codec import Codec
from object_format.errors import InvalidRecordError, RejectionReason
from object_format.record_batch.append_rules import validate_append
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import encode_batch
from tests.local_tier.batches import NO_PRODUCER, batch, rows_of
from tests.local_tier.logs import LogHarness

if TYPE_CHECKING:
    from pathlib import Path

TOP = 2**31


class Sent(NamedTuple):
    """One batch. `jump` is the distance of its sequence number from the expected one."""

    producer: int
    epoch: int
    records: int
    jump: int
    transactional: bool


_SENT = st.builds(
    Sent,
    producer=st.sampled_from([-1, 7, 7, 7, 7, 7, 8]),
    epoch=st.sampled_from([0] * 15 + [1]),
    records=st.integers(1, 3),
    jump=st.sampled_from([0] * 20 + [1, -3]),
    transactional=st.sampled_from([False] * 15 + [True]),
)
_APPEND = st.one_of(
    st.lists(_SENT, min_size=1, max_size=9),
    st.lists(st.just(Sent(7, 0, 2, 0, False)), min_size=2, max_size=9),
)


def check_slowly(
    states: ProducerStateManager, checked: CheckedBatches, origin: AppendOrigin
) -> BatchMetadata | None:
    """Check each batch alone and apply all of them afterwards, as Kafka does."""
    appends: dict[int, ProducerAppendInfo] = {}
    for each in producer_batches(checked.array, checked.rows):
        known = states.producers.get(each.producer_id)
        duplicate = (
            known.find_duplicate(each) if known is not None and origin is AppendOrigin.CLIENT else None
        )
        if duplicate is not None:
            return duplicate
        pending = appends.setdefault(each.producer_id, states.prepare_update(each.producer_id, origin))
        pending.append(each)
    for pending in appends.values():
        states.update(pending)
    return None


@given(
    appends=st.lists(st.tuples(_APPEND, st.booleans()), min_size=1, max_size=6),
    start=st.sampled_from([0, TOP - 5]),
    origin=st.sampled_from([AppendOrigin.CLIENT, AppendOrigin.CLIENT, AppendOrigin.REPLICATION]),
)
def test_checking_producers_together_equals_checking_them_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    appends: list[tuple[list[Sent], bool]],
    start: int,
    origin: AppendOrigin,
) -> None:
    """Results, errors and producer state are equal, also for a repeated append."""
    directory = tmp_path_factory.mktemp("states")
    together, one_by_one = (
        ProducerStateManager(RealFileSystem(), directory, log_name="orders-0") for _ in range(2)
    )
    due: dict[int, int] = {}
    offset = 0
    for sent, is_repeated in appends:
        data = b""
        for each in sent:
            sequence = (due.get(each.producer, start) + each.jump) % TOP
            stamp = NO_PRODUCER if each.producer < 0 else (each.producer, each.epoch, sequence)
            data += batch(offset, each.records, producer=stamp, transactional=each.transactional)
            due[each.producer] = (sequence + each.records) % TOP
            offset += each.records
        for _ in range(1 + is_repeated):
            checked = CheckedBatches(memoryview(data), rows_of(data))
            results: list[tuple[str, object]] = []
            for check in (_check_together, check_slowly):
                states = together if check is _check_together else one_by_one
                try:
                    results.append(("accepted", check(states, checked, origin)))
                except SiltstoneError as error:
                    results.append((type(error).__name__, str(error)))
            event(results[0][0])
            assert results[0] == results[1]
            assert together.producers == one_by_one.producers
            assert together.first_unstable_offset == one_by_one.first_unstable_offset


def _check_together(
    states: ProducerStateManager, checked: CheckedBatches, origin: AppendOrigin
) -> BatchMetadata | None:
    validated = check_producers(states, checked, origin)
    for pending in validated.appends:
        states.update(pending)
    return validated.duplicate


def test_batches_validated_by_the_same_rules_are_not_validated_again(tmp_path: Path) -> None:
    """Under other rules they are, and corruption since the first validation is detected."""
    config = LogConfig()
    log = LogHarness(tmp_path).open(config)
    corrupted = bytearray(batch(0, 3))
    corrupted[-3] ^= 1
    with pytest.raises(InvalidRecordError):
        log.append_as_leader(bytes(corrupted), 0, validated_by=LogConfig(max_message_bytes=77).append_rules)
    assert log.log_end_offset == 0
    appended = log.append_as_leader(corrupted, 4, validated_by=config.append_rules)
    assert (appended.first_offset, appended.last_offset) == (0, 2)
    [(_, header)] = iter_headers(log.read(0, 1_000, Isolation.LOG_END).data)
    assert (header.base_offset, header.partition_leader_epoch) == (0, 4)
    log.close()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_producer_cannot_set_a_delete_horizon(tmp_path: Path, codec: Codec) -> None:
    """The cleaner would drop the tombstone at a time of the producer's choice."""
    tombstone = encode_batch([1], [b"k"], [None], codec=codec, delete_horizon_ms=1)
    log = LogHarness(tmp_path).open(LogConfig())
    with pytest.raises(InvalidRecordError, match="not allowed to set a delete horizon") as error:
        log.append_as_leader(bytes(tombstone), 0)
    assert error.value.reason is RejectionReason.INVALID_RECORD
    assert log.log_end_offset == 0
    log.close()


def test_batches_with_an_append_time_are_not_validated_again(tmp_path: Path) -> None:
    """The log's configuration may lag behind, and would reject the timestamp as one of a producer."""
    stamped = LogConfig(log_append_time=True, max_message_bytes=5_000)
    log = LogHarness(tmp_path).open(LogConfig(log_append_time=True))
    data, _ = validate_append("here", memoryview(bytearray(batch(0, 3))), stamped.append_rules, now_ms=77)
    with pytest.raises(InvalidRecordError):
        log.append_as_leader(bytes(data), 0)
    appended = log.append_as_leader(data, 0, validated_by=stamped.append_rules)
    assert (appended.first_offset, appended.last_offset) == (0, 2)
    log.close()
