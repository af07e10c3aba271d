"""The manifests name routes and settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

from agent.http.openapi_reference import PAGE
from agent.settings import AgentSettings
from siltstone.settings.configuration import ENVIRONMENT_PREFIX, SETTINGS

MANIFEST = (Path(__file__).parents[2] / "deploy" / "kubernetes" / "agents.yaml").read_text(encoding="utf-8")


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


def test_a_container_has_no_privileges_and_writes_only_to_its_volumes() -> None:
    assert "runAsNonRoot: true" in MANIFEST
    assert "seccompProfile: {type: RuntimeDefault}" in MANIFEST
    assert "allowPrivilegeEscalation: false" in MANIFEST
    assert "capabilities: {drop: [ALL]}" in MANIFEST
    assert "readOnlyRootFilesystem: true" in MANIFEST
    mounts = re.findall(r"- \{name: \w+, mountPath: (\S+)\}", MANIFEST)
    assert mounts == ["/data", "/tmp"]
