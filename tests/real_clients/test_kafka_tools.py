"""Kafka's command line tools with two agents. One Java process runs them all."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent.kafka.api_registry import APIS
from agent.kafka.apis.configs.describe_configs import _TYPES
from agent.kafka.apis.configs.resources import ResourceType
from agent.kafka.codec import Struct
from catalog.config.broker_definitions import BROKER_SETTINGS
from catalog.config.definitions import GROUP_SETTINGS, TOPIC_SETTINGS
from catalog.model import PartitionId
from catalog.transactions.rules import TransactionState
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.coordinators import groups_of
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire
from tests.fixtures import kafka_tools
from tests.fixtures.pipes import is_readable
from tests.real_clients.client_driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real_clients.agents import Agents

pytestmark = pytest.mark.integration
_TOOLS = "org.apache.kafka.tools"
# Kafka keeps these apart from its other broker settings (QuotaConfig).
_THROTTLES = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
_CLASSES = {
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-log-dirs": f"{_TOOLS}.LogDirsCommand",
    "kafka-broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "kafka-delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "kafka-producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "kafka-consumer-perf-test": f"{_TOOLS}.ConsumerPerformance",
    "kafka-leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "kafka-reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-transactions": f"{_TOOLS}.TransactionsCommand",
}
# The defaults are five and ten seconds.
_LONGER_TIMEOUTS = {
    "kafka-consumer-groups": "--timeout 120000",
    "kafka-consumer-perf-test": "--timeout 120000",
}
_TIMEOUT_SECONDS = 300
_SESSION = "consumer.session.timeout.ms"


class Tools:
    """Runs Kafka's tools by the names of their scripts."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        source = ROOT / "tests" / "real_clients" / "java" / "Tools.java"
        self.process = subprocess.Popen(
            kafka_tools.command(str(source)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def _request(self, arguments: list[str]) -> Any:  # noqa: ANN401  # JSON
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(orjson.dumps(arguments, option=orjson.OPT_APPEND_NEWLINE))
        self.process.stdin.flush()
        assert is_readable(self.process.stdout, _TIMEOUT_SECONDS), f"no response to {arguments}"
        line = self.process.stdout.readline()
        assert line, f"Java ended during {arguments}"
        return orjson.loads(line)

    def settings(self) -> dict[str, Any]:
        """Return the types and defaults of Kafka's settings of topics, groups and brokers."""
        found: dict[str, Any] = self._request(["settings"])
        return found

    def run(self, line: str) -> tuple[int, str]:
        """Run a command, and return its status and output."""
        name, *arguments = line.split()
        common = ["--bootstrap-server", self._bootstrap, *_LONGER_TIMEOUTS.get(name, "").split()]
        response = self._request([_CLASSES[name], *common, *arguments])
        return response["status"], response["output"]

    def __call__(self, line: str) -> str:
        """Run a command that succeeds, and return its output."""
        status, output = self.run(line)
        assert status == 0, output
        return output

    def failing(self, line: str) -> str:
        """Run a command that fails, and return its output."""
        status, output = self.run(line)
        assert status == 1, output
        return output


@pytest.fixture(scope="module")
def tools(agents: Agents) -> Iterator[Tools]:
    started = Tools(agents.bootstrap)
    yield started
    started.process.kill()
    started.process.communicate()


def test_the_tools_administer_topics_and_settings(agents: Agents, tools: Tools) -> None:
    """They create and change them, describe the source of each value, and print errors."""
    name, group = agents.new_name(), agents.new_name()
    created = tools(
        f"kafka-topics --create --topic {name} --partitions 3 --config remote.storage.enable=false"
    )
    assert f"Created topic {name}." in created
    tools(f"kafka-topics --alter --topic {name} --partitions 4")
    described = tools(f"kafka-topics --describe --topic {name}")
    assert "PartitionCount: 4\tReplicationFactor: 1\tConfigs: remote.storage.enable=false" in described
    assert described.count("Leader: ") == 4
    assert name in tools("kafka-topics --list").split()
    tools(f"kafka-configs --alter --topic {name} --add-config retention.ms=1000")
    assert (
        "retention.ms=1000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1000,"
        " DEFAULT_CONFIG:log.retention.ms=604800000}"
    ) in tools(f"kafka-configs --describe --topic {name}")
    everything = tools(f"kafka-configs --describe --topic {name} --all")
    assert all(f"  {setting}=" in everything for setting in TOPIC_SETTINGS)
    output = tools.failing(f"kafka-configs --alter --topic {name} --add-config remote.log.copy.disable=true")
    assert "use false: storage.mode decides" in output
    change = "kafka-configs --alter --broker 1 --add-config"
    assert "set segment.ms on topics" in tools.failing(f"{change} log.roll.ms=5")
    tools(f"{change} leader.replication.throttled.rate=5")
    changed = tools("kafka-configs --describe --broker 1")
    assert "leader.replication.throttled.rate=5" in changed
    assert "DYNAMIC_BROKER_CONFIG" in changed
    tools("kafka-configs --alter --broker 1 --delete-config leader.replication.throttled.rate")
    tools("kafka-configs --alter --broker-defaults --add-config num.io.threads=16")
    assert "num.io.threads=16" in tools("kafka-configs --describe --broker-defaults")
    tools("kafka-configs --alter --broker-defaults --delete-config num.io.threads")
    assert "num.io.threads" not in tools("kafka-configs --describe --broker 1")
    tools(f"kafka-configs --alter --group {group} --add-config {_SESSION}=50000")
    assert f"Dynamic configs for group {group} are:" in tools("kafka-configs --describe --entity-type groups")
    assert f"{_SESSION}=50000" in tools(f"kafka-configs --describe --group {group}")
    output = tools.failing(f"kafka-configs --alter --group {group} --add-config {_SESSION}=5")
    assert "give 45000 to 60000" in output
    tools(f"kafka-topics --delete --topic {name}")
    assert name not in tools("kafka-topics --list").split()


def test_the_tools_produce_consume_and_administer_groups(
    agents: Agents, tools: Tools, tmp_path: Path
) -> None:
    """They also delete records, and show, reset and delete the group."""
    topic, group = agents.create_topic(), agents.new_name()
    of_group = f"kafka-consumer-groups --group {group}"

    def positions() -> list[list[str]]:
        """Return partition, offset, end offset and lag of each row."""
        rows = [line.split() for line in tools(f"{of_group} --describe --offsets").splitlines()]
        return [row[2:6] for row in rows if row[:2] == [group, topic]]

    sent = tools(
        f"kafka-producer-perf-test --topic {topic} --num-records 100 --record-size 10 --throughput -1"
    )
    assert "100 records sent" in sent
    assert f"{topic}:0:100" in tools(f"kafka-get-offsets --topic {topic}").split()
    tools(f"kafka-consumer-perf-test --topic {topic} --group {group} --num-records 100")
    assert positions() == [["0", "100", "100", "0"]]
    assert "Empty" in tools(f"{of_group} --describe --state")
    for options, found in (
        ("--state Empty", True),
        ("--type classic", True),
        ("--state Stable", False),
        ("--type consumer", False),
    ):
        assert (group in tools(f"kafka-consumer-groups --list {options}")) == found
    tools(f"{of_group} --reset-offsets --topic {topic} --to-offset 5 --execute")
    assert positions() == [["0", "5", "100", "95"]]
    tools(f"{of_group} --delete-offsets --topic {topic}")
    assert positions() == []
    assert "successful" in tools(f"{of_group} --delete")
    assert "GroupIdNotFoundException" in tools(f"{of_group} --describe")
    wanted = tmp_path / "delete.json"
    wanted.write_bytes(orjson.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 5}]}))
    deleted = tools(f"kafka-delete-records --offset-json-file {wanted}")
    assert f"partition: {topic}-0\tlow_watermark: 5" in deleted
    assert f"{topic}:0:5" in tools(f"kafka-get-offsets --topic {topic} --time earliest").split()
    described = tools(f"kafka-log-dirs --describe --topic-list {topic}").splitlines()[-1]
    brokers = orjson.loads(described)["brokers"]
    shown = [part for each in brokers for found in each["logDirs"] for part in found["partitions"]]
    assert [part["partition"] for part in shown] == [f"{topic}-0"]
    assert len(brokers) == 2


