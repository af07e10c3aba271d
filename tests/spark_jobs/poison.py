"""Jobs that do something to the Spark worker that takes them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING
from uuid import UUID

from typing_extensions import override

from object_store.open import StoreConfig
from spark_jobs.queries import JobQueries, QueryJob
from spark_jobs.session.spark_session import SparkSettings, spark_session
from spark_jobs.task.entry import PackedJob

if TYPE_CHECKING:
    from collections.abc import Callable


class Poison(bytes):
    """Bytes that call a function in whoever unpickles them."""

    call: Callable[[int], object]
    argument: int

    @classmethod
    def of(cls, call: Callable[[int], object], argument: int) -> Poison:
        poisoned = cls()
        poisoned.call, poisoned.argument = call, argument
        return poisoned

    @override
    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return self.call, (self.argument,)


def poison(call: Callable[[int], object], argument: int) -> bytes:
    """Such bytes."""
    return Poison.of(call, argument)


def main(master: str) -> None:
    """Begin an endless job, stop it, and say so."""
    job = PackedJob(UUID(int=1), UUID(int=2), poison(time.sleep, 10_000))
    with spark_session(SparkSettings(master=master)) as spark:
        with JobQueries(spark, StoreConfig("/nowhere"), [QueryJob(job)], tag="endless") as running:
            sys.stdout.write(f"{running.next_outcome(3)}\n")
        sys.stdout.write("stopped\n")


if __name__ == "__main__":
    main(sys.argv[1])
