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

        run(settings.agent_settings(), store_config=store_config(settings), catalog_url=url, on_ready=tell)


def _stop_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