def test_the_tools_report_unsupported_apis(agents: Agents, tools: Tools, tmp_path: Path) -> None:
    """They check the advertised APIs first, so none of them hangs."""
    topic = agents.create_topic()
    patient = tmp_path / "client.properties"
    patient.write_text("request.timeout.ms=120000\n")
    versions = tools(f"kafka-broker-api-versions --command-config {patient}")
    for api in APIS:
        lowest, highest = api.advertised_versions
        found = f"{lowest} to {highest}" if lowest < highest else str(highest)
        assert versions.count(f"({api.key}): {found} [usable: {highest}]") == 2
    assert "ElectLeaders(43): UNSUPPORTED" in versions
    election = "kafka-leader-election --election-type preferred --all-topic-partitions"
    assert "does not support ELECT_LEADERS" in tools.failing(election)
    moves = tmp_path / "moves.json"
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1, 2]}]}
    moves.write_bytes(orjson.dumps(wanted))
    moving = tools.failing(f"kafka-reassign-partitions --execute --reassignment-json-file {moves}")
    assert "a partition in the object store has nothing to move" in moving
    assert "No partition reassignments found." in tools("kafka-reassign-partitions --list")
    assert tools("kafka-configs --describe --entity-type clients") == ""
    assert "TransactionalId" in tools("kafka-transactions list")


