"""A process that publishes the only job and stops itself with SIGSTOP before a step of the first attempt.

Arguments: the catalog's address, and the name of a method of `JobPublication`. It prints the job's state, or
the name of the error.
"""

from __future__ import annotations

import sys
from uuid import UUID

from catalog.jobs.publish import JobPublication
from catalog.open import open_catalog
from core.clock import SystemClock
from core.errors import SiltstoneError
from core.ids import SystemIds
from tests.catalog.scene import Scene
from tests.crash.frozen_committer import stopping_once


def main(url: str, step: str) -> None:
    """Publish, and print what came of it."""
    clock = SystemClock()
    ids = SystemIds(clock)
    setattr(JobPublication, step, stopping_once(getattr(JobPublication, step)))
    with open_catalog(url, clock, ids) as catalog:
        (job,) = catalog.jobs.claim("a driver", 1)
        try:
            catalog.jobs.complete(Scene(catalog, ids, UUID(int=0)).result(job))
        except SiltstoneError as error:
            sys.stdout.write(type(error).__name__)
        else:
            sys.stdout.write(catalog.jobs.get(job.spec.job_id).state.value)


if __name__ == "__main__":
    main(*sys.argv[1:])
