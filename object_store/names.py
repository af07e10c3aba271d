"""The only module that builds and parses object names.

::

    v2/<hash>/ingest/<session>/<file>.seg           ingestion file, below the prefix of the agent's session
    v2/<hash>/compact/<job>/<attempt>/<file>.seg    compacted file of one attempt at a job

    siltstone-store.json                            identity of the store: see `object_store.binding`
    v2/write-check                                  written by workers to check their permissions

`<hash>` is two hexadecimal digits of a hash of the session or job. S3 spreads a bucket over servers by the
first bytes of the names. Sessions and jobs are UUIDv7, which begin with the time, so that without the hash
all names of an hour would share their first bytes.

Earlier versions wrote names without the hash, below `v1/`: `v1/ingest/<session>/<file>.seg` and
`v1/compact/<job>/<attempt>/<file>.seg`. They are parsed, read and deleted, and never built any more.

The identity is outside `v1/` and `v2/`, so that walks over segment files never meet it.

Every other `<…>` is a UUID in canonical text (lower case, with dashes). The name of a segment file says which
session or attempt may still commit it. Garbage collection asks the catalog about these, and never reads the
object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING
from uuid import UUID

from typing_extensions import override

from core.errors import InvalidInputError

if TYPE_CHECKING:
    from typing import Final

#: Every segment file is below one of these; in the order of their names.
UNHASHED_PREFIX: Final = "v1/"
HASHED_PREFIX: Final = "v2/"
ROOT_PREFIXES: Final = (UNHASHED_PREFIX, HASHED_PREFIX)
#: What ROOT_PREFIXES have in common, for one listing of both; other objects may begin with it.
COMMON_PREFIX: Final = "v"
#: Identity of the store; outside ROOT_PREFIXES, where fsck and garbage collection never look.
IDENTITY_NAME: Final = "siltstone-store.json"

#: Written by each worker of Spark before it runs jobs, and never read.
WRITE_CHECK_NAME: Final = f"{HASHED_PREFIX}write-check"

#: The local store keeps unfinished files below this name; no object may have it.
RESERVED_COMPONENT: Final = ".unfinished"
MAX_NAME_BYTES: Final = 1024  # UTF-8 bytes, S3's limit on a key
MAX_COMPONENT_BYTES: Final = 255  # UTF-8 bytes, NAME_MAX of common file systems

# Control characters, lone surrogates and non-characters: S3's requests and responses are XML.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ROOT = r"v1/|v2/(?P<hash>[0-9a-f]{2})/"
_INGESTION = re.compile(rf"(?:{_ROOT})ingest/(?P<session>{_UUID})/(?P<file>{_UUID})\.seg")
_COMPACTED = re.compile(rf"(?:{_ROOT})compact/(?P<job>{_UUID})/(?P<attempt>{_UUID})/(?P<file>{_UUID})\.seg")


class Layout(Enum):
    """Layout of names: with the hash of the owner first, or without it (read and deleted only)."""

    UNHASHED = "v1"
    HASHED = "v2"

    def root(self, owner_id: UUID) -> str:
        """Return the prefix of all files of an owner, session or job, up to the kind of its files."""
        if self is Layout.UNHASHED:
            return UNHASHED_PREFIX
        return f"{HASHED_PREFIX}{blake2b(owner_id.bytes, digest_size=1).hexdigest()}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionName:
    """Name of an ingestion file, written by the agent session `session_id`."""

    session_id: UUID
    file_id: UUID
    layout: Layout = Layout.HASHED

    @override
    def __str__(self) -> str:
        return f"{ingestion_prefix(self.session_id, self.layout)}{self.file_id}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedName:
    """Name of a compacted file, written by attempt `attempt_id` of job `job_id`."""

    job_id: UUID
    attempt_id: UUID
    file_id: UUID
    layout: Layout = Layout.HASHED

    @override
    def __str__(self) -> str:
        return f"{compacted_prefix(self.job_id, self.attempt_id, self.layout)}{self.file_id}.seg"


def ingestion_name(session_id: UUID, file_id: UUID) -> str:
    """Return the name of an ingestion file."""
    return str(IngestionName(session_id=session_id, file_id=file_id))


def compacted_name(job_id: UUID, attempt_id: UUID, file_id: UUID) -> str:
    """Return the name of a compacted file."""
    return str(CompactedName(job_id=job_id, attempt_id=attempt_id, file_id=file_id))


def ingestion_prefix(session_id: UUID, layout: Layout = Layout.HASHED) -> str:
    """Return the common prefix of all files of one agent session."""
    return f"{layout.root(session_id)}ingest/{session_id}/"


def compacted_prefix(job_id: UUID, attempt_id: UUID | None = None, layout: Layout = Layout.HASHED) -> str:
    """Return the common prefix of all files of one job, or of one attempt."""
    job = f"{layout.root(job_id)}compact/{job_id}/"
    return job if attempt_id is None else f"{job}{attempt_id}/"


def parse(name: str) -> IngestionName | CompactedName | None:
    """Parse a name; return None if Siltstone did not build it."""
    parsed: IngestionName | CompactedName
    if match := _INGESTION.fullmatch(name):
        parsed = IngestionName(
            session_id=UUID(match["session"]), file_id=UUID(match["file"]), layout=_layout(match)
        )
    elif match := _COMPACTED.fullmatch(name):
        parsed = CompactedName(
            job_id=UUID(match["job"]),
            attempt_id=UUID(match["attempt"]),
            file_id=UUID(match["file"]),
            layout=_layout(match),
        )
    else:
        return None
    return parsed if str(parsed) == name else None  # the hash must be that of the owner


def _layout(match: re.Match[str]) -> Layout:
    return Layout.UNHASHED if match["hash"] is None else Layout.HASHED


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
