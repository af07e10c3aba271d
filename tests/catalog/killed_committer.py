"""A process that commits two files together and kills itself between them.

Arguments: the catalog's address, a session, and the topic whose first partition gets one record of each file.
"""

from __future__ import annotations

import os
import signal
import sys
from uuid import UUID

from typing_extensions import override

from catalog.commit import attempt, repository
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from tests.catalog.scene import Scene, run_of


class KilledAttempt(attempt.CommitAttempt):
    """Attempt that kills the process when the server has executed the statements of the file before it."""

    attempts = 0

    @override
    def _check_session(self, rows: list[tuple[object, ...]]) -> None:
        type(self).attempts += 1
        if self.attempts == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._check_session(rows)


def main(url: str, session_id: str, topic_id: str) -> None:
    """Commit, and die."""
    clock = SystemClock()
    ids = SystemIds(clock)
    repository.__dict__["CommitAttempt"] = KilledAttempt
    with open_catalog(url, clock, ids) as catalog:
        scene = Scene(catalog, ids, UUID(session_id))
        key = PartitionId(UUID(topic_id), 0)
        catalog.commits.commit_together([scene.file({key: [run_of(1)]}) for _ in range(2)])


if __name__ == "__main__":
    main(*sys.argv[1:])
