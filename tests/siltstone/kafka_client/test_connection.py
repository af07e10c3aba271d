"""Errors of the Kafka client as errors of Siltstone, with what to do about them."""

from __future__ import annotations

from confluent_kafka import KafkaError

from core.errors import InvalidInputError
from siltstone.kafka_client.connection import Purpose, to_siltstone_error


def test_a_name_that_no_topic_can_have_is_an_error_with_the_rule() -> None:
    error = to_siltstone_error(KafkaError(KafkaError.TOPIC_EXCEPTION), Purpose("a b", "Read"))
    assert isinstance(error, InvalidInputError)
    assert "'a b'" in str(error)
    assert error.remedy is not None
    assert "1 to 249" in error.remedy
