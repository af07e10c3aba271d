"""Translation of the S3 client's errors, and the decision which of them are transient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    ResponseStreamingError,
    SSLError,
)
from botocore.exceptions import (
    ConnectionError as BotoConnectionError,
)
from botocore.parsers import ResponseParserError
from typing_extensions import override
from urllib3.exceptions import HTTPError

from object_store.errors import (
    ObjectNotFoundError,
    StoreAccessError,
    StoreUnavailableError,
    UploadLostError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from core.errors import SiltstoneError

#: Exceptions of a request.
REQUEST_FAULTS: Final = (ClientError, BotoCoreError, ResponseParserError)
#: Exceptions of reading a body: the client wraps only some network faults.
BODY_FAULTS: Final = (BotoCoreError, HTTPError, OSError)

# As botocore's "standard" mode, plus 408 and 429, which other servers and proxies return
_TRANSIENT_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_TRANSIENT_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "ConditionalRequestConflict",  # another conditional write is in flight
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_TRANSIENT_FAULTS: Final = (BotoConnectionError, HTTPClientError, ResponseStreamingError, ResponseParserError)

# Operations on an upload, which need no existing object
_OF_UPLOADS: Final = frozenset({"UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload"})

_WRONG_CERTIFICATE: Final = ("CERTIFICATE_VERIFY_FAILED", "doesn't match")  # of OpenSSL and of urllib3
_CREDENTIALS_REMEDY: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile in AWS_PROFILE, "
    "or use an instance's role"
)
_REFUSALS: Final = frozenset({"AccessDenied", "403"})  # the latter in responses to HEAD
#: Permissions of S3 by the client's operation.
_PERMISSIONS: Final[Mapping[str, str]] = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "PutObject": "s3:PutObject",
    "UploadPart": "s3:PutObject",
}
_REMEDIES: Final[Mapping[str, str]] = {
    "NoSuchBucket": "create the bucket, or correct its name or the endpoint",
    "InvalidBucketName": "correct the bucket's name",
    "AllAccessDisabled": "choose another bucket",
    "InvalidAccessKeyId": _CREDENTIALS_REMEDY,
    "SignatureDoesNotMatch": "correct the secret key, and the region if the server has one",
    "ExpiredToken": "renew the session's credentials",
    "InvalidToken": "renew the session's credentials",
    "RequestTimeTooSkewed": "set this machine's clock",
    "PermanentRedirect": "give the bucket's region",
    "AuthorizationHeaderMalformed": "give the bucket's region",
    "IllegalLocationConstraintException": "give the bucket's region",
    "NotImplemented": (
        "use another server: this one lacks this operation or one of its headers; "
        "siltstone check-store tries all that are needed"
    ),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Bucket and server, for messages."""

    bucket: str
    endpoint: str

    @override
    def __str__(self) -> str:
        return f"bucket {self.bucket!r} at {self.endpoint}"


def error_code(error: BaseException) -> str:
    """Return the server's error code, such as `NoSuchKey`; for HEAD it is only the status."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def is_transient(error: BaseException) -> bool:
    """Return True if the same request may succeed later. Then it is unknown whether it took effect."""
    if isinstance(error, ClientError):
        return _status(error) in _TRANSIENT_STATUS or error_code(error) in _TRANSIENT_CODES
    if isinstance(error, SSLError):
        return not any(each in str(error) for each in _WRONG_CERTIFICATE)
    return isinstance(error, _TRANSIENT_FAULTS)


def partial_fault(code: str, message: str) -> ClientError | None:
    """Return the fault of one key in the response to DeleteObjects if it is transient, otherwise None."""
    if code not in _TRANSIENT_CODES:
        return None
    error = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 200}}
    return ClientError(error, "DeleteObjects")  # type: ignore[arg-type]  # other fields are optional in fact


def is_refused_condition(error: BaseException) -> bool:
    """Return True if a conditional write was rejected because the name is taken."""
    return isinstance(error, ClientError) and _status(error) == 412


def is_lost_upload(error: BaseException) -> bool:
    """Return True if the server has no such upload (any more): it was completed or aborted.

    S3Proxy reports such an upload as a missing key.
    """
    if not isinstance(error, ClientError):
        return False
    code = error_code(error)
    return code == "NoSuchUpload" or (code == "NoSuchKey" and error.operation_name in _OF_UPLOADS)


def translate(
    error: ClientError | BotoCoreError | ResponseParserError, doing: str, place: Place
) -> SiltstoneError:
    """Return the store's error for a request that failed finally. It never contains credentials."""
    if is_transient(error):
        unreachable = isinstance(error, BotoConnectionError)
        return StoreUnavailableError(
            f"{doing} failed in {place}: {error}",
            remedy="check that the server runs, and that the endpoint is its URL" if unreachable else None,
        )
    if not isinstance(error, ClientError):
        return StoreAccessError(f"{doing} failed in {place}: {error}", remedy=_remedy_for_client(error))
    if is_lost_upload(error):
        return UploadLostError(f"{doing} failed in {place}: the upload was swept away as unfinished")
    code = error_code(error)
    if code in {"NoSuchKey", "404", "NoSuchVersion"}:
        return ObjectNotFoundError(f"{doing} failed: there is no such object in {place}")
    message = error.response.get("Error", {}).get("Message", "")
    return StoreAccessError(
        f"{doing} was rejected in {place}: {code} {message}".rstrip(),
        remedy=_remedy_for_rejection(code, error.operation_name),
    )


def _remedy_for_rejection(code: str, operation: str) -> str:
    if code in _REFUSALS and operation in _PERMISSIONS:
        return f"allow these credentials {_PERMISSIONS[operation]} here, in their or the bucket's policy"
    return _REMEDIES.get(code, "see the server's message")


def _remedy_for_client(error: BotoCoreError | ResponseParserError) -> str:
    if isinstance(error, SSLError):
        return "name the server's certificate authority in s3_ca_bundle"
    return _CREDENTIALS_REMEDY
