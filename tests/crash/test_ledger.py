"""The ledger finds every violation of a promise, and nothing else."""

from __future__ import annotations

import pytest

from tests.crash.ledger import Ledger, ReadRecord, SentRecord, TopicPromise

PROMISES = {
    "plain": TopicPromise(),
    "keyed": TopicPromise(is_compacted=True, tombstone_ms=0),
    "brief": TopicPromise(retention_ms=0),
    "kept": TopicPromise(retention_ms=3_600_000),
}


class Scene:
    """A ledger with one producer, and the log that readers find."""

    def __init__(self, topic: str = "plain", *, is_idempotent: bool = True) -> None:
        self.ledger = Ledger(PROMISES)
        self.ledger.add_producer("p", is_idempotent=is_idempotent)
        self.topic = topic
        self.log: list[ReadRecord] = []

    def send(self, key: bytes = b"k", *, deletes: bool = False) -> SentRecord:
        return self.ledger.send("p", self.topic, 0, key, is_tombstone=deletes)

    def store(self, offset: int, sent: SentRecord | None = None, *, epoch: int = 0) -> SentRecord:
        """Put a record into the log without an acknowledgement."""
        sent = sent or self.send()
        self.log.append(ReadRecord(offset, epoch, sent.identity, sent.key, sent.is_tombstone))
        return sent

    def append(self, offset: int, sent: SentRecord | None = None) -> SentRecord:
        sent = self.store(offset, sent)
        self.ledger.acknowledge(sent, offset)
        return sent

    def remove(self, offset: int) -> None:
        self.log = [record for record in self.log if record.offset != offset]

    def problems(self, log_start: int = 0) -> list[str]:
        return self.ledger.problems({(self.topic, 0): self.log}, {(self.topic, 0): log_start})


@pytest.mark.parametrize("topic", PROMISES)
def test_a_whole_log_has_no_problem(topic: str) -> None:
    scene = Scene(topic)
    for offset in range(5):
        scene.append(offset)
    scene.store(7)  # a record whose acknowledgement was lost
    scene.send()  # and one that never arrived
    assert scene.problems() == []


def test_a_lost_record_is_found() -> None:
    for topic in ("plain", "kept"):
        scene = Scene(topic)
        for offset in range(3):
            scene.append(offset)
        scene.remove(1)
        (problem,) = scene.problems()
        assert "acknowledged at 1" in problem


def test_a_record_at_another_offset_is_found() -> None:
    scene = Scene()
    sent = scene.append(0)
    scene.remove(0)
    scene.store(1, sent)
    assert len(scene.problems()) == 1


def test_retention_may_remove_old_records_below_the_log_start() -> None:
    for topic, count in (("brief", 0), ("kept", 2)):
        scene = Scene(topic)
        for offset in range(4):
            scene.append(offset)
        scene.remove(0)
        scene.remove(1)
        assert len(scene.problems(log_start=2)) == count
        scene.remove(3)
        assert len(scene.problems(log_start=2)) == count + 1


def test_compaction_may_remove_superseded_records_and_old_tombstones() -> None:
    scene = Scene("keyed")
    scene.append(0, scene.send(b"a"))
    scene.append(1, scene.send(b"b"))
    scene.append(2, scene.send(b"a"))
    scene.append(3, scene.send(b"b", deletes=True))
    scene.remove(0)
    assert scene.problems() == []
    scene.remove(1)
    scene.remove(3)
    assert scene.problems() == []
    scene.remove(2)
    assert len(scene.problems()) == 2


def test_a_key_that_comes_back_is_found() -> None:
    scene = Scene("keyed")
    scene.append(0, scene.send(b"a"))
    scene.append(1, scene.send(b"a", deletes=True))
    assert scene.problems() == []
    scene.remove(1)
    (problem,) = scene.problems()
    assert "came back" in problem


def test_a_copy_is_a_problem_only_of_an_idempotent_producer() -> None:
    for is_idempotent in (True, False):
        scene = Scene(is_idempotent=is_idempotent)
        sent = scene.append(0)
        scene.append(1)
        scene.store(2, sent)
        assert len(scene.problems()) == int(is_idempotent)


