"""A store behind a proxy that injects faults, and the same objects without the proxy."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.object_store.s3.fault_proxy import FaultProxy, running_proxy
from tests.object_store.s3.limited_store import LIMITS, store_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.clock import ManualClock
    from object_store.open import StoreConfig
    from object_store.s3.store import S3Store
    from tests.fixtures.s3 import S3Server


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with running_proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def direct(s3_config: StoreConfig, clock: ManualClock) -> Iterator[S3Store]:
    """The same objects without the proxy."""
    with closing(store_at(s3_config, clock, LIMITS, s3_config.endpoint)) as store:
        yield store


@pytest.fixture
def store(
    s3_config: StoreConfig, clock: ManualClock, proxy: FaultProxy, request: pytest.FixtureRequest
) -> Iterator[S3Store]:
    """A store behind the proxy; indirect parametrization of `store` sets its limits."""
    limits = getattr(request, "param", LIMITS)
    with closing(store_at(s3_config, clock, limits, proxy.endpoint)) as store:
        yield store
