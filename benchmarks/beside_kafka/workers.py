"""Processes that run clients of librdkafka: each does one piece of work at a time, and all begin together."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from benchmarks.beside_kafka.load import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from types import TracebackType
    from typing import Self

_READY = "ready"
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """The error of a piece of work."""

    reason: str


class Workers:
    """A pool of processes that grows as needed."""

    def __init__(self) -> None:
        self._workers: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes."""
        for process, connection in self._workers:
            process.kill()
            connection.close()
        for process, _ in self._workers:
            process.join()
        self._workers.clear()

    def run(
        self, work: Callable[..., Any], arguments: Sequence[Mapping[str, Any]], seconds: float
    ) -> list[Any]:
        """Call `work` with each set of arguments, in a process each, and return the results."""
        return self.run_each([(work, each) for each in arguments], seconds)

    def run_each(
        self, work: Sequence[tuple[Callable[..., Any], Mapping[str, Any]]], seconds: float
    ) -> list[Any]:
        """Call functions with their arguments, in a process each, and return the results.

        The first argument of each function is another one, which it calls when it is ready, and which returns
        when all are ready. If one fails or takes too long, all processes end.
        """
        try:
            return self._run(work, seconds)
        except BaseException:
            self.stop()
            raise

    def _run(self, work: Sequence[tuple[Callable[..., Any], Mapping[str, Any]]], seconds: float) -> list[Any]:
        while len(self._workers) < len(work):
            self._workers.append(_start())
        connections = [connection for _, connection in self._workers[: len(work)]]
        for connection, each in zip(connections, work, strict=True):
            connection.send(each)
        deadline = perf_counter() + _START_SECONDS
        for connection in connections:
            _receive(connection, deadline)
        for connection in connections:
            connection.send(None)
        deadline = perf_counter() + seconds
        return [_receive(connection, deadline) for connection in connections]


def _start() -> tuple[BaseProcess, Connection]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=cast("type", _serve), args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _receive(connection: Connection, deadline: float) -> Any:  # noqa: ANN401  # any result
    if not connection.poll(max(deadline - perf_counter(), 0.0)):
        raise LoadError("a client of librdkafka did not finish in time")
    try:
        found = connection.recv()
    except EOFError:
        raise LoadError("a client of librdkafka has ended") from None
    if isinstance(found, _Failure):
        raise LoadError(found.reason)
    return found


def _serve(connection: Connection) -> None:
    """Work until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process

    def wait_for_all() -> None:
        connection.send(_READY)
        connection.recv()

    while True:
        try:
            work, arguments = connection.recv()
        except EOFError:
            return
        try:
            found = work(wait_for_all, **arguments)
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001  # the parent reports it
            found = _Failure(f"{type(error).__name__}: {error}")
        connection.send(found)
