"""The proxy delays requests. Otherwise tests of requests that arrive late would pass and show nothing."""

from __future__ import annotations

from contextlib import suppress
from http.client import HTTPConnection, RemoteDisconnected
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.object_store.s3 import fault_proxy
from tests.object_store.s3.fault_proxy import Fault, running_proxy
from tests.object_store.s3.test_unknown_outcomes import await_late

if TYPE_CHECKING:
    from tests.object_store.s3.fault_proxy import FaultProxy


@pytest.mark.parametrize("lose_response", [False, True])
def test_a_delayed_request_reaches_the_server_after_the_delay(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, *, lose_response: bool
) -> None:
    """A client that loses the response is disconnected before the delay."""
    slept: list[tuple[float, int]] = []

    def sleep(seconds: float) -> None:
        if seconds:
            slept.append((seconds, proxy.count("GET")))

    monkeypatch.setattr(fault_proxy, "time", SimpleNamespace(sleep=sleep))
    with running_proxy(proxy.endpoint) as delaying:
        delaying.plan(Fault(method="GET", delay_seconds=0.15, lose_response=lose_response))
        address = urlsplit(delaying.endpoint)
        assert address.hostname is not None
        client = HTTPConnection(address.hostname, address.port, timeout=240)
        client.request("GET", "/")
        with suppress(RemoteDisconnected):
            client.getresponse().read()
            assert not lose_response
        client.close()
        if lose_response:
            await_late(delaying)
    assert slept == [(0.15, 0)]
    assert (proxy.count("GET"), delaying.late) == (1, int(lose_response))
