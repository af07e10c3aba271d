"""Byte rates of HTTP clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.config.quota_entities import DEFAULT, QuotaEntity

if TYPE_CHECKING:
    from catalog.open import Catalog
    from tests.agent.running_agents import Agents

pytestmark = pytest.mark.anyio
_EVERYONE = QuotaEntity(user=DEFAULT)


async def test_a_user_beyond_its_byte_rates_is_told_when_to_retry(agents: Agents, catalog: Catalog) -> None:
    """Each direction for itself; other routes are not limited, and a removed quota ends it."""
    async with agents.running() as running:
        await running.create_topic("granite")
        await running.produce("granite", {"value": "x" * 5000})
        catalog.client_quotas.alter({_EVERYONE: {"producer_byte_rate": 100.0, "consumer_byte_rate": 100.0}})
        await running.agent.access.quotas.refresh()
        await running.produce("granite", {"value": "x" * 5000})
        records = "/v1/topics/granite/partitions/0/records"
        rejected = await running.http.post(records, json={"records": []})
        assert rejected.status_code == 429
        assert int(rejected.headers["Retry-After"]) > 30
        assert rejected.json()["error"]["code"] == "throttled"
        assert len((await running.read("granite"))["records"]) == 2
        assert (await running.http.get(records)).status_code == 429
        assert (await running.http.get("/v1/topics/granite")).status_code == 200
        catalog.client_quotas.alter({_EVERYONE: dict.fromkeys(["producer_byte_rate", "consumer_byte_rate"])})
        await running.agent.access.quotas.refresh()
        assert len((await running.read("granite"))["records"]) == 2


async def test_no_form_of_a_path_avoids_a_quota(agents: Agents, catalog: Catalog) -> None:
    """The router takes a path that ends in a newline for the one without it."""
    async with agents.running() as running:
        await running.create_topic("granite")
        catalog.client_quotas.alter({_EVERYONE: {"producer_byte_rate": 100.0, "consumer_byte_rate": 100.0}})
        await running.agent.access.quotas.refresh()
        await running.produce("granite", {"value": "x" * 5000})
        await running.read("granite")
        records = "/v1/topics/granite/partitions/0/records"
        for path in (f"{records}%0A", records.replace("/records", "%2Frecords"), f"{records}/"):
            for method in ("GET", "POST", "HEAD"):
                response = await running.http.request(method, path, json={"records": []})
                assert response.status_code in {307, 404, 405, 429}, (method, path)


async def test_a_user_beyond_its_rate_of_mutations_may_neither_create_nor_delete(
    agents: Agents, catalog: Catalog
) -> None:
    """As in Kafka, a mutation is allowed until the quota is used up. A refused one changes nothing."""
    async with agents.running() as running:
        await running.create_topic("kept")
        for name in ("deleted", "basalt"):
            await running.create_topic(name)
        assert (await running.http.delete("/v1/topics/deleted")).status_code == 204
        catalog.client_quotas.alter({_EVERYONE: {"controller_mutation_rate": 0.001}})
        await running.agent.access.quotas.refresh()
        await running.create_topic("granite", partitions=5)
        creation = {"name": "slate", "partitions": 1}
        for method, path, body in (
            ("POST", "/v1/topics", creation),
            ("DELETE", "/v1/topics/kept", None),
            ("POST", "/v1/topics/deleted/undelete", None),
        ):
            refused = await running.http.request(method, path, json=body)
            assert refused.status_code == 429, path
            assert int(refused.headers["Retry-After"]) > 30
            assert refused.json()["error"]["code"] == "throttled"
        listed = (await running.http.get("/v1/topics")).json()["topics"]
        assert {each["name"] for each in listed} == {"kept", "basalt", "granite"}


async def test_the_time_of_requests_counts(agents: Agents, catalog: Catalog) -> None:
    """It is that of the event loop and of the threads that work for a request."""
    async with agents.running() as running:
        await running.create_topic("granite")
        catalog.client_quotas.alter({_EVERYONE: {"request_percentage": 0.0001}})
        await running.agent.access.quotas.refresh()
        assert (await running.http.get("/v1/topics/granite")).status_code == 200
        assert (await running.http.get("/v1/topics/granite")).status_code == 429
        assert (await running.http.get("/livez")).status_code == 200
