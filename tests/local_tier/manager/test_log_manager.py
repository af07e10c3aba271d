from __future__ import annotations

import errno
import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from core.errors import FatalError, InvalidInputError, NotFoundError, StaleStateError
from local_tier.errors import LogClosedError, LogDirectoryOfflineError
from local_tier.files.checkpoint_files import OffsetCheckpointFile
from local_tier.manager.config import LogManagerConfig
from local_tier.manager.log_directories import DirectoryOwner
from local_tier.topic_partition import TopicPartition
from tests.local_tier.crash.disks import Disks
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manager.managers import (
    ORDERS_ID,
    OWNER,
    SMALL,
    Machine,
    crash,
    delete_log,
    fill,
    name_of,
    orders,
    readable,
)
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine((tmp_path / "a", tmp_path / "b"))


def test_a_log_is_found_by_its_topic_id_under_another_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request for a partition that is offline looks for it, so the search reads no other log."""
    former = TopicPartition("renamed", 0)
    manager = machine.start()
    log = orders(manager)
    orders(manager, 1)
    with monkeypatch.context() as patch:
        patch.setattr(manager, "logs", lambda: pytest.fail("all logs were read"))
        assert manager.find_misnamed(former, ORDERS_ID) is log
        assert manager.find_misnamed(name_of(0), ORDERS_ID) is None
        assert manager.find_misnamed(former, UUID(int=7)) is None
    target = next(path for path in machine.directories if path != log.directory.parent)
    manager.moves.create_future_log(name_of(0), target)
    assert manager.find_misnamed(former, ORDERS_ID) is log
    moved = manager.moves.replace_current_with_future_log(name_of(0))
    assert manager.find_misnamed(former, ORDERS_ID) is moved
    delete_log(manager, name_of(0))
    assert manager.find_misnamed(former, ORDERS_ID) is None
    manager.close()
    manager = machine.start()
    assert manager.find_misnamed(TopicPartition("renamed", 1), ORDERS_ID) is manager.get(name_of(1))
    manager.close()


def test_a_new_log_goes_to_the_directory_with_the_fewest(machine: Machine) -> None:
    manager = machine.start()
    for partition in range(5):
        orders(manager, partition)
    delete_log(manager, name_of(0))
    delete_log(manager, name_of(2))
    for partition in (7, 8):
        orders(manager, partition)
    counts = [sum(log.directory.parent == path for log in manager.logs()) for path in machine.directories]
    manager.close()

    assert sorted(counts) == [2, 3]
    assert orders_twice_is_one(machine)


def orders_twice_is_one(machine: Machine) -> bool:
    manager = machine.start()
    same = orders(manager, 1) is orders(manager, 1) is manager.get(name_of(1))
    manager.close()
    return same


def test_logs_open_without_recovery_after_a_clean_shutdown(machine: Machine) -> None:
    manager = machine.start()
    for partition in range(3):
        fill(orders(manager, partition), 20 + partition)
    manager.close()
    marks = [(path / ".kafka_cleanshutdown").exists() for path in machine.directories]

    again = machine.start()
    segments = again.metrics().remaining_segments_to_recover
    found = {log.topic_partition: (readable(log), log.recovery_point) for log in again.logs()}
    left = [(path / ".kafka_cleanshutdown").exists() for path in machine.directories]
    again.close()

    assert (marks, left) == ([True, True], [False, False])
    assert found == {name_of(p): (list(range(20 + p)), 20 + p) for p in range(3)}
    assert not any(segments.values())


def test_logs_are_recovered_after_a_crash(machine: Machine) -> None:
    manager = machine.start()
    fill(orders(manager), 30)
    manager.periodic_tasks.checkpoint_high_watermarks()
    crash(manager)

    again = machine.start()
    log = again.get(name_of(0))
    assert log is not None
    content = readable(log)
    again.close()

    assert content == list(range(30))


def test_a_log_directory_has_one_process_and_one_owner(machine: Machine) -> None:
    manager = machine.start()
    with pytest.raises(InvalidInputError, match="in use by another process"):
        machine.manager().start(machine.config_of)
    fill(orders(manager), 1)
    manager.close()
    with pytest.raises(InvalidInputError, match="belongs to node 1 of cluster here, not to node 2"):
        machine.manager(DirectoryOwner(cluster_id="here", node_id=2)).start(machine.config_of)
    again = machine.start()
    ids = [again.directory_id(path) for path in machine.directories]
    again.close()

    assert len(set(ids)) == 2
    assert None not in ids


def test_a_directory_configured_twice_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no two of them may be the same"):
        LogManagerConfig(directories=(tmp_path, tmp_path / "x" / ".."), owner=OWNER)


def test_a_deleted_log_disappears_and_its_files_are_removed_later(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager)
    fill(log, 5)
    deleted = delete_log(manager, name_of(0))
    after, gone = machine.names(), manager.get(name_of(0))
    with pytest.raises(LogClosedError):
        log.read(0, 100)
    machine.scheduler.advance(59_999)
    still = machine.names()
    machine.scheduler.advance(1)
    last = machine.names()
    again = delete_log(manager, name_of(0))
    manager.close()

    assert (deleted, gone, again) == (True, None, False)
    assert after == still
    assert [name.endswith("-delete") for name in after] == [True]
    assert last == []


def test_a_log_in_deletion_does_not_return_after_a_restart(machine: Machine) -> None:
    manager = machine.start()
    fill(orders(manager), 5)
    delete_log(manager, name_of(0))
    crash(manager)

    again = machine.start()
    logs, waiting = again.logs(), again.metrics().logs_waiting_for_deletion
    machine.scheduler.advance(60_000)
    names = machine.names()
    fresh = orders(again)
    end = fresh.log_end_offset
    again.close()

    assert (logs, waiting, names, end) == ([], 1, [], 0)


def test_a_log_of_an_unknown_topic_is_set_aside_as_stray(machine: Machine) -> None:
    manager = machine.start()
    fill(orders(manager), 5)
    manager.close()
    machine.configs["orders"] = None
    strays = []
    for _ in range(2):
        again = machine.start()
        strays.append((again.metrics().stray_logs, again.logs()))
        machine.scheduler.advance(600_000)
        again.close()

    assert strays == [(1, []), (1, [])]
    assert [name.endswith("-stray") for name in machine.names()] == [True]


def test_a_log_that_crashed_before_its_topic_id_was_written_is_usable(machine: Machine) -> None:
    manager = machine.start()
    path = orders(manager).directory / "partition.metadata"
    crash(manager)
    path.unlink()

    again = machine.start()
    log = orders(again)
    fill(log, 3)
    again.close()

    assert log.topic_id == ORDERS_ID
    assert path.exists()


def test_a_log_of_an_older_topic_with_the_same_name_is_rejected(machine: Machine) -> None:
    manager = machine.start()
    orders(manager)
    with pytest.raises(StaleStateError, match="delete the old log first"):
        manager.get_or_create("orders", UUID(int=5), 0, SMALL)
    delete_log(manager, name_of(0))
    fresh = manager.get_or_create("orders", UUID(int=5), 0, SMALL)
    manager.close()

    assert fresh.topic_id == UUID(int=5)


def two_disks(machine: Machine) -> list[Switch]:
    """Make the directories separate disks, whose faults are set by their switches."""
    switches = [Switch(NoFaults()) for _ in machine.directories]
    disks = [SteppedFileSystem(UnsyncedFileSystem(), switch) for switch in switches]
    machine.files = Disks(dict(zip(machine.directories, disks, strict=True)))
    return switches


@pytest.mark.parametrize("step", ["write .log", "fsync .log", "write recovery-point-offset-checkpoint.tmp"])
def test_a_disk_failure_takes_only_its_own_logs_offline(machine: Machine, step: str) -> None:
    switches = two_disks(machine)
    manager = machine.start()
    first_id = manager.directory_id(machine.directories[0])
    assert first_id is not None
    logs = [orders(manager, partition) for partition in range(4)]
    for log in logs:
        fill(log, 3)
    lost = [log for log in logs if log.directory.parent == machine.directories[0]]
    kept = [log for log in logs if log not in lost]
    switches[0].faults = DiskError(step)

    touch(manager, lost[0])
    machine.scheduler.run()

    for log in kept:
        fill(log, 3)
    assert [readable(log) for log in kept] == [list(range(6))] * 2
    assert {log.topic_partition for log in manager.logs()} == {log.topic_partition for log in kept}
    assert manager.live_directories == [machine.directories[1]]
    assert manager.metrics().offline_log_directory_count == 1
    assert manager.offline_directories == [machine.directories[0]]
    name = lost[0].topic_partition
    with pytest.raises(LogDirectoryOfflineError, match="which is not open"):
        manager.get_existing(name, ORDERS_ID, first_id)
    fresh = orders(manager, 9)
    assert fresh.directory.parent == machine.directories[1]
    machine.scheduler.advance(300_000)
    manager.close()


def touch(manager: LogManager, log: UnifiedLog) -> None:
    """Access the failed disk in one of several ways."""
    manager.periodic_tasks.checkpoint_recovery_points()
    try:
        fill(log, 1)
        log.flush()
    except LogDirectoryOfflineError:
        return


def test_a_disk_that_fails_at_startup_is_skipped(machine: Machine) -> None:
    switches = two_disks(machine)
    manager = machine.start()
    for partition in range(2):
        fill(orders(manager, partition), 3)
    manager.close()
    switches[1].faults = DiskError("list b")

    again = machine.start()
    live, logs = again.live_directories, again.logs()
    again.close()

    assert live == [machine.directories[0]]
    assert [log.directory.parent for log in logs] == live


def test_startup_fails_without_a_working_disk(machine: Machine) -> None:
    machine.files = SteppedFileSystem(UnsyncedFileSystem(), DiskError("mkdir"))

    with pytest.raises(FatalError, match="no log directory can be used"):
        machine.start()


def test_a_new_log_is_created_on_another_disk_if_one_is_full(machine: Machine) -> None:
    switches = two_disks(machine)
    manager = machine.start()
    switches[0].faults = DiskError("mkdir")
    logs = [orders(manager, partition) for partition in range(1)]
    machine.scheduler.run()
    manager.close()

    assert [log.directory.parent for log in logs] == [machine.directories[1]]


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_an_unreadable_checkpoint_loses_no_records(machine: Machine, name: str) -> None:
    manager = machine.start()
    fill(orders(manager), 20)
    manager.close()
    (machine.directories[0] / name).write_bytes(b"0\n7\nnonsense\n")
    (machine.directories[0] / ".kafka_cleanshutdown").unlink()

    again = machine.start()
    content = [readable(log) for log in again.logs()]
    again.close()

    assert content == [list(range(20))]


def test_the_only_log_is_opened_where_it_is(machine: Machine) -> None:
    """If the directory that is recorded is open and does not have it. Of two such logs, both are kept."""
    manager = machine.start()
    fill(orders(manager), 3)
    fill(orders(manager, 1), 3)
    ids = [manager.directory_id(path) for path in machine.directories]
    here = manager.logs()[0].directory.parent
    manager.close()
    machine.recorded[name_of(0)] = next(
        one for one, path in zip(ids, machine.directories, strict=True) if one is not None and path != here
    )
    machine.recorded[name_of(1)] = UUID(int=7)
    manager = machine.start()
    assert [log.directory for log in manager.logs()] == [here / "orders-0"]
    assert manager.logs()[0].log_end_offset == 3
    assert manager.metrics().stray_logs == 1, "its directory is away"
    manager.close()


def test_no_log_is_opened_elsewhere_while_a_directory_may_miss_logs(machine: Machine) -> None:
    manager = machine.start()
    fill(orders(manager), 3)
    here = manager.logs()[0].directory.parent
    (other,) = (path for path in machine.directories if path != here)
    other_id = manager.directory_id(other)
    assert other_id is not None
    machine.recorded[name_of(0)] = other_id
    manager.close()
    (other / "sales-0").mkdir()
    (other / "sales-0" / "partition.metadata").write_text("damaged")
    manager = machine.start()
    assert manager.logs() == []
    assert [path.name[-6:] for path in here.glob("orders-0*")] == ["-stray"]
    manager.close()


def test_a_log_in_two_directories_is_offline(machine: Machine) -> None:
    """Nothing says which one is newer. The agent serves its other logs, and changes neither."""
    manager = machine.start()
    fill(orders(manager), 1)
    fill(orders(manager, 1), 1)
    manager.close()
    holder = next(path for path in machine.directories if (path / "orders-0").exists())
    other = next(path for path in machine.directories if path != holder)
    shutil.copytree(holder / "orders-0", other / "orders-0")
    for _ in range(2):
        manager = machine.start()
        assert [log.topic_partition for log in manager.logs()] == [name_of(1)]
        assert manager.metrics().offline_logs == 1
        with pytest.raises(LogDirectoryOfflineError, match="exists in"):
            orders(manager)
        manager.close()
    shutil.rmtree(other / "orders-0")
    manager = machine.start()
    assert readable(orders(manager)) == [0]
    manager.close()


@pytest.mark.parametrize(
    ("file", "content"), [("partition.metadata", b"version: 0\ntop"), ("partition.metadata", b"")]
)
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_damaged_log_is_offline_and_the_others_are_not(
    machine: Machine, file: str, content: bytes, *, is_clean: bool
) -> None:
    """It stays as it is, with its entries in the checkpoints, and is complete once it is repaired."""
    manager = machine.start()
    for partition in range(3):
        fill(orders(manager, partition), 20)
    assert manager.delete_records(name_of(0), 5) == 5
    damaged = orders(manager).directory / file
    if is_clean:
        manager.close()
    else:
        manager.periodic_tasks.checkpoint_high_watermarks()
        crash(manager)
    before = damaged.read_bytes()
    damaged.write_bytes(content)

    for _ in range(2):
        manager = machine.start()
        with pytest.raises(LogDirectoryOfflineError, match="could not be opened"):
            orders(manager)
        assert [readable(orders(manager, partition)) for partition in (1, 2)] == [list(range(20))] * 2
        assert manager.metrics().offline_logs == 1
        assert damaged.read_bytes() == content
        manager.close()

    damaged.write_bytes(before)
    manager = machine.start()
    assert readable(orders(manager)) == list(range(5, 20))
    manager.close()


def test_directories_that_are_no_logs_are_left_alone(machine: Machine) -> None:
    """The log of a KRaft quorum, and directories of the operator."""
    root = machine.directories[0]
    for name, file in (("__cluster_metadata-0", f"{0:020}.log"), ("backup-1", "notes.txt"), ("x", "y")):
        (root / name).mkdir(parents=True)
        (root / name / file).write_bytes(b"content")
    machine.configs |= {"__cluster_metadata": None, "backup": None}
    manager = machine.start()
    logs, metrics = manager.logs(), manager.metrics()
    manager.close()

    assert logs == []
    assert (metrics.stray_logs, metrics.offline_logs) == (0, 0)
    assert machine.names() == ["__cluster_metadata-0", "backup-1", "x"]


def test_a_directory_without_an_id_gets_one(machine: Machine) -> None:
    """A Kafka before 3.7 has written its meta.properties."""
    machine.start().close()
    path = machine.directories[0] / "meta.properties"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "directory.id" not in line))
    ids = []
    for _ in range(2):
        manager = machine.start()
        ids.append(manager.directory_id(machine.directories[0]))
        manager.close()

    assert ids[0] is not None
    assert ids[0] == ids[1]


def test_two_directories_with_one_id_are_refused(machine: Machine) -> None:
    """One is a copy of the other: as in Kafka, the agent does not guess which."""
    machine.start().close()
    first, second = (path / "meta.properties" for path in machine.directories)
    shutil.copy(first, second)

    with pytest.raises(InvalidInputError, match="have the same id"):
        machine.start()


def test_a_torn_meta_properties_takes_one_directory_offline(machine: Machine) -> None:
    manager = machine.start()
    for partition in range(2):
        fill(orders(manager, partition), 1)
    manager.close()
    (machine.directories[0] / "meta.properties").write_bytes(b"#\n#Thu")

    manager = machine.start()
    assert manager.live_directories == [machine.directories[1]]
    assert [log.directory.parent for log in manager.logs()] == [machine.directories[1]]
    manager.close()


def test_truncation_lowers_the_checkpoints(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager)
    fill(log, 20)
    log.flush()
    manager.truncate_to(name_of(0), 7)
    offsets = [log.log_end_offset, log.recovery_point]
    manager.truncate_fully(name_of(0), 100)
    end = (log.log_start_offset, log.log_end_offset)
    with pytest.raises(NotFoundError):
        manager.truncate_to(TopicPartition("nowhere", 0), 0)
    manager.close()
    again = machine.start()
    found = [(one.log_start_offset, one.log_end_offset) for one in again.logs()]
    again.close()

    assert offsets == [7, 7]
    assert [end] == found == [(100, 100)]


def test_the_log_start_offset_survives_a_crash(machine: Machine) -> None:
    """Records that were deleted by request are not readable again."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 20)
    manager.delete_records(name_of(0), 3)
    text = (log.directory.parent / "log-start-offset-checkpoint").read_text()
    crash(manager)
    again = machine.start()
    found = [(one.log_start_offset, one.log_end_offset) for one in again.logs()]
    again.close()

    assert text == "0\n1\norders 0 3\n"
    assert found == [(3, 20)]


