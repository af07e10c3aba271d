"""An agent as the settings say, from its parts to its last breath.

Apart from its command, which can so say that there will be an agent while all of this is loaded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from agent.process import run
from agent.runtime.slow_start_warning import warn_if_slow
from agent.settings import AgentSettings
from siltstone.context import catalog_url, make_data_dir, require_store, store_config
from siltstone.kafka_client.nearby_agents import announced
from siltstone.output import emit_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from siltstone.settings.configuration import Settings


def serve(settings: Settings, *, stop_on_eof: bool) -> None:
    """Run an agent until SIGTERM or SIGINT, or with `stop_on_eof` until standard input ends."""
    make_data_dir(settings)  # an agent leaves there how to find it
    require_store(settings)
    with contextlib.ExitStack() as serving:
        with warn_if_slow("starting the PostgreSQL of the data directory"):
            url = serving.enter_context(catalog_url(settings))

        def tell(addresses: Mapping[str, str]) -> None:
            serving.enter_context(announced(settings.data_dir, addresses))
            emit_json({"event": "ready", **addresses, "pid": os.getpid(), "data_dir": str(settings.data_dir)})
            if stop_on_eof:
                threading.Thread(target=_stop_at_end_of_input, daemon=True).start()

        run(_agent_settings(settings), store_config=store_config(settings), catalog_url=url, on_ready=tell)


def _agent_settings(settings: Settings) -> AgentSettings:
    host, port = settings.http_address
    kafka_host, kafka_port = settings.kafka_address
    return AgentSettings(
        http_host=host,
        http_port=port,
        kafka_host=kafka_host,
        kafka_port=kafka_port,
        kafka_advertised=settings.kafka_advertised,
        rack=settings.rack,
        local_directories=settings.local_directories,
        local_root=settings.data_dir / "local-logs" if settings.local_dirs is None else None,
        auto_create_topics=settings.auto_create_topics_enable,
        default_partitions=settings.num_partitions,
        kafka_max_connections=settings.max_connections,
        kafka_max_connections_per_ip=settings.max_connections_per_ip,
        groups=settings.groups,
        flush_interval_ms=settings.flush_interval_ms,
        flush_bytes=settings.flush_bytes,
        max_buffered_bytes=settings.max_buffered_bytes,
        max_request_bytes=settings.max_request_bytes,
        tail_bytes=settings.tail_bytes,
        cache_bytes=settings.cache_bytes,
        read_ahead_bytes=settings.read_ahead_bytes,
        drain_ms=settings.drain_ms,
        stop_timeout_ms=settings.stop_timeout_ms,
    )


def _stop_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
