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
from object_store.names import is_name

if TYPE_CHECKING:
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore

# RFC 3986, section 3.1. A path with a colon further on, such as ./a:b, has no scheme.
_URL_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?:/|$)|(s3|file):", re.IGNORECASE)
_OTHER_SCHEMES = frozenset({"abfs", "azure", "gcs", "gs", "hdfs", "http", "https", "s3a", "s3n", "wasb"})
_CREDENTIALS = re.compile(r"(?![./~]).*:.*@")
_NOT_IN_PREFIX = re.compile(r"[@:?#]")
_FORMS = "write s3://bucket/prefix, file:///absolute/path or a path"
# The newest durations that tell which request is slow: more of them hide a store that has become slower.
_HEDGE_SAMPLES = 2_000
# The rules of S3, plus underscores and capitals, which old buckets and other servers allow
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Location of objects: plain values without secrets that may be logged and sent to Spark tasks.

    A plain path becomes absolute at once, so that it means the same in every process. `endpoint` and `region`
    apply to S3 only; without them, boto3 uses its own sources (environment, profile, instance). `ca_bundle`
    is a PEM file of the authorities that sign the server's certificate; every process needs it at that path.
    """

    url: str
    endpoint: str | None = None
    region: str | None = None
    ca_bundle: str | None = None

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.url.startswith("s3://"):
            check_endpoint(self.endpoint)
        else:
            object.__setattr__(self, "url", _directory(self.url).as_uri())

    @property
    def is_local(self) -> bool:
        """Return True if only processes of this machine, or of a shared file system, can read it."""
        return self.url.startswith("file:")


def open_store(
    config: StoreConfig,
    clock: Clock,
    ids: Ids,
    *,
    probe_timeout_seconds: float | None = None,
    hedges: bool = False,
) -> ObjectStore:
    """Return a store for one process; sends no request. `check` verifies that it can be used.

    With `probe_timeout_seconds`, the store is for probes: it makes one attempt, for about that time. With
    `hedges`, an S3 store repeats reads of ranges, and writes, that take longer than 99.9 % of the last ones.
    A local store has neither.
    """
    if config.is_local:
        return LocalStore(_directory(config.url), ids)
    # boto3 loads slowly and is needed for S3 only
    from object_store.s3.limits import S3Limits  # noqa: PLC0415
    from object_store.s3.store import S3Store  # noqa: PLC0415

    bucket, prefix = _bucket_and_prefix(config.url)
    limits = S3Limits(hedge_samples=_HEDGE_SAMPLES if hedges else None)
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
        ca_bundle=config.ca_bundle,
        clock=clock,
        ids=ids,
        limits=limits,
    )


def check_url(url: str) -> None:
    """Raise InvalidInputError unless `url` is of a supported form; the error contains no part of it."""
    if _scheme(url) == "s3":
        if not url.startswith("s3://"):
            raise InvalidInputError(
                "after s3: come two slashes", remedy=f"{_FORMS} (./s3:… for one of that name)"
            )
        _bucket_and_prefix(url)
    elif _CREDENTIALS.match(url):
        raise InvalidInputError(
            "the object store's URL has no scheme and seems to contain credentials",
            remedy=f"{_FORMS} (./… for a directory of that name); credentials do not belong into the URL",
        )
    else:
        _directory(url)


def _directory(url: str) -> Path:
    if not url:
        raise InvalidInputError("the object store's URL is empty", remedy=_FORMS)
    scheme = _scheme(url)
    if not scheme:
        return Path(url).expanduser().absolute()
    if scheme != "file":
        raise InvalidInputError(_unsupported(url, scheme), remedy=_FORMS)
    if not url.lower().startswith("file://"):
        raise InvalidInputError(
            "after file: come two slashes", remedy=f"{_FORMS} (./file:… for one of that name)"
        )
    host, _, path = url[len("file://") :].partition("/")
    if host not in {"", "localhost"} or "?" in path or "#" in path:
        raise InvalidInputError("the object store's URL does not name a local directory", remedy=_FORMS)
    return Path("/" + unquote(path))


def _scheme(url: str) -> str:
    """Return the scheme of a URL, even if its slashes are missing; empty for a path."""
    found = _URL_SCHEME.match(url)
    return "" if found is None else (found[1] or found[2]).lower()


def _unsupported(url: str, scheme: str) -> str:
    """Return a message that shows only a scheme, and not the part of a secret that looks like one."""
    if "@" in url or scheme not in _OTHER_SCHEMES:
        return (
            "the object store's URL has an unknown scheme, or contains credentials, which do not belong there"
        )
    return f"{scheme}:// is not supported"


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    """Return the bucket, and the prefix without its final slash."""
    # Print no part of the URL: it may contain credentials.
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not bucket and "@" not in url:
        raise InvalidInputError("the object store's URL names no bucket", remedy=_FORMS)
    if not _BUCKET.fullmatch(bucket):
        raise InvalidInputError(
            "the object store's URL has no valid bucket name after s3://",
            remedy=f"{_FORMS}; a bucket's name has at least two letters, digits, dots, dashes or "
            "underscores, and credentials do not belong into the URL",
        )
    prefix = prefix.removesuffix("/")
    if prefix and (not is_name(prefix) or _NOT_IN_PREFIX.search(prefix)):
        raise InvalidInputError(
            "the object store's URL has no valid prefix after the bucket",
            remedy=f"{_FORMS}, without '@', ':', '?' and '#'; credentials do not belong into the URL",
        )
    return bucket, prefix


def check_endpoint(endpoint: str | None) -> None:
    """Raise InvalidInputError unless `endpoint` is the URL of a server, or None."""
    if endpoint is None:
        return
    try:
        parts = urlsplit(endpoint)
        reachable = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
            and parts.path in {"", "/"}
            and not parts.query
            and not parts.fragment
        )
    except ValueError:
        reachable = False
    # Do not print the endpoint either.
    if not reachable or "@" in endpoint:
        raise InvalidInputError(
            "the S3 endpoint is not a URL such as http://127.0.0.1:9000",
            remedy="correct it; credentials do not belong into it",
        )
