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
        await running.agent.quotas.refresh()
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
        await running.agent.quotas.refresh()
        assert len((await running.read("granite"))["records"]) == 2
