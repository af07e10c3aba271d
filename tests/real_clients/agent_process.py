"""Agents in separate processes, which a test can kill and replace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.group_settings import GroupSettings
from agent.listeners import HttpListener, KafkaListener
from agent.process import run
from agent.settings import AgentSettings
from tests.fixtures.fork_server import FORK_SERVER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

    from object_store.open import StoreConfig

_TIMEOUT_SECONDS = 300
_GROUPS = GroupSettings(
    group_initial_rebalance_delay_ms=50,
    group_min_session_timeout_ms=500,
    group_consumer_heartbeat_interval_ms=200,
    group_consumer_session_timeout_ms=6_000,
)


class AgentProcess:
    """One agent. Its process starts at once, and serves after `serve`.

    With `local_root` it takes over the directory, and with it the node id, of an agent that was killed.
    `times` replace the usual settings.
    """

    def __init__(
        self,
        catalog_url: str,
        store: StoreConfig,
        local_root: Path | None = None,
        times: Mapping[str, int] | None = None,
    ) -> None:
        self._control, theirs = FORK_SERVER.Pipe()
        self._process = FORK_SERVER.Process(
            target=_agent, args=(catalog_url, store, local_root, times or {}, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def serve(self, port: int) -> None:
        """Start to serve Kafka clients."""
        self._control.send(port)
        assert self._control.poll(_TIMEOUT_SECONDS), "the agent did not start"
        assert str(self._control.recv()["kafka"]).endswith(f":{port}")

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self._process.kill()
        self._process.join(_TIMEOUT_SECONDS)


def _agent(
    catalog_url: str,
    store: StoreConfig,
    local_root: Path | None,
    times: Mapping[str, int],
    control: Connection,
) -> None:
    settings = AgentSettings(
        http_listeners=(HttpListener(port=0),),
        kafka_listeners=(KafkaListener(port=control.recv()),),
        flush_interval_ms=20,
        heartbeat_interval_ms=300,
        broker_silent_ms=6_000,  # a busy machine stalls for seconds, and a silent agent drops its groups
        local_root=local_root,
        groups=_GROUPS,
    )
    settings = replace(settings, **times)  # type: ignore[arg-type]  # settings in milliseconds only
    run(settings, store_config=store, catalog_url=catalog_url, on_ready=control.send)
