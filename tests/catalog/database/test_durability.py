"""An acknowledged commit is durable: on the standby, too, if there is a synchronous one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from typing_extensions import override

from catalog.database.limits import DatabaseLimits
from catalog.database.pool import Reserve
from catalog.errors import UnsafeCommitsError
from catalog.open import Catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from tests.catalog.scene import Scene, run_of
from tests.fixtures.postgres_pair import PostgresPair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres_node import PostgresNode

_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def pair(postgres_template: PostgresNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    """Provide a primary with a synchronous standby."""
    with PostgresPair(tmp_path_factory.mktemp("pair"), postgres_template) as running:
        running.set_synchronous()
        yield running


def _open(url: str, *, allow_unsafe_commits: bool = False) -> Catalog:
    clock = SystemClock()
    limits = DatabaseLimits(allow_unsafe_commits=allow_unsafe_commits, retry_seconds=0)
    return open_catalog(url, clock, SystemIds(clock), limits=limits)


class _Commit(threading.Thread):
    """A commit in a thread, which waits for a standby that is frozen."""

    def __init__(self, pair: PostgresPair, catalog: Catalog) -> None:
        super().__init__()
        self._scene = Scene.set_up(catalog, SystemIds(SystemClock()))
        self._topic = self._scene.topic(f"t-{self._scene.session_id}")
        self.offsets: list[int | None] = []
        pair.wait_for_standby()
        pair.standby.freeze()
        self.start()

    @override
    def run(self) -> None:
        self.offsets.append(self._scene.commit(self._topic, run_of(1)).runs[0].base_offset)


def test_a_commit_waits_for_a_synchronous_standby(pair: PostgresPair) -> None:
    with _open(pair.url) as catalog:
        commit = _Commit(pair, catalog)
        pair.primary.wait_until(lambda: len(pair.primary.execute(_WAITING)) == 1)
        assert commit.offsets == []
        pair.standby.thaw()
        commit.join()
        assert commit.offsets == [0]


def test_a_commit_whose_wait_is_cancelled_is_not_acknowledged(pair: PostgresPair) -> None:
    """PostgreSQL reports such a commit as successful; the retry finds it, and waits again."""
    with _open(pair.url) as catalog:
        commit = _Commit(pair, catalog)
        cancelled: set[int] = set()
        for cancel in ("pg_cancel_backend", "pg_terminate_backend", "pg_cancel_backend"):
            pair.primary.wait_until(
                lambda: bool({pid for (pid,) in pair.primary.execute(_WAITING)} - cancelled)
            )
            (pid,) = {pid for (pid,) in pair.primary.execute(_WAITING)} - cancelled
            cancelled.add(pid)
            pair.primary.execute(f"SELECT {cancel}({pid})")
        pair.primary.wait_until(lambda: bool(pair.primary.execute(_WAITING)))
        assert commit.offsets == []
        pair.standby.thaw()
        commit.join()
        assert commit.offsets == [0]
        assert catalog.operation_counts()["commits.commit"].retries >= len(cancelled)


@pytest.mark.parametrize("value", ["off", "local"])
@pytest.mark.parametrize("level", ["DATABASE siltstone", "ROLE siltstone", "address"])
def test_a_server_that_loses_acknowledged_commits_is_refused(
    pair: PostgresPair, value: str, level: str
) -> None:
    url = pair.url
    if level == "address":
        url += f"?options=-c%20synchronous_commit%3D{value}"
    else:
        pair.primary.execute(f"ALTER {level} SET synchronous_commit = {value}")
    try:
        with pytest.raises(UnsafeCommitsError, match=f"synchronous_commit={value}"):
            _open(url)
        with _open(url, allow_unsafe_commits=True) as catalog:
            assert f"synchronous_commit={value}" in catalog.server.unsafe_settings
    finally:
        if level != "address":
            pair.primary.execute(f"ALTER {level} RESET synchronous_commit")


@pytest.mark.parametrize("value", ["on", "remote_write", "remote_apply"])
def test_a_server_may_wait_for_more_or_less_of_its_standby(pair: PostgresPair, value: str) -> None:
    with _open(f"{pair.url}?options=-c%20synchronous_commit%3D{value}") as catalog:
        # These tests do not survive a crash of the machine.
        assert catalog.server.unsafe_settings == ("fsync=off", "full_page_writes=off")


def test_a_reload_does_not_weaken_open_connections(pair: PostgresPair) -> None:
    with _open(pair.url) as catalog:
        with catalog._database._pools[Reserve.GENERAL].connection() as connection:
            pair.primary.set("synchronous_commit", "off")
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        with pytest.raises(UnsafeCommitsError), psycopg.connect(pair.primary.url):
            _open(pair.url)
    pair.primary.set("synchronous_commit", "on")


def test_replication_is_observed_if_the_role_may_see_it(pair: PostgresPair) -> None:
    pair.primary.execute("CREATE ROLE modest LOGIN")
    pair.primary.execute("GRANT USAGE ON SCHEMA siltstone TO modest")
    pair.primary.execute("GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA siltstone TO modest")
    pair.wait_for_standby()
    pair.pause_replay()
    with _open(pair.url) as catalog, _open(pair.url.replace("siltstone@", "modest@")) as modest:
        scene = Scene.set_up(catalog, SystemIds(SystemClock()))
        for each in (catalog, modest):
            each.sessions.heartbeat(scene.session_id)
        replication = catalog.server.replication
        assert replication is not None
        assert (replication.standbys, replication.synchronous_standbys) == (1, 1)
        assert replication.lag_bytes > 0
        assert modest.server.replication is None
    pair.resume_replay()
