"""The privileges that docs/how-to/production.md grants suffice, and do not allow a change of the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import errors as pg

from catalog.errors import CatalogAddressError
from catalog.model import PartitionId
from catalog.open import migrate_catalog, open_catalog
from core.clock import SystemClock
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import Scene, run_of
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.clock import Clock
    from core.ids import Ids

_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "production.md"


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


def _documented_sql() -> tuple[list[str], str]:
    """Return the statements that create the roles, and those for the database."""
    cluster, database = re.findall(r"```sql\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [each for each in cluster.splitlines() if each.startswith("CREATE ROLE")], database


def test_the_documented_privileges_suffice(
    new_catalog_url: Callable[..., str], clock: Clock, ids: Ids
) -> None:
    url = new_catalog_url(empty=True)
    roles, privileges = _documented_sql()
    with psycopg.connect(url, autocommit=True) as superuser:
        for statement in roles:
            superuser.execute(statement.encode())
        superuser.execute(privileges.encode())
    agent_url, owner_url = f"{url} user=siltstone_agent", f"{url} user=siltstone_owner"
    with pytest.raises(CatalogAddressError, match=r"may not apply schema.sql.*permission denied"):
        migrate_catalog(agent_url, clock, ids)
    migrate_catalog(owner_url, clock, ids)
    with open_catalog(agent_url, clock, ids, limits=PATIENT) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic(partitions=2)
        for number in range(3):
            scene.commit(topic, run_of(2, producer=(catalog.producers.new_id(), 0, 0)), run_of(number + 1))
        catalog.sessions.heartbeat(scene.session_id)
        catalog.jobs.complete(scene.result(scene.claimed(scene.extents(topic))))
        read = PartitionId(topic.topic_id, 0)
        watcher = catalog.watcher()
        assert watcher.wait(0, frozenset({read})) is None
        assert catalog.commits.announce([read], ids.new_uuid()) > 0
        watcher.close()
        local = catalog.topics.create("local", 1, {"storage.mode": "local"})
        catalog.local_leaders.claim({PartitionId(local.topic_id, 0): 1})
        catalog.topics.delete(topic.name)
        catalog.garbage.remove_deleted()
        catalog.sessions.end(scene.session_id)
        assert InvariantChecker(catalog).violations() == []
    with psycopg.connect(agent_url, autocommit=True) as agent, pytest.raises(pg.InsufficientPrivilege):
        agent.execute("ALTER TABLE siltstone.topics ADD COLUMN more integer")
