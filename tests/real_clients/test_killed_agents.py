"""Groups of both protocols continue while agents are killed and replaced."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.agent.kafka.waiting import until
from tests.real_clients.failover_scenario import FailoverScenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.integration


def test_every_record_is_read_and_every_commit_survives(
    new_catalog_url: Callable[[], str], tmp_path: Path
) -> None:
    """The first agent is killed and replaced. Then the second one is killed."""
    with ExitStack() as stack:
        scenario = FailoverScenario(
            stack, new_catalog_url(), tmp_path, agents=3, protocols=("classic", "consumer")
        )
        first, second, third = scenario.agents
        scenario.wait_for_progress()
        first.kill()
        scenario.wait_for_progress()
        third.serve(scenario.ports[0])
        scenario.wait_for_progress()
        second.kill()
        scenario.wait_for_progress()
        scenario.producer.finish()
        assert scenario.producer.failures == []
        sent, ends = scenario.producer.sent, scenario.ends()
        for group in scenario.groups:
            until(lambda group=group: scenario.seen(group) == sent)  # type: ignore[misc]  # bound here
            until(lambda group=group: scenario.committed(group) == ends)  # type: ignore[misc]  # bound here
