"""One Java process for all tests of the interchange with Kafka."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.local_tier.interchange.kafka_engine import KafkaEngine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaEngine]:
    """Start Kafka's log engine."""
    with closing(KafkaEngine()) as engine:
        yield engine
