"""The choice of logs to clean, and operations that run at the same time."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core.errors import InvalidInputError
from local_tier.cleaner.dirty_section import DirtySection
from local_tier.cleaner.log_cleaner import CleanerConfig
from local_tier.cleaner.log_cleaning_state import IN_PROGRESS
from local_tier.config import LogConfig
from local_tier.topic_partition import TopicPartition
from object_format.record_batch.records import encode_batch
from tests.local_tier.batches import batch
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manager.managers import Machine, crash, delete_log, name_of, orders
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.cleaner.log_cleaner import LogCleaner
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager

COMPACTED = LogConfig(
    segment_bytes=600,
    segment_index_bytes=1200,
    index_interval_bytes=100,
    retention_ms=-1,
    compact=True,
    delete=False,
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine((tmp_path / "a",))
    machine.configs["orders"] = COMPACTED
    return machine


def write(log: UnifiedLog, machine: Machine, count: int, *, keys: int = 2) -> None:
    """Append a number of records with few keys at the current time."""
    for i in range(count):
        key = b"%d" % (i % keys)
        data = encode_batch([machine.clock.now_ms()], [key], [b"v" * 20])
        log.append_as_leader(bytearray(data), 0)
    log.update_high_watermark(log.log_end_offset)


def cleaner_of(manager: LogManager) -> LogCleaner:
    (cleaner,) = manager.cleaners.values()
    return cleaner


def clean(manager: LogManager) -> bool:
    return cleaner_of(manager).clean_once(cleaner_of(manager).new_cleaner())


def first_dirty_offsets(manager: LogManager) -> dict[int, int]:
    return {name.partition: offset for name, offset in cleaner_of(manager).manager.checkpoints().items()}


def test_the_filthiest_log_is_cleaned_first_and_clean_logs_are_skipped(machine: Machine) -> None:
    manager = machine.start()
    logs = [orders(manager, partition, COMPACTED) for partition in range(3)]
    for log in logs:
        write(log, machine, 40)
    cleaned = [clean(manager) for _ in range(4)]
    first = first_dirty_offsets(manager)
    write(logs[1], machine, 10)
    write(logs[2], machine, 60)
    order = []
    while clean(manager):
        order.append(max(p for p, offset in first_dirty_offsets(manager).items() if offset != first[p]))
        first = first_dirty_offsets(manager)
    metrics = manager.metrics().cleaner
    manager.close()

    assert cleaned == [True, True, True, False]
    assert order[0] == 2
    assert metrics.cleans_total == 3 + len(order)
    assert 0 < metrics.bytes_written_total < 0.6 * metrics.bytes_read_total
    assert metrics.dead_thread_count == 0


def test_first_dirty_offsets_survive_a_restart(machine: Machine) -> None:
    manager = machine.start()
    write(orders(manager, 0, COMPACTED), machine, 40)
    clean(manager)
    before, text = (
        first_dirty_offsets(manager),
        (machine.directories[0] / "cleaner-offset-checkpoint").read_text(),
    )
    crash(manager)
    again = machine.start()
    after, cleaned = first_dirty_offsets(again), clean(again)
    again.close()

    assert text == f"0\n1\norders 0 {before[0]}\n"
    assert (after, cleaned) == (before, False)


@pytest.mark.parametrize("content", ["0\n1\norders 0 9999\n", "0\n1\norders 0 3\n", "nonsense"])
def test_a_first_dirty_offset_outside_the_log_is_reset(machine: Machine, content: str) -> None:
    manager = machine.start()
    log = orders(manager, 0, COMPACTED)
    write(log, machine, 40)
    log.maybe_increment_log_start_offset(10)
    (machine.directories[0] / "cleaner-offset-checkpoint").write_text(content)
    cleaned = clean(manager)
    end = log.active_segment.base_offset
    found = first_dirty_offsets(manager)
    manager.close()

    assert (cleaned, found) == (True, {0: end})


def test_a_log_below_its_dirty_ratio_is_cleaned_after_the_maximum_lag(machine: Machine) -> None:
    """The oldest dirty segment begins with older records than it ends with."""
    config = replace(COMPACTED, min_cleanable_dirty_ratio=0.99, max_compaction_lag_ms=60_000)
    machine.configs["orders"] = config
    manager = machine.start()
    log = orders(manager, 0, config)
    write(log, machine, 40, keys=30)
    first = clean(manager)
    machine.clock.advance(2)
    write(log, machine, 20, keys=30)
    waiting = clean(manager)
    machine.clock.advance(59)
    late = clean(manager)
    delay = manager.metrics().cleaner.max_compaction_delay_secs
    manager.close()

    assert (first, waiting, late) == (True, False, True)
    assert delay == 1.0


def test_records_younger_than_the_minimum_lag_are_not_cleaned(machine: Machine) -> None:
    config = replace(COMPACTED, min_compaction_lag_ms=10_000)
    machine.configs["orders"] = config
    manager = machine.start()
    log = orders(manager, 0, config)
    write(log, machine, 20)
    machine.clock.advance(9.999)
    write(log, machine, 20)
    young = clean(manager)
    machine.clock.advance(0.001)
    cleaned, found = clean(manager), first_dirty_offsets(manager)
    manager.close()

    assert (young, cleaned) == (False, True)
    assert 0 < found[0] <= 20


def test_nothing_is_cleaned_at_or_above_the_last_stable_offset(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager, 0, COMPACTED)
    write(log, machine, 40)
    log.update_high_watermark(15)
    clean(manager)
    found = first_dirty_offsets(manager)
    manager.close()

    assert found[0] <= 15


def test_records_of_an_open_transaction_are_not_cleaned(machine: Machine) -> None:
    """It may still be aborted, and then older records of its keys are the newest ones."""
    manager = machine.start()
    log = orders(manager, 0, COMPACTED)
    write(log, machine, 20)
    log.append_as_leader(bytearray(batch(0, 1, producer=(7, 0, 0), transactional=True)), 0)
    write(log, machine, 20)
    cleaned, found = clean(manager), first_dirty_offsets(manager)
    manager.close()

    assert cleaned
    assert 0 < found[0] <= 20


def test_a_log_whose_cleaning_fails_is_marked_uncleanable_and_counted(machine: Machine) -> None:
    manager = machine.start()
    logs = [orders(manager, partition, COMPACTED) for partition in range(2)]
    for log in logs:
        write(log, machine, 60)
    path = logs[0].segments[0].path
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    for _ in range(4):
        clean(manager)
    metrics, found = manager.metrics().cleaner, first_dirty_offsets(manager)
    write(logs[0], machine, 5)
    delete_log(manager, name_of(0))
    clean(manager)
    after = manager.metrics().cleaner
    manager.close()

    directory = str(machine.directories[0])
    assert metrics.uncleanable_partitions == {directory: 1}
    assert metrics.uncleanable_bytes[directory] > 1000
    assert found[0] == 0 < found[1]
    assert after.uncleanable_partitions == {}


def test_a_disk_failure_during_cleaning_takes_the_directory_offline(machine: Machine) -> None:
    switch = Switch(NoFaults())
    machine.files = SteppedFileSystem(UnsyncedFileSystem(), switch)
    manager = machine.start()
    write(orders(manager, 0, COMPACTED), machine, 40)
    switch.faults = DiskError("write .log.cleaned")
    clean(manager)
    machine.scheduler.run()
    metrics = manager.metrics()
    manager.close()

    assert metrics.offline_log_directory_count == 1
    assert metrics.logs == 0
    assert metrics.cleaner.uncleanable_partitions == {}


def test_truncation_aborts_a_cleaning(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truncation waits for the cleaning, which ends before its next read."""
    manager = machine.start()
    log = orders(manager, 0, COMPACTED)
    write(log, machine, 60)
    cleaner_manager = cleaner_of(manager).manager
    reached, go_on = threading.Event(), threading.Event()
    find = DirtySection.find_survivors

    def slow(*args: object) -> object:
        reached.set()
        assert go_on.wait(240)
        return find(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(DirtySection, "find_survivors", slow)
    cleaner = threading.Thread(target=clean, args=(manager,))
    cleaner.start()
    assert reached.wait(240)
    during = cleaner_manager.state(name_of(0))
    truncation = threading.Thread(target=manager.truncate_to, args=(name_of(0), 5))
    truncation.start()
    while cleaner_manager.state(name_of(0)) == IN_PROGRESS:
        threading.Event().wait(0.001)
    ends = log.log_end_offset
    go_on.set()
    truncation.join(240)
    cleaner.join(240)

    assert during == IN_PROGRESS
    assert (ends, log.log_end_offset) == (60, 5)
    assert cleaner_manager.state(name_of(0)) is None
    assert first_dirty_offsets(manager) == {}
    manager.close()


def test_a_compacted_log_with_retention_is_cleaned_and_expired(machine: Machine) -> None:
    config = replace(COMPACTED, delete=True, retention_bytes=1500)
    machine.configs["orders"] = config
    manager = machine.start()
    log = orders(manager, 0, config)
    write(log, machine, 100, keys=100)
    by_retention = manager.periodic_tasks.delete_old_segments()
    clean(manager)
    manager.close()

    assert by_retention == 0
    assert log.log_start_offset > 0
    assert log.size < 2200


def test_retention_skips_a_paused_log(machine: Machine) -> None:
    config = replace(COMPACTED, compact=False, delete=True, retention_bytes=1)
    machine.configs["orders"] = config
    manager = machine.start()
    write(orders(manager, 0, config), machine, 40)
    cleaner_of(manager).manager.pause(name_of(0))
    paused = manager.periodic_tasks.delete_old_segments()
    cleaner_of(manager).manager.resume(name_of(0))
    resumed = manager.periodic_tasks.delete_old_segments()
    manager.close()

    assert paused == 0
    assert resumed > 0


def test_the_cleaner_threads_clean_and_stop(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager, 0, COMPACTED)
    write(log, machine, 60)
    cleaner_of(manager).start()
    while not first_dirty_offsets(manager):
        threading.Event().wait(0.005)
    alive = manager.metrics().cleaner.dead_thread_count
    manager.close()

    assert alive == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("log-cleaner")]


@pytest.mark.parametrize(
    "wrong",
    [{"threads": 0}, {"dedupe_buffer_bytes": 100}, {"io_buffer_bytes": 0}, {"io_max_bytes_per_second": 0.0}],
)
def test_an_invalid_cleaner_configuration_is_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        CleanerConfig(**wrong)


def test_logs_of_other_topics_are_not_cleaned(machine: Machine) -> None:
    manager = machine.start()
    plain = replace(COMPACTED, compact=False, delete=True)
    log = orders(manager, 0, plain)
    write(log, machine, 60)
    before = clean(manager)
    manager.update_config(log, COMPACTED)
    after = clean(manager)
    manager.update_config(log, plain)
    manager.close()

    assert (before, after) == (False, True)
    assert TopicPartition("orders", 0) == log.topic_partition
