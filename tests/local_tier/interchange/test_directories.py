"""Log directories that both engines use alternately."""

from __future__ import annotations

from typing import TYPE_CHECKING

from local_tier.files.file_names import LOCK
from local_tier.files.file_system import RealFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from tests.local_tier.interchange.kafka_engine import KafkaEngine


def test_a_lock_excludes_the_other_engine(kafka: KafkaEngine, tmp_path: Path) -> None:
    files, path = RealFileSystem(), tmp_path / LOCK
    ours = files.lock(path)
    assert ours is not None
    assert kafka.ask("lock", path) == "false"
    ours.release()
    assert kafka.ask("lock", path) == "true"
    assert files.lock(path) is None
    kafka.ask("unlock", path)
    again = files.lock(path)
    assert again is not None
    again.release()
