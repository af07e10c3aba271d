"""Stored state of consumer groups.

A group's coordinator claims the group with a unique id. A new claim fences the previous coordinator.
The coordinator writes the group's state and its offsets under its claim. If two agents both act as
coordinator of a group, only the agent with the later claim can write.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from core.clock import Clock

_SQL = load_queries("groups")


class GroupType(StrEnum):
    """Kafka's group protocol that the members of a group use."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """Stored state of one group.

    `state` is opaque data of the coordinator, None if it has stored none. `generation` is the group epoch of
    the consumer protocol. `subscribed_topics` is None if it is unknown. `state_ms` is the time of the last
    state change by this machine's clock; the catalog stores it by its own clock.
    """

    group_id: str
    group_type: GroupType = GroupType.CLASSIC
    generation: int = 0
    protocol_type: str | None = None
    member_count: int = 0
    subscribed_topics: frozenset[str] | None = None
    state: bytes | None = None
    state_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """Entry of a list of groups."""

    group_id: str
    group_type: GroupType
    protocol_type: str | None
    member_count: int


class Groups:
    """Consumer groups of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def claim(self, group_id: str, claim_id: UUID, *, create: bool) -> GroupRecord | None:
        """Claim a group for a coordinator; return None if it does not exist and `create` is False."""
        query = _SQL["claim_new_group"] if create else _SQL["claim_group"]
        params = {"group_id": group_id, "claim_id": claim_id, "now_ms": self._database.injected_now_ms}

        def work(transaction: Transaction) -> list[Row]:
            return transaction.rows(query, params)

        rows = self._database.transact("groups.claim", work)
        return _record_from_row(rows[0], self._clock.now_ms()) if rows else None

    def save(self, claim_id: UUID, record: GroupRecord) -> bool:
        """Store a group's state; return False if another coordinator has claimed the group."""
        topics = record.subscribed_topics
        params = {
            "group_id": record.group_id,
            "claim_id": claim_id,
            "group_type": record.group_type.value,
            "generation": record.generation,
            "protocol_type": record.protocol_type,
            "member_count": record.member_count,
            # Members may subscribe to names with a NUL, which PostgreSQL cannot store and no topic has.
            "subscribed_topics": None
            if topics is None
            else sorted(each for each in topics if "\0" not in each),
            "state": record.state,
            # The age of the state is the same by both clocks.
            "state_age_ms": self._clock.now_ms() - record.state_ms,
            "now_ms": self._database.injected_now_ms,
        }

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["save_group"], params)

        return self._database.transact("groups.save", work) == 1

    def delete(self, group_id: str, claim_id: UUID) -> bool:
        """Delete a group and its offsets; return False if another coordinator has claimed the group."""
        params = {"group_id": group_id, "claim_id": claim_id}

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["delete_group"], params)

        return self._database.transact("groups.delete", work) == 1

    def page(self, after: str = "", *, limit: int = 1000) -> list[GroupListing]:
        """Return the first `limit` groups with names after `after`, by name."""
        rows = self._database.read("groups.page", _SQL["list_groups"], {"after": after, "page": limit})
        return [
            GroupListing(
                group_id=row.group_id,
                group_type=GroupType(row.group_type),
                protocol_type=row.protocol_type,
                member_count=row.member_count,
            )
            for row in rows
        ]


def _record_from_row(row: Row, now_ms: int) -> GroupRecord:
    topics = row.subscribed_topics
    return GroupRecord(
        group_id=row.group_id,
        group_type=GroupType(row.group_type),
        generation=row.generation,
        protocol_type=row.protocol_type,
        member_count=row.member_count,
        subscribed_topics=None if topics is None else frozenset(topics),
        state=None if row.state is None else bytes(row.state),
        state_ms=now_ms - row.state_age_ms,
    )
