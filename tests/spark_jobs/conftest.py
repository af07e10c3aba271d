"""One local Spark session for all tests of a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from object_store.local.store import LocalStore
from object_store.open import StoreConfig
from spark_jobs.compact import run_jobs
from spark_jobs.session.spark_session import spark_session
from tests.fixtures.ports import lasting_ports
from tests.spark_jobs.catalog_log import CatalogLog
from tests.spark_jobs.connect_server import connect_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from spark_jobs.report import CompactionReport

    RunClaimed = Callable[..., CompactionReport]


@dataclass(frozen=True)
class SparkForTests:
    """A classic session, whose Java process also serves Spark Connect to other processes."""

    session: SparkSession
    connect_url: str


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkForTests]:
    (port,) = lasting_ports(1)  # Java binds it some seconds later
    with spark_session(connect_settings(port)) as session:
        yield SparkForTests(session, f"sc://127.0.0.1:{port}")


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    return StoreConfig(str(tmp_path / "objects"))


@pytest.fixture
def catalog_log(catalog: Catalog, tmp_path: Path, ids: Ids) -> Iterator[CatalogLog]:
    """An empty log in `catalog` and the store of `store_config`."""
    store = LocalStore(tmp_path / "objects", ids)
    yield CatalogLog(catalog, store, ids)
    store.close()


@pytest.fixture
def run_claimed(
    spark: SparkForTests, catalog: Catalog, store_config: StoreConfig, clock: Clock, ids: Ids
) -> RunClaimed:
    """Return a function that runs the queued jobs of `catalog`; its arguments go to `run_jobs`."""

    def run(**more: Any) -> CompactionReport:  # noqa: ANN401  # the arguments of run_jobs
        return run_jobs(
            spark.session,
            catalog.jobs.claim("a test", 10),
            **{"store": store_config, "book": catalog.jobs, "clock": clock, "ids": ids, **more},
        )

    return run
