"""APIs of what is not there yet, in every version: refused as a Kafka without it refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Producer

from agent.kafka.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    create_acls,
    delete_acls,
    describe_acls,
    describe_transactions,
    end_txn,
    list_transactions,
    sasl_authenticate,
    sasl_handshake,
    txn_offset_commit,
)
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.kafka.api_definition import Api
    from tests.agent.kafka.brokers import BrokerThread

_PRODUCER = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
_ACL = {"resource_type": 2, "resource_name": "granite", "principal": "User:a", "host": "*", "operation": 2}
_ACL_FILTER = {"resource_type_filter": 2, "pattern_type_filter": 1, "operation": 2, "permission_type": 3}


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


def answers(wire: Wire, api: Api, request: Struct) -> list[tuple[int, Struct]]:
    """What each version says."""
    return [
        (version, wire.ask(api.name, version, request))
        for version in range(api.min_version, api.max_version + 1)
    ]


def test_transactions_are_not_authorized(wire: Wire) -> None:
    """Clients take that as final, whichever call they begin with."""
    refusal = ErrorCode.transactional_id_authorization_failed
    for _, answer in answers(wire, add_offsets_to_txn.API, Struct(**_PRODUCER, group_id="g")):
        assert answer.error_code == refusal
    for _, answer in answers(wire, end_txn.API, Struct(**_PRODUCER, committed=True)):
        assert answer.error_code == refusal
    early = {f"v3_and_below_{name}": value for name, value in _PRODUCER.items()}
    topics = [Struct(name="granite", partitions=[0, 1])]
    added = Struct(**early, v3_and_below_topics=topics, transactions=[Struct(**_PRODUCER, topics=topics)])
    for version, answer in answers(wire, add_partitions_to_txn.API, added):
        if version >= 4:
            assert answer.error_code == refusal
        else:
            (topic,) = answer.results_by_topic_v3_and_below
            codes = [each.partition_error_code for each in topic.results_by_partition]
            assert codes == [refusal] * 2
    part = Struct(partition_index=0, committed_offset=1, committed_metadata="")
    commit = Struct(**_PRODUCER, group_id="g", topics=[Struct(name="granite", partitions=[part])])
    for _, answer in answers(wire, txn_offset_commit.API, commit):
        assert answer.topics[0].partitions[0].error_code == refusal


def test_a_transactional_producer_hears_at_once_that_it_cannot_be(broker: BrokerThread) -> None:
    """What is not final, librdkafka repeats until its patience ends, and does not say what it was told."""
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "t"})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(60)
    assert refused.value.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert refused.value.args[0].fatal()


def test_there_are_no_transactions_to_look_at(wire: Wire) -> None:
    asked = Struct(state_filters=["Ongoing", "Odd"], producer_id_filters=[], transactional_id_pattern=None)
    for _, answer in answers(wire, list_transactions.API, asked):
        assert (answer.error_code, answer.transaction_states) == (ErrorCode.none, [])
        assert answer.unknown_state_filters == ["Odd"]
    for _, answer in answers(wire, describe_transactions.API, Struct(transactional_ids=["t"])):
        assert answer.transaction_states[0].error_code == ErrorCode.transactional_id_not_found


def test_access_control_lists_are_disabled(wire: Wire) -> None:
    for _, answer in answers(wire, describe_acls.API, Struct(**_ACL_FILTER)):
        assert answer.error_code == ErrorCode.security_disabled
    for _, answer in answers(wire, create_acls.API, Struct(creations=[Struct(**_ACL, permission_type=3)])):
        assert [each.error_code for each in answer.results] == [ErrorCode.security_disabled]
    for _, answer in answers(wire, delete_acls.API, Struct(filters=[Struct(**_ACL_FILTER)] * 2)):
        assert [each.error_code for each in answer.filter_results] == [ErrorCode.security_disabled] * 2


def test_nobody_is_asked_to_authenticate(wire: Wire) -> None:
    for _, answer in answers(wire, sasl_handshake.API, Struct(mechanism="PLAIN")):
        assert answer.error_code == ErrorCode.illegal_sasl_state
    for _, answer in answers(wire, sasl_authenticate.API, Struct(auth_bytes=b"")):
        assert answer.error_code == ErrorCode.illegal_sasl_state
