"""Fetches whose lookups in the catalog hang, and the requests of others meanwhile."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import httpx
import psycopg

from catalog.database.sql_files import Query
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.agent.kafka.wire import Wire, request_frame
from tests.agent.metrics.test_agent_metrics import beat, fetch_request

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.agent.kafka.brokers import BrokerThread


def test_slow_lookups_of_fetches_leave_connections_to_all_others(
    start_broker: Callable[..., BrokerThread], catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers, groups, administrators and heartbeats go on, while fetches use all connections they may."""
    broker = start_broker(tail_bytes=0, heartbeat_interval_ms=20, groups=QUICK_GROUPS)
    broker.create_topic("t")
    url = f"http://{broker.http_address}/v1/topics/t/records"

    def produce() -> None:
        body = {"records": [{"value": "x"}]}
        httpx.post(url, json=body, timeout=240, trust_env=False).raise_for_status()

    produce()
    database, extents = broker.catalog._database, broker.catalog.extents
    look_up = extents.from_offsets
    wait = Query(name="wait", description="", sql=b"SELECT pg_advisory_xact_lock_shared(4711)")

    def wait_first(*arguments: Any, **named: Any) -> object:  # noqa: ANN401  # as they are
        database.transact("slow lookup", lambda transaction: transaction.rows(wait))
        return look_up(*arguments, **named)

    monkeypatch.setattr(extents, "from_offsets", wait_first)
    with contextlib.ExitStack() as stack:
        fetches = [stack.enter_context(Wire(broker.host_and_port)) for _ in range(20)]
        with psycopg.connect(catalog_url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(4711)")
            for each in fetches:
                each.send(request_frame("fetch", 12, 1, fetch_request()))
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' "
                "AND datname = current_database()"
            )
            until(lambda: holder.execute(waiting).fetchone() == (4,))
            produce()
            with stack.enter_context(Wire(broker.host_and_port)) as other:
                assert beat(other).error_code == 0
            broker.create_topic("another")
            before = broker.catalog_calls()["sessions.heartbeat"]
            until(lambda: broker.catalog_calls()["sessions.heartbeat"] > before + 3)
            assert holder.execute(waiting).fetchone() == (4,)
        assert all(each.receive() is not None for each in fetches)
