"""The whole agent process: start, stop, signals and sessions."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from agent import app as agent_module
from agent.listeners import HttpListener
from agent.process import run
from agent.runtime import slow_start_warning as slow_start
from agent.runtime.sockets import address_of, bind, listen
from agent.settings import AgentSettings
from core.errors import InvalidInputError
from object_store.errors import ForeignStoreError
from object_store.open import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.running_agents import Agents

pytestmark = [pytest.mark.integration]

_PROGRAM = """
import json, sys
from agent.listeners import HttpListener
from agent.process import run
from agent.settings import AgentSettings
from object_store.open import StoreConfig

def ready(addresses):
    print(json.dumps(dict(addresses)), flush=True)

run(
    AgentSettings(http_listeners=(HttpListener(port=0),), flush_interval_ms=int(sys.argv[3])),
    store_config=StoreConfig(url=sys.argv[1]),
    catalog_url=sys.argv[2],
    on_ready=ready,
)
"""


@pytest.fixture
def process(tmp_path: Path, catalog_url: str) -> Iterator[subprocess.Popen[str]]:
    """An agent with the longest flush interval, in a separate process."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "objects"), catalog_url, "60000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        yield running
        if running.poll() is None:
            running.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_flushes_and_acknowledges_accepted_records(
    process: subprocess.Popen[str], catalog: Catalog, number: signal.Signals
) -> None:
    """An append waits for the flush interval when the signal comes. It is completed, and the session ends."""
    assert process.stdout is not None
    # Warnings about the server of the tests, which is not durable, come first.
    address = orjson.loads(next(line for line in process.stdout if line.startswith("{")))["http"]
    (session,) = catalog.sessions.active()
    catalog.topics.create("t", 1)

    async def produce_and_stop() -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=240, trust_env=False) as http:
            waiting = asyncio.ensure_future(
                http.post("/v1/topics/t/records", json={"records": [{"value": "accepted"}]})
            )
            while "siltstone_write_buffer_bytes 0.0" in (await http.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            process.send_signal(number)
            return await waiting

    response = asyncio.run(produce_and_stop())

    assert (response.status_code, response.json()["results"][0]["offset"]) == (200, 0)
    assert (process.wait(timeout=240), process.stderr and process.stderr.read()) == (0, "")
    found = catalog.sessions.get(session.session_id)
    assert found is not None
    assert found.state == "ended"


def test_an_agent_does_not_start_with_a_store_of_another_catalog(
    catalog: Catalog, catalog_url: str, tmp_path: Path
) -> None:
    """It would acknowledge records that no other agent can read."""
    right = StoreConfig(url=str(tmp_path / "right"))
    catalog.store_binding.bind(UUID(int=1), right.url)
    with pytest.raises(ForeignStoreError, match=f"objects are in {right.url}"):
        run(
            AgentSettings(http_listeners=(HttpListener(port=0),)),
            store_config=StoreConfig(url=str(tmp_path / "wrong")),
            catalog_url=catalog_url,
            on_ready=lambda _: pytest.fail("it serves"),
        )
    assert catalog.sessions.active() == []
    assert not [path for path in (tmp_path / "wrong").rglob("*") if path.is_file()]


@pytest.mark.anyio
async def test_stopping_ends_long_polls(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        waiting = asyncio.ensure_future(running.read("t", offset=0, max_wait_ms=50_000))
        while not running.agent.data.commit_notifier.has_waiters:  # noqa: ASYNC110  # a request is on its way over a socket
            await asyncio.sleep(0.001)
        await running.agent.stop()
        assert (await waiting)["records"] == []
        running.agent.stop = _nothing  # type: ignore[method-assign]  # it is stopped already


async def _nothing() -> None:
    """Do nothing."""


@pytest.mark.anyio
async def test_a_fenced_agent_continues_with_a_new_session(agents: Agents, catalog: Catalog) -> None:
    async with agents.running(heartbeat_interval_ms=3_600_000) as running:
        await running.create_topic("t")
        old = running.agent.session.session_id
        catalog.sessions.fence(old)
        response = await running.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "append_failed")
        while running.agent.session.session_id == old:  # noqa: ASYNC110  # set by the heartbeat's task
            await asyncio.sleep(0.001)
        assert (await running.produce("t", {"value": "x"}))["results"][0]["offset"] == 0
        assert [session.session_id for session in catalog.sessions.active()] == [
            running.agent.session.session_id
        ]


@pytest.mark.anyio
async def test_a_short_outage_of_the_store_is_hidden_by_retries(agents: Agents, store: FaultyStore) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        store.fail_puts = 2
        assert (await running.produce("t", {"value": "x"}))["accepted"] == 1


@pytest.mark.anyio
async def test_a_long_outage_of_the_store_is_a_retryable_error(agents: Agents, store: FaultyStore) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        store.fail_puts = 10**6
        response = await running.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "append_failed")
        assert "retry-after" in response.headers
        store.fail_puts = 0
        assert (await running.produce("t", {"value": "x"}))["results"][0]["offset"] == 0


