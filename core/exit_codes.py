"""Exit codes of the command and of an agent, for scripts and service managers.

Most have their numbers from sysexits.h. The help of `siltstone` lists them.
"""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
WRONG_USAGE: Final = 2
PART_FAILED: Final = 70  # EX_SOFTWARE
TEMPORARY_FAILURE: Final = 75  # EX_TEMPFAIL
WRONG_SCHEMA: Final = 78  # EX_CONFIG
INTERRUPTED: Final = 130  # 128 + SIGINT, as in shells

MEANINGS: Final = {
    0: "success",
    FAILED: "failure",
    WRONG_USAGE: "wrong usage or configuration",
    TEMPORARY_FAILURE: "temporary failure (retry later)",
    WRONG_SCHEMA: "the schema of the catalog does not fit this version",
    PART_FAILED: "a part of the process has ended (restart it)",
    INTERRUPTED: "interrupted",
}
