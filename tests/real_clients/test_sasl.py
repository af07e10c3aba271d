"""Clients in Python log in with each mechanism that they have, and produce and consume."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]  # it brings no types
from aiokafka.abc import AbstractTokenProvider  # type: ignore[import-untyped]  # as above
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from typing_extensions import override

from siltstone.cli.main import cli
from tests.agent.kafka.waiting import until
from tests.real_clients.sasl_agent import NAME, ORDINARY_NAME, PASSWORD, running_sasl_agent

with warnings.catch_warnings():
    # It reads its schemas with a function that is deprecated in Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # type: ignore[import-untyped]  # as above
    from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider  # type: ignore[import-untyped]  # as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.postgres import PostgresForTests
    from tests.real_clients.sasl_agent import SaslAgent

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning"),
]
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def agent(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslAgent]:
    """An agent whose sessions end after 1.5 s, so that clients log in again."""
    directory = tmp_path_factory.mktemp("sasl")
    with running_sasl_agent(postgres, directory, max_reauth_ms=1_500) as running:
        yield running


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


def test_confluent_kafka_logs_in(agent: SaslAgent) -> None:
    ways = [(each, _confluent(each)) for each in _PASSWORD_MECHANISMS]
    for mechanism, settings in (*ways, ("OAUTHBEARER", _confluent_token(agent))):
        topic = f"confluent-{mechanism}"
        agent.broker.create_topic(topic)
        before = agent.logins(mechanism)
        assert _round_trip(agent.address, topic, settings) == b"one"
        assert agent.logins(mechanism) >= before + 2
        over_tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(agent.authority.file)}
        assert _round_trip(agent.encrypted_address, topic, {**settings, **over_tls}) == b"one"


def _round_trip(address: str, topic: str, settings: dict[str, Any]) -> bytes | None:
    producer = Producer({"bootstrap.servers": address, **settings})
    producer.produce(topic, b"one")
    assert producer.flush(120) == 0
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.poll(120)
    consumer.close()
    assert found is not None
    assert found.error() is None
    return found.value()


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
    assert PASSWORD not in produced.output + consumed.output + refused.output


class _AioTokens(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
    def __init__(self, issue: Callable[[], str]) -> None:
        self._issue = issue

    @override
    async def token(self) -> str:
        return self._issue()


def test_aiokafka_logs_in(agent: SaslAgent) -> None:
    for mechanism in (*_PASSWORD_MECHANISMS, "OAUTHBEARER"):
        topic = f"aiokafka-{mechanism}"
        agent.broker.create_topic(topic)
        settings: dict[str, Any] = {
            "bootstrap_servers": agent.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _AioTokens(agent.issuer.token)
        else:
            settings |= {"sasl_plain_username": NAME, "sasl_plain_password": PASSWORD}
        before = agent.logins(mechanism)
        assert asyncio.run(_aiokafka(topic, settings)) == b"one"
        assert agent.logins(mechanism) >= before + 2


async def _aiokafka(topic: str, settings: dict[str, Any]) -> bytes | None:
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait(topic, b"one")
    async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
        value: bytes | None = (await consumer.getone()).value
        return value


class _PythonTokens(PythonTokenProvider):  # type: ignore[misc]  # it has no types
    def __init__(self, issue: Callable[[], str]) -> None:
        self._issue = issue

    @override
    def token(self) -> str:
        return self._issue()

    @override
    def extensions(self) -> dict[str, str]:
        return {"traceId": "123"}


def test_kafka_python_logs_in(agent: SaslAgent) -> None:
    """It (3.0.12) does not escape names for SCRAM, so the user has an ordinary one."""
    for mechanism in (*_PASSWORD_MECHANISMS, "OAUTHBEARER"):
        topic = f"python-{mechanism}"
        agent.broker.create_topic(topic)
        settings: dict[str, Any] = {
            "bootstrap_servers": agent.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _PythonTokens(agent.issuer.token)
        else:
            settings |= {"sasl_plain_username": ORDINARY_NAME, "sasl_plain_password": PASSWORD}
        before = agent.logins(mechanism)
        producer = kafka.KafkaProducer(**settings)
        producer.send(topic, b"one").get(60)
        producer.close()
        consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", **settings)
        assert next(consumer).value == b"one"
        consumer.close()
        assert agent.logins(mechanism) >= before + 2
