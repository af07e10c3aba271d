"""The one module that builds and parses object names.

::

    v1/ingest/<session>/<file>.seg             what an agent writes, below its session's prefix
    v1/compact/<job>/<attempt>/<file>.seg      what one attempt at a compaction job writes

    siltstone-store.json                       which store this is: see `object_store.binding`

The last lies beside `v1/`, so that nothing that walks over segment files meets it.

Every `<…>` is a UUID in its canonical text (lower case, with dashes). A segment file's name says who may
still commit it: garbage collection asks for the session or the attempt, never for the object's content.
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
#: Says which store this is; outside of ROOT_PREFIX, where fsck and garbage collection never look.
IDENTITY_NAME: Final = "siltstone-store.json"

#: The local store keeps what is not finished below this name; no object may be called so.
RESERVED_COMPONENT: Final = ".unfinished"
LONGEST_NAME: Final = 1024  # UTF-8 bytes, S3's limit on a key
LONGEST_COMPONENT: Final = 255  # UTF-8 bytes, NAME_MAX of the usual file systems

# Control characters, lone surrogates and non-characters: S3's requests and answers are XML.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_INGESTION = re.compile(rf"v1/ingest/(?P<session>{_UUID})/(?P<file>{_UUID})\.seg")
_COMPACTED = re.compile(rf"v1/compact/(?P<job>{_UUID})/(?P<attempt>{_UUID})/(?P<file>{_UUID})\.seg")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionName:
    """An ingestion file: written by the agent session `session_id`."""

    session_id: UUID
    file_id: UUID

    @override
    def __str__(self) -> str:
        return f"{INGESTION_PREFIX}{self.session_id}/{self.file_id}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedName:
    """A compacted file: written by attempt `attempt_id` at job `job_id`."""

    job_id: UUID
    attempt_id: UUID
    file_id: UUID

    @override
    def __str__(self) -> str:
        return f"{COMPACTION_PREFIX}{self.job_id}/{self.attempt_id}/{self.file_id}.seg"


def ingestion_name(session_id: UUID, file_id: UUID) -> str:
    """The name of one ingestion file."""
    return str(IngestionName(session_id=session_id, file_id=file_id))


def compacted_name(job_id: UUID, attempt_id: UUID, file_id: UUID) -> str:
    """The name of one compacted file."""
    return str(CompactedName(job_id=job_id, attempt_id=attempt_id, file_id=file_id))


def ingestion_prefix(session_id: UUID) -> str:
    """What the names of all files of one agent session start with."""
    return f"{INGESTION_PREFIX}{session_id}/"


def compacted_prefix(job_id: UUID, attempt_id: UUID | None = None) -> str:
    """What the names of all files of one job, or of one attempt at it, start with."""
    job = f"{COMPACTION_PREFIX}{job_id}/"
    return job if attempt_id is None else f"{job}{attempt_id}/"


def parse(name: str) -> IngestionName | CompactedName | None:
    """What a name says; None when Siltstone did not build it."""
    if match := _INGESTION.fullmatch(name):
        return IngestionName(session_id=UUID(match["session"]), file_id=UUID(match["file"]))
    if match := _COMPACTED.fullmatch(name):
        return CompactedName(
            job_id=UUID(match["job"]), attempt_id=UUID(match["attempt"]), file_id=UUID(match["file"])
        )
    return None


def is_unfinished_name(name: str) -> bool:
    """Whether a file below `RESERVED_COMPONENT` is called as the local store calls what it writes."""
    return re.fullmatch(_UUID, name) is not None


def check_name(name: str) -> None:
    """Refuse what is no object name in every store: the rules that S3 keys and file paths share.

    Components are joined by `/`; none is empty, `.` or `..`, has a character that XML cannot hold, or exceeds
    255 bytes of UTF-8; the whole does not exceed 1,024.
    """
    problem = _problem_with(name)
    if problem:
        raise InvalidInputError(f"{name!r} is no object name: {problem}")


def is_name(name: str) -> bool:
    """Whether `check_name` accepts it."""
    return _problem_with(name) is None


def _problem_with(name: str) -> str | None:
    components = name.split("/")
    encoded = name.encode(errors="replace")  # a lone surrogate is found below
    problems = (
        ("" in components, "a component is empty"),
        ("." in components or ".." in components, "a component is a dot or two"),
        (components[0] == RESERVED_COMPONENT, f"{RESERVED_COMPONENT!r} is reserved"),
        (_UNWRITABLE.search(name), "it has a character that XML cannot hold"),
        (len(encoded) > LONGEST_NAME, f"it exceeds {LONGEST_NAME} bytes"),
        (
            max(map(len, encoded.split(b"/"))) > LONGEST_COMPONENT,
            f"a component exceeds {LONGEST_COMPONENT} bytes",
        ),
    )
    return next((problem for found, problem in problems if found), None)
