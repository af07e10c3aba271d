"""The differences from Kafka that the test finds, each with its reason and the page that states it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.kafka_differences import administration, records, transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.kafka_differences.session import Session


@dataclass(frozen=True, slots=True)
class Difference:
    """A step whose responses from Kafka and from an agent differ.

    `reason` is text of `page`, a page of the documentation.
    """

    step: str
    kafka: object
    agent: object
    reason: str
    page: str = "reference/kafka.md"


_TRANSACTIONS = "explanation/transactions.md"
_NOT_ADDED = (
    "a batch or offsets whose partition or group was not added "
    "| TRANSACTION_ABORTABLE from Produce 11 and TxnOffsetCommit 4 on, INVALID_TXN_STATE before "
    "| INVALID_TXN_STATE in all versions that do not add them (KIP-890)"
)
_REJECTED_BYTES = (
    "Bytes that end before their batch are CORRUPT_MESSAGE, and a batch of an earlier format is "
    "UNSUPPORTED_FOR_MESSAGE_FORMAT. Kafka returns INVALID_RECORD for both."
)
_UPPER_CASE = "Words of lists may be in upper case, which Kafka rejects."

DIFFERENCES: Mapping[Callable[[Session], None], Sequence[Difference]] = {
    transactions.before_a_transaction: [
        Difference(
            step="produce 11",
            kafka=("TRANSACTION_ABORTABLE", -1, []),
            agent=("INVALID_TXN_STATE", -1, []),
            reason=_NOT_ADDED,
            page=_TRANSACTIONS,
        ),
        Difference(
            step="commit an offset in version 4",
            kafka=["TRANSACTION_ABORTABLE"],
            agent=["INVALID_TXN_STATE"],
            reason=_NOT_ADDED,
            page=_TRANSACTIONS,
        ),
    ],
    transactions.fenced_producers: [
        Difference(
            step="init, current identity while a transaction is ongoing",
            kafka=("NONE", 4),
            agent=("NONE", 5),
            reason="A producer that names its current epoch while its transaction is ongoing continues "
            "with the epoch after the next one.",
        ),
    ],
    transactions.mixed_batches: [
        Difference(
            step="produce outside of the transaction",
            kafka=("INVALID_TXN_STATE", -1, []),
            agent=("NONE", 1, []),
            reason="in an object topic it is appended, outside of the transaction",
            page=_TRANSACTIONS,
        ),
        Difference(
            step="for another id",
            kafka=("NONE", 1, []),
            agent=("INVALID_PRODUCER_ID_MAPPING", -1, []),
            reason="a batch whose request names another transactional id than that of its producer "
            "| appended if the transaction has the partition | INVALID_PRODUCER_ID_MAPPING",
            page=_TRANSACTIONS,
        ),
    ],
    transactions.producer_ids: [
        Difference(
            step="first sequence number 5 in a partition",
            kafka=("NONE", 0, []),
            agent=("OUT_OF_ORDER_SEQUENCE_NUMBER", -1, []),
            reason="A producer that is new to a partition must start with sequence number 0. "
            "Kafka accepts any number.",
        ),
    ],
    records.validation: [
        Difference(
            step="ten bytes",
            kafka=("INVALID_RECORD", -1, []),
            agent=("CORRUPT_MESSAGE", -1, []),
            reason=_REJECTED_BYTES,
        ),
        Difference(
            step="cut",
            kafka=("INVALID_RECORD", -1, []),
            agent=("CORRUPT_MESSAGE", -1, []),
            reason=_REJECTED_BYTES,
        ),
        Difference(
            step="message format 1",
            kafka=("INVALID_RECORD", -1, []),
            agent=("UNSUPPORTED_FOR_MESSAGE_FORMAT", -1, []),
            reason=_REJECTED_BYTES,
        ),
    ],
    records.deletions: [
        Difference(
            step="largest timestamp of nothing",
            kafka=("NONE", 4, 0),
            agent=("NONE", -1, -1),
            reason="It belongs to a remaining record; Kafka may return a deleted one.",
        ),
    ],
    administration.settings: [
        Difference(
            step="cleanup.policy='DELETE'",
            kafka=["INVALID_CONFIG"],
            agent=["NONE"],
            reason=_UPPER_CASE,
        ),
        Difference(
            step="cleanup.policy='DELETE': described",
            kafka=[("cleanup.policy", "compact,delete", 1)],
            agent=[("cleanup.policy", "delete", 1)],
            reason=_UPPER_CASE,
        ),
    ],
    administration.quotas: [
        Difference(
            step="connections of a host",
            kafka=["NONE"],
            agent=["INVALID_REQUEST"],
            reason="An entity is an address; host names are rejected.",
        ),
    ],
}

DIFFERENCES_OF_LOCAL_TOPICS: Mapping[Callable[[Session], None], Sequence[Difference]] = {
    transactions.before_a_transaction: DIFFERENCES[transactions.before_a_transaction],
    transactions.without_kip_890: [
        Difference(
            step="produce, later epoch",
            kafka=("INVALID_PRODUCER_EPOCH", -1, []),
            agent=("REQUEST_TIMED_OUT", -1, []),
            reason="a batch with a later epoch than that of its producer, whose transaction is open in the "
            "partition | INVALID_PRODUCER_EPOCH "
            "| the same in an object topic; in a local topic REQUEST_TIMED_OUT",
            page=_TRANSACTIONS,
        ),
    ],
    transactions.fenced_producers: DIFFERENCES[transactions.fenced_producers],
    transactions.mixed_batches: [
        each for each in DIFFERENCES[transactions.mixed_batches] if each.step == "for another id"
    ],
    records.validation: DIFFERENCES[records.validation],
    records.look_ups: [
        Difference(
            step="end of epoch 0, in 4",
            kafka=("UNKNOWN_LEADER_EPOCH", -1, -1),
            agent=("NONE", 0, 4),
            reason="The leader epoch that a request states is ignored: a local topic has always had the same "
            "leader. Kafka rejects another epoch than the current one.",
        ),
    ],
}
