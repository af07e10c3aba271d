"""Topics whose creation a failover or a restore has lost, and the protection of their names.

A commit to a topic comes later in the history than its creation. So a topic of a lost commit that has no row,
not even as a deleted topic, was created in the lost history. It is created again with its id, so that its
records are not rejected. It gets its name, with two exceptions:

- Another topic has the name. The lost topic is created under a free name.
- Several lost topics had the name at different times. The newest one gets it. It had the name at the end of
  the lost history, in which the others were deleted before.

The undeletion of a topic may be lost, too. Then the topic of a lost commit is deleted, in the epoch of that
commit or in an earlier one: otherwise the commit would be in the history that survived. It is undeleted
again, under its name or a free one, unless garbage collection has begun to remove it. A topic that was
deleted in a later epoch stays deleted.

The logs of local topics are on the disks of agents. If an agent has a log of a topic, and the catalog has no
row of it, the topic was created in the lost history. An agent with an open log knows the topic's settings.
The leader epochs of a log show whether it was written after the deletion of its topic.

Agents restore the topics that they know, in any order. A topic that may itself be a restored one therefore
gives its name to a newer lost topic: all of its offsets are of this epoch, and it is older than the epoch.
Only a local topic keeps its name, because the catalog does not know its offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from psycopg.types.json import Jsonb

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import CatalogReplacedError, CatalogUnavailableError
from catalog.lifecycle.lost_commits import REPORT_PERIOD_MS
from catalog.rows import topic_from_row
from catalog.topics.names import MAX_NAME_LENGTH, collision_key
from catalog.topics.undeletion import bring_back

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.lifecycle.incarnation import Incarnations
    from catalog.model import PartitionId, Topic

_SQL = load_queries("lost_topics")
_TOPICS = load_queries("topics")
_MAX_TOPICS: Final = 5_000
_MAX_PARTITIONS: Final = 10_000  # of one transaction, far below the timeout of a statement
_ID_DIGITS: Final = 8


class Restored(Enum):
    """What became of a lost topic."""

    CREATED = auto()
    RENAMED = auto()  # created, or already created before, under another name than its own
    EXTENDED = auto()  # it existed, and got the partitions that it lacked
    UNDELETED = auto()  # its undeletion was lost
    DELETED = auto()  # in the history that survived


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopic:
    """Lost topic as it was in the lost history, what became of it, and its name now.

    `namesake` is the topic that has its name, or one that differs only by '.' and '_', if it was renamed.
    """

    topic: Topic
    outcome: Restored
    name: str
    namesake: Topic | None = None


class LostTopics:
    """Lost topics of a catalog; part of `Topics`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def restore(
        self, topics: Sequence[Topic], epoch: int, committed_epochs: Mapping[UUID, int] | None = None
    ) -> list[RestoredTopic]:
        """Create topics again, or the partitions that they lack, or undelete them.

        `committed_epochs` has the last epoch in which a lost commit to a topic was made, by topic id.

        Return what changed, and the topics that are deleted or have another name: an earlier call may have
        renamed them, and its result was lost. Of two topics that were created at the same time, the later one
        in `topics` counts as the newer one. The call may be repeated. CatalogReplacedError: `epoch` has
        ended, so the topics were compared with another history.
        """
        newest_first = sorted(topics, key=lambda topic: topic.created_ms)[::-1]
        done: list[RestoredTopic] = []
        for some in _portions(newest_first):
            work = partial(self._restore, topics=some, epoch=epoch, committed_epochs=committed_epochs or {})
            done += self._database.transact("topics.restore", work)
        return done

    def restore_local(self, topics: Sequence[Topic], epochs: Mapping[UUID, int]) -> list[RestoredTopic]:
        """Create local topics that the catalog does not know, or the partitions that they lack; return these.

        An agent has logs of them with records. `epochs` has the epoch in which the catalog had a topic, by
        its id, a short time ago: it would still know that it was deleted. Without a later epoch, nothing was
        lost. The call may be repeated. CatalogReplacedError: the next epoch has not begun yet.
        """
        rows = self._database.read("topics.lacking", _SQL["lacking_topics"], _columns(topics))
        lacking = {row.topic_id for row in rows}
        newest_first = sorted(topics, key=lambda topic: topic.created_ms)[::-1]
        done: list[RestoredTopic] = []
        for some in _portions([topic for topic in newest_first if topic.topic_id in lacking]):
            work = partial(self._restore_local, topics=some, epochs=epochs)
            done += self._database.transact("topics.restore_local", work)
        return [each for each in done if each.outcome is not Restored.DELETED]

    def undelete_local(self, node_id: int, leader_epochs: Mapping[PartitionId, int]) -> list[RestoredTopic]:
        """Undelete local topics whose undeletion was lost; return what became of them.

        `leader_epochs` has the last leader epoch in the log of each partition that the node keeps. The call
        may be repeated. CatalogReplacedError: the next epoch has not begun yet.
        """
        params = {
            "node_id": node_id,
            "topic_ids": arrays.uuids(partition.topic_id for partition in leader_epochs),
            "partitions": arrays.integers([partition.partition for partition in leader_epochs]),
            "leader_epochs": arrays.integers(list(leader_epochs.values())),
        }
        rows = self._database.read("topics.lost_local", _SQL["lost_local_undeletions"], params)
        topics = [topic_from_row(row) for row in rows]
        if not topics:
            return []

        def work(transaction: Transaction) -> list[RestoredTopic]:
            epoch = self._incarnations.check(transaction).epoch
            transaction.send(_SQL["lock_restoration"])
            known = {row.topic_id: row for row in transaction.rows(_SQL["lock_topics"], _columns(topics))}
            found = ((topic, known.get(topic.topic_id)) for topic in topics)
            return [
                self._undelete(transaction, topic, row)
                for topic, row in found
                if row is not None and row.can_be_undeleted and row.deleted_epoch < epoch
            ]

        return self._database.transact("topics.undelete_local", work)

    def _restore_local(
        self, transaction: Transaction, *, topics: Sequence[Topic], epochs: Mapping[UUID, int]
    ) -> list[RestoredTopic]:
        epoch = self._incarnations.check(transaction).epoch
        lost = [topic for topic in topics if epochs[topic.topic_id] < epoch]
        return self._restore(transaction, topics=lost, epoch=epoch, committed_epochs={}) if lost else []

    def _restore(
        self,
        transaction: Transaction,
        *,
        topics: Sequence[Topic],
        epoch: int,
        committed_epochs: Mapping[UUID, int],
    ) -> list[RestoredTopic]:
        self._incarnations.require(transaction, epoch)
        params = _columns(topics)
        transaction.send(_SQL["lock_restoration"])
        known = {row.topic_id: row for row in transaction.rows(_SQL["lock_topics"], params)}
        done = self._create(transaction, [topic for topic in topics if topic.topic_id not in known])
        for topic in topics:
            row, committed_epoch = known.get(topic.topic_id), committed_epochs.get(topic.topic_id)
            if row is None or committed_epoch is None or not row.can_be_undeleted:
                continue
            if row.deleted_epoch <= committed_epoch:
                done.append(self._undelete(transaction, topic, row))
                del known[topic.topic_id]
        transaction.send(_SQL["raise_partition_counts"], params)
        transaction.send(_TOPICS["insert_partitions"], params)
        return done + _changes_of_known(transaction, topics, known)

    def _create(self, transaction: Transaction, topics: Sequence[Topic]) -> list[RestoredTopic]:
        """Create topics that have no row; those before others of the same name get it."""
        if not topics:
            return []
        newest: dict[str, Topic] = {}
        for topic in topics:
            newest.setdefault(collision_key(topic.name), topic)
        moved = self._release_names(transaction, list(newest.values()))
        named = _insert(transaction, {topic.name: topic for topic in newest.values()})
        rest = [topic for topic in topics if topic.topic_id not in named]
        names = _insert_under_free_names(transaction, rest)
        renamed = [*rest, *moved]
        holders = _holders(transaction, renamed)
        names |= {topic.topic_id: name for topic, name in moved.items()}
        return [
            *(
                RestoredTopic(topic=topic, outcome=Restored.CREATED, name=topic.name)
                for topic in topics
                if topic.topic_id in named
            ),
            *(
                RestoredTopic(
                    topic=topic,
                    outcome=Restored.RENAMED,
                    name=names[topic.topic_id],
                    namesake=holders.get(collision_key(topic.name)),
                )
                for topic in renamed
            ),
        ]

    def _undelete(self, transaction: Transaction, topic: Topic, row: Row) -> RestoredTopic:
        """Undelete a topic under its name, or under a free one if another topic has it."""
        namesake = _holders(transaction, [topic]).get(collision_key(topic.name))
        name = topic.name if namesake is None else _first_free_name(transaction, topic)
        bring_back(transaction, topic.topic_id, name, row.partition_count, self._database.injected_now_ms)
        outcome = Restored.UNDELETED if namesake is None else Restored.RENAMED
        return RestoredTopic(topic=topic, outcome=outcome, name=name, namesake=namesake)

    def _release_names(self, transaction: Transaction, topics: Sequence[Topic]) -> dict[Topic, str]:
        """Rename older topics that may be lost ones and have the names of these; return their new names."""
        moved: dict[Topic, str] = {}
        for row in transaction.rows(_SQL["lock_namesakes"], {"names": [topic.name for topic in topics]}):
            if not row.may_be_restored or row.created_ms >= topics[row.number - 1].created_ms:
                continue
            topic = topic_from_row(row)
            moved[topic] = _first_free_name(transaction, topic)
            transaction.send(_SQL["rename_topic"], {"topic_id": topic.topic_id, "name": moved[topic]})
        return moved


