"""The only module that builds and parses object names.

::

    v1/ingest/<session>/<file>.seg             ingestion file, below the prefix of the agent's session
    v1/compact/<job>/<attempt>/<file>.seg      compacted file of one attempt at a job

    siltstone-store.json                       identity of the store: see `object_store.binding`

The identity is outside `v1/`, so that walks over segment files never meet it.

Every `<…>` is a UUID in canonical text (lower case, with dashes). The name of a segment file says which
session or attempt may still commit it. Garbage collection asks the catalog about these, and never reads the
object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from typing_extensions import override

from core.errors import InvalidInputError

if TYPE_CHECKING:
    from typing import Final

ROOT_PREFIX: Final = "v1/"
INGESTION_PREFIX: Final = "v1/ingest/"
COMPACTION_PREFIX: Final = "v1/compact/"
#: Identity of the store; outside ROOT_PREFIX, where fsck and garbage collection never look.
IDENTITY_NAME: Final = "siltstone-store.json"

#: The local store keeps unfinished files below this name; no object may have it.
RESERVED_COMPONENT: Final = ".unfinished"
MAX_NAME_BYTES: Final = 1024  # UTF-8 bytes, S3's limit on a key
MAX_COMPONENT_BYTES: Final = 255  # UTF-8 bytes, NAME_MAX of common file systems

# Control characters, lone surrogates and non-characters: S3's requests and responses are XML.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_INGESTION = re.compile(rf"v1/ingest/(?P<session>{_UUID})/(?P<file>{_UUID})\.seg")
_COMPACTED = re.compile(rf"v1/compact/(?P<job>{_UUID})/(?P<attempt>{_UUID})/(?P<file>{_UUID})\.seg")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionName:
    """Name of an ingestion file, written by the agent session `session_id`."""

    session_id: UUID
    file_id: UUID

    @override
    def __str__(self) -> str:
        return f"{INGESTION_PREFIX}{self.session_id}/{self.file_id}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedName:
    """Name of a compacted file, written by attempt `attempt_id` of job `job_id`."""

    job_id: UUID
    attempt_id: UUID
    file_id: UUID

    @override
    def __str__(self) -> str:
        return f"{COMPACTION_PREFIX}{self.job_id}/{self.attempt_id}/{self.file_id}.seg"


def ingestion_name(session_id: UUID, file_id: UUID) -> str:
    """Return the name of an ingestion file."""
    return str(IngestionName(session_id=session_id, file_id=file_id))


def compacted_name(job_id: UUID, attempt_id: UUID, file_id: UUID) -> str:
    """Return the name of a compacted file."""
    return str(CompactedName(job_id=job_id, attempt_id=attempt_id, file_id=file_id))


def ingestion_prefix(session_id: UUID) -> str:
    """Return the common prefix of all files of one agent session."""
    return f"{INGESTION_PREFIX}{session_id}/"


def compacted_prefix(job_id: UUID, attempt_id: UUID | None = None) -> str:
    """Return the common prefix of all files of one job, or of one attempt."""
    job = f"{COMPACTION_PREFIX}{job_id}/"
    return job if attempt_id is None else f"{job}{attempt_id}/"


def parse(name: str) -> IngestionName | CompactedName | None:
    """Parse a name; return None if Siltstone did not build it."""
    if match := _INGESTION.fullmatch(name):
        return IngestionName(session_id=UUID(match["session"]), file_id=UUID(match["file"]))
    if match := _COMPACTED.fullmatch(name):
        return CompactedName(
            job_id=UUID(match["job"]), attempt_id=UUID(match["attempt"]), file_id=UUID(match["file"])
        )
    return None


def is_unfinished_name(name: str) -> bool:
    """Return True if the local store could have given this name to a file below `RESERVED_COMPONENT`."""
    return re.fullmatch(_UUID, name) is not None


def check_name(name: str) -> None:
    """Raise InvalidInputError unless `name` is valid in every store: as S3 key and as file path.

    Components are joined by `/`. None is empty, `.` or `..`, contains a character that XML cannot hold, or
    exceeds 255 bytes of UTF-8. The whole name does not exceed 1,024 bytes.
    """
    problem = _problem_with(name)
    if problem:
        raise InvalidInputError(f"{name!r} is not an object name: {problem}")


def is_name(name: str) -> bool:
    """Return True if `check_name` accepts the name."""
    return _problem_with(name) is None


def _problem_with(name: str) -> str | None:
    components = name.split("/")
    encoded = name.encode(errors="replace")  # lone surrogates are detected below
    problems = (
        ("" in components, "a component is empty"),
        ("." in components or ".." in components, "a component is a dot or two"),
        (components[0] == RESERVED_COMPONENT, f"{RESERVED_COMPONENT!r} is reserved"),
        (_UNWRITABLE.search(name), "it has a character that XML cannot hold"),
        (len(encoded) > MAX_NAME_BYTES, f"it exceeds {MAX_NAME_BYTES} bytes"),
        (
            max(map(len, encoded.split(b"/"))) > MAX_COMPONENT_BYTES,
            f"a component exceeds {MAX_COMPONENT_BYTES} bytes",
        ),
    )
    return next((problem for found, problem in problems if found), None)