def test_a_new_log_ignores_the_log_start_offset_of_an_older_one(machine: Machine) -> None:
    """A crash between the deletion of a log and the next checkpoint leaves the old entry."""
    manager = machine.start()
    for path in machine.directories:
        (path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 15\n")
    fill(orders(manager), 10)
    crash(manager)
    again = machine.start()
    found = [(one.log_start_offset, one.log_end_offset) for one in again.logs()]
    again.close()

    assert found == [(0, 10)]


def test_delete_records_fails_if_the_checkpoint_cannot_be_written(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the caller would take the records for deleted, and a crash would bring them back."""
    manager = machine.start()
    fill(orders(manager), 20)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(OffsetCheckpointFile, "write", fail)
    with pytest.raises(LogDirectoryOfflineError, match="log start offsets"):
        manager.delete_records(name_of(0), 3)
    monkeypatch.undo()
    manager.close()


def test_an_older_checkpoint_does_not_replace_a_newer_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request deletes records while the periodic task holds offsets that it has not written yet."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 20)
    manager.delete_records(name_of(0), 3)
    request = threading.Thread(target=manager.delete_records, args=(name_of(0), 9))
    write = OffsetCheckpointFile.write

    def write_late(self: OffsetCheckpointFile, offsets: Mapping[TopicPartition, int]) -> None:
        monkeypatch.setattr(OffsetCheckpointFile, "write", write)
        request.start()
        request.join(0.3)  # it must wait for the periodic task
        write(self, offsets)

    monkeypatch.setattr(OffsetCheckpointFile, "write", write_late)
    manager.periodic_tasks.checkpoint_log_start_offsets()
    request.join()
    text = (log.directory.parent / "log-start-offset-checkpoint").read_text()
    manager.close()

    assert text == "0\n1\norders 0 9\n"


def test_a_changed_topic_configuration_is_applied_to_its_logs(machine: Machine) -> None:
    manager = machine.start()
    logs = [orders(manager, 0), orders(manager, 1)]
    other = manager.get_or_create("clicks", UUID(int=9), 0, SMALL)
    for log in logs:
        manager.update_config(log, replace(SMALL, retention_ms=5))
    configs = [log.config.retention_ms for log in (*logs, other)]
    manager.close()

    assert configs == [5, 5, SMALL.retention_ms]
