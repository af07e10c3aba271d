"""Topics, documentation, health and metrics over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from tests.agent.running_agents import Agents

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def test_a_topic_is_created_described_and_deleted(agents: Agents) -> None:
    async with agents.running() as running:
        http = running.http
        body = {"name": "flights", "partitions": 3, "config": {"cleanup.policy": "compact"}}
        created = await http.post("/v1/topics", json=body)
        assert created.status_code == 201
        topic = created.json()
        assert (topic["name"], topic["partitions"]) == ("flights", 3)
        assert topic["overrides"] == {"cleanup.policy": "compact"}
        assert (topic["config"]["cleanup.policy"], topic["config"]["max.message.bytes"]) == (
            "compact",
            "1048588",
        )
        assert (await http.get("/v1/topics/flights")).json() == topic
        assert (await http.get("/v1/topics")).json() == {"topics": [topic]}
        bounds = (await http.get("/v1/topics/flights/partitions")).json()["partitions"]
        assert [(each["partition"], each["high_watermark"]) for each in bounds] == [(0, 0), (1, 0), (2, 0)]
        assert (await http.post("/v1/topics", json=body)).status_code == 409
        await running.produce("flights", {"key": "x"})
        assert (await http.delete("/v1/topics/flights")).status_code == 204
        assert (await http.get("/v1/topics/flights")).status_code == 404
        assert (await http.get("/v1/topics/flights/partitions/0/records")).status_code == 404
        assert (await http.post("/v1/topics/flights/records", json={"records": []})).status_code == 404
        assert (await http.post("/v1/topics", json={"name": "flights"})).status_code == 201
        assert (await http.post("/v1/topics/flights/undelete")).status_code == 409
        renamed = await http.post("/v1/topics/flights/undelete", params={"new_name": "restored"})
        assert (renamed.status_code, renamed.json()["topic_id"]) == (200, topic["topic_id"])
        assert (await http.post("/v1/topics/flights/undelete")).status_code == 404
        bounds = (await http.get("/v1/topics/restored/partitions")).json()["partitions"]
        assert sum(each["high_watermark"] for each in bounds) == 1


async def test_an_invalid_topic_is_rejected_with_the_reason(agents: Agents) -> None:
    async with agents.running() as running:
        for body, message in (
            ({"name": "a b"}, "'a b' has a character"),
            ({"name": "t", "partitions": 0}, "partitions: Input should be greater than or equal to 1"),
            ({"name": "t", "config": {"cleanup.polici": "compact"}}, "no topic setting 'cleanup.polici'"),
            ({"name": "t", "config": {"retention.ms": "soon"}}, "retention.ms cannot be 'soon'"),
            ({"nam": "t"}, "nam: Extra inputs are not permitted"),
        ):
            response = await running.http.post("/v1/topics", json=body)
            assert response.status_code == 422
            assert message in response.json()["error"]["message"]


async def test_a_topic_that_another_agent_deleted_rejects_records(agents: Agents) -> None:
    """The agent still has it in its cache. The commit rejects the records, and the agent drops the entry."""
    async with agents.running(topic_cache_ms=3_600_000) as one, agents.running() as other:
        await one.create_topic("t")
        await one.produce("t", {"value": "x"})
        await other.http.delete("/v1/topics/t")
        response = await one.http.post("/v1/topics/t/records", json={"records": [{"value": "y"}]})
        assert response.status_code == 422
        assert response.json()["results"][0]["error"]["code"] == "unknown_topic_or_partition"
        assert (await one.http.post("/v1/topics/t/records", json={"records": []})).status_code == 404


async def test_the_documentation_needs_no_internet(agents: Agents) -> None:
    async with agents.running() as running:
        page = (await running.http.get("/docs")).text
        assert "http://" not in page
        assert "https://" not in page
        for asset in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"):
            assert f"/docs/assets/{asset}" in page
            assert (await running.http.get(f"/docs/assets/{asset}")).status_code == 200
        schema = (await running.http.get("/openapi.json")).json()
        assert schema["openapi"].startswith("3.0")
        assert {
            "/v1/topics",
            "/v1/topics/{topic}",
            "/v1/topics/{topic}/partitions",
            "/v1/topics/{topic}/records",
            "/v1/topics/{topic}/undelete",
            "/v1/topics/{topic}/partitions/{partition}/records",
            "/healthz",
            "/livez",
            "/readyz",
            "/metrics",
        } == set(schema["paths"])
        assert _dangling(schema, schema) == []


def _dangling(node: object, schema: dict[str, object]) -> list[str]:
    """Return the references of the schema that have no target."""
    if isinstance(node, list):
        return [found for item in node for found in _dangling(item, schema)]
    if not isinstance(node, dict):
        return []
    found = [name for value in node.values() for name in _dangling(value, schema)]
    reference = node.get("$ref")
    if isinstance(reference, str):
        target: object = schema
        for part in reference.removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, dict) else None
        if target is None:
            found.append(reference)
    return found


async def test_metrics_count_requests_records_and_store_calls(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"value": "x"}, {"value": "y"})
        await running.read("t")
        text = (await running.http.get("/metrics")).text
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples["siltstone_appended_records_total",] == 2
        assert samples["siltstone_ingestion_file_bytes_count",] == 1
        assert samples["siltstone_store_requests_total", ("kind", "put"), ("purpose", "ingest")] == 1
        assert samples["siltstone_catalog_calls_total", ("operation", "commits.commit")] == 1
        assert samples["siltstone_fetches_total", ("outcome", "records")] == 1
        assert samples["siltstone_tail_hits_total",] == 1
        assert samples["siltstone_write_buffer_bytes",] == 0
        produced = ("method", "POST"), ("route", "/v1/topics/{topic}/records"), ("status", "200")
        assert samples["siltstone_http_requests_total", *produced] == 1


async def test_metrics_label_requests_by_route_and_omit_created_series(agents: Agents) -> None:
    async with agents.running() as running:
        assert (await running.http.get("/docs/assets/swagger-ui.css")).status_code == 200
        text = (await running.http.get("/metrics")).text
        assert 'route="/docs/assets"' in text
        assert 'route="none"' not in text
        assert "_created" not in text
