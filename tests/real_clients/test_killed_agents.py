"""Groups of both protocols read on while agents are killed and others take their place."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.agent.kafka.waiting import until
from tests.real_clients.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.integration


def test_every_record_is_read_and_every_commit_survives(
    new_catalog_url: Callable[[], str], tmp_path: Path
) -> None:
    """One agent is killed, one comes in its place, and then the other one is killed."""
    with ExitStack() as stack:
        scene = Scene(stack, new_catalog_url(), tmp_path, agents=3, protocols=("classic", "consumer"))
        first, second, third = scene.agents
        scene.goes_on()
        first.kill()
        scene.goes_on()
        third.serve(scene.ports[0])
        scene.goes_on()
        second.kill()
        scene.goes_on()
        scene.sending.finish()
        assert scene.sending.failures == []
        sent, ends = scene.sending.sent, scene.ends()
        for group in scene.groups:
            until(lambda group=group: scene.seen(group) == sent)  # type: ignore[misc]  # bound here
            until(lambda group=group: scene.committed(group) == ends)  # type: ignore[misc]  # bound here
