"""Jobs that run a function in the Spark worker that unpickles them."""

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


class CallOnUnpickling(bytes):
    """Bytes that call a function in the process that unpickles them."""

    call: Callable[..., object]
    argument: object

    @classmethod
    def of(cls, call: Callable[..., object], argument: object) -> CallOnUnpickling:
        data = cls()
        data.call, data.argument = call, argument
        return data

    @override
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object]]:
        return self.call, (self.argument,)


def main(master: str) -> None:
    """Start an endless job, print its outcome after three seconds (None), and stop it."""
    job = PackedJob(UUID(int=1), UUID(int=2), CallOnUnpickling.of(time.sleep, 10_000))
    with spark_session(SparkSettings(master=master)) as spark:
        with JobQueries(spark, StoreConfig("/nowhere"), tag="endless") as running:
            running.start([QueryJob(job)])
            sys.stdout.write(f"{running.next_outcome(3)}\n")
        sys.stdout.write("stopped\n")


if __name__ == "__main__":
    main(sys.argv[1])
