"""S3 over TLS: boto3 verifies the server's certificate with the authorities of `ca_bundle`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from object_store.errors import StoreAccessError
from object_store.open import open_store
from tests.fixtures.certificates import Authority
from tests.fixtures.tls_proxy import running_tls_proxy

if TYPE_CHECKING:
    from pathlib import Path

    from core.clock import ManualClock
    from core.ids import Ids
    from object_store.open import StoreConfig

pytestmark = [pytest.mark.integration]


def test_only_a_certificate_of_the_bundle_is_accepted(
    s3_config: StoreConfig, clock: ManualClock, ids: Ids, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "x").mkdir()
    stranger = Authority(tmp_path / "x", "stranger")
    url = urlsplit(s3_config.endpoint or "")
    assert url.hostname is not None
    assert url.port is not None
    right, elsewhere = authority.issue("right", "127.0.0.1"), authority.issue("elsewhere", "s3.example")
    for issued, bundle, is_accepted in (
        (right, authority, True),
        (right, stranger, False),
        (elsewhere, authority, False),
    ):
        with running_tls_proxy(issued, (url.hostname, url.port)) as port:
            config = replace(s3_config, endpoint=f"https://127.0.0.1:{port}", ca_bundle=str(bundle.file))
            with closing(open_store(config, clock, ids)) as store:
                if is_accepted:
                    store.check()
                    continue
                with pytest.raises(StoreAccessError, match=r"SSL validation failed.*s3_ca_bundle"):
                    store.check()


def test_a_missing_bundle_is_named(s3_config: StoreConfig, clock: ManualClock, ids: Ids) -> None:
    with pytest.raises(StoreAccessError, match=r"no file /absent\.pem.*s3_ca_bundle"):
        open_store(replace(s3_config, ca_bundle="/absent.pem"), clock, ids)
