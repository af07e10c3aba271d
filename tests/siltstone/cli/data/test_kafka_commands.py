"""`siltstone produce` and `siltstone consume` against running agents."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import structlog
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, KafkaException

from core.errors import FatalError
from siltstone.cli.data import produce
from siltstone.cli.main import cli
from siltstone.kafka_client import reader, sender
from siltstone.kafka_client.text_records import OutgoingRecord
from tests.agent.kafka.in_process_clients import consume
from tests.end_to_end.processes import environment
from tests.fixtures.logs import log_to_standard_error
from tests.real_clients.agents import Agents, two_agents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from confluent_kafka import Message

    from tests.fixtures.postgres import PostgresForTests

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def agents(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Two agents for all tests of this module; their logs do not mix with the output of commands."""
    structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())
    with two_agents(postgres, tmp_path_factory.mktemp("store")) as running:
        yield running
    log_to_standard_error()


def run(agents: Agents, *arguments: str, stdin: bytes = b"", code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [*arguments, "-b", agents.bootstrap], input=stdin)
    assert result.exit_code == code, result.output
    return result


def report(agents: Agents, *arguments: str, stdin: bytes = b"", code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(
        run(agents, *arguments, "--json", stdin=stdin, code=code).stdout.splitlines()[-1]
    )
    return found


@pytest.mark.parametrize("options", [["-z", codec] for codec in ("gzip", "snappy", "lz4", "zstd")], ids=str)
def test_lines_come_back_as_they_were_sent(agents: Agents, options: list[str]) -> None:
    topic = agents.create_topic(3)
    lines = [f"key {number}:value {number}" for number in range(50)]
    made = report(agents, "produce", topic, "-K", ":", *options, stdin="\n".join(lines).encode())
    assert (made["accepted"], made["rejected"], made["unconfirmed"]) == (50, 0, 0)
    assert sum(place["records"] for place in made["partitions"].values()) == 50
    assert sorted(run(agents, "consume", topic, "-K", ":").stdout.splitlines()) == sorted(lines)


@pytest.mark.parametrize("options", [["--acks", "0"], ["--acks", "1"], ["--no-idempotence"]], ids=str)
def test_records_are_produced_with_every_acks_setting(agents: Agents, options: list[str]) -> None:
    topic = agents.create_topic()
    assert report(agents, "produce", topic, *options, stdin=b"one\ntwo\n")["accepted"] == 2
    # With acks 0 there is no acknowledgement to wait for, so the consumer waits for both records.
    read = run(agents, "consume", topic, "--follow", "-c", "2", "--format", "value")
    assert read.stdout == "one\ntwo\n"


def test_files_are_read_and_failures_name_them(agents: Agents, tmp_path: Path) -> None:
    topic = agents.create_topic()
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("a\nb\n")
    second.write_bytes(b"c\r\n")
    assert report(agents, "produce", topic, str(first), str(second))["accepted"] == 3
    assert report(agents, "produce", topic, "--whole-files", "-k", "k", str(first))["accepted"] == 1
    assert [message.value() for message in consume(agents.bootstrap, topic, 4)] == [
        b"a",
        b"b",
        b"c",
        b"a\nb\n",
    ]
    second.write_text("no separator")
    failed = run(agents, "produce", topic, "-K", ":", str(first), str(second), code=1)
    assert f"{first}, line 1 has no ':'" in failed.stderr
    for unreadable in ("absent", "/proc/self/mem"):  # an error of the first read, too
        assert f"{unreadable} cannot be read" in run(agents, "produce", topic, unreadable, code=1).stderr


def test_json_lines_are_lossless_both_ways(agents: Agents) -> None:
    topic, copy = agents.create_topic(2), agents.create_topic(2)
    record = {
        "partition": 1,
        "offset": 0,
        "timestamp": 5,
        "key": "/w==",
        "key_encoding": "base64",
        "value": None,
        "headers": [{"key": "h", "value": "/w==", "value_encoding": "base64"}, {"key": "n", "value": None}],
    }
    run(agents, "produce", topic, "--json-lines", stdin=orjson.dumps(record))
    read = run(agents, "consume", topic, "--format", "json").stdout
    assert orjson.loads(read) == record
    run(agents, "produce", copy, "--json-lines", stdin=read.encode())
    assert run(agents, "consume", copy, "--format", "json").stdout == read


def test_headers_nulls_encodings_and_partitions_follow_the_options(agents: Agents) -> None:
    topic = agents.create_topic(2)
    arguments = ("-K", ":", "-Z", "-", "--key-encoding", "hex", "-H", "by=me", "-p", "1")
    run(agents, "produce", topic, *arguments, stdin=b"ff00:-\n")
    (message,) = consume(agents.bootstrap, topic, 1, partition=1)
    assert (message.key(), message.value(), message.headers()) == (b"\xff\x00", None, [("by", b"me")])
    text = run(agents, "consume", topic, "--key-encoding", "base64", "-Z", "null", "-K", "=")
    assert text.stdout == "/wA==null\n"


def test_rejected_records_are_listed_and_counted(agents: Agents) -> None:
    topic = agents.create_topic(cleanup_policy="compact")
    result = run(agents, "produce", topic, "--json", stdin=b"a\nb\n", code=1)
    assert orjson.loads(result.stdout)["rejected"] == 2
    assert "line 1: rejected: INVALID_RECORD" in result.stderr
    assert "line 2: rejected: INVALID_RECORD" in result.stderr
    assert "without a key" in result.stderr


def test_a_fatal_error_of_the_client_ends_the_command_with_its_reason(agents: Agents) -> None:
    """The client raises it from the call that receives delivery reports, and sends nothing afterwards."""
    topic = agents.create_topic(cleanup_policy="compact")
    lines = b"".join(b"line %d\n" % number for number in range(3))
    options = ("--batch-records", "1", "-X", "enable.gapless.guarantee=true")
    result = run(agents, "produce", topic, *options, stdin=lines, code=1)
    assert "error: the Kafka client stopped with a fatal error: _GAPLESS_GUARANTEE" in result.stderr
    assert "run the command again" in result.stderr


def test_a_sender_notices_a_fatal_error_while_it_has_more_to_send(agents: Agents) -> None:
    """It stops with the first record after the error, and leaves the rest of the input unread."""
    topic = agents.create_topic(cleanup_policy="compact")
    gapless = {"enable.idempotence": "true", "enable.gapless.guarantee": "true"}
    properties = {"bootstrap.servers": agents.bootstrap, **gapless}
    failures: list[tuple[int, str, bool]] = []
    with sender.Sender[int](properties, topic, lambda *failure: failures.append(failure)) as sending:
        sending.send(0, OutgoingRecord(key=None, value=b"x"))
        sending.finish()
        sending.send(1, OutgoingRecord(key=None, value=b"x"))
        with pytest.raises(FatalError, match="stopped with a fatal error"):
            sending.raise_if_unable()
    assert [tag for tag, _, _ in failures] == [0, 1]


def test_an_error_of_the_caller_ends_a_sender_after_all_reports(agents: Agents) -> None:
    """Such as a write to a closed standard error; the other records are counted."""
    topic = agents.create_topic(cleanup_policy="compact")
    properties = {"bootstrap.servers": agents.bootstrap, "batch.num.messages": "1"}

    def fail(tag: int, _reason: str, _is_unconfirmed: bool) -> None:
        raise BrokenPipeError(f"record {tag}")

    with sender.Sender[int](properties, topic, fail) as sending:
        for tag, key in enumerate((b"a", None, b"b", None, b"c")):
            sending.send(tag, OutgoingRecord(key=key, value=b"x"))
        sending.finish()
        assert (sending.counts.accepted, sending.counts.rejected) == (3, 2)
        with pytest.raises(BrokenPipeError, match="record 1"):
            sending.raise_if_unable()


def test_a_sender_does_not_linger_at_its_end(agents: Agents) -> None:
    """The client would keep records for a quarter of an hour, because more may follow."""
    lingering = ("-X", "linger.ms=900000", "-X", "message.timeout.ms=1000000")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "siltstone",
            "produce",
            agents.create_topic(),
            "-b",
            agents.bootstrap,
            *lingering,
        ],
        input=b"one\ntwo\n",
        capture_output=True,
        env=environment(),
        timeout=240,
        check=True,
    )
    assert done.stdout == b"2 records accepted\n"


