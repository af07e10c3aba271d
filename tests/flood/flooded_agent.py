"""An agent in a separate process, with small budgets, and what its operator sees of it."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import httpx
import psutil

from agent.group_settings import GroupSettings
from agent.listeners import HttpListener, KafkaListener
from agent.process import run
from agent.settings import MIB, AgentSettings
from core.errors import BackgroundTaskError
from siltstone.cli.main import report_error
from siltstone.logging_setup import configure_logs
from tests.fixtures.fork_server import FORK_SERVER
from tests.flood.slowdown import Slowdown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from types import TracebackType
    from typing import Self

    from object_store.open import StoreConfig

TIMEOUT_SECONDS: Final = 300.0
MAX_LOOP_LAG_SECONDS: Final = 1.0
SETTINGS: Final = AgentSettings(
    http_listeners=(HttpListener(port=0),),
    kafka_listeners=(KafkaListener(port=0),),
    flush_interval_ms=20,
    max_buffered_bytes=64 * MIB,
    tail_bytes=32 * MIB,
    cache_bytes=16 * MIB,
    max_fetch_bytes=16 * MIB,
    max_fetches_bytes=64 * MIB,
    max_requests_bytes=64 * MIB,
    max_parsed_bytes=64 * MIB,
    groups=GroupSettings(
        group_initial_rebalance_delay_ms=10, group_min_session_timeout_ms=500, groups_max_bytes=64 * MIB
    ),
)
_BUDGETS: Final = (
    "max_buffered_bytes",
    "tail_bytes",
    "cache_bytes",
    "max_fetches_bytes",
    "max_requests_bytes",
    "max_parsed_bytes",
    "max_read_ahead_bytes",
)


class FloodedAgent:
    """An agent, its addresses, and its metrics and memory."""

    def __init__(
        self,
        catalog_url: str,
        store: StoreConfig,
        *,
        exit_code: int = 0,
        sabotage: Callable[[], None] | None = None,
        **changes: Any,  # noqa: ANN401  # any setting
    ) -> None:
        self._exit_code = exit_code
        self._slowdown = Slowdown()
        self._slowest = 1.0
        self.settings = replace(SETTINGS, **changes)
        self._control, theirs = FORK_SERVER.Pipe()
        self.process = FORK_SERVER.Process(
            target=_serve, args=(self.settings, catalog_url, store, theirs, sabotage), daemon=True
        )
        self.process.start()
        theirs.close()
        assert self._control.poll(TIMEOUT_SECONDS), "the agent did not start"
        self.addresses: Mapping[str, str] = self._control.recv()
        self.idle_bytes = self.resident_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slowdown.stop()
        self.process.terminate()
        self.process.join(TIMEOUT_SECONDS)
        assert self.process.exitcode == self._exit_code

    def address(self, protocol: str) -> tuple[str, int]:
        """Return host and port of a listener."""
        host, _, port = self.addresses[protocol].rpartition(":")
        return host, int(port)

    @property
    def resident_bytes(self) -> int:
        """Memory of the process."""
        assert self.process.pid is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def memory_bound(self) -> int:
        """The memory that the settings allow: all budgets, and the process itself."""
        budgets: list[int] = [getattr(self.settings, name) for name in _BUDGETS]
        return self.idle_bytes + self.settings.groups.groups_max_bytes + sum(budgets)

    def http(self) -> httpx.Client:
        """Return a client of the HTTP listener."""
        return httpx.Client(
            base_url=f"http://{self.addresses['http']}", timeout=TIMEOUT_SECONDS, trust_env=False
        )

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples. One with labels has none before its first event."""
        with self.http() as client:
            text = client.get("/metrics").text
        values: list[str] = re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", text, re.MULTILINE)
        assert f"# HELP {name} " in text, name
        return sum(map(float, values))

    def check(self) -> None:
        """Assert that the event loop was never late, and that memory is within its bound."""
        lag = self.metric("siltstone_loop_lag_max_seconds")
        self._slowest = max(self._slowest, self._slowdown.take())
        allowed = MAX_LOOP_LAG_SECONDS * self._slowest  # on an idle machine, the factor is 1
        assert lag < allowed
        resident, bound = self.resident_bytes, self.memory_bound
        assert resident < bound


def _serve(
    settings: AgentSettings,
    catalog_url: str,
    store: StoreConfig,
    control: Connection,
    sabotage: Callable[[], None] | None,
) -> None:
    configure_logs("warning")
    if sabotage is not None:
        sabotage()
    try:
        run(settings, store_config=store, catalog_url=catalog_url, on_ready=control.send)
    except BackgroundTaskError as failure:
        sys.exit(report_error(failure, debug=False))
