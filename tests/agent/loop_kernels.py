"""Print the kernels that an agent's event loop loads after its warm-up. Run it in a separate process."""

from __future__ import annotations

import sys

from agent.kafka.codec import Struct
from agent.kafka.fast_path.fetch_parser import FetchParser
from agent.warm_up import warm_up
from object_format.codecs.codec import Codec
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.fast_path import test_produce as requests
from tests.agent.kafka.wire import request_frame


def kernels() -> dict[str, int]:
    """Return the kernels, with the number of signatures that each was loaded for."""
    return {
        f"{module.__name__}.{name}": len(each.signatures)
        for module in list(sys.modules.values())
        if module.__name__.partition(".")[0] in {"agent", "object_format"}
        for name, each in vars(module).items()
        if hasattr(each, "signatures") and hasattr(each, "py_func")
    }


def produce(batch: bytes, topic: str, *, fast: bool) -> None:
    topics = [Struct(name=topic, partition_data=[Struct(index=0, records=batch)])]
    frame = request_frame("produce", 9, 5, Struct(acks=-1, timeout=0, topic_data=topics))[4:]
    requests._outcome(frame, [requests._RESULTS[0]], is_full=False, fast=fast)


def work() -> None:
    """Do everything that the event loop itself does: small requests of every kind, valid or not."""
    now = requests._NOW_MS
    for codec in Codec:
        produce(bytes(encode_batch([now], [b"k"], [bytes(90)], codec=codec)), "plain", fast=True)
    valid, keyless = (bytes(encode_batch([now], [key], [bytes(90)])) for key in (b"k", None))
    for batch in (valid, keyless, valid * 2, valid[:-1], valid[:-1] + b"x", b"", valid[:70]):
        for topic in ("plain", "keyed", "recent", "stamped"):
            produce(batch, topic, fast=False)
    wanted = Struct(partition=0, current_leader_epoch=0, fetch_offset=0, partition_max_bytes=1)
    for version in (10, 12, 13):
        asked = Struct(
            replica_id=-1,
            max_wait=1,
            min_bytes=0,
            max_bytes=9,
            session_id=1,
            session_epoch=1,
            topics=[Struct(topic="plain", topic_id=None, partitions=[wanted])],
            forgotten_topics_data=[Struct(topic="plain", topic_id=None, partitions=[1])],
        )
        frame = memoryview(bytearray(request_frame("fetch", version, 5, asked)[4:]))
        assert FetchParser(9).read(frame, 11 if version >= 12 else 10, version) is not None


if __name__ == "__main__":
    warm_up()
    before = kernels()
    work()
    loaded = sorted(name for name, count in kernels().items() if count > before.get(name, 0))
    sys.stdout.write(" ".join(loaded))
