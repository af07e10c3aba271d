"""Opening of stores by URL, and error messages for invalid URLs."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from core.clock import ManualClock
from core.errors import InvalidInputError
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from object_store.open import StoreConfig, open_store
from object_store.s3.store import S3Store

if TYPE_CHECKING:
    from pathlib import Path

    from object_store.interface import ObjectStore


def open_config(config: StoreConfig) -> ObjectStore:
    clock = ManualClock()
    return open_store(config, clock, SystemIds(clock))


def test_a_relative_path_becomes_absolute_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = StoreConfig("some where/objects#1")
    assert config.url == (tmp_path / "some where" / "objects#1").as_uri()
    assert config.is_local
    monkeypatch.chdir("/")
    with closing(open_config(config)) as store:
        assert isinstance(store, LocalStore)
        store.put("v1/x", [b"1"], purpose=Purpose.INGEST)
        assert store.url == config.url
    assert (tmp_path / "some where" / "objects#1" / "v1" / "x").read_bytes() == b"1"


def test_a_tilde_means_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert StoreConfig("~/objects").url == "file:///home/somebody/objects"


@pytest.mark.parametrize("url", ["/a/b", "file:///a/b", "file://localhost/a/b", "file:///a/%62"])
def test_each_form_of_a_directory_gives_one_url(url: str) -> None:
    assert StoreConfig(url).url == "file:///a/b"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/some/prefix", "s3://bucket/some/prefix"),
        ("s3://bucket/some/prefix/", "s3://bucket/some/prefix"),
        ("s3://buc.ket-1/what(!)", "s3://buc.ket-1/what(!)"),
    ],
)
def test_each_form_of_a_bucket_gives_one_url(url: str, expected: str) -> None:
    config = StoreConfig(url, "http://127.0.0.1:1")
    assert not config.is_local
    with closing(open_config(config)) as store:
        assert isinstance(store, S3Store)
        assert store.url == expected


def test_a_bucket_needs_no_endpoint() -> None:
    with closing(open_config(StoreConfig("s3://bucket", region="eu-central-1"))) as store:
        assert store.url == "s3://bucket"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gs://bucket",
        "s3://",
        "s3:///prefix",
        "s3://b",
        "s3://bucket//x",
        "s3://bucket/a/../b",
        "file://elsewhere/x",
        "file:///x?y",
        "https://bucket.s3.amazonaws.com",
    ],
)
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(InvalidInputError):
        StoreConfig(url)


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://x", "http://", "http://x:port", "http://[x"])
def test_invalid_endpoints_are_rejected(endpoint: str) -> None:
    with pytest.raises(InvalidInputError):
        StoreConfig("s3://bucket", endpoint)


def test_credentials_in_urls_are_rejected_and_not_repeated() -> None:
    for url, endpoint in [
        ("s3://key:hush@bucket/x", None),
        ("other://key:hush@bucket/x", None),
        ("s3://bucket", "https://key:hush@host"),
        ("s3://bucket", "ftp://key:hush@host"),
    ]:
        with pytest.raises(InvalidInputError) as caught:
            StoreConfig(url, endpoint)
        assert "hush" not in str(caught.value)


def test_a_config_survives_json() -> None:
    config = StoreConfig("s3://bucket/prefix", "http://127.0.0.1:9000", "eu-central-1")
    assert StoreConfig(**json.loads(json.dumps(asdict(config)))) == config
