"""The manifests name routes and settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

from agent.http.openapi_reference import PAGE
from agent.settings import AgentSettings
from siltstone.settings.configuration import ENVIRONMENT_PREFIX, SETTINGS

ROOT = Path(__file__).parents[2]
MANIFEST = (ROOT / "deploy" / "kubernetes" / "agents.yaml").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "how-to" / "production.md").read_text(encoding="utf-8")


def test_the_probes_request_documented_routes() -> None:
    probes = re.findall(r"(\w+)Probe:.*\n\s+httpGet: \{path: (\S+), port: health\}", MANIFEST)

    assert probes == [("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")]
    reference = PAGE.read_text(encoding="utf-8")
    assert all(f"GET {path}" in reference for _, path in probes)


def test_the_environment_consists_of_settings() -> None:
    names = re.findall(rf"{ENVIRONMENT_PREFIX}(\w+)", MANIFEST)

    assert len(names) > 5
    assert [name for name in names if name.lower() not in SETTINGS] == []


def test_a_pod_has_time_to_stop() -> None:
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", MANIFEST)
    (drain_ms,) = re.findall(r'SILTSTONE_DRAIN_MS, value: "(\d+)"', MANIFEST)
    assert int(grace) * 1000 > int(drain_ms) + AgentSettings().stop_timeout_ms


def test_a_pod_has_the_resources_of_the_guide_and_twice_the_memory_of_all_budgets() -> None:
    """The rest is for the process, for local disks and for fragmentation. There is no limit of cores."""
    (cores, request, limit) = re.findall(
        r'^          resources:.*\n {12}requests: \{cpu: "(\d+)", memory: (\d+)Gi\}\n'
        r" {12}limits: \{memory: (\d+)Gi\}",
        MANIFEST,
        re.MULTILINE,
    )[0]
    assert cores == "2"
    assert f"Start with two cores and {request} GiB." in GUIDE
    assert limit == request
    settings = AgentSettings()
    budgets = (
        settings.max_buffered_bytes,
        settings.tail_bytes,
        settings.cache_bytes,
        settings.max_fetches_bytes,
        settings.max_requests_bytes,
        settings.max_parsed_bytes,
        settings.max_read_ahead_bytes,
        settings.groups.groups_max_bytes,
    )
    assert int(limit) << 30 > 2 * sum(budgets)


def test_a_container_has_no_privileges_and_writes_only_to_its_volumes() -> None:
    assert "runAsNonRoot: true" in MANIFEST
    assert "seccompProfile: {type: RuntimeDefault}" in MANIFEST
    assert "allowPrivilegeEscalation: false" in MANIFEST
    assert "capabilities: {drop: [ALL]}" in MANIFEST
    assert "readOnlyRootFilesystem: true" in MANIFEST
    mounts = re.findall(r"- \{name: \w+, mountPath: (\S+)\}", MANIFEST)
    assert mounts == ["/data", "/tmp"]
