"""The version of all topics and of the leaders of local partitions.

It is another one after each change. Processes read it before they read topics or leaders, and read these
again only when they find another version: a change between the two reads is in what they read, and is found
again. So no change is missed. If that change is lost in a failover, the version is the earlier one again. So
it also changes when a new incarnation of the catalog begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.pool import Database

_SQL = load_queries("topics")

TopicVersion: TypeAlias = "frozenset[UUID]"
"""The ids of the last changes, usually one."""


def read_version(database: Database) -> TopicVersion:
    """Return the current version."""
    return frozenset(row.change_id for row in database.read("topics.changes", _SQL["topic_changes"]))
