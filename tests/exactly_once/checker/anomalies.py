"""Names of what can be wrong with a history of transactions.

G0, G1a and G1c are those of Adya (Weak Consistency: A Generalized Theory and Optimistic Implementations for
Distributed Transactions, 1999). The others follow Jepsen's workload for Kafka (jepsen.tests.kafka).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What is wrong."""

    LOST_WRITE = "lost write"
    """A committed record was not read, although its partition was read past it or to its end."""
    LOST_INPUT = "lost input"
    """A group has committed its offset past a record that no committed transaction has consumed."""
    CONSUMED_TWICE = "consumed twice"
    """Two committed transactions of a group have consumed the same record."""
    ABORTED_READ = "aborted read (G1a)"
    """A record of an aborted transaction was read."""
    DIRTY_READ = "dirty read"
    """A record was read before its transaction began to commit."""
    NEVER_SENT = "never sent"
    """A record was read that no transaction has sent to this partition."""
    PARTIAL_READ = "partial read"
    """A reader saw a part of a transaction, and had read past the rest of it."""
    DUPLICATE = "duplicate"
    """A record is at two offsets."""
    DIVERGENT_OFFSET = "divergent offset"
    """Two records are at one offset, or a record was acknowledged at one and read at another one."""
    REORDERED = "reordered"
    """A record is before one that the same process sent earlier, or that was acknowledged earlier."""
    NONMONOTONIC_POLL = "non-monotonic poll"
    """The offsets of one poll do not increase."""
    NONMONOTONIC_READER = "non-monotonic reader"
    """A poll of a reader begins before the end of its previous poll."""
    SKIPPED = "skipped"
    """A reader has read past a transaction without seeing any of it."""
    G0 = "write cycle (G0)"
    """Transactions that did not overlap wrote in different orders to two partitions."""
    G1C = "cyclic information flow (G1c)"
    """Each transaction of a cycle read or followed the writes of the one before."""
    CONCURRENT_G0 = "write cycle of concurrent transactions (G0)"
    """Allowed: Kafka does not isolate the writes of concurrent transactions of different producers."""
    CONCURRENT_G1C = "G1c with writes of concurrent transactions"
    """Allowed, for the same reason: a cycle needs a write dependency between concurrent transactions."""


ALLOWED = frozenset({Kind.CONCURRENT_G0, Kind.CONCURRENT_G1C})
"""What Kafka's model allows, as in `allowed-error-types` of Jepsen's workload; worth counting."""


class Anomaly(NamedTuple):
    """An anomaly, and a sentence with the names of its records or transactions."""

    kind: Kind
    what: str
