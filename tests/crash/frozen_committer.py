"""A process that commits one file and stops itself with SIGSTOP between the statements of the first attempt.

Arguments: the catalog's address, a session, and the topic whose first partition gets one record. It prints
the base offset, or the name of the error.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING
from uuid import UUID

from catalog.commit import attempt
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import SystemClock
from core.errors import SiltstoneError
from core.ids import SystemIds
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from collections.abc import Callable


def stopping_once(check: Callable[..., None]) -> Callable[..., None]:
    """Return `check`, with a SIGSTOP of this process before the first call."""
    stopped = False

    def check_after_stop(*arguments: object) -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        check(*arguments)

    return check_after_stop


def main(url: str, session_id: str, topic_id: str) -> None:
    """Commit, and print what came of it."""
    clock = SystemClock()
    ids = SystemIds(clock)
    attempt.CommitAttempt._check_session = stopping_once(attempt.CommitAttempt._check_session)  # type: ignore[method-assign]  # stops here
    with open_catalog(url, clock, ids) as catalog:
        file = Scene(catalog, ids, UUID(session_id)).file({PartitionId(UUID(topic_id), 0): [run_of(1)]})
        try:
            (result,) = catalog.commits.commit(file)
        except SiltstoneError as error:
            sys.stdout.write(type(error).__name__)
        else:
            sys.stdout.write(str(result.runs[0].base_offset))


if __name__ == "__main__":
    main(*sys.argv[1:])
