"""Reads of lost files before their turn: their order, their bound, and their errors."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from core.errors import NotFoundError
from maintenance.readopt import LostFile, ReadAhead
from maintenance.readopt.read_ahead import READS_AT_ONCE
from object_store.errors import StoreUnavailableError

_TIMEOUT_SECONDS = 240


def _files(count: int) -> list[LostFile]:
    return [
        LostFile(file_id=UUID(int=number), session_id=UUID(int=1), object_name=str(number), acknowledged=True)
        for number in range(count)
    ]


def test_files_are_read_at_the_same_time_and_taken_in_order() -> None:
    files = _files(3 * READS_AT_ONCE)
    together = threading.Barrier(READS_AT_ONCE)

    def read(lost: LostFile) -> str:
        together.wait(_TIMEOUT_SECONDS)
        return lost.object_name

    with ReadAhead(files, read) as ahead:
        assert [ahead.take(lost) for lost in files] == [lost.object_name for lost in files]


def test_an_error_is_that_of_its_file() -> None:
    files = _files(5)

    def read(lost: LostFile) -> str:
        if lost is files[2]:
            raise NotFoundError("there is no such object")
        return lost.object_name

    with ReadAhead(files, read) as ahead:
        assert [ahead.take(lost) for lost in files[:2]] == ["0", "1"]
        with pytest.raises(NotFoundError):
            ahead.take(files[2])
        assert [ahead.take(lost) for lost in files[3:]] == ["3", "4"]
        with pytest.raises(ValueError, match="taken before"):
            ahead.take(files[4])


@pytest.mark.parametrize("is_back", [True, False])
def test_a_file_is_read_again_at_its_turn_if_the_store_was_away(*, is_back: bool) -> None:
    files = _files(3)
    away = threading.Barrier(len(files))

    def read(lost: LostFile) -> str:
        is_early = threading.current_thread() is not threading.main_thread()
        if is_early:
            away.wait(_TIMEOUT_SECONDS)
        if is_early or not is_back:
            raise StoreUnavailableError("no route to host")
        return lost.object_name

    with ReadAhead(files, read) as ahead:
        for lost in files:
            if is_back:
                assert ahead.take(lost) == lost.object_name
            else:
                with pytest.raises(StoreUnavailableError):
                    ahead.take(lost)


def test_at_most_a_few_files_are_read_that_nobody_takes() -> None:
    files = _files(100)
    read: list[LostFile] = []
    with ReadAhead(files, read.append) as ahead:
        assert read == []
        for lost in files[10:12]:
            ahead.take(lost)
        assert len(ahead._reads) == READS_AT_ONCE
    assert set(map(id, read)) <= set(map(id, files[: 12 + READS_AT_ONCE]))
