"""Request loop of the drivers in Python: one request and one response per line of JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def serve(actions: Mapping[str, Callable[..., Any]]) -> None:
    """Serve requests until the input ends."""
    for line in sys.stdin.buffer:
        request = orjson.loads(line)
        try:
            response = {"result": actions[request.pop("do")](**request)}
        except Exception as failure:  # noqa: BLE001  # the test fails with it
            response = {"error": f"{type(failure).__name__}: {failure}"}
        sys.stdout.buffer.write(orjson.dumps(response, option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
