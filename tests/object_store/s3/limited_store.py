"""An S3 store with low limits, an object for it, and a way to read the object."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.s3.limits import S3Limits
from object_store.s3.store import S3Store
from tests.fixtures.s3 import bucket_of
from tests.object_store.s3.fault_proxy import Fault

if TYPE_CHECKING:
    from core.clock import ManualClock
    from object_store.open import StoreConfig

ATTEMPTS = 4
LIMITS = S3Limits(
    attempts=ATTEMPTS, resumes=5, bytes_per_resume=1 << 20, read_timeout_seconds=240, part_size=5 << 20
)
DATA = np.arange(500_000, dtype=">u4").tobytes()


def slow_down(method: str, times: int, part: str = "") -> Fault:
    return Fault(method=method, part=part, times=times, status=503, code="SlowDown")


def store_at(config: StoreConfig, clock: ManualClock, limits: S3Limits, endpoint: str | None) -> S3Store:
    return S3Store(
        bucket_of(config),
        "some/prefix",
        endpoint=endpoint,
        region=config.region,
        clock=clock,
        ids=SystemIds(clock),
        limits=limits,
    )


def read_all(store: S3Store, position: int = 0, end: int | None = None) -> tuple[bytes, int]:
    """Return the object's bytes and the number of resumes."""
    data = bytearray()
    target = memoryview(bytearray(64_000))
    with closing(store.open_stream("v1/x", position, end, purpose=Purpose.COMPACTION)) as stream:
        while count := stream.readinto(target):
            data += target[:count]
        return bytes(data), stream.resumes