def test_a_reader_ends_with_a_fatal_error_of_the_client(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises it from the call that returns records."""

    def fail(consumer: Consumer, *_: object) -> list[Message]:  # noqa: ARG001
        raise KafkaException(KafkaError(KafkaError.FENCED_INSTANCE_ID, "another member has its place", True))

    monkeypatch.setattr(reader, "Consumer", type("Fenced", (Consumer,), {"consume": fail}))
    result = run(agents, "consume", agents.create_topic(), "--follow", code=1)
    assert "error: the Kafka client stopped with a fatal error: FENCED_INSTANCE_ID" in result.stderr
    assert "run the command again" in result.stderr


def test_a_record_beyond_the_topics_limit_is_rejected(agents: Agents) -> None:
    topic = agents.create_topic(max_message_bytes="1000")
    result = run(agents, "produce", topic, "--batch-records", "1", stdin=b"a\n" + b"b" * 2000, code=1)
    assert "1 record accepted, 1 rejected" in result.stdout
    assert "line 2: rejected: MSG_SIZE_TOO_LARGE" in result.stderr
    assert "max.message.bytes" in result.stderr


def test_records_that_are_not_delivered_in_time_are_unconfirmed(agents: Agents) -> None:
    """The timeout is so short that even a fast broker exceeds it."""
    topic = agents.create_topic()
    agents.store.gate.clear()
    try:
        arguments = ("-X", "message.timeout.ms=300", "--no-idempotence", "--json")
        result = run(agents, "produce", topic, *arguments, stdin=b"a\n", code=75)
    finally:
        agents.store.gate.set()
    assert orjson.loads(result.stdout)["unconfirmed"] == 1
    assert "line 1: unconfirmed: _MSG_TIMED_OUT" in result.stderr
    assert "1 record may or may not have been appended" in result.stderr


def test_a_long_wait_for_acknowledgements_is_reported(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent with a full buffer asks for a retry, and the client silently retries for two minutes."""
    topic = agents.create_topic()
    tell = produce._print_waiting

    def tell_and_go_on(records: int) -> None:
        tell(records)
        agents.store.gate.set()

    monkeypatch.setattr(sender, "_NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(produce, "_print_waiting", tell_and_go_on)
    agents.store.gate.clear()
    try:
        result = run(agents, "produce", topic, stdin=b"a\n")
    finally:
        agents.store.gate.set()
    assert "waiting for 1 record to be acknowledged" in result.stderr
    assert "1 record accepted" in result.stdout


def test_reading_starts_at_the_given_position(agents: Agents) -> None:
    topic = agents.create_topic(2)
    lines = [orjson.dumps({"value": str(n), "partition": n % 2, "timestamp": 1000 + n}) for n in range(10)]
    run(agents, "produce", topic, "--json-lines", stdin=b"\n".join(lines))

    def values(*arguments: str) -> list[str]:
        return sorted(run(agents, "consume", topic, "--format", "value", *arguments).stdout.split())

    assert values() == values("-o", "beginning") == [str(n) for n in range(10)]
    assert values("-o", "end") == []
    assert values("-o", "-1") == ["8", "9"]
    assert values("-p", "1", "-o", "3") == ["7", "9"]
    assert values("--timestamp", "1006") == values("--timestamp", "1970-01-01T00:00:01.006Z")
    assert values("--timestamp", "1006") == ["6", "7", "8", "9"]
    assert values("--timestamp", "2000000000000") == []
    assert len(values("-c", "3")) == 3
    outside = run(agents, "consume", topic, "-p", "1", "-o", "6", code=1)
    assert f"offset 6 is outside of {topic}-1, which has 0 to 5" in outside.stderr
    assert "no partition 7" in run(agents, "consume", topic, "-p", "7", code=1).stderr
    assert report(agents, "consume", topic)["next_offsets"] == {"0": 5, "1": 5}


def test_an_unknown_topic_is_an_error_with_a_remedy(agents: Agents) -> None:
    for command in ("produce", "consume"):
        result = run(agents, command, "absent", code=1)
        assert "topic 'absent'" in result.stderr
        assert "siltstone topics create absent" in result.stderr


def test_a_group_continues_at_its_committed_offsets(agents: Agents) -> None:
    topic, group = agents.create_topic(2), agents.new_name()
    run(agents, "produce", topic, stdin=b"".join(b"%d\n" % n for n in range(20)))
    first = run(agents, "consume", topic, "-G", group, "-c", "7", "--format", "value").stdout.split()
    second = run(agents, "consume", topic, "-G", group, "-e", "--format", "value").stdout.split()
    assert len(first) == 7
    assert sorted(first + second, key=int) == [str(n) for n in range(20)]
    assert report(agents, "consume", topic, "-G", group, "-e")["records"] == 0


def test_properties_of_the_client_come_from_files_and_options(agents: Agents, tmp_path: Path) -> None:
    topic = agents.create_topic()
    file = tmp_path / "client.properties"
    file.write_text(f"# where\n\nbootstrap.servers={agents.bootstrap}\nacks=0\n")
    result = CliRunner().invoke(
        cli, ["produce", topic, "-F", str(file), "-X", "acks=all", "--json"], input=b"a\n"
    )
    # With acks 0 the offset would not be known.
    assert orjson.loads(result.stdout)["partitions"]["0"]["first_offset"] == 0


def test_a_consumer_that_follows_prints_new_records_until_it_is_interrupted(agents: Agents) -> None:
    """^C is no failure, and the offsets of printed records are committed."""
    topic, group = agents.create_topic(), agents.new_name()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "siltstone", "consume", topic, "-b", agents.bootstrap),
            *("-G", group, "--json", "--format", "value"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        for word in (b"one", b"two"):
            run(agents, "produce", topic, stdin=word)
            assert process.stdout.readline() == word + b"\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert orjson.loads(out) == {"topic": topic, "records": 2, "next_offsets": {"0": 2}}
    assert report(agents, "consume", topic, "-G", group, "-e")["records"] == 0


def test_an_interrupt_does_not_lose_count_of_printed_records(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = agents.create_topic(), agents.new_name()
    run(agents, "produce", topic, stdin=b"one")
    mark_consumed = reader.Reader.mark_consumed

    def interrupt_first(self: reader.Reader, records: list[Message]) -> None:
        signal.raise_signal(signal.SIGINT)
        mark_consumed(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(reader.Reader, "mark_consumed", interrupt_first)
        assert report(agents, "consume", topic, "-G", group)["records"] == 1
    assert report(agents, "consume", topic, "-G", group, "-e")["records"] == 0


def test_an_interrupted_producer_sends_what_it_has_read(agents: Agents) -> None:
    topic = agents.create_topic()
    with subprocess.Popen(
        [sys.executable, "-m", "siltstone", "produce", topic, "-b", agents.bootstrap, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        assert len(consume(agents.bootstrap, topic, 2)) == 2  # while it waits for more
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert orjson.loads(out)["accepted"] == 2
    assert b"stopped reading" in err
