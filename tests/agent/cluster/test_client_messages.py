"""What clients are told when something behind the agent fails, and what its log has instead."""

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
from object_store.errors import ObjectsNotDeletedError, StoreAccessError, StoreUnavailableError
from object_store.interface import Purpose

if TYPE_CHECKING:
    from types import ModuleType

    from structlog.typing import EventDict

    from catalog.open import Catalog
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.running_agents import Agents

pytestmark = pytest.mark.anyio
_PLACE = "catalog.internal.example:5432/ledger"


def _reference(text: str) -> str:
    found = re.search(r"by reference ([0-9a-f]{10})\b", text)
    assert found is not None, text
    return found[1]


def _logged(log: list[EventDict], reference: str) -> EventDict:
    (event,) = (each for each in log if each.get("reference") == reference)
    return event


async def test_an_answer_names_the_catalog_and_the_log_its_address(
    agents: Agents, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client hears what does not answer, and a reference by which the log says where that is."""

    def fail() -> None:
        raise CatalogUnavailableError(f"the catalog at {_PLACE} did not answer topics.list")

    async with agents.running() as running:
        monkeypatch.setattr(catalog.topics, "list", fail)
        with capture_logs() as log:
            answer = await running.http.get("/v1/topics")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "catalog_unavailable")
    assert error["message"].startswith("the catalog does not respond; ")
    assert "internal.example" not in answer.text
    event = _logged(log, _reference(error["message"]))
    assert _PLACE in event["reason"]
    assert (event["method"], event["path"], event["log_level"]) == ("GET", "/v1/topics", "warning")


async def test_a_defect_is_logged_under_the_reference_that_the_client_has(
    agents: Agents, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to what nobody thought of has none of its words, and the log has its traceback."""

    def fail() -> None:
        raise FatalError(f"the catalog at {_PLACE} refused topics.list: 42P01")

    async with agents.running() as running:
        monkeypatch.setattr(catalog.topics, "list", fail)
        with capture_logs() as log:
            answer = await running.http.get("/v1/topics")
    assert answer.status_code == 500
    assert _PLACE not in answer.text
    event = _logged(log, _reference(answer.json()["error"]["message"]))
    assert isinstance(event["exc_info"], FatalError)


async def test_who_cannot_append_is_told_by_which_reference_to_ask(
    agents: Agents, store: FaultyStore
) -> None:
    """One file that fails is one line of the log, whoever had records in it."""
    async with agents.running() as running:
        await running.create_topic("t")
        store.fail_puts = 10**6
        with capture_logs() as log:
            answer = await running.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        store.fail_puts = 0
    assert "the store is away" not in answer.text
    event = _logged(log, _reference(answer.json()["error"]["message"]))
    assert (event["event"], event["reason"]) == ("an ingestion file failed", "the store is away")


async def test_an_object_that_is_gone_is_named_in_the_log_alone(
    agents: Agents, catalog: Catalog, store: FaultyStore
) -> None:
    """The reader learns that it may try again; who runs the agent, which object it is and what to do."""
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"value": "x"})
    (extent,) = catalog.log.extents(catalog.topics.get("t").topic_id, 0, 0)
    store.delete([extent.object_name], purpose=Purpose.GC)
    async with agents.running() as running:
        with capture_logs() as log:
            answer = await running.http.get("/v1/topics/t/partitions/0/records")
    assert extent.object_name not in answer.text
    event = _logged(log, _reference(answer.json()["error"]["message"]))
    assert extent.object_name in event["reason"]
    assert "siltstone fsck" in event["reason"]


def _made(kind: type[SiltstoneError]) -> SiltstoneError:
    if kind is ObjectsNotDeletedError:
        return ObjectsNotDeletedError(_PLACE, {"v1/x": "away"})
    return kind(_PLACE)


def _kinds(module: ModuleType) -> list[type[SiltstoneError]]:
    return [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, SiltstoneError) and kind.__module__ == module.__name__
    ]


def test_no_error_of_the_object_store_is_for_clients() -> None:
    """Each of them says where the objects are, so none reaches a client by HTTP or by Kafka's protocol."""
    kinds = _kinds(object_store.errors)
    assert StoreAccessError in kinds
    for kind in kinds:
        error = _made(kind)
        assert not is_client_safe(error), kind
        assert _PLACE not in (message_of(error) or ""), kind


def test_what_the_catalog_says_of_itself_is_not_for_clients() -> None:
    """Errors about a topic, a group or a batch are; those about the database are not."""
    kept = {kind.__name__ for kind in _kinds(catalog.errors) if kind not in _WITH_MORE and not _told(kind)}
    assert kept == {
        "CatalogAddressError",
        "CatalogInUseError",
        "CatalogUnavailableError",
        "EmbeddedPostgresError",
        "SchemaVersionError",
    }


_WITH_MORE = {catalog.errors.InvalidConfigError}


def _told(kind: type[SiltstoneError]) -> bool:
    return is_client_safe(kind(_PLACE))


def test_the_agents_own_refusals_reach_clients_with_their_remedy() -> None:
    """Who sends too much at once is told so in full."""
    busy = BusyError("the buffer is full", remedy="send it again")
    assert message_of(busy) == "the buffer is full (send it again)"
    assert public_cause(StoreUnavailableError(_PLACE)) == "the object store does not respond"