def test_the_tools_move_a_log_to_another_directory(agents: Agents, tools: Tools, tmp_path: Path) -> None:
    """The rate of the move is a setting of the broker meanwhile."""
    disks = (tmp_path / "one", tmp_path / "two")
    broker = agents.add(local_directories=disks)
    topic = agents.new_name()
    broker.create_topic(topic, 1, storage_mode="local")
    produce(broker.address, topic, [(None, b"v" * 100_000)] * 20)
    target = next(disk for disk in disks if not (disk / f"{topic}-0").exists())
    moves, node = tmp_path / "moves.json", broker.agent.data.local_logs.node_id
    moved = {"topic": topic, "partition": 0, "replicas": [node], "log_dirs": [str(target)]}
    moves.write_bytes(orjson.dumps({"version": 1, "partitions": [moved]}))
    command = f"kafka-reassign-partitions --reassignment-json-file {moves}"
    tools(f"{command} --execute --replica-alter-log-dirs-throttle 10")
    changed = tools(f"kafka-configs --describe --broker {node}")
    assert "replica.alter.log.dirs.io.max.bytes.per.second=10" in changed
    assert "is still in progress" in tools(f"{command} --verify --preserve-throttles")
    tools(f"{command} --execute --additional --replica-alter-log-dirs-throttle 100000000")
    until((target / f"{topic}-0").exists)
    assert "completed" in tools(f"{command} --verify")
    assert "io.max" not in tools(f"kafka-configs --describe --broker {node}")
    agents.catalog.topics.delete(topic)  # a topic without its leader disturbs clients that ask for all topics
    agents.remove(broker)


def test_settings_agree_with_kafkas_definitions(agents: Agents, tools: Tools) -> None:
    """This covers names, types, defaults and broker synonyms. `storage.mode` is the only addition."""
    known = tools.settings()
    kinds = {"replicas": "list"}

    def ours(settings: object) -> dict[str, list[str]]:
        assert isinstance(settings, dict)
        return {
            name: [kinds.get(each.kind, each.kind), each.default]
            for name, each in settings.items()
            if name not in {"storage.mode", "consumer.assignment.interval.ms"}
        }

    assert ours(dict(TOPIC_SETTINGS)) == known["topic"]
    assert known["synonyms"] == {
        name: each.broker_name for name, each in TOPIC_SETTINGS.items() if each.broker_name is not None
    }
    of_consumers = {name for name in known["group"] if name.startswith("consumer.")}
    assert of_consumers == GROUP_SETTINGS.keys()
    assert ours(dict(GROUP_SETTINGS)).items() <= known["group"].items()
    assert {name: each for name, each in ours(dict(BROKER_SETTINGS)).items() if name in known["broker"]} == {
        name: known["broker"][name] for name in BROKER_SETTINGS.keys() & known["broker"].keys()
    }
    assert {*BROKER_SETTINGS} - {*known["broker"]} == _THROTTLES
    broker = agents.running[0]
    own = str(groups_of(broker).ownership._brokers.own.node_id)
    wanted = Struct(resource_type=ResourceType.BROKER, resource_name=own, configuration_keys=None)
    with Wire(broker.host_and_port) as wire:
        (response,) = wire.ask("describe_configs", 4, Struct(resources=[wanted])).results
    shown = {each.name: each.config_type for each in response.configs}
    assert shown == {name: _TYPES[known["broker"][name][0]] for name in shown}
    assert shown.keys() >= set(known["synonyms"].values())


def test_the_tools_find_describe_and_abort_transactions(agents: Agents, tools: Tools) -> None:
    topic, name = agents.create_topic(), agents.new_name()
    transactions = agents.catalog.transactions
    producer = transactions.initialize(name, 60_000).producer
    (key,) = [PartitionId(agents.catalog.topics.get(topic).topic_id, 0)]
    transactions.add_partitions(name, producer, [key])
    with Wire(agents.running[0].host_and_port) as wire:
        batch = encode_batch([1], [None], [b"v"], producer=(*producer, 0), is_transactional=True)
        partition = Struct(index=0, records=batch)
        request = Struct(
            transactional_id=name,
            acks=-1,
            timeout=60_000,
            topic_data=[Struct(name=topic, partition_data=[partition])],
        )
        wire.ask("produce", 9, request)
    assert [name, "Ongoing"] == [
        row.split()[at]
        for row in tools("kafka-transactions list").splitlines()
        if name in row
        for at in (0, 3)
    ]
    described = tools(f"kafka-transactions describe --transactional-id {name}")
    assert f"{topic}-0" in described
    producers = tools(f"kafka-transactions describe-producers --topic {topic} --partition 0")
    assert producers.splitlines()[-1].split()[-1] == "0"  # the start of the current transaction
    # An ongoing transaction does not hang, however old it is: the coordinator knows it.
    find = f"kafka-transactions find-hanging --topic {topic} --partition 0 --max-transaction-timeout 0"
    assert topic not in tools(find)
    tools(f"kafka-transactions abort --topic {topic} --partition 0 --start-offset 0")
    found = agents.catalog.transaction_lookups.find([name])
    assert found[name].state is TransactionState.ABORTED
