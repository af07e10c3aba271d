"""Fetch sessions (KIP-227)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from tests.kafka_differences.session import code, data_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.kafka_differences.session import Session

_NEW, _WITHOUT, _CLOSE = 0, -1, -1


def fetch_sessions(s: Session) -> None:
    """Incremental fetches get the partitions that changed, or that have an error."""
    topic, other = "sessions", "sessions-other"
    s.create_topic(topic, 3)
    s.create_topic(other)
    session = _fetch(s, "new", 0, _NEW, topic, {0: 0, 1: 0, 2: 0})
    _fetch(s, "nothing changed", session, 1)
    s.produce("produce", topic, b"x", partition=1)
    _fetch(s, "one changed", session, 2)
    _fetch(s, "it was not read", session, 3)
    _fetch(s, "it is read", session, 4, topic, {1: 1})
    _fetch(s, "earlier session epoch", session, 4)
    _fetch(s, "later session epoch", session, 9)
    _fetch(s, "next session epoch", session, 5)
    _fetch(s, "forget", session, 6, topic, forgotten=[0])
    s.produce("produce to the forgotten", topic, b"x")
    _fetch(s, "the forgotten changed", session, 7)
    _fetch(s, "add it again", session, 8, topic, {0: 0})
    _fetch(s, "add an unknown partition", session, 9, topic, {7: 0})
    _fetch(s, "it is still unknown", session, 10)
    _fetch(s, "out of range", session, 11, topic, {2: 99})
    _fetch(s, "still out of range", session, 12)
    _fetch(s, "in range, forget the unknown", session, 13, topic, {2: 0}, forgotten=[7])
    _fetch(s, "add another topic", session, 14, other, {0: 0})
    _fetch(s, "close", session, _CLOSE, topic, {0: 0})
    _fetch(s, "closed", session, 15)

    session = _fetch(s, "another", 0, _NEW, topic, {0: 0})
    _fetch(s, "replace it", session, _NEW, topic, {0: 0})
    _fetch(s, "replaced", session, 1)
    session = _fetch(s, "a third", 0, _NEW, topic, {0: 0})
    _fetch(s, "forget all", session, 1, topic, forgotten=[0])
    _fetch(s, "all forgotten", session, 2)
    _fetch(s, "unknown session", 77, 3, topic, {0: 0})
    _fetch(s, "no session, no partitions", 0, _WITHOUT)
    _fetch(s, "new, no partitions", 0, _NEW)
    session = _fetch(s, "new, unknown topic", 0, _NEW, "unknown", {0: 0})
    _fetch(s, "topic is still unknown", session, 1)


def _fetch(  # one for each field of the request
    s: Session,
    step: str,
    session: int,
    epoch: int,
    topic: str = "",
    offsets: Mapping[int, int] | None = None,
    *,
    forgotten: Sequence[int] = (),
) -> int:
    """Fetch in a session, whose id is returned.

    What counts: code, whether there is a session, and (partition, code, high watermark, whether it has
    records) of each partition.
    """
    wanted = [
        Struct(partition=partition, fetch_offset=offset, partition_max_bytes=2**20)
        for partition, offset in (offsets or {}).items()
    ]
    response = s.ask(
        "fetch",
        12,
        max_bytes=2**20,
        session_id=session,
        session_epoch=epoch,
        topics=[Struct(topic=topic, partitions=wanted)] if wanted else [],
        forgotten_topics_data=[Struct(topic=topic, partitions=forgotten)] if forgotten else [],
    )
    partitions = sorted(
        (each.partition_index, code(each.error_code), each.high_watermark, bool(data_of(each)))
        for topic in response.responses
        for each in topic.partitions
    )
    s.saw(step, (code(response.error_code), response.session_id != 0, partitions))
    session_id: int = response.session_id
    return session_id
