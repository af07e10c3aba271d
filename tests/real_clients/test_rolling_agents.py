"""Every client reads on while the agents are killed one after the other and come back where they were.

Clients that know no agent any more do not all begin anew with their bootstrap list: aiokafka and kafka-python
ask only the brokers of their last metadata; and @platformatic/kafka ends when a coordinator is a node that is
not in its metadata. So agents come back as the same nodes at the same addresses, as after a restart.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.agent.kafka.waiting import until
from tests.real_clients.driving import CLIENTS, LASTING_MS, Driver
from tests.real_clients.scene import TOPIC, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.integration
_AGENTS = 2


class Readers:
    """A group for each client, with one member that commits what it has read."""

    def __init__(self, scene: Scene, drivers: Mapping[str, Driver]) -> None:
        self._scene = scene
        self._drivers = drivers
        for name, driver in self._drivers.items():
            driver("join", bootstrap=scene.bootstrap, topic=TOPIC, group=name, session=LASTING_MS)

    def _seen(self, name: str) -> dict[tuple[int, int], bytes]:
        self._scene.sending.work.check()
        records = self._drivers[name]("seen", topic=TOPIC)["records"]
        return {(partition, offset): value.encode() for partition, offset, value in records}

    def go_on(self) -> None:
        """Until each has read records that were not there before."""
        before = len(self._scene.sending.sent)
        for name in self._drivers:
            until(lambda name=name: len(self._seen(name)) > before)  # type: ignore[misc]  # bound here

    def check(self) -> None:
        """Every record was read, and its offset committed."""
        sent, ends = self._scene.sending.sent, self._scene.ends()
        for name in self._drivers:
            until(lambda name=name: self._seen(name) == sent)  # type: ignore[misc]  # bound here
            until(lambda name=name: self._scene.committed(name) == ends)  # type: ignore[misc]  # bound here


def test_every_client_reads_on_while_agents_are_replaced(
    new_catalog_url: Callable[[], str], tmp_path: Path, new_driver: Callable[[str], Driver]
) -> None:
    """All records come, and all commits survive, although no agent of the beginning is left in the end."""
    drivers = {name: new_driver(name) for name in CLIENTS}  # they take their time to begin
    with ExitStack() as stack:
        scene = Scene(stack, new_catalog_url(), tmp_path, agents=2 * _AGENTS, protocols=(), has_disks=True)
        readers = Readers(scene, drivers)
        readers.go_on()
        for old, new, port in zip(scene.agents[:_AGENTS], scene.agents[_AGENTS:], scene.ports, strict=True):
            old.kill()
            new.serve(port)
            readers.go_on()
        scene.sending.finish()
        assert scene.sending.failures == []
        readers.check()