def test_an_address_in_use_is_a_clear_error() -> None:
    with bind("127.0.0.1", 0) as listener:
        listen(listener)
        host, _, port = address_of(listener).rpartition(":")
        with pytest.raises(
            InvalidInputError, match=f"cannot listen on {host}:{port}: Address already in use"
        ):
            bind(host, int(port))


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid"])
def test_an_address_of_no_interface_is_an_error_with_its_remedy(host: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"cannot listen on {host}:0: .*an address of this machine"):
        bind(host, 0)


def test_a_port_that_needs_a_privilege_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, _address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("agent.runtime.sockets.socket.socket.bind", refuse, raising=True)
    with pytest.raises(InvalidInputError, match=r"127.0.0.1:80: Permission denied .*from 1024 on"):
        bind("127.0.0.1", 80)


def test_the_second_process_that_listens_on_a_bound_address_gets_an_error() -> None:
    with bind("127.0.0.1", 0) as faster:
        host, _, port = address_of(faster).rpartition(":")
        with bind(host, int(port)) as slower:
            listen(faster)
            with pytest.raises(
                InvalidInputError, match=f"cannot listen on {host}:{port}: Address already in use"
            ):
                listen(slower)


@pytest.mark.anyio
async def test_clients_cannot_connect_until_the_kernels_are_compiled(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that could connect would wait without a reason. The log states the reason."""
    bound: list[tuple[str, int]] = []
    refused: list[bool] = []

    def noting(host: str, port: int) -> socket.socket:
        made = bind(host, port)
        bound.append(made.getsockname()[:2])
        return made

    def compile_slowly() -> None:
        for address in bound:
            with socket.socket() as client:
                refused.append(client.connect_ex(address) == errno.ECONNREFUSED)
        assert was_logged.wait(240)

    def log_and_note(doing: str) -> None:
        log_warning(doing)
        if "compiling" in doing:
            was_logged.set()

    was_logged = threading.Event()
    log_warning = slow_start._log_warning
    monkeypatch.setattr(slow_start, "_log_warning", log_and_note)
    monkeypatch.setattr(slow_start, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(agent_module, "bind", noting)
    monkeypatch.setattr(agent_module, "warm_up", compile_slowly)
    with capture_logs() as logs:
        async with agents.running() as running:
            await running.create_topic("t")
    assert set(refused) == {True}
    assert [line["event"] for line in logs if "compiling kernels" in line["event"]] == [
        f"the agent is not ready yet: {agent_module._COMPILING}"
    ]


@pytest.mark.anyio
async def test_a_hanging_store_does_not_keep_the_agent_from_stopping(
    agents: Agents, store: FaultyStore
) -> None:
    """Accepted records are not acknowledged then. The stop ends while the call still hangs."""
    try:
        async with agents.running(stop_timeout_ms=1) as running:
            await running.create_topic("t")
            store.gate.clear()
            body = {"records": [{"key": "a", "value": "b"}]}
            waiting = asyncio.ensure_future(running.http.post("/v1/topics/t/records", json=body))
            while not store.puts_begun:  # noqa: ASYNC110  # set by another thread
                await asyncio.sleep(0.001)
            await running.agent.stop()
            assert not store.gate.is_set()
            await asyncio.gather(waiting, return_exceptions=True)
    finally:
        store.gate.set()


@pytest.mark.anyio
async def test_heartbeats_continue_while_every_catalog_thread_is_busy(agents: Agents) -> None:
    async with agents.running(heartbeat_interval_ms=1, catalog_threads=1) as running:
        gate = threading.Event()
        waits = [
            asyncio.ensure_future(running.agent.resources.pools.catalog.run(gate.wait)) for _ in range(3)
        ]
        try:
            await asyncio.sleep(0)
            running.agent.session.report_fenced(old := running.agent.session.session_id)
            while running.agent.session.session_id == old:  # noqa: ASYNC110  # set by another task
                await asyncio.sleep(0.001)
        finally:
            gate.set()
            await asyncio.gather(*waits)
