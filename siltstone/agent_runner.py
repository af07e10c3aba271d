"""Life of an agent process: open its parts, announce it, run it.

This module is apart from the command `siltstone agent`, which can therefore create a PostgreSQL and log a
message while the agent's code is being loaded.
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
from siltstone.console import emit_json
from siltstone.context import catalog_url, database_limits, store_config
from siltstone.kafka_client.agent_discovery import announce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.outage import StartWait
    from siltstone.settings.configuration import Settings


def run_agent(settings: Settings, *, wait: StartWait, stop_on_eof: bool) -> None:
    """Run an agent until SIGTERM or SIGINT; with `stop_on_eof`, also until standard input ends.

    `wait` says for how long a catalog or a store that does not respond is no error. The data directory must
    exist.
    """
    with contextlib.ExitStack() as stack:
        with warn_if_slow("starting the PostgreSQL of the data directory"):
            url = stack.enter_context(catalog_url(settings))

        def on_ready(addresses: Mapping[str, str]) -> None:
            stack.enter_context(announce(settings.data_dir, addresses))
            emit_json({"event": "ready", **addresses, "pid": os.getpid(), "data_dir": str(settings.data_dir)})
            if stop_on_eof:
                threading.Thread(target=_stop_at_end_of_input, daemon=True).start()

        run(
            settings.agent_settings(),
            store_config=store_config(settings),
            catalog_url=url,
            database_limits=database_limits(settings),
            on_ready=on_ready,
            wait=wait,
            listen_url=settings.listen_url,
        )


def _stop_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
