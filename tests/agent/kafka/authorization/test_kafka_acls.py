"""Kafka's own `kafka-acls.sh` adds, lists and removes ACLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.security.acl_bindings import PatternType
from tests.agent.kafka.authorization.principals import allow
from tests.fixtures import kafka_tools

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration


def test_kafka_acls_changes_and_lists_acls(secured: BrokerThread, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("client.id=admin\n")
    common = ("--bootstrap-server", secured.address, "--command-config", str(config))
    principal = ("--allow-principal", "User:CN=a,O=b", "--operation", "Read", "--operation", "Describe")
    of_topic = ("--topic", "orders", "--resource-pattern-type", "prefixed")

    def run(*arguments: str) -> str:
        return kafka_tools.run("org.apache.kafka.tools.AclCommand", *common, *arguments)

    added = run("--add", *principal, *of_topic)
    stored = secured.catalog.acls.load()
    assert stored is not None
    assert set(stored.bindings) == {*allow("CN=a,O=b", "Read Topic orders*", "Describe Topic orders*")}
    assert "principal=User:CN=a,O=b, host=*, operation=READ, permissionType=ALLOW" in added
    removed = run("--remove", "--force", "--topic", "orders", "--resource-pattern-type", "match")
    assert PatternType.PREFIXED.name not in removed
    stored = secured.catalog.acls.load()
    assert stored is not None
    assert stored.bindings == []
