from __future__ import annotations

import dataclasses

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.demo.comparison import (
    Differences,
    FetchedRecord,
    RecordOutcome,
    check_outcomes,
    check_partition,
)
from siltstone.demo.input_data import Row, load_input
from siltstone.demo.oracle import Expected, expect, murmur2

# From Kafka's own UtilsTest, whose values are signed.
MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}

ROWS = [
    Row("a", "1", 10),
    Row("b", "2", 20),
    Row(None, "3", 30),
    Row("a", "4", 5),
]


@pytest.mark.parametrize(("key", "hashed"), MURMUR2.items())
def test_murmur2_agrees_with_kafka(key: str, hashed: int) -> None:
    assert murmur2(key.encode()) == hashed & 0xFFFFFFFF


def test_the_last_of_each_key_is_expected_at_its_own_offset() -> None:
    topic = expect(ROWS, 1, compacted=True)
    assert topic.partitions == [{1: Expected("b", "2", 20), 2: Expected("a", "4", 5)}]
    assert topic.positions == [(0, 0), (0, 1), None, (0, 2)]
    assert topic.rejected == 1


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60), st.integers(1, 5))
def test_without_compaction_everything_is_expected_in_order(keys: list[str], partitions: int) -> None:
    rows = [Row(key, str(number), number) for number, key in enumerate(keys)]
    topic = expect(rows, partitions, compacted=False)
    assert topic.record_count == len(rows)
    for records in topic.partitions:
        assert list(records) == list(range(len(records)))
        assert [int(each.value) for each in records.values()] == sorted(
            int(each.value) for each in records.values()
        )


def _fetched(offset: int, key: str, value: str, timestamp: int) -> FetchedRecord:
    return FetchedRecord(offset, timestamp, key.encode(), value.encode())


RIGHT = [_fetched(1, "b", "2", 20), _fetched(2, "a", "4", 5)]


@pytest.mark.parametrize(
    ("records", "count", "message"),
    [
        (RIGHT, 0, ""),
        (RIGHT[:1], 1, "offset 2: missing"),
        ([*RIGHT, _fetched(3, "a", "5", 5)], 1, "unexpected record"),
        (RIGHT[::-1], 1, "came after offset 2"),
        ([RIGHT[0], *RIGHT], 2, "unexpected record"),
        ([RIGHT[0], dataclasses.replace(RIGHT[1], timestamp=6)], 1, "differs"),
        ([RIGHT[0], dataclasses.replace(RIGHT[1], value=b"x")], 1, "differs"),
        ([RIGHT[0], dataclasses.replace(RIGHT[1], key=None)], 1, "differs"),
        ([RIGHT[0], dataclasses.replace(RIGHT[1], offset=4)], 2, "unexpected record"),
    ],
)
def test_every_kind_of_difference_is_found(records: list[FetchedRecord], count: int, message: str) -> None:
    differences = Differences()
    expected = expect(ROWS, 1, compacted=True).partitions[0]
    assert check_partition("t", 0, records, expected, differences) == len(records)
    assert differences.count == count
    assert message in " ".join(differences.examples)


def test_outcomes_are_compared_with_the_expected_positions() -> None:
    expected = expect(ROWS, 1, compacted=True)
    right = [
        RecordOutcome(0, 1, None),
        RecordOutcome(None, None, "INVALID_RECORD"),
        RecordOutcome(0, 2, None),
    ]
    differences = Differences()
    check_outcomes("t", [1, 2, 3], right, expected, differences)
    assert differences.count == 0
    check_outcomes("t", [1, 2, 3], right[::-1], expected, differences)
    assert differences.count == 2
    check_outcomes("t", [2], [RecordOutcome(0, 7, None)], expected, differences)
    assert differences.examples[-1] == (
        "t, row 2: expected a rejection, the agent returned partition 0, offset 7"
    )
    check_outcomes("t", [2], [RecordOutcome(None, None, "_MSG_TIMED_OUT")], expected, differences)
    assert differences.count == 4


def test_only_the_first_differences_have_a_text() -> None:
    differences = Differences()
    for number in range(1_000):
        differences.add(str(number))
    assert (differences.count, len(differences.examples)) == (1_000, 10)


def test_the_input_is_read_from_the_package() -> None:
    data = load_input(limit=1_000)
    assert len(data.flights) == 1_000
    assert len(data.weather) == 26_115 * 1_000 // 336_776
    first = data.flights[0]
    assert first.key == "N14228"
    assert first.timestamp == 1_357_034_400_000  # 2013-01-01T10:00:00Z
    value = orjson.loads(first.value)
    assert (value["tailnum"], value["dep_time"], value["time_hour"]) == (
        "N14228",
        517,
        "2013-01-01T10:00:00Z",
    )
    assert orjson.loads(data.weather[0].value)["wind_gust"] is None
    assert data.weather[0].key == "EWR"
