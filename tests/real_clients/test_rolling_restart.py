"""Every client continues while each agent is killed and restarted.

The agents return with the same node ids and addresses, because some clients depend on their last metadata.
aiokafka and kafka-python never return to the bootstrap list. @platformatic/kafka fails if a coordinator is a
node that its metadata does not have.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.agent.kafka.waiting import until
from tests.real_clients.client_driver import CLIENTS, LONG_SESSION_MS, Driver
from tests.real_clients.failover_scenario import TOPIC, FailoverScenario

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.integration
_AGENTS = 2
_PAUSE = 0.5
"""A client sends all of its records in each response, and reads nothing meanwhile."""
_PAUSE_OF_PRODUCER = 0.1
"""Each client commits each record, so a faster producer only makes the clients fall behind."""


class Readers:
    """A group for each client, with one member that commits what it has read."""

    def __init__(self, scenario: FailoverScenario, drivers: Mapping[str, Driver]) -> None:
        self._scenario = scenario
        self._drivers = drivers
        for name, driver in self._drivers.items():
            driver("join", bootstrap=scenario.bootstrap, topic=TOPIC, group=name, session=LONG_SESSION_MS)

    def _seen(self, name: str) -> dict[tuple[int, int], bytes]:
        self._scenario.producer.work.check()
        records = self._drivers[name]("seen", topic=TOPIC)["records"]
        return {(partition, offset): value.encode() for partition, offset, value in records}

    def wait_for_progress(self) -> None:
        """Wait until each member has read new records."""
        before = len(self._scenario.producer.sent)
        for name in self._drivers:
            until(lambda name=name: len(self._seen(name)) > before, pause=_PAUSE)  # type: ignore[misc]  # bound here

    def check(self) -> None:
        """Wait until every record is read and every offset is committed."""
        sent, ends = self._scenario.producer.sent, self._scenario.ends()
        for name in self._drivers:
            until(lambda name=name: self._seen(name) == sent, pause=_PAUSE)  # type: ignore[misc]  # bound here
            until(lambda name=name: self._scenario.committed(name) == ends)  # type: ignore[misc]  # bound here


def test_every_client_continues_while_agents_are_replaced(
    new_catalog_url: Callable[[], str], tmp_path: Path, new_driver: Callable[[str], Driver]
) -> None:
    """In the end no original agent is left. All records are read, and all commits survive."""
    drivers = {name: new_driver(name) for name in CLIENTS}  # they take long to start
    with ExitStack() as stack:
        scenario = FailoverScenario(
            stack,
            new_catalog_url(),
            tmp_path,
            agents=2 * _AGENTS,
            protocols=(),
            has_disks=True,
            pause=_PAUSE_OF_PRODUCER,
        )
        readers = Readers(scenario, drivers)
        readers.wait_for_progress()
        for old, new, port in zip(
            scenario.agents[:_AGENTS], scenario.agents[_AGENTS:], scenario.ports, strict=True
        ):
            old.kill()
            new.serve(port)
            readers.wait_for_progress()
        scenario.producer.finish()
        assert scenario.producer.failures == []
        readers.check()
