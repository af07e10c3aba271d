"""Error messages for clients when a system behind the agent fails, and their log entries."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

import catalog.errors
import object_store.errors
from agent.cluster.client_messages import is_client_safe, public_cause
from agent.kafka.errors import message_of
from agent.runtime.errors import BusyError
from catalog.errors import CatalogUnavailableError
from core.errors import FatalError, SiltstoneError
from object_store.accounting import Purpose
from object_store.errors import ObjectsNotDeletedError, StoreAccessError, StoreUnavailableError

if TYPE_CHECKING:
    from types import ModuleType

    from structlog.typing import EventDict

    from catalog.open import Catalog
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.running_agents import Agents

pytestmark = pytest.mark.anyio
_ADDRESS = "catalog.internal.example:5432/ledger"


def _reference(text: str) -> str:
    found = re.search(r"by reference ([0-9a-f]{10})\b", text)
    assert found is not None, text
    return found[1]


def _logged(log: list[EventDict], reference: str) -> EventDict:
    (event,) = (each for each in log if each.get("reference") == reference)
    return event


async def test_a_response_names_the_catalog_and_only_the_log_has_its_address(
    agents: Agents, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response has a reference to the log entry."""

    def fail() -> None:
        raise CatalogUnavailableError(f"the catalog at {_ADDRESS} did not respond to topics.list")

    async with agents.running() as running:
        monkeypatch.setattr(catalog.topics, "list", fail)
        with capture_logs() as log:
            response = await running.http.get("/v1/topics")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "catalog_unavailable")
    assert error["message"].startswith("the catalog does not respond; ")
    assert "internal.example" not in response.text
    event = _logged(log, _reference(error["message"]))
    assert _ADDRESS in event["reason"]
    assert (event["method"], event["path"], event["log_level"]) == ("GET", "/v1/topics", "warning")


async def test_an_unexpected_error_is_logged_with_the_reference_in_the_response(
    agents: Agents, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response has nothing of its message, and the log has its traceback."""

    def fail() -> None:
        raise FatalError(f"the catalog at {_ADDRESS} rejected topics.list: 42P01")

    async with agents.running() as running:
        monkeypatch.setattr(catalog.topics, "list", fail)
        with capture_logs() as log:
            response = await running.http.get("/v1/topics")
    assert response.status_code == 500
    assert _ADDRESS not in response.text
    event = _logged(log, _reference(response.json()["error"]["message"]))
    assert isinstance(event["exc_info"], FatalError)


async def test_the_error_of_an_append_has_the_reference_of_the_log_entry(
    agents: Agents, store: FaultyStore
) -> None:
    """A failed file is one log entry, however many clients had records in it."""
    async with agents.running() as running:
        await running.create_topic("t")
        store.fail_puts = 10**6
        with capture_logs() as log:
            response = await running.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        store.fail_puts = 0
    assert "the store is away" not in response.text
    event = _logged(log, _reference(response.json()["error"]["message"]))
    assert (event["event"], event["reason"]) == ("an ingestion file failed", "the store is away")
    assert event["exc_info"] is None, "the reason says it all, and a traceback hides it"


async def test_a_missing_object_is_named_only_in_the_log(
    agents: Agents, catalog: Catalog, store: FaultyStore
) -> None:
    """The client learns that it may retry. The operator learns which object it is and what to do."""
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"value": "x"})
    (extent,) = catalog.extents.from_offset(catalog.topics.get("t").topic_id, 0, 0)
    store.delete([extent.object_name], purpose=Purpose.GC)
    async with agents.running() as running:
        with capture_logs() as log:
            response = await running.http.get("/v1/topics/t/partitions/0/records")
    assert extent.object_name not in response.text
    event = _logged(log, _reference(response.json()["error"]["message"]))
    assert extent.object_name in event["reason"]
    assert "siltstone fsck" in event["reason"]


def _made(kind: type[SiltstoneError]) -> SiltstoneError:
    if kind is ObjectsNotDeletedError:
        return ObjectsNotDeletedError(_ADDRESS, {"v1/x": "away"})
    return kind(_ADDRESS)


def _kinds(module: ModuleType) -> list[type[SiltstoneError]]:
    return [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, SiltstoneError) and kind.__module__ == module.__name__
    ]


def test_no_error_of_the_object_store_is_sent_to_clients() -> None:
    """Each of them names the location of the objects."""
    kinds = _kinds(object_store.errors)
    assert StoreAccessError in kinds
    for kind in kinds:
        error = _made(kind)
        assert not is_client_safe(error), kind
        assert _ADDRESS not in (message_of(error) or ""), kind


def test_errors_about_the_database_are_not_sent_to_clients() -> None:
    """Errors about a topic, a group or a batch are sent to clients."""
    internal = {
        kind.__name__
        for kind in _kinds(catalog.errors)
        if kind not in _WITH_ARGUMENTS and not _is_client_safe(kind)
    }
    assert internal == {
        "CatalogAddressError",
        "CatalogTimeoutError",
        "CatalogUnavailableError",
        "EarlierAgentsError",
        "EmbeddedPostgresError",
        "JobVersionError",
        "MigrationError",
        "SchemaVersionError",
        "UnsafeCommitsError",
    }


_WITH_ARGUMENTS = {catalog.errors.InvalidConfigError, catalog.errors.TransactionRefusedError}


def _is_client_safe(kind: type[SiltstoneError]) -> bool:
    return is_client_safe(kind(_ADDRESS))


def test_errors_of_the_agents_limits_reach_clients_with_their_remedy() -> None:
    """A client that sends too much receives the complete message."""
    busy = BusyError("the buffer is full", remedy="retry it")
    assert message_of(busy) == "the buffer is full (retry it)"
    assert public_cause(StoreUnavailableError(_ADDRESS)) == "the object store does not respond"
