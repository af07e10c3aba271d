"""Rules of a transactional id at the end of its epochs, and after lost responses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalog.errors import TransactionRefusal, TransactionRefusedError
from catalog.transactions.rules import (
    MAX_EPOCH,
    NOBODY,
    ProducerIdentity,
    TransactionalProducer,
    TransactionState,
    begin,
    end,
    fence,
    initialize,
    interrupt,
)

_NEW_ID = 99
_LAST = MAX_EPOCH - 1  # the last epoch of a producer


def _producer(
    epoch: int = 5, state: TransactionState = TransactionState.EMPTY, **changes: object
) -> TransactionalProducer:
    started_ms = 1 if state is TransactionState.ONGOING else None
    known = TransactionalProducer(
        producer_id=7, producer_epoch=epoch, timeout_ms=1000, state=state, started_ms=started_ms
    )
    return replace(known, **changes)  # type: ignore[arg-type]  # fields of the producer


@pytest.mark.parametrize("expected", [None, ProducerIdentity(7, _LAST)])
def test_a_producer_whose_epochs_are_used_up_gets_another_id(expected: ProducerIdentity | None) -> None:
    known = _producer(_LAST)
    after = initialize(known, expected, 1000, _NEW_ID)
    assert after.identity == (_NEW_ID, 0)
    if expected is not None:  # a retry after a lost response
        assert initialize(after, expected, 1000, _NEW_ID + 1).identity == after.identity


def test_a_fence_may_use_the_epoch_after_the_last_one() -> None:
    ongoing = _producer(_LAST, TransactionState.ONGOING)
    fenced = fence(ongoing)
    assert (fenced.control_epoch, fenced.next.producer_epoch) == (MAX_EPOCH, MAX_EPOCH)
    assert initialize(fenced.next, None, 1000, _NEW_ID).identity == (_NEW_ID, 0)


def test_an_end_with_the_last_epoch_continues_with_another_id() -> None:
    known = _producer(_LAST, TransactionState.ONGOING)
    ending = end(known, known.identity, _NEW_ID, commits=True, bumps_epoch=True)
    assert ending is not None
    assert (ending.control_epoch, ending.next.identity) == (MAX_EPOCH, (_NEW_ID, 0))
    assert end(ending.next, known.identity, _NEW_ID, commits=True, bumps_epoch=True) is None


def test_a_late_duplicate_of_an_end_does_not_end_the_next_transaction() -> None:
    known = _producer(state=TransactionState.ONGOING)
    ending = end(known, known.identity, -1, commits=True, bumps_epoch=True)
    assert ending is not None
    following = begin(ending.next, ending.next.identity, 2)
    with pytest.raises(TransactionRefusedError) as refused:
        end(following, known.identity, -1, commits=True, bumps_epoch=True)
    assert refused.value.refusal is TransactionRefusal.PRODUCER_FENCED


def test_a_new_producer_voids_the_retries_of_the_one_before() -> None:
    known = _producer()
    continued = initialize(known, known.identity, 1000, -1)
    assert initialize(continued, known.identity, 1000, -1).identity == continued.identity
    replaced = initialize(continued, None, 1000, -1)
    assert replaced.last == NOBODY
    with pytest.raises(TransactionRefusedError):
        initialize(replaced, known.identity, 1000, -1)


def test_only_the_current_producer_may_interrupt_its_transaction() -> None:
    known = _producer(state=TransactionState.ONGOING)
    assert interrupt(known, known.identity).next.producer_epoch == known.producer_epoch + 1
    with pytest.raises(TransactionRefusedError):
        interrupt(known, ProducerIdentity(7, 4))


def test_a_transaction_voids_the_retries_of_the_initialization_before_it() -> None:
    """A late duplicate of that request must not abort the transaction."""
    before = _producer()
    known = initialize(before, before.identity, 1000, -1)
    assert known.last == before.identity
    ongoing = begin(known, known.identity, 2)
    with pytest.raises(TransactionRefusedError) as refused:
        interrupt(ongoing, before.identity)
    assert refused.value.refusal is TransactionRefusal.PRODUCER_FENCED


def test_an_end_with_a_new_epoch_is_not_repeated_by_that_epoch() -> None:
    """A producer without epoch bumps has not begun a transaction in the epoch that it names."""
    known = _producer(state=TransactionState.ONGOING)
    ending = end(known, known.identity, -1, commits=True, bumps_epoch=True)
    assert ending is not None
    with pytest.raises(TransactionRefusedError) as refused:
        end(ending.next, ending.next.identity, -1, commits=True, bumps_epoch=False)
    assert refused.value.refusal is TransactionRefusal.INVALID_TXN_STATE


def test_a_producer_may_abort_a_transaction_without_contents_only_with_epoch_bumps() -> None:
    known = _producer()
    ending = end(known, known.identity, -1, commits=False, bumps_epoch=True)
    assert ending is not None
    assert ending.next.producer_epoch == known.producer_epoch + 1
    for commits, bumps_epoch in ((True, True), (True, False), (False, False)):
        with pytest.raises(TransactionRefusedError):
            end(known, known.identity, -1, commits=commits, bumps_epoch=bumps_epoch)
