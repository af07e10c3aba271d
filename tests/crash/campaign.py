"""A campaign: all faults at once over producers, groups, compaction and maintenance, with a ledger.

The system is real: agents in separate processes, PostgreSQL with a synchronous standby, an S3 server
behind a proxy that injects faults, Kafka clients, and compaction, on Spark or in a worker process. Lanes of
faults run while clients write and read. At quiet points the lanes stop, everything is read and compared with
the ledger, and `fsck --deep` compares catalog, store and bytes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from catalog.errors import JobNotFoundError
from catalog.model import JobState
from maintenance.fsck import DifferenceKind
from maintenance.fsck.run import fsck
from maintenance.garbage_collection import collect_garbage
from maintenance.readopt import readopt
from maintenance.settings import MaintenanceSettings
from object_store.accounting import Purpose
from object_store.names import CompactedName, parse
from tests.crash import child_processes
from tests.crash.clients import Workload
from tests.crash.consumers import AioMember, ConfluentMember, LogReader
from tests.crash.disks import MemoryDisk
from tests.crash.faults import (
    AgentFaults,
    CatalogFaults,
    EventLog,
    Lane,
    MaintenanceFaults,
    SparkFaults,
    StoreFaults,
    WorkerFaults,
)
from tests.crash.ledger import Ledger, TopicPromise
from tests.crash.processes import TIMEOUT_SECONDS, Child, Maintainer, Watcher, start_until_ready
from tests.crash.producers import AioProducer, ConfluentProducer
from tests.crash.transactional_producer import TransactionalProducer
from tests.fixtures import pgbouncer
from tests.fixtures.pgbouncer import PgBouncer
from tests.fixtures.ports import lasting_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from maintenance.fsck import FsckReport
    from maintenance.fsck.report import Difference
    from object_store.interface import ObjectStore
    from tests.crash.consumers import GroupMember
    from tests.crash.ledger import Partition, ReadRecord
    from tests.crash.processes import Process
    from tests.crash.producers import ClientProducer
    from tests.fixtures.postgres_pair import PostgresPair
    from tests.object_store.s3.fault_proxy import RandomFaultProxy

PARTITIONS: Final = 2
TOMBSTONE_MS: Final = 5_000
RETENTION_MS: Final = 15_000
TOPICS: Final = {
    "plain": {"cleanup.policy": "delete", "retention.ms": "-1"},
    "keyed": {"cleanup.policy": "compact", "delete.retention.ms": str(TOMBSTONE_MS)},
    "brief": {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)},
    "exact": {"cleanup.policy": "delete", "retention.ms": "-1"},
    "local": {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "storage.mode": "local",
        "flush.messages": "1",
    },
}
OBJECT_TOPICS: Final = ("plain", "keyed", "brief")
PROMISES: Final = {
    "plain": TopicPromise(),
    "keyed": TopicPromise(is_compacted=True, tombstone_ms=TOMBSTONE_MS),
    "brief": TopicPromise(retention_ms=RETENTION_MS),
    "exact": TopicPromise(),
    "local": TopicPromise(),
}
_MAX_NAMED_OFFSETS: Final = 20  # of a group, in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSettings:
    """The size of a campaign, and which faults it has."""

    seed: int
    directory: Path
    agents: int = 3
    rate: float = 40.0
    members: int = 2
    groups: tuple[str, ...] = ("classic", "consumer", "aio")
    spark: bool = True
    loses_commits: bool = False
    max_freeze_seconds: float = 8.0
    pause: tuple[float, float] = (0.5, 4.0)
    group_seconds: float = TIMEOUT_SECONDS  # for groups to read everything at a quiet point
    is_long: bool = False  # with a pooler, `siltstone maintain`, and disks that become full or read-only


@dataclass
class Campaign:
    """The processes, clients and faults of one campaign."""

    settings: CampaignSettings
    config: child_processes.ChildConfig
    pair: PostgresPair
    proxy: RandomFaultProxy
    catalog: Catalog
    store: ObjectStore  # without injected faults, for checks
    clock: Clock
    checks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        directory = self.settings.directory
        self.log = EventLog(directory / "events.jsonl")
        self.ledger = Ledger(PROMISES)
        self.left_out: list[str] = []
        self.pooler = self._make_pooler() if self.settings.is_long else None
        self.agents = [
            Child(child_processes.run_agent, self._agent_config(number, port))
            for number, port in enumerate(lasting_ports(self.settings.agents))
        ]
        self.disks = [MemoryDisk(agent.config.disks[0]) for agent in self.agents]
        self.watchers = [
            Watcher(self.config, directory / f"watcher-{number}", directory / "crashes")
            for number in range(2 if self.settings.spark else 0)
        ]
        self.workers = [] if self.settings.spark else [Child(child_processes.run_worker, self.config)]
        self.maintainers = (
            [Maintainer(self.config, directory / "maintainer")] if self.settings.is_long else []
        )
        for topic, config in TOPICS.items():
            self.catalog.topics.create(topic, PARTITIONS, config)
        self.bootstrap = ",".join(f"127.0.0.1:{agent.config.kafka_port}" for agent in self.agents)
        self.workload = Workload(
            bootstrap=self.bootstrap,
            directory=directory,
            topics=tuple(TOPICS),
            compacted=frozenset({"keyed"}),
            partitions=PARTITIONS,
            rate=self.settings.rate,
            seed=self.settings.seed,
        )
        self.lanes: list[Lane] = []
        self.producers: list[ClientProducer] = []
        self.members: list[GroupMember] = []

    def _make_pooler(self) -> PgBouncer | None:
        if not pgbouncer.is_installed():
            self.left_out.append("poolers (PgBouncer is not installed)")
            return None
        directory = self.settings.directory / "pooler"
        directory.mkdir()
        return PgBouncer(self.pair.primary.url, directory, pool_size=20)

    def _agent_config(self, number: int, port: int) -> child_processes.ChildConfig:
        """Return the configuration of an agent; the first one uses the pooler, if there is one."""
        directory = self.settings.directory
        config = replace(
            self.config,
            kafka_port=port,
            disks=(directory / f"disk-{number}",),
            log=directory / f"agent-{number}.log",
        )
        if self.pooler is None or number:
            return config
        return replace(config, catalog_url=self.pooler.url, listen_url=self.config.catalog_url)

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[bool]:
        """Run the pooler and mount the agents' disks; yield True if there are disks."""
        with contextlib.ExitStack() as stack:
            if self.pooler is not None:
                stack.callback(self.pooler.stop)
                self.pooler.start()
                self.pooler.wait_until_ready()
            is_mounted = self.settings.is_long
            for disk in self.disks if is_mounted else ():
                is_mounted = is_mounted and disk.mount()
                stack.callback(disk.unmount)
            if self.settings.is_long and not is_mounted:
                self.left_out.append("disks without space and read-only disks (mounts are not permitted)")
            yield is_mounted

    def _lanes(self, disks: Sequence[MemoryDisk]) -> list[Lane]:
        freeze = self.settings.max_freeze_seconds
        agents_are_alive = threading.Lock()
        lanes = {
            "agents": AgentFaults(self.agents, freeze, agents_are_alive, disks).all(),
            "catalog": CatalogFaults(
                self.pair, self.ledger, freeze, self.settings.loses_commits, agents_are_alive, self.pooler
            ).all(),
            "store": StoreFaults(self.proxy, freeze).all(),
        }
        if self.watchers:
            crashes = self.settings.directory / "crashes"
            lanes["compaction"] = SparkFaults(self.watchers, crashes, freeze).all()
        else:
            lanes["compaction"] = WorkerFaults(self.workers[0], freeze).all()
        for maintainer in self.maintainers:
            lanes["maintenance"] = MaintenanceFaults(maintainer, freeze).all()
        return [
            Lane(name, self.settings.seed, faults, self.log, pause=self.settings.pause)
            for name, faults in lanes.items()
        ]

    @property
    def compactors(self) -> Sequence[Process]:
        """The processes that plan, compact and collect garbage."""
        return [*self.workers, *self.watchers]

    @property
    def partitions(self) -> Sequence[Partition]:
        """All partitions of all topics."""
        return [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run all processes and clients inside the block, and none after it."""
        processes: list[Process] = [*self.agents, *self.compactors, *self.maintainers]
        with self._surroundings() as has_disks:
            self.lanes = self._lanes(self.disks if has_disks else ())
            try:
                for child in processes:
                    child.start()
                assert all(child.wait_ready() for child in processes)
                self._start_clients()
                yield
                self._finish_clients()
                for child in processes:
                    child.stop()
            finally:
                try:
                    self._abandon()
                finally:
                    for child in processes:
                        child.kill()

    def _start_clients(self) -> None:
        given = (self.ledger, self.workload)
        self.producers += [
            ConfluentProducer("idempotent", *given, is_idempotent=True),
            ConfluentProducer("simple", *given, is_idempotent=False),
            AioProducer("aio", self.ledger, replace(self.workload, topics=OBJECT_TOPICS)),
            TransactionalProducer("exact", self.ledger, replace(self.workload, topics=("exact",))),
        ]
        for group in self.settings.groups:
            for _ in range(self.settings.members):
                is_aio = group == "aio"
                member = AioMember(group, *given) if is_aio else ConfluentMember(group, group, *given)
                self.members.append(member)

    def _abandon(self) -> None:
        """After a failure, let no lane start a process again, and end the clients' threads."""
        for lane in self.lanes:
            lane.end()
        for producer in self.producers:
            producer.abandon()
        for member in self.members:
            member.abandon()
        for lane in self.lanes:
            with contextlib.suppress(Exception):  # the first failure is the one that counts
                lane.stop()

    def _finish_clients(self) -> None:
        for producer in self.producers:
            producer.finish()
        for member in self.members:
            member.finish()
        self.producers.clear()
        self.members.clear()

    def run_for(self, seconds: float, *, at_least: int = 0) -> None:
        """Cause faults for this time, and at least this number in each lane; end all of them."""
        self._continue()
        for lane in self.lanes:
            lane.start()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._check_clients()
            time.sleep(min(left, 1.0))
        for lane in self.lanes:
            lane.wait_until_begun(at_least)
        for lane in self.lanes:
            lane.end()
        for lane in self.lanes:
            lane.stop()

    def _continue(self) -> None:
        """Compact and produce again after a quiet point."""
        if self.checks:
            for compactor in self.compactors:
                start_until_ready(compactor)
            for producer in self.producers:
                producer.resume()

    def _check_clients(self) -> None:
        """Raise the exception that ended the thread of a client, if one did."""
        clients: list[ClientProducer | GroupMember] = [*self.producers, *self.members]
        for client in clients:
            client.check()

    def check(self) -> None:
        """Check every promise at a quiet point: no fault, and all records acknowledged.

        Compaction and producers stop; the next call of `run_for` lets them continue.
        """
        self.log.write("quiet point")
        self._check_clients()
        for producer in self.producers:
            producer.pause()
        for producer in self.producers:
            producer.wait_until_idle()
        self.log.note("all records are acknowledged")
        self._await_groups()
        self.log.note("all groups have read them")
        for compactor in self.compactors:
            compactor.stop()
        self.log.note("compaction has stopped")
        reader = LogReader(self.bootstrap)
        logs: dict[Partition, list[ReadRecord]] = {}
        starts: dict[Partition, int] = {}
        for partition in self.partitions:
            starts[partition], logs[partition] = reader.read(partition)
        problems = self.ledger.problems(logs, starts)
        for group in {member.group for member in self.members}:
            problems += reader.commits_ahead(group, self.partitions)
        problems += self._unpublished_outputs()
        # As an operator does: judge the sessions of agents that died before they could say what they lost.
        readopt(self.catalog, self.store, apply=True, acknowledged_only=True)
        problems += self._differences()
        self.checks.append(
            f"{self.ledger.acknowledged_count} acknowledged,"
            f" {self.ledger.committed_transactions} transactions, {sum(map(len, logs.values()))} read,"
            f" {len(problems)} problems; refused: {dict(self.ledger.refused)}"
        )
        self.log.note("check", problems=problems, summary=self.checks[-1])
        assert problems == [], "\n".join(problems)

    def _differences(self) -> list[str]:
        """Return what fsck finds three times.

        Maintenance goes on meanwhile, with grace periods that are shorter than fsck needs, so that an object
        may disappear between two looks. Garbage that a dead process left may still be there the first time.
        Its late writes are found by the last look at their owner, which is due at once: nothing writes now.
        """
        settings = replace(child_processes.GARBAGE, owner_keep_ms=0)
        lasting: set[str] = set()
        for attempt in range(3):
            collect_garbage(self.catalog, self.store, self.clock, settings)
            report = fsck(self.catalog, self.store, self.clock, deep=True, grace_ms=60_000)
            found = {f"fsck: {each.as_dict()}" for each in self._delete_outputs_of_lost_jobs(report)}
            lasting = found if attempt == 0 else lasting & found
            if not lasting:
                break
        return sorted(lasting)

    def _delete_outputs_of_lost_jobs(self, report: FsckReport) -> list[Difference]:
        """Delete the outputs of jobs whose rows a failover lost, as an operator does; return the rest."""
        rest = []
        for each in report.differences:
            name = parse(each.object_name or "")
            is_output = each.kind is DifferenceKind.ORPHAN and isinstance(name, CompactedName)
            if self.ledger.era and is_output and "the catalog does not know" in str(each.found):
                assert each.object_name is not None
                self.store.delete([each.object_name], purpose=Purpose.GC)
                self.log.counts["outputs of lost jobs deleted"] += 1
            else:
                rest.append(each)
        return rest

    def _await_groups(self) -> None:
        """Wait until every group has read every record of this era in the topic that drops none.

        librdkafka goes to the end of the lost epoch after a failover that loses commits. It skips records
        before that end which it had fetched and not delivered yet.
        """
        end = time.monotonic() + self.settings.group_seconds
        wanted = self.ledger.acknowledged_in("plain")
        while True:
            seen: dict[str, set[bytes]] = {}
            self._check_clients()
            for member in self.members:
                seen[member.group] = seen.get(member.group, set()) | member.seen
            if self.ledger.era:
                # aiokafka does not notice that its position belongs to a part of the log that was lost.
                seen.pop("aio", None)
            missing = {group: wanted - each for group, each in seen.items() if not wanted <= each}
            if not missing:
                return
            if time.monotonic() >= end:
                raise AssertionError("; ".join(self._describe_missing(*each) for each in missing.items()))
            time.sleep(0.2)

    def _describe_missing(self, group: str, identities: set[bytes]) -> str:
        first = self.ledger.offsets_of("plain", identities, limit=_MAX_NAMED_OFFSETS)
        return (
            f"group {group} did not read {len(identities)} records of era {self.ledger.era} "
            f"in {self.settings.group_seconds} s; the first (partition, era, offset) are {first}"
        )

    def _unpublished_outputs(self) -> list[str]:
        """Find outputs that readers read although another attempt of their job is in the catalog.

        The rows of ended jobs are removed after the last look at their objects, which an earlier check took.
        """
        found = []
        for topic in TOPICS:
            topic_id = self.catalog.topics.get(topic).topic_id
            for partition in range(PARTITIONS):
                extents = self.catalog.extents.from_offset(topic_id, partition, 0, max_extents=10_000)
                for name in {extent.object_name for extent in extents}:
                    if not isinstance(parsed := parse(name), CompactedName):
                        continue
                    with contextlib.suppress(JobNotFoundError):
                        job = self.catalog.jobs.get(parsed.job_id)
                        if (job.state, job.attempt_id) != (JobState.COMPLETED, parsed.attempt_id):
                            found.append(f"{name} is read, and its job is {job.state}")
        return found

    def leaks(self) -> list[str]:
        """Return the objects and uploads that are left after all processes and grace periods have ended.

        Unfinished jobs are cancelled, because outputs of failed attempts stay as long as their job. A session
        that was active at a failover and died before it said what it lost keeps its objects until an operator
        looks for lost files.
        """
        for session in self.catalog.sessions.active():
            self.catalog.sessions.fence(session.session_id)
        self.catalog.jobs.release_expired(0, 0)
        for job in self.catalog.jobs.list({JobState.SUBMITTED, JobState.RUNNING}):
            self.catalog.jobs.cancel(job.spec.job_id, "the campaign is over")
        readopt(self.catalog, self.store, apply=True, acknowledged_only=True)
        no_grace = MaintenanceSettings(
            grace_ms=0,
            session_silence_ms=0,
            topic_delete_delay_ms=0,
            unfinished_upload_ms=0,
            owner_keep_ms=0,  # a late write of a dead process is found by the last look at its owner
        )
        end = time.monotonic() + 120
        while True:
            time.sleep(1.1)  # S3's clock has whole seconds
            collect_garbage(self.catalog, self.store, self.clock, no_grace)
            report = fsck(self.catalog, self.store, self.clock, deep=True, grace_ms=0)
            left = [str(each.as_dict()) for each in self._delete_outputs_of_lost_jobs(report)]
            left += [f"{kind}: {count}" for kind, count in report.pending.items() if count]
            if not left or time.monotonic() > end:
                return left

    def summary(self) -> str:
        """Return the events by kind and the checks as text."""
        width = max(map(len, self.log.counts), default=0)
        faults = [f"  {name:{width}}  {count:5}" for name, count in sorted(self.log.counts.items())]
        store = [
            f"  store: {name:{width - 7}}  {count:5}" for name, count in sorted(self.proxy.counts.items())
        ]
        checks = [f"  {number}. {each}" for number, each in enumerate(self.checks, 1)]
        return "\n".join(
            [
                f"Seed {self.settings.seed}; events in {self.log.file}, the last: {self.log.last!r}",
                *faults,
                *store,
                *(f"  left out: {each}" for each in self.left_out),
                "Checks",
                *checks,
            ]
        )
