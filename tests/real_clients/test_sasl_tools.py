"""Kafka's tools change users, and log in with each mechanism."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real_clients.test_kafka_tools import Tools

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real_clients.sasl_agent import SaslAgent

pytestmark = pytest.mark.integration
_MODULES = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM = "scram.ScramLoginModule"


def test_users_are_changed_and_log_in(sasl_agent: SaslAgent, tmp_path: Path) -> None:
    agent = sasl_agent
    tools = Tools(agent.open_address)
    clients = Tools(agent.address)
    try:
        both = "SCRAM-SHA-256=[iterations=8192,password=alice-1],SCRAM-SHA-512=[password=alice-1]"
        user = "--entity-type users --entity-name alice"
        changed = tools(f"kafka-configs --alter --add-config {both} {user}")
        assert "Completed updating config for user alice" in changed
        described = tools(f"kafka-configs --describe {user}")
        assert "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096" in described
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            config = tmp_path / f"{mechanism}.properties"
            _write(config, mechanism, "alice-1")
            agent.broker.create_topic(f"topic-{mechanism}")
            listed = clients(f"kafka-topics --list --command-config {config}")
            assert f"topic-{mechanism}" in listed
            assert agent.logins(mechanism) >= 1
        config = tmp_path / "wrong.properties"
        _write(config, "SCRAM-SHA-512", "wrong")
        refused = clients.failing(f"kafka-topics --list --command-config {config}")
        assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in refused
        tools(f"kafka-configs --alter --delete-config SCRAM-SHA-512 {user}")
        assert "SCRAM-SHA-512" not in tools(f"kafka-configs --describe {user}")
    finally:
        for each in (tools, clients):
            each.process.kill()
            each.process.communicate()


def _write(file: Path, mechanism: str, password: str) -> None:
    module = f"org.apache.kafka.common.security.{_MODULES.get(mechanism, _SCRAM)}"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="alice" password="{password}";\n'
    )
