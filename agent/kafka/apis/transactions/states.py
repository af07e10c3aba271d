"""Kafka's names of the states of a transactional id."""

from __future__ import annotations

from typing import Final

from catalog.transactions.rules import TransactionState

STATE_NAMES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.COMMITTED: "CompleteCommit",
    TransactionState.ABORTED: "CompleteAbort",
}
