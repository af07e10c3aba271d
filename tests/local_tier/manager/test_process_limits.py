"""The process has no file descriptor or memory map left: no disk goes offline, no log changes in part."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import resource
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast
from weakref import WeakSet

import pytest
from typing_extensions import override

from agent.kafka.errors import ErrorCode, code_of
from local_tier.errors import LogDirectoryOfflineError, ProcessLimitError
from local_tier.files import file_system
from local_tier.files import process_limits as process_limits_module
from local_tier.files.process_limits import process_limits
from local_tier.manager.log_opener import LOG_RESERVE
from local_tier.manager.set_aside_logs import Disposal
from tests.agent.kafka.waiting import until
from tests.local_tier.batches import batch
from tests.local_tier.crash.crash_check import contents
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manager.managers import SMALL, Machine, crash, fill, name_of, orders
from tests.local_tier.steps import NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager

Lack = Callable[[], AbstractContextManager[None]]
COMPACTED = replace(SMALL, compact=True, delete=False, min_cleanable_dirty_ratio=0.0, file_delete_delay_ms=0)


class NoMaps:
    """A module in the place of `mmap` that maps nothing."""

    PAGESIZE = mmap.PAGESIZE

    @staticmethod
    def mmap(*_: object) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")


@contextmanager
def no_maps() -> Iterator[None]:
    """Let no file be mapped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_system, "mmap", NoMaps)
        patch.setattr(process_limits_module, "mmap", NoMaps)
        yield


@contextmanager
def no_descriptors(left: int = 0) -> Iterator[None]:
    """Let no file be opened, or at most `left` of them."""
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = [os.open("/", os.O_RDONLY) for _ in range(left + 1)]
    for each in lowest:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def serving() -> Iterator[None]:
    """Let calls wait, as while an agent serves its logs."""
    process_limits.begin()
    yield
    process_limits.end()


