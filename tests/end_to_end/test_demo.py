"""The demo as users run it, with each kind of store and catalog."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from core.clock import SystemClock
from core.ids import SystemIds
from object_format.segment_file import read_directory
from object_store.accounting import Purpose
from object_store.names import HASHED_PREFIX, IngestionName, parse
from object_store.open import StoreConfig, open_store
from tests.end_to_end.forked_command import report_of, run_siltstone
from tests.end_to_end.processes import TIMEOUT_SECONDS, as_url, environment, leftovers, report
from tests.fixtures.s3 import bucket_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.s3 import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def _gets_needed(config: StoreConfig, directory: Path, *where: str) -> dict[str, range]:
    """Return the range of GETs that compaction may have needed for each ingestion file, by name.

    A file with records to deduplicate and records to copy needs two, a file without records to deduplicate
    one. A file with nothing to copy needs one or two: the first pass mostly leaves nothing to read, because
    its batches are compressed. Which topics share a file depends on the time of the requests.
    """
    flights = report_of("topics", "describe", "flights", *where, directory=directory)["topic_id"]
    clock = SystemClock()
    needed = {}
    with contextlib.closing(open_store(config, clock, SystemIds(clock))) as store:
        for info in store.list(HASHED_PREFIX, purpose=Purpose.FSCK):
            if not isinstance(parse(info.name), IngestionName):
                continue
            tail, size = store.read_tail(info.name, info.size, purpose=Purpose.FSCK)
            topics = {
                str(section.topic_id) for section in read_directory(tail, name=info.name, size=size).sections
            }
            copied, deduplicated = bool(topics - {flights}), flights in topics
            needed[info.name] = range(1 + (copied and deduplicated), 2 + deduplicated)
    return needed


def _check(found: dict[str, Any], flights: int, rejected: int, weather: int, tails: int) -> None:
    compaction = found["compaction"]
    assert found["mismatches"] == 0, found["differences"]
    assert found["produced"] == {"flights": flights - rejected, "weather": weather}
    assert found["refused_keyless"] == rejected
    assert found["read_back"] == {"flights": tails, "weather": weather}
    assert compaction["records_in"] == flights - rejected + weather
    assert compaction["records_out"] == tails + weather
    assert compaction["input_files"] == found["ingestion_files"] > 0
    assert compaction["compacted_files"] == found["compacted_files"] >= 2
    assert compaction["failures"] == []
    assert compaction["get_requests_per_input_file"] == 2.0
    assert found["seconds"] > 0


# The longest test: a busy machine may need several times its usual minute.
@pytest.mark.timeout(1800)
def test_the_demo_runs_twice_on_embedded_parts(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    where = ("--data-dir", str(data_dir))
    first = report("demo", *where)
    _check(first, flights=336_776, rejected=2_512, weather=26_115, tails=4_043)
    needed = _gets_needed(StoreConfig(str(data_dir / "objects")), tmp_path, *where)
    assert len(needed) == first["ingestion_files"]
    compaction = first["compaction"]
    assert compaction["get_requests"] == 2 * len(needed) - compaction["input_files_read_once"]
    assert sum(each[0] for each in needed.values()) <= compaction["get_requests"]
    assert compaction["get_requests"] <= sum(each[-1] for each in needed.values())
    assert report_of("plan", *where, directory=tmp_path)["jobs"] == []
    checked = report_of("fsck", "--deep", *where, directory=tmp_path)
    assert checked["differences"] == []
    assert checked["checked"]["records_read"] == 4_043 + 26_115
    second = report("demo", "--rows", "5000", *where)
    _check(
        second,
        flights=5_000,
        rejected=second["refused_keyless"],
        weather=387,
        tails=second["read_back"]["flights"],
    )
    assert second["produced"]["flights"] + second["refused_keyless"] == 5_000
    assert leftovers(data_dir) == []


def test_the_demo_runs_on_s3_and_an_external_postgresql(
    tmp_path: Path, s3_server: S3Server, s3_config: StoreConfig, catalog_url: str
) -> None:
    data_dir = tmp_path / "data"
    assert s3_config.endpoint is not None
    where = (
        *("--data-dir", str(data_dir), "--catalog", as_url(catalog_url)),
        *("--object-store", s3_config.url, "--s3-endpoint", s3_config.endpoint),
    )
    found = report("demo", "--rows", "20000", *where)
    _check(found, flights=20_000, rejected=67, weather=1_550, tails=3_003)
    prefix = s3_config.url.removeprefix("s3:/")
    asked = {
        path.removeprefix(f"{prefix}/"): gets
        for path, gets in s3_server.object_gets(bucket_of(s3_config)).items()
        if isinstance(parse(path.removeprefix(f"{prefix}/")), IngestionName)
    }
    needed = _gets_needed(s3_config, tmp_path, *where)
    assert asked.keys() == needed.keys()
    assert all(gets in needed[name] for name, gets in asked.items())
    assert sum(asked.values()) == found["compaction"]["get_requests"]
    assert not (data_dir / "catalog").exists()
    assert not (data_dir / "objects").exists()
    assert report_of("fsck", "--deep", *where, directory=tmp_path)["differences"] == []


def test_a_topic_of_another_user_with_the_same_name_is_kept(tmp_path: Path, catalog_url: str) -> None:
    where = ("--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url))
    siltstone = partial(run_siltstone, directory=tmp_path)
    siltstone("topics", "create", "weather", *where)
    before = siltstone("topics", "describe", "weather", "--json", *where)
    assert siltstone("demo", "--rows", "100", *where, code=1) == ""
    assert siltstone("topics", "describe", "weather", "--json", *where) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_stopped_demo_leaves_no_process_behind(number: signal.Signals, code: int, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-m", "siltstone", "demo", "--rows", "100", "--data-dir", str(data_dir)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stderr is not None
        output = []
        for line in process.stderr:
            output.append(line)
            if "Start an agent" in line:
                process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == code, output
    assert "Traceback" not in "".join(output)
    assert leftovers(data_dir) == []
