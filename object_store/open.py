"""Open a store by URL.

::

    s3://bucket, s3://bucket/some/prefix     with an endpoint for servers other than Amazon's
    file:///absolute/path, or a plain path    a local directory
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from core.errors import InvalidInputError
from object_store.local.store import LocalStore
from object_store.names import check_name

if TYPE_CHECKING:
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore

_FORMS = "write s3://bucket/prefix, file:///absolute/path or a path"
# The rules of S3, plus underscores and capitals, which old buckets and other servers allow
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Location of objects: plain values without secrets that may be logged and sent to Spark tasks.

    A plain path becomes absolute at once, so that it means the same in every process. `endpoint` and `region`
    apply to S3 only; without them, boto3 uses its own sources (environment, profile, instance).
    """

    url: str
    endpoint: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        if self.url.startswith("s3://"):
            _bucket_and_prefix(self.url)
            _check_endpoint(self.endpoint)
        else:
            object.__setattr__(self, "url", _directory(self.url).as_uri())

    @property
    def is_local(self) -> bool:
        """Return True if only processes of this machine, or of a shared file system, can read it."""
        return self.url.startswith("file:")


def open_store(
    config: StoreConfig, clock: Clock, ids: Ids, *, probe_timeout_seconds: float | None = None
) -> ObjectStore:
    """Return a store for one process; sends no request. `check` verifies that it can be used.

    With `probe_timeout_seconds`, the store is for probes: it makes one attempt, for about that time. A local
    store has no timeouts.
    """
    if config.is_local:
        return LocalStore(_directory(config.url), ids)
    # boto3 loads slowly and is needed for S3 only
    from object_store.s3.client import S3Limits  # noqa: PLC0415
    from object_store.s3.store import S3Store  # noqa: PLC0415

    bucket, prefix = _bucket_and_prefix(config.url)
    limits = S3Limits()
    if probe_timeout_seconds is not None:
        limits = S3Limits(
            attempts=1,
            resumes=0,
            connections=1,
            connect_timeout_seconds=probe_timeout_seconds,
            read_timeout_seconds=probe_timeout_seconds,
        )
    return S3Store(
        bucket,
        prefix,
        endpoint=config.endpoint,
        region=config.region,
        clock=clock,
        ids=ids,
        limits=limits,
    )


def _directory(url: str) -> Path:
    if not url:
        raise InvalidInputError("the object store's URL is empty", remedy=_FORMS)
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Path(url).expanduser().absolute()
    if scheme != "file":
        # Print only the scheme: the rest may contain a password.
        raise InvalidInputError(f"unknown kind of object store: {scheme!r}", remedy=_FORMS)
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment or not path.is_absolute():
        raise InvalidInputError(f"{url!r} does not name a local directory", remedy=_FORMS)
    return path


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    """Return the bucket, and the prefix without its final slash."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        # Do not print the URL: it may contain credentials.
        raise InvalidInputError(
            "the object store's URL has no valid bucket name after s3://",
            remedy=f"{_FORMS}; a bucket's name has at least two letters, digits, dots, dashes or "
            "underscores, and credentials do not belong into the URL",
        )
    prefix = prefix.removesuffix("/")
    if prefix:
        check_name(prefix)
    return bucket, prefix


def _check_endpoint(endpoint: str | None) -> None:
    if endpoint is None:
        return
    try:
        parts = urlsplit(endpoint)
        reachable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        reachable = False
    # Do not print the endpoint either.
    if not reachable or "@" in endpoint:
        raise InvalidInputError(
            "the S3 endpoint is not of the form http://host:port or https://host:port",
            remedy="correct it; credentials do not belong into it",
        )