def _changes_of_known(
    transaction: Transaction, topics: Sequence[Topic], known: Mapping[UUID, Row]
) -> list[RestoredTopic]:
    """Return what became of topics that had rows; an earlier call, perhaps of another agent, renamed some."""
    changes: list[RestoredTopic] = []
    renamed: list[Topic] = []
    for topic in topics:
        row = known.get(topic.topic_id)
        if row is None:
            continue
        if row.is_deleted:
            changes.append(RestoredTopic(topic=topic, outcome=Restored.DELETED, name=row.name))
        elif row.partition_count < topic.partition_count:
            changes.append(RestoredTopic(topic=topic, outcome=Restored.EXTENDED, name=row.name))
        elif row.name != topic.name:
            renamed.append(topic)
    holders = _holders(transaction, renamed)
    return changes + [
        RestoredTopic(
            topic=topic,
            outcome=Restored.RENAMED,
            name=known[topic.topic_id].name,
            namesake=holders.get(collision_key(topic.name)),
        )
        for topic in renamed
    ]


def require_current_history(transaction: Transaction, incarnations: Incarnations) -> None:
    """Raise CatalogUnavailableError while the server continues on another history than the recorded one."""
    try:
        incarnations.check(transaction)
    except CatalogReplacedError as error:
        raise _names_are_protected(error.message) from error


