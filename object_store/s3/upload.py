"""Writes of S3 objects: whole, only if the name is free, or in parts.

If the response to a write is lost, the write may have succeeded. A retry is then rejected as if another
caller had taken the name. Such writes therefore carry a token in the object's metadata. A rejection counts
only if the existing object carries another token.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from core.errors import SiltstoneError
from object_store.errors import ObjectExistsError, StoreClosedError
from object_store.s3.errors import error_code, is_lost_upload, is_refused_condition, is_transient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from typing import Final

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

    from object_store.accounting import Purpose
    from object_store.interface import Buffer
    from object_store.s3.client import S3Calls

#: Metadata that names the writing call (`x-amz-meta-siltstone-writer` on the wire).
WRITER_METADATA: Final = "siltstone-writer"

# The part size doubles after this many parts. With a first part of 8 MiB, S3's 10,000 parts hold
# 8 TiB, more than S3's largest object (5 TiB), and no part exceeds S3's 5 GiB. Up to 8 GiB all parts have
# one size, as some other servers require.
_PARTS_PER_DOUBLING: Final = 1000


def joined(body: Sequence[Buffer]) -> bytes:
    """Return the concatenation of `body`, without a copy if it is one buffer that the client accepts.

    A file-like object over the buffers would avoid the copy, but is not faster (`benchmarks.object_store`
    measures both): the client reads it twice and sends it in pieces of 16 KiB. It would also wait a round
    trip for the server's consent ("Expect: 100-continue") before sending.
    """
    if len(body) == 1 and isinstance(body[0], bytes | bytearray):
        return cast("bytes", body[0])  # the stubs omit that the client accepts a bytearray
    # Not bytes: the client would copy those again, to send them together with its headers.
    return cast("bytes", bytearray().join(body))


def part_size(index: int, first: int) -> int:
    """Return the size of part `index` (from 0) if the first part has `first` bytes."""
    return first << (index // _PARTS_PER_DOUBLING)


class OwnWrite:
    """Distinguishes a caller's own write, whose response was lost, from another caller's."""

    def __init__(self, calls: S3Calls, key: str, name: str, purpose: Purpose) -> None:
        self._calls = calls
        self._key = key
        self._name = name
        self._purpose = purpose
        self.metadata = {WRITER_METADATA: str(calls.ids.new_uuid())}
        self._in_doubt = False

    def doubt(self, error: Exception) -> None:
        """Remember that an attempt failed in a way that leaves its effect unknown."""
        self._in_doubt = self._in_doubt or is_transient(error)

    def happened(self) -> bool:
        """Return True if the existing object was written by an earlier attempt of this caller."""
        if not self._in_doubt:
            return False
        found = self._calls.send(
            f"checking the writer of {self._name!r}",
            self._purpose,
            lambda client: client.head_object(Bucket=self._calls.bucket, Key=self._key)["Metadata"],
            on_fault=lambda error: {} if error_code(error) in {"404", "NoSuchKey"} else None,
        )
        return found.get(WRITER_METADATA) == self.metadata[WRITER_METADATA]


def create(calls: S3Calls, key: str, name: str, body: Sequence[Buffer], purpose: Purpose) -> int:
    """PUT an object if its name is free (`If-None-Match: *`); return its size."""
    data = joined(body)
    own = OwnWrite(calls, key, name, purpose)

    def request(client: S3Client) -> int:
        client.put_object(Bucket=calls.bucket, Key=key, Body=data, IfNoneMatch="*", Metadata=own.metadata)
        return len(data)

    def on_fault(error: Exception) -> int | None:
        if is_refused_condition(error):
            if own.happened():
                return len(data)
            raise ObjectExistsError(f"{name!r} exists in {calls.place}") from error
        own.doubt(error)
        return None

    return calls.send(f"creating {name!r}", purpose, request, on_fault=on_fault)


class S3Upload:
    """An `Upload` of many parts; one part is sent while the next is filled, so memory holds two.

    An object that fits into one part is written with a single PUT. For one thread at a time.
    """

    def __init__(self, calls: S3Calls, key: str, name: str, purpose: Purpose) -> None:
        self._calls = calls
        self._key = key
        self._name = name
        self._purpose = purpose
        self._filling = bytearray()
        self._size = 0
        self._upload_id: str | None = None
        self._own = OwnWrite(calls, key, name, purpose)
        self._sender: ThreadPoolExecutor | None = None
        self._in_flight: Future[str] | None = None
        self._parts: list[CompletedPartTypeDef] = []
        self._ended = False

    def write(self, data: Buffer) -> None:
        """Take bytes; send a part when it is full, and wait for the part before it."""
        self._require_open()
        rest = memoryview(data).cast("B")
        self._size += len(rest)
        while len(rest):
            free = part_size(self._part_count, self._calls.limits.part_size) - len(self._filling)
            if not free:
                self._send_part()
                continue
            self._filling += rest[:free]
            rest = rest[free:]

    def complete(self) -> int:
        """Send the rest and make the object visible."""
        self._require_open()
        if self._upload_id is None:
            self._put_whole()
        else:
            if self._filling:
                self._send_part()
            self._receive_part()
            self._complete_parts(self._upload_id)
        self._end()
        return self._size

    def abort(self) -> None:
        """Drop the parts; `sweep_unfinished` removes those that cannot be dropped now."""
        if self._ended:
            return
        upload_id = self._upload_id
        self._end()  # a part that arrives after the abort would remain
        if upload_id is not None:
            with suppress(SiltstoneError):
                self._calls.send(
                    f"aborting the upload of {self._name!r}",
                    self._purpose,
                    lambda client: client.abort_multipart_upload(
                        Bucket=self._calls.bucket, Key=self._key, UploadId=upload_id
                    ),
                )

    @property
    def _part_count(self) -> int:
        return len(self._parts) + (self._in_flight is not None)

    def _put_whole(self) -> None:
        body = joined([self._filling])
        self._calls.send(
            f"writing {self._name!r}",
            self._purpose,
            lambda client: client.put_object(Bucket=self._calls.bucket, Key=self._key, Body=body),
        )

    def _send_part(self) -> None:
        self._receive_part()
        if self._upload_id is None:
            self._upload_id = self._start()
        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, thread_name_prefix="s3-part")
        body, self._filling = joined([self._filling]), bytearray()
        self._in_flight = self._sender.submit(self._put_part, self._upload_id, len(self._parts) + 1, body)

    def _receive_part(self) -> None:
        if self._in_flight is not None:
            part, self._in_flight = self._in_flight, None
            self._parts.append({"PartNumber": len(self._parts) + 1, "ETag": part.result()})

    def _start(self) -> str:
        return self._calls.send(
            f"starting the upload of {self._name!r}",
            self._purpose,
            lambda client: client.create_multipart_upload(
                Bucket=self._calls.bucket, Key=self._key, Metadata=self._own.metadata
            )["UploadId"],
        )

    def _put_part(self, upload_id: str, number: int, body: bytes) -> str:
        return self._calls.send(
            f"writing part {number} of {self._name!r}",
            self._purpose,
            lambda client: client.upload_part(
                Bucket=self._calls.bucket, Key=self._key, UploadId=upload_id, PartNumber=number, Body=body
            )["ETag"],
        )

    def _complete_parts(self, upload_id: str) -> None:
        def request(client: S3Client) -> bool:
            client.complete_multipart_upload(
                Bucket=self._calls.bucket,
                Key=self._key,
                UploadId=upload_id,
                MultipartUpload={"Parts": self._parts},
            )
            return True

        def on_fault(error: Exception) -> bool | None:
            if is_lost_upload(error) and self._own.happened():
                return True
            self._own.doubt(error)
            return None

        self._calls.send(f"completing {self._name!r}", self._purpose, request, on_fault=on_fault)

    def _end(self) -> None:
        """Release all memory, after the part that is on its way."""
        self._ended = True
        self._filling = bytearray()
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None

    def _require_open(self) -> None:
        if self._ended:
            raise StoreClosedError(f"the upload of {self._name!r} has ended")