@pytest.fixture(params=[no_descriptors, no_maps])
def none_left(request: pytest.FixtureRequest) -> Lack:
    return cast("Lack", request.param)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine((tmp_path / "a",))


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("serving")
def test_reads_are_refused_and_work_afterwards(machine: Machine, none_left: Lack) -> None:
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
            with pytest.raises(ProcessLimitError):
                log.read(3, 100)
            with pytest.raises(ProcessLimitError):
                log.offset_for_timestamp(1)
    assert descriptors() == before
    assert log.read(3, 100).next_offset == 4
    assert manager.offline_directories == []
    manager.close()


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("crashes", [False, True])
def test_an_append_that_needs_a_new_segment_is_refused(
    machine: Machine, none_left: Lack, *, crashes: bool
) -> None:
    """Smaller ones, which fit into the segment, go on."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 4, size=100)
    small, large = batch(0, size=10), batch(0, size=900)
    with none_left():
        for _ in range(2):
            with pytest.raises(ProcessLimitError):
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
def test_no_log_is_created(machine: Machine, none_left: Lack) -> None:
    manager = machine.start()
    log = orders(manager)
    fill(log, 1)
    with none_left():
        with pytest.raises(ProcessLimitError):
            orders(manager, 1)
        assert log.read(0, 100).next_offset == 1
    assert machine.names() == ["orders-0"]
    orders(manager, 1)
    assert manager.offline_directories == []
    manager.close()


@pytest.mark.usefixtures("serving")
def test_no_log_is_opened_again(machine: Machine, none_left: Lack) -> None:
    """The log waits, and no thread of its disk does."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 3)
    assert manager.disposal.set_aside(log, Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    with none_left(), pytest.raises(ProcessLimitError):
        manager.reopening.reopen(name_of(0), found, SMALL)
    assert manager.reopening.set_aside_logs() == [found]
    reopened = manager.reopening.reopen(name_of(0), found, SMALL)
    assert reopened is not None
    assert reopened.log_end_offset == 3
    assert manager.offline_directories == []
    manager.close()


def test_a_log_of_many_segments_is_opened_again_only_if_all_can_be_opened(machine: Machine) -> None:
    """Otherwise it would wait for the last ones, with the lock of the creation of other logs."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 100)
    segments = len(log.segments)
    assert manager.disposal.set_aside(log, Disposal.WAIT)
    del log
    (found,) = manager.reopening.set_aside_logs()
    with no_descriptors(left=segments), pytest.raises(ProcessLimitError):
        manager.reopening.reopen(name_of(0), found, SMALL)
    assert manager.reopening.set_aside_logs() == [found]
    with no_descriptors(left=segments + LOG_RESERVE.descriptors):
        reopened = manager.reopening.reopen(name_of(0), found, SMALL)
    assert reopened is not None
    assert reopened.log_end_offset == 100
    assert manager.offline_directories == []
    manager.close()


@pytest.mark.usefixtures("serving")
def test_no_copy_for_another_disk_is_created(tmp_path: Path, none_left: Lack) -> None:
    machine = Machine((tmp_path / "a", tmp_path / "b"))
    manager = machine.start()
    log = orders(manager)
    target = next(path for path in machine.directories if path != log.directory.parent)
    with none_left(), pytest.raises(ProcessLimitError):
        manager.moves.create_future_log(name_of(0), target)
    assert list(target.glob("orders*")) == []
    manager.moves.create_future_log(name_of(0), target)
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_limits, "_require", lambda _: None)  # the rest was taken after this look
        assert manager.reopening.reopen(name_of(0), found, COMPACTED) is not None
    manager.marks.remove()


def _truncate(manager: LogManager, log: UnifiedLog) -> None:
    manager.truncate_to(log.topic_partition, 20)


def _roll(manager: LogManager, log: UnifiedLog) -> None:
    del manager
    log.roll()


Work = Callable[["LogManager", "UnifiedLog"], object]
WORK: list[tuple[Lack, Work]] = [
    (no_descriptors, _clean),
    (no_descriptors, _checkpoint),
    (no_descriptors, _set_aside_and_reopen),
    (no_descriptors, lambda manager, log: manager.delete_records(log.topic_partition, 5)),
    (no_descriptors, _truncate),
    (no_descriptors, _roll),
    (no_descriptors, lambda _, log: log.flush(force_active=True)),
    (no_maps, _clean),
    (no_maps, _set_aside_and_reopen),
    (no_maps, _truncate),
    (no_maps, _roll),
]


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(("none_left", "work"), WORK)
def test_work_that_has_begun_waits(machine: Machine, none_left: Lack, work: Work) -> None:
    """Its result is that of the same work with enough descriptors and maps."""
    results = []
    for is_lacking in (False, True):
        machine.directories = (machine.directories[0].with_name(f"lacking-{is_lacking}"),)
        manager = machine.start()
        log = orders(manager, config=COMPACTED)
        for number in range(30):
            log.append_as_leader(bytearray(batch(number % 3, size=100)), 0)
        log.update_high_watermark(log.log_end_offset)
        thread = threading.Thread(target=work, args=(manager, log))
        if is_lacking:
            with none_left():
                thread.start()
                until(lambda: process_limits.waiting == 1)
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


class DuringCreation(NoFaults):
    """Does other work when a log is being created."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work

    @override
    def before(self, step: str) -> None:
        super().before(step)
        if step == "create .log" and self.steps[step] == 1:
            self._work()


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(
    ("descriptors_left", "maps_left", "is_refused"), [(64, 64, False), (18, 64, True), (64, 6, True)]
)
def test_logs_that_are_created_together_need_their_reserves_together(
    tmp_path: Path, descriptors_left: int, maps_left: int, *, is_refused: bool
) -> None:
    """Otherwise each could take a part of what is left, and wait for the others to return theirs."""
    switch = Switch(NoFaults())
    machine = Machine((tmp_path / "a",), files=SteppedFileSystem(UnsyncedFileSystem(), switch))
    manager = machine.start()
    refused: list[bool] = []

    def create_another() -> None:
        try:
            orders(manager, 1)
        except ProcessLimitError:
            refused.append(True)
        else:
            refused.append(False)

    switch.faults = DuringCreation(create_another)
    with descriptors_limited_to(descriptors_left), maps_limited_to(maps_left):
        orders(manager)
    assert refused == [is_refused]
    assert process_limits.waiting == 0
    orders(manager, 1)  # the reserves were returned
    manager.close()


@contextmanager
def descriptors_limited_to(count: int) -> Iterator[None]:
    """Let `count` more files be opened."""
    gc.collect()
    taken = [os.open("/", os.O_RDONLY) for _ in range(count)]
    with no_descriptors():
        for descriptor in taken:
            os.close(descriptor)
        yield


@contextmanager
def maps_limited_to(count: int) -> Iterator[None]:
    """Let `count` more maps exist at a time, of those that a reserve takes."""
    maps = WeakSet[mmap.mmap]()

    def map_page() -> mmap.mmap:
        if sum(not each.closed for each in maps) >= count:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        maps.add(page := mmap.mmap(-1, mmap.PAGESIZE))
        return page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_limits_module, "_map_page", map_page)
        yield


def test_a_map_that_the_kernel_refuses_is_no_failure_of_the_disk(machine: Machine, tmp_path: Path) -> None:
    """The address space is too small for it, as the number of maps can be."""
    path = tmp_path / "sparse"
    file = machine.files.open(path, create=True)
    file.truncate(1 << 40)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 36), hard))
    try:
        with process_limits.refusing(), pytest.raises(ProcessLimitError, match="memory map"):
            file.map(1 << 40)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    file.close()


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

    process_limits.begin()
    thread = threading.Thread(target=list_directory)
    with no_descriptors():
        thread.start()
        until(lambda: process_limits.waiting == 1)
        process_limits.end()
        thread.join()
        with pytest.raises(LogDirectoryOfflineError):
            log.roll()
    assert [error.errno for error in errors] == [errno.EMFILE]
    manager.close()


def test_clients_repeat_requests_that_were_refused() -> None:
    assert code_of(ProcessLimitError("none")) is ErrorCode.kafka_storage_error
