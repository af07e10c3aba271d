"""Clients log in again and again, report failed logins, and take credentials from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from siltstone.cli.main import cli
from tests.agent.kafka.waiting import until
from tests.real_clients.sasl_agent import NAME, PASSWORD

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real_clients.sasl_agent import SaslAgent

pytestmark = pytest.mark.integration
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture
def agent(sasl_agent: SaslAgent) -> SaslAgent:
    return sasl_agent


def _confluent(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": NAME,
        "sasl.password": password,
    }


def _confluent_token(agent: SaslAgent, seconds: float = 300, **claims: Any) -> dict[str, Any]:  # noqa: ANN401  # any claim
    def token(_: str) -> tuple[str, float]:
        expires = agent.issuer.claims()["iat"] + seconds
        return agent.issuer.token(exp=int(expires), **claims), expires

    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}


def test_confluent_kafka_logs_in_again_before_its_session_ends(agent: SaslAgent) -> None:
    """Records arrive meanwhile, and the connection stays open (KIP-368)."""
    agent.broker.create_topic("again")
    closed = _closed_sessions(agent)
    errors: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": agent.address,
            "error_cb": errors.append,
            "linger.ms": 0,
            **_confluent("SCRAM-SHA-256"),
        }
    )
    before = agent.logins("SCRAM-SHA-256")
    sent = 0

    def produced_through_three_sessions() -> bool:
        nonlocal sent
        producer.produce("again", value=str(sent).encode())
        sent += 1
        return producer.flush(60) == 0 and agent.logins("SCRAM-SHA-256") >= before + 6

    until(produced_through_three_sessions)
    assert errors == []
    assert _closed_sessions(agent) == closed
    consumer = Consumer(
        {"bootstrap.servers": agent.open_address, "group.id": "again", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["again"])
    values: list[bytes | None] = []
    while len(values) < sent:
        values += [each.value() for each in consumer.consume(100, timeout=1)]
    consumer.close()
    assert values == [str(number).encode() for number in range(sent)]


def _closed_sessions(agent: SaslAgent) -> float:
    registry = agent.broker.agent.metrics.registry
    labels = {"reason": "session_expired"}
    return registry.get_sample_value("siltstone_kafka_connections_closed_total", labels) or 0.0


@pytest.mark.parametrize("mechanism", [*_PASSWORD_MECHANISMS, "OAUTHBEARER"])
def test_confluent_kafka_reports_a_failed_login(agent: SaslAgent, mechanism: str) -> None:
    wrong = _confluent(mechanism, "wrong")
    if mechanism == "OAUTHBEARER":
        wrong = _confluent_token(agent, aud="another service")
    found: list[KafkaError] = []
    consumer = Consumer(
        {"bootstrap.servers": agent.address, "group.id": "wrong", "error_cb": found.append, **wrong}
    )
    before = agent.logins(mechanism, "failure")

    def is_reported() -> bool:
        with pytest.raises(KafkaException):
            consumer.list_topics(timeout=0.2)
        consumer.poll(0)  # calls the callbacks
        return any(each.code() == KafkaError._AUTHENTICATION for each in found)

    until(is_reported)
    consumer.close()
    assert agent.logins(mechanism, "failure") > before


def test_commands_take_credentials_from_a_file_that_a_setting_names(
    agent: SaslAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.broker.create_topic("commands")
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in _confluent("SCRAM-SHA-512").items()))
    where = ["-b", agent.address, "--data-dir", str(tmp_path)]
    monkeypatch.setenv("SILTSTONE_CLIENT_CONFIG", str(file))
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)
    produced = CliRunner().invoke(cli, ["produce", "commands", *where], input=b"one\n")
    consumed = CliRunner().invoke(cli, ["consume", "commands", "--format", "value", *where])
    assert (produced.exit_code, consumed.exit_code) == (0, 0), produced.output + consumed.output
    assert consumed.stdout == "one\n"
    file.write_text(file.read_text().replace(PASSWORD, "wrong"))
    refused = CliRunner().invoke(cli, ["consume", "commands", *where])
    assert refused.exit_code == 75
    assert "Authentication failed" in refused.output
    assert "correct sasl.mechanism, sasl.username and sasl.password" in refused.output
    assert PASSWORD not in produced.output + consumed.output + refused.output
