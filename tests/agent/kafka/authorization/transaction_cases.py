"""Requests of transactional producers for the rows of the table of rights."""

from __future__ import annotations

from agent.kafka.codec import Struct
from tests.agent.kafka.authorization.cases import GROUP, TOPIC, Case

TRANSACTION = "transaction"
"""A transactional id with an ongoing transaction that has the topic."""

_UNKNOWN = {"transactional_id": TRANSACTION, "producer_id": 1_000_000, "producer_epoch": 0}
_WRITE, _DESCRIBE = f"Write TransactionalId {TRANSACTION}", f"Describe TransactionalId {TRANSACTION}"
_WRITE_TOPIC, _READ_TOPIC = f"Write Topic {TOPIC}", f"Read Topic {TOPIC}"
_DESCRIBE_TOPIC, _READ_GROUP = f"Describe Topic {TOPIC}", f"Read Group {GROUP}"
_COMMIT = {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
_ADDED = [Struct(name=TOPIC, partitions=[0])]
_DESCRIBED = Struct(transactional_ids=[TRANSACTION])


def initialization(transactional_id: str = TRANSACTION) -> Struct:
    """Return a request for a new producer of an id."""
    return Struct(
        transactional_id=transactional_id, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )


def addition(producer_id: int, producer_epoch: int) -> Struct:
    """Return a request that adds the topic to the transaction of a producer (version 3)."""
    return Struct(
        v3_and_below_transactional_id=TRANSACTION,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=_ADDED,
    )


def _offsets() -> Struct:
    partition = Struct(partition_index=0, **_COMMIT)
    return Struct(
        **_UNKNOWN,
        group_id=GROUP,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[Struct(name=TOPIC, partitions=[partition])],
    )


def _shows_topics(response: Struct) -> bool:
    return bool(response.transaction_states[0].topics)


def _lists_some(response: Struct) -> bool:
    return bool(response.transaction_states)


_MARKER = Struct(
    producer_id=1_000_000,
    producer_epoch=0,
    transaction_result=False,
    topics=[Struct(name=TOPIC, partition_indexes=[0])],
    coordinator_epoch=0,
)

TRANSACTION_CASES: tuple[Case, ...] = (
    Case(
        api="produce",
        version=9,
        right=_WRITE,
        others=(_WRITE_TOPIC,),
        request=Struct(
            transactional_id=TRANSACTION,
            acks=-1,
            timeout=60_000,
            topic_data=[Struct(name=TOPIC, partition_data=[Struct(index=0, records=b"")])],
        ),
    ),
    Case(
        api="find_coordinator",
        version=4,
        right=_DESCRIBE,
        request=Struct(key_type=1, coordinator_keys=[TRANSACTION]),
    ),
    Case(
        api="init_producer_id",
        version=4,
        right="Write TransactionalId another",
        request=initialization("another"),
    ),
    Case(
        api="add_partitions_to_txn",
        version=3,
        right=_WRITE,
        others=(_WRITE_TOPIC,),
        request=addition(1_000_000, 0),
    ),
    Case(
        api="add_partitions_to_txn",
        version=3,
        right=_WRITE_TOPIC,
        others=(_WRITE,),
        request=addition(1_000_000, 0),
    ),
    Case(
        api="add_partitions_to_txn",
        version=4,
        right="ClusterAction Cluster",
        request=Struct(transactions=[Struct(**_UNKNOWN, verify_only=True, topics=_ADDED)]),
    ),
    *(
        Case(
            api="add_offsets_to_txn",
            version=3,
            right=right,
            others=(other,),
            request=Struct(**_UNKNOWN, group_id=GROUP),
        )
        for right, other in ((_WRITE, _READ_GROUP), (_READ_GROUP, _WRITE))
    ),
    Case(api="end_txn", version=3, right=_WRITE, request=Struct(**_UNKNOWN, committed=False)),
    Case(api="write_txn_markers", version=1, right="Alter Cluster", request=Struct(markers=[_MARKER])),
    *(
        Case(
            api="txn_offset_commit",
            version=3,
            right=right,
            others=tuple({_WRITE, _READ_GROUP, _READ_TOPIC} - {right}),
            request=_offsets(),
        )
        for right in (_WRITE, _READ_GROUP, _READ_TOPIC)
    ),
    Case(api="describe_transactions", version=0, right=_DESCRIBE, request=_DESCRIBED),
    Case(
        api="describe_transactions",
        version=0,
        right=_DESCRIBE_TOPIC,
        others=(_DESCRIBE,),
        request=_DESCRIBED,
        sees=_shows_topics,
    ),
    Case(
        api="list_transactions",
        version=0,
        right=_DESCRIBE,
        request=Struct(state_filters=[], producer_id_filters=[]),
        sees=_lists_some,
    ),
)