def check_no_lost_topics(transaction: Transaction, incarnations: Incarnations) -> None:
    """Raise CatalogUnavailableError while agents may create topics again that the catalog has lost.

    No other topic may take the name of a lost one, for which clients ask as soon as it is missing.
    """
    require_current_history(transaction, incarnations)
    since_ms = transaction.now_ms() - REPORT_PERIOD_MS
    if transaction.rows(_SQL["awaits_reports"], {"since_ms": since_ms})[0].awaits:
        raise _names_are_protected("agents have not reported yet which topics a failover has lost")


def _names_are_protected(reason: str) -> CatalogUnavailableError:
    return CatalogUnavailableError(
        f"no topic is created or deleted now: {reason}",
        remedy=f"try again in 10 s; this lasts at most {REPORT_PERIOD_MS // 1000} s from the failover",
        retry_after_seconds=1.0,
    )


def _portions(topics: Sequence[Topic]) -> Iterator[Sequence[Topic]]:
    """Divide topics into portions for one transaction each."""
    start = partitions = 0
    for end, topic in enumerate(topics):
        partitions += topic.partition_count
        if end > start and (partitions > _MAX_PARTITIONS or end - start == _MAX_TOPICS):
            yield topics[start:end]
            start, partitions = end, topic.partition_count
    if topics:
        yield topics[start:]


def _columns(topics: Sequence[Topic]) -> dict[str, object]:
    return {
        "topic_ids": arrays.uuids(topic.topic_id for topic in topics),
        "partition_counts": arrays.integers([topic.partition_count for topic in topics]),
    }


def _insert(transaction: Transaction, topics: Mapping[str, Topic]) -> set[UUID]:
    """Insert topics by these names, as far as they are free; return the ids of those that were inserted."""
    params = {
        **_columns(list(topics.values())),
        "names": list(topics),
        "configs": [Jsonb(topic.config.as_strings()) for topic in topics.values()],
        "created_ms": arrays.bigints([topic.created_ms for topic in topics.values()]),
    }
    return {row.topic_id for row in transaction.rows(_SQL["insert_lost_topics"], params)}


def _insert_under_free_names(transaction: Transaction, topics: Sequence[Topic]) -> dict[UUID, str]:
    """Insert topics under names that no other topic has; return these.

    CatalogUnavailableError: an operator has created one of them since the caller has looked for them.
    """
    names: dict[UUID, str] = {}
    waiting = {topic.topic_id: (topic, _free_names(topic)) for topic in topics}
    while waiting:
        attempt = {next(candidates): topic for topic, candidates in waiting.values()}
        inserted = _insert(transaction, attempt)
        names |= {topic.topic_id: name for name, topic in attempt.items() if topic.topic_id in inserted}
        waiting = {topic_id: each for topic_id, each in waiting.items() if topic_id not in inserted}
        left = [topic for topic, _ in waiting.values()]
        if left and transaction.rows(_SQL["lock_topics"], _columns(left)):
            raise CatalogUnavailableError(
                "a lost topic was created meanwhile, by its identifier", remedy="restore the topics again"
            )
    return names


def _free_names(topic: Topic) -> Iterator[str]:
    """Yield names for a topic whose own name is taken, without end: each may be taken, too."""
    for number in count():
        digits = topic.topic_id.hex[: None if number else _ID_DIGITS]
        suffix = f"-{digits}-{number}" if number > 1 else f"-{digits}"
        yield topic.name[: MAX_NAME_LENGTH - len(suffix)] + suffix


def _first_free_name(transaction: Transaction, topic: Topic) -> str:
    """Return a name for a topic whose own name is taken; no other topic has it now."""
    return next(
        name
        for name in _free_names(topic)
        if not transaction.rows(_TOPICS["find_conflicting_topics"], {"names": [name]})
    )


def _holders(transaction: Transaction, topics: Sequence[Topic]) -> dict[str, Topic]:
    """Return the topics that have the names of these, by collision key."""
    if not topics:
        return {}
    rows: list[Row] = transaction.rows(
        _TOPICS["find_conflicting_topics"], {"names": [topic.name for topic in topics]}
    )
    return {collision_key(row.name): topic_from_row(row) for row in rows}
