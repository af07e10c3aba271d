"""The process has no file descriptor left: no disk goes offline, and no log changes in part."""

from __future__ import annotations

import errno
import gc
import os
import resource
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.kafka.errors import ErrorCode, code_of
from local_tier.errors import LogDirectoryOfflineError, NoDescriptorError
from local_tier.files.descriptors import process_descriptors
from local_tier.manager.set_aside_logs import Disposal
from tests.agent.kafka.waiting import until
from tests.local_tier.batches import batch
from tests.local_tier.crash.crash_check import contents
from tests.local_tier.manager.managers import SMALL, Machine, crash, fill, name_of, orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager

COMPACTED = replace(SMALL, compact=True, delete=False, min_cleanable_dirty_ratio=0.0, file_delete_delay_ms=0)


@contextmanager
def none_left() -> Iterator[None]:
    """Let no file be opened."""
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_one = os.open("/", os.O_RDONLY)
    os.close(next_one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def serving() -> Iterator[None]:
    """Let calls wait, as while an agent serves its logs."""
    process_descriptors.begin()
    yield
    process_descriptors.end()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine((tmp_path / "a",))


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("serving")
def test_reads_are_refused_and_work_afterwards(machine: Machine) -> None:
    """The indexes of old segments are opened by the first read."""
    manager = machine.start()
    fill(orders(manager), 30)
    manager.close()
    manager = machine.start()
    log = orders(manager)
    gc.collect()
    before = descriptors()
    with none_left():
        for _ in range(3):
            with pytest.raises(NoDescriptorError):
                log.read(3, 100)
            with pytest.raises(NoDescriptorError):
                log.offset_for_timestamp(1)
    assert descriptors() == before
    assert log.read(3, 100).next_offset == 4
    assert manager.offline_directories == []
    manager.close()


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("crashes", [False, True])
def test_an_append_that_needs_a_new_segment_is_refused(machine: Machine, *, crashes: bool) -> None:
    """Smaller ones, which fit into the segment, go on."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 4, size=100)
    small, large = batch(0, size=10), batch(0, size=900)
    with none_left():
        for _ in range(2):
            with pytest.raises(NoDescriptorError):
                log.append_as_leader(bytearray(large), 0)
            assert log.append_as_leader(bytearray(small), 0).first_offset == log.log_end_offset - 1
    assert log.log_end_offset == 6
    log.append_as_leader(bytearray(large), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 6]
    expected = contents(log)
    if crashes:
        crash(manager)
    else:
        manager.close()
    manager = machine.start()
    assert contents(orders(manager)) == expected
    manager.close()


@pytest.mark.usefixtures("serving")
def test_no_log_is_created(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager)
    fill(log, 1)
    with none_left():
        with pytest.raises(NoDescriptorError):
            orders(manager, 1)
        assert log.read(0, 100).next_offset == 1
    assert machine.names() == ["orders-0"]
    orders(manager, 1)
    assert manager.offline_directories == []
    manager.close()


def _clean(manager: LogManager, log: UnifiedLog) -> None:
    del log
    (cleaner,) = manager.cleaners.values()
    assert cleaner.clean_once(cleaner.new_cleaner())


def _checkpoint(manager: LogManager, log: UnifiedLog) -> None:
    del log
    manager.periodic_tasks.checkpoint_recovery_points()
    manager.periodic_tasks.checkpoint_high_watermarks()


def _set_aside_and_reopen(manager: LogManager, log: UnifiedLog) -> None:
    assert manager.disposal.set_aside(log, Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    assert manager.reopening.reopen(name_of(0), found, COMPACTED) is not None
    manager.marks.remove()


WORK: list[Callable[[LogManager, UnifiedLog], object]] = [
    _clean,
    _checkpoint,
    _set_aside_and_reopen,
    lambda manager, log: manager.delete_records(log.topic_partition, 5),
    lambda manager, log: manager.truncate_to(log.topic_partition, 20),
    lambda _, log: log.roll(),
    lambda _, log: log.flush(force_active=True),
]


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("work", WORK)
def test_work_that_has_begun_waits(
    machine: Machine, work: Callable[[LogManager, UnifiedLog], object]
) -> None:
    """Its result is that of the same work with enough descriptors."""
    results = []
    for lacks_descriptors in (False, True):
        machine.directories = (machine.directories[0].with_name(f"lacks-{lacks_descriptors}"),)
        manager = machine.start()
        log = orders(manager, config=COMPACTED)
        for number in range(30):
            log.append_as_leader(bytearray(batch(number % 3, size=100)), 0)
        log.update_high_watermark(log.log_end_offset)
        thread = threading.Thread(target=work, args=(manager, log))
        if lacks_descriptors:
            with none_left():
                thread.start()
                until(lambda: process_descriptors.waiting == 1)
        else:
            thread.start()
        thread.join()
        assert manager.offline_directories == []
        found = orders(manager, config=COMPACTED)
        results.append((found.log_start_offset, found.log_end_offset, contents(found)))
        crash(manager)
        manager = machine.start()
        (found,) = manager.logs()
        assert (found.log_end_offset, contents(found)) == results[-1][1:]
        manager.close()
    assert results[0] == results[1]


def test_calls_wait_only_while_logs_are_served(machine: Machine) -> None:
    """An agent that starts or stops does not wait for ever."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 1)
    errors: list[OSError] = []

    def list_directory() -> None:
        try:
            machine.files.list_dir(log.directory)
        except OSError as error:
            errors.append(error)

    process_descriptors.begin()
    thread = threading.Thread(target=list_directory)
    with none_left():
        thread.start()
        until(lambda: process_descriptors.waiting == 1)
        process_descriptors.end()
        thread.join()
        with pytest.raises(LogDirectoryOfflineError):
            log.roll()
    assert [error.errno for error in errors] == [errno.EMFILE]
    manager.close()


def test_clients_repeat_requests_that_were_refused() -> None:
    assert code_of(NoDescriptorError("none")) is ErrorCode.kafka_storage_error
