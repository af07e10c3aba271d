"""The statements that let a deleted topic exist again, for a transaction of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.lifecycle.incarnation import LOCAL_EPOCH_MARGIN

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.pool import Transaction

_SQL = load_queries("deleted_topics")
_TOPICS = load_queries("topics")


def bring_back(
    transaction: Transaction, topic_id: UUID, name: str, partition_count: int, injected_now_ms: int | None
) -> bool:
    """Undelete a topic under a free name; the caller has locked its row, and the topic is not purged.

    Return False if the catalog lacks rows of its partitions. The caller then rolls the transaction back.
    """
    params = {
        "topic_id": topic_id,
        "name": name,
        "topic_ids": arrays.uuids([topic_id]),
        "now_ms": injected_now_ms,
        "epoch_margin": LOCAL_EPOCH_MARGIN,
    }
    transaction.send(_SQL["fence_open_transactions"], params)
    transaction.send(_SQL["fence_open_local_transactions"], params)
    transaction.send(_SQL["undelete"], params)
    transaction.send(_TOPICS["insert_partitions"], params)
    if transaction.count(_SQL["restore_partitions"], params) != partition_count:
        return False
    transaction.send(_SQL["restore_leader_epochs"], params)
    transaction.send(_SQL["abort_open_transactions"], params)
    transaction.send(_SQL["restore_local_leaders"], params)
    transaction.send(_SQL["restore_markers"], params)
    transaction.send(_SQL["forget_deleted_partitions"], params)
    return True
