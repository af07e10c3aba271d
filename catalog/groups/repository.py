"""Consumer groups as they outlive their coordinator.

A group's coordinator claims it under an identifier of its own; the claim of the next one fences it. All that
a coordinator writes, the group's state as well as offsets, it writes under its claim: of two agents that both
think that they coordinate a group, only the later one has a say.
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
    """By which of Kafka's protocols the members of a group work together."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What is kept of a group; `state` is the coordinator's own business, None when it never had any.

    `generation` is a consumer group's epoch. `subscribed_topics` is None when they are not known, `state_ms`
    the time of the last change of state by this machine's clock: the catalog keeps it by its own.
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
    """A group in a list."""

    group_id: str
    group_type: GroupType
    protocol_type: str | None
    member_count: int


class Groups:
    """The consumer groups of a catalog; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def claim(self, group_id: str, claim_id: UUID, *, create: bool) -> GroupRecord | None:
        """Become the coordinator of a group; None when there is none and it shall not be made."""
        query = _SQL["claim_new_group"] if create else _SQL["claim_group"]
        params = {"group_id": group_id, "claim_id": claim_id, "now_ms": self._database.injected_now_ms}

        def work(transaction: Transaction) -> list[Row]:
            return transaction.rows(query, params)

        rows = self._database.transact("groups.claim", work)
        return _record_of(rows[0], self._clock.now_ms()) if rows else None

    def save(self, claim_id: UUID, record: GroupRecord) -> bool:
        """Keep a group's present state; False when another coordinator has claimed the group."""
        topics = record.subscribed_topics
        params = {
            "group_id": record.group_id,
            "claim_id": claim_id,
            "group_type": record.group_type.value,
            "generation": record.generation,
            "protocol_type": record.protocol_type,
            "member_count": record.member_count,
            # Members may name what no topic can be named, and PostgreSQL cannot keep.
            "subscribed_topics": None
            if topics is None
            else sorted(each for each in topics if "\0" not in each),
            "state": record.state,
            # By the catalog's clock it was as long ago as by this machine's.
            "state_age_ms": self._clock.now_ms() - record.state_ms,
            "now_ms": self._database.injected_now_ms,
        }

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["save_group"], params)

        return self._database.transact("groups.save", work) == 1

    def delete(self, group_id: str, claim_id: UUID) -> bool:
        """Forget a group and its offsets; False when another coordinator has claimed it."""
        params = {"group_id": group_id, "claim_id": claim_id}

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["delete_group"], params)

        return self._database.transact("groups.delete", work) == 1

    def page(self, after: str = "", *, limit: int = 1000) -> list[GroupListing]:
        """The first `limit` groups by name behind `after`."""
        rows = self._database.read("groups.page", _SQL["list_groups"], {"after": after, "page": limit})
        return [_listing_of(row) for row in rows]


def _listing_of(row: Row) -> GroupListing:
    return GroupListing(
        group_id=row[0], group_type=GroupType(row[1]), protocol_type=row[2], member_count=row[3]
    )


def _record_of(row: Row, now_ms: int) -> GroupRecord:
    return GroupRecord(
        group_id=row[0],
        generation=row[1],
        protocol_type=row[2],
        member_count=row[3],
        subscribed_topics=None if row[4] is None else frozenset(row[4]),
        state=None if row[5] is None else bytes(row[5]),
        state_ms=now_ms - row[6],
        group_type=GroupType(row[7]),
    )
