"""Error messages for an S3 store that cannot be used as it is configured."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from core.clock import ManualClock
from core.ids import SystemIds
from object_store.accounting import Purpose, Tally
from object_store.errors import StoreAccessError, StoreUnavailableError
from object_store.names import compacted_name
from object_store.open import StoreConfig, open_store
from tests.fixtures.s3 import S3_ENVIRONMENT, bucket_of, needs_moto
from tests.object_store.s3.fault_proxy import Fault, running_proxy

if TYPE_CHECKING:
    from object_store.interface import ObjectStore
    from tests.fixtures.s3 import S3Server


def open_config(config: StoreConfig) -> ObjectStore:
    clock = ManualClock()
    return open_store(config, clock, SystemIds(clock))


def test_a_missing_bucket_is_reported_with_a_remedy_and_not_created(s3_server: S3Server) -> None:
    config = StoreConfig("s3://no-such-bucket/x", s3_server.endpoint, "us-east-1")
    for _ in range(2):
        with closing(open_config(config)) as store, pytest.raises(StoreAccessError) as caught:
            store.check()
        assert f"bucket 'no-such-bucket' at {s3_server.endpoint}" in str(caught.value)
        assert "create the bucket" in str(caught.value)


@needs_moto  # SeaweedFS creates the bucket
def test_a_write_into_a_missing_bucket_is_rejected(s3_server: S3Server) -> None:
    config = StoreConfig("s3://no-such-bucket/x", s3_server.endpoint, "us-east-1")
    with closing(open_config(config)) as store, pytest.raises(StoreAccessError, match="NoSuchBucket"):
        store.put("v1/x", [b"1"], purpose=Purpose.INGEST)


def test_missing_credentials_are_reported_before_any_request(
    s3_config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with closing(open_config(s3_config)) as store:
        with pytest.raises(StoreAccessError, match="set AWS_ACCESS_KEY_ID"):
            store.check()
        assert store.counts.snapshot().of() == Tally()


def test_incomplete_credentials_are_rejected(s3_config: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreAccessError) as caught:
        open_config(s3_config).check()
    assert "AWS_SECRET_ACCESS_KEY" in str(caught.value)


def test_an_unknown_profile_is_reported(s3_config: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreAccessError, match="nobody"):
        open_config(s3_config)


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "AccessDenied", "allow these credentials"),
        (403, "InvalidAccessKeyId", "set AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "correct the secret key"),
        (403, "RequestTimeTooSkewed", "clock"),
        (400, "ExpiredToken", "renew"),
        (400, "AuthorizationHeaderMalformed", "region"),
        (405, "MethodNotAllowed", "see the server's message"),
        (501, "NotImplemented", "this operation or one of its headers"),
    ],
)
def test_a_denied_request_is_reported_with_a_remedy_and_without_secrets(
    s3_server: S3Server, s3_config: StoreConfig, status: int, code: str, remedy: str
) -> None:
    with running_proxy(s3_server.endpoint) as proxy:
        proxy.plan(Fault(method="GET", status=status, code=code, times=10))
        with (
            closing(open_config(replace(s3_config, endpoint=proxy.endpoint))) as store,
            pytest.raises(StoreAccessError) as caught,
        ):
            store.check()
    text = str(caught.value)
    assert code in text
    assert remedy in text
    assert s3_config.url.split("/")[2] in text
    assert not any(S3_ENVIRONMENT[name] in text for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))


def test_an_unreachable_server_counts_as_no_request(s3_config: StoreConfig) -> None:
    with socket.socket() as reserved:  # bound but not listening: connections are refused
        reserved.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        with closing(open_config(replace(s3_config, endpoint=endpoint))) as store:
            with pytest.raises(StoreUnavailableError, match=endpoint):
                store.check()
            tally = store.counts.snapshot().of()
            assert tally.requests == 0
            assert tally.errors == tally.retries + 1


def test_a_broken_tls_handshake_is_retryable(s3_server: S3Server) -> None:
    """Only an untrusted certificate requires a change of settings."""
    config = StoreConfig("s3://bucket", s3_server.endpoint.replace("http:", "https:"), "us-east-1")
    with closing(open_config(config)) as store, pytest.raises(StoreUnavailableError, match="SSL"):
        store.check()


@pytest.mark.parametrize("prefix", ["", "/shared"])
def test_a_sweep_keeps_foreign_uploads(s3_server: S3Server, s3_config: StoreConfig, prefix: str) -> None:
    """A bucket and a prefix may be shared with other applications."""
    client = s3_server.client()
    bucket = bucket_of(s3_config)
    below = prefix.removeprefix("/") + "/" * bool(prefix)
    foreign = [f"{below}backup.tar", f"{below}v1/backup.tar", "elsewhere/backup.tar"]
    ours = below + compacted_name(*[UUID(int=1)] * 3)
    for key in [*foreign, ours]:
        client.create_multipart_upload(Bucket=bucket, Key=key)
    with closing(open_config(replace(s3_config, url=f"s3://{bucket}{prefix}"))) as store:
        assert store.sweep_unfinished(1 << 50, purpose=Purpose.GC) == 1
    unfinished = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert sorted(upload["Key"] for upload in unfinished) == sorted(foreign)