def test_a_wrong_order_is_a_problem_only_of_an_idempotent_producer() -> None:
    for is_idempotent in (True, False):
        scene = Scene(is_idempotent=is_idempotent)
        first, second = scene.send(), scene.send()
        scene.append(0, second)
        scene.append(1, first)
        assert ["is before" in problem for problem in scene.problems()] == [True] * is_idempotent


def test_a_record_that_was_never_sent_is_found() -> None:
    scene = Scene()
    scene.append(0)
    scene.log.append(ReadRecord(1, 0, b"x.9", b"k"))
    (problem,) = scene.problems()
    assert "never sent" in problem


def test_two_contents_of_an_offset_are_found_within_an_epoch() -> None:
    for epoch, count in ((0, 1), (1, 0)):
        scene = Scene()
        scene.ledger.observe(("plain", 0), ReadRecord(0, 0, scene.send().identity, b"k"))
        scene.store(0, epoch=epoch)
        assert len(scene.problems()) == count


def test_readers_without_epochs_may_see_two_contents_only_after_a_loss() -> None:
    for eras, count in ((0, 1), (1, 0)):
        scene = Scene()
        for era in range(2):
            scene.ledger.observe(("plain", 0), ReadRecord(0, -1, scene.send().identity, b"k"))
            if era < eras:
                scene.ledger.begin_era()
        assert len(scene.ledger.problems({}, {})) == count


def test_a_reader_with_epochs_confirms_what_one_without_has_seen() -> None:
    """After a loss, another record at this offset and epoch is a violation."""
    scene = Scene()
    first, second = scene.send().identity, scene.send().identity
    scene.ledger.begin_era()
    for epoch, identity in ((-1, first), (1, first), (1, second)):
        scene.ledger.observe(("plain", 0), ReadRecord(0, epoch, identity, b"k"))
    (problem,) = scene.ledger.problems({}, {})
    assert "epoch 1" in problem


def test_the_first_acknowledgements_of_some_records_are_named_in_order() -> None:
    scene = Scene()
    sent = [scene.append(offset) for offset in range(12)]
    wanted = {each.identity for each in sent[1:]}
    assert scene.ledger.offsets_of("plain", wanted, limit=10) == [(0, 0, offset) for offset in range(1, 11)]
    assert scene.ledger.offsets_of("plain", {sent[11].identity}, limit=10) == [(0, 0, 11)]
    assert scene.ledger.offsets_of("keyed", wanted, limit=10) == []


def test_two_acknowledgements_of_an_offset_are_found() -> None:
    scene = Scene()
    scene.append(0)
    scene.ledger.acknowledge(scene.send(), 0)
    assert any("acknowledged for" in problem for problem in scene.problems())


def test_records_from_before_a_lossy_failover_may_be_at_other_offsets() -> None:
    scene = Scene()
    moved = scene.append(0)
    lost = scene.append(1)
    scene.ledger.begin_era()
    scene.log.clear()
    scene.store(0, scene.send(), epoch=1)
    scene.store(1, moved, epoch=1)
    (problem,) = scene.problems()
    assert repr(lost.identity) in problem or str(lost) in problem


@pytest.mark.parametrize(
    ("commits", "shown", "problem"),
    [
        (True, (0, 1), None),
        (True, (0,), "in part"),
        (True, (), "missing"),
        (False, (), None),
        (False, (0, 1), "aborted"),
        (None, (), None),
        (None, (0, 1), None),
        (None, (1,), "in part"),
    ],
)
def test_a_transaction_against_its_outcome_is_found(
    *, commits: bool | None, shown: tuple[int, ...], problem: str | None
) -> None:
    scene = Scene()
    transaction = scene.ledger.begin_transaction()
    transaction.records += [scene.send(), scene.send()]
    transaction.commits = commits
    for offset in shown:
        scene.store(offset, transaction.records[offset])
    found = scene.problems()
    assert [problem in each for each in found] == [True] if problem else found == []


def test_a_committed_transaction_may_be_lost_with_an_era_but_not_in_part() -> None:
    scene = Scene()
    transaction = scene.ledger.begin_transaction()
    transaction.records += [scene.send(), scene.send()]
    transaction.commits = True
    scene.ledger.begin_era()
    assert scene.problems() == []
    scene.store(0, transaction.records[0])
    assert ["in part" in each for each in scene.problems()] == [True]
