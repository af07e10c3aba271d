"""`siltstone produce` and `consume` of principals that lack rights: each error names the missing ACL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, KafkaException

from siltstone.cli.main import cli
from siltstone.kafka_client.sender import Sender
from siltstone.kafka_client.text_records import OutgoingRecord
from tests.agent.kafka.authorization.principals import allow, refresh
from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.agent.kafka.brokers import BrokerThread

_ADD = "siltstone acls add"


def test_a_reader_without_a_group_needs_no_right_of_a_group(
    secured: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)
    secured.create_topic("lines")
    secured.catalog.acls.add(allow("dora", "Read Topic lines", "Write Topic lines"))
    refresh(secured)
    where = ["-b", secured.address, "-X", "client.id=dora", "--data-dir", str(tmp_path)]
    produced = CliRunner().invoke(cli, ["produce", "lines", *where], input=b"one\n")
    assert produced.exit_code == 0, produced.output
    consumed = CliRunner().invoke(cli, ["consume", "lines", "--format", "value", *where])
    assert (consumed.exit_code, consumed.stdout) == (0, "one\n"), consumed.output
    member = CliRunner().invoke(cli, ["consume", "lines", "--group", "members", *where])
    assert member.exit_code == 1
    assert "GROUP_AUTHORIZATION_FAILED" in member.output
    assert f"{_ADD} --group members --allow-principal User:NAME --operation Read" in _flat(member.output)


def test_a_missing_right_of_a_topic_is_named(
    secured: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)
    for name in ("hidden", "listed", "other"):
        secured.create_topic(name)
    rights = ("Describe Topic listed", "Write Topic other")
    writer = allow("ella", "Write Topic listed")
    secured.catalog.acls.add([*allow("dora", *rights), *allow("rita", rights[0]), *writer])
    refresh(secured)

    def run(command: str, topic: str, user: str) -> Result:
        where = ["-b", secured.address, "-X", f"client.id={user}", "--data-dir", str(tmp_path)]
        return CliRunner().invoke(cli, [command, topic, *where], input=b"one\ntwo\n")

    def refused(command: str, topic: str, user: str = "dora") -> str:
        result = run(command, topic, user)
        assert result.exit_code == 1, result.output
        assert "AUTHORIZATION_FAILED" in result.output
        return _flat(result.output)

    def added(topic: str, operation: str) -> str:
        return f"{_ADD} --topic {topic} --allow-principal User:NAME --operation {operation}"

    assert run("produce", "listed", "ella").exit_code == 0
    assert added("hidden", "Write") in refused("produce", "hidden")
    assert added("hidden", "Read") in refused("consume", "hidden")
    assert added("listed", "Read") in refused("consume", "listed")
    records = refused("produce", "listed")
    assert "0 records accepted, 2 rejected" in records
    assert records.count(added("listed", "Write")) == 1
    # An idempotent producer that may write to no topic gets no producer id.
    assert added("listed", "Write") in refused("produce", "listed", user="rita")


def test_a_record_that_is_sent_after_a_fatal_error_fails_with_its_reason(secured: BrokerThread) -> None:
    """A client that was refused a producer id takes no record, and says only that an error was fatal."""
    secured.create_topic("seen")
    secured.catalog.acls.add(allow("olga", "Describe Topic seen"))
    refresh(secured)
    reasons: list[str] = []
    configuration = {"bootstrap.servers": secured.address, "client.id": "olga", "enable.idempotence": True}
    sender: Sender[None] = Sender(configuration, "seen", lambda _tag, reason, _: reasons.append(reason))

    def is_fatal() -> bool:
        """Return True if the client takes no record; the thread of the sender has not heard of it yet."""
        try:
            sender.producer.produce("seen", b"probe")
        except KafkaException as failure:
            return bool(failure.args[0].code() == KafkaError._FATAL)
        sender.producer.purge()
        return False

    until(is_fatal)
    with sender:
        sender.send(None, OutgoingRecord(None, b"x"))
        sender.finish()
    assert len(reasons) == sender.counts.rejected == 1
    assert "AUTHORIZATION_FAILED" in reasons[0]
    assert sender.denial is not None


def _flat(output: str) -> str:
    return " ".join(output.split())
